"""The videos of one connection, of which one is shown.

Owns    the tracks, the way from a packet to its track, the decoder of the track that is shown.
Shown   the newest video that the publisher sends. When it ends, the one before is shown again.
Thread  `liveedge-webrtc`, except what says that any may call it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from liveedge.core.clock import Clock
from liveedge.media.published import Publisher
from liveedge.media.webrtc.answer import SectionAnswer, extension_ids
from liveedge.media.webrtc.decoder import TrackDecoder
from liveedge.media.webrtc.router import Router
from liveedge.media.webrtc.rtp import (
    ExtensionIds,
    Goodbye,
    SenderReport,
    bitrate_cap,
    read_rtcp,
    read_rtp,
    receiver_report,
)
from liveedge.media.webrtc.session import SessionStats
from liveedge.media.webrtc.track import VideoTrack

log = logging.getLogger("liveedge.media")

END_WITHIN_S = 5.0


class Tracks:
    """See the module."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        clock: Clock,
        label: str,
        keyframe_every_s: float,
        on_crash: Callable[[], None],
    ) -> None:
        self.shown: VideoTrack | None = None
        self.is_muted = False
        self.packet_s: float | None = None  # when the newest one came
        self._publisher = publisher
        self._clock = clock
        self._label = label
        self._keyframe_every_s = keyframe_every_s
        self._on_crash = on_crash
        self._loop = asyncio.get_running_loop()
        self._router = Router()
        self._extensions = ExtensionIds()
        self._by_mid: dict[str, VideoTrack] = {}  # the newest last
        self._n_decoders = 0
        self._decoders_ended = asyncio.Event()
        self._decoders_ended.set()
        self._n_decoded_before = 0  # by decoders that have ended

    # ── what was agreed on ──

    def take(self, answers: Sequence[SectionAnswer]) -> bool:
        """These sections from now on; whether another track is shown, or none."""
        self._extensions = extension_ids(answers)
        tracks: dict[str, VideoTrack] = {}
        for answer in answers:
            if answer.is_video:
                mid = answer.section.mid
                known = self._by_mid.get(mid)
                is_same = known is not None and known.formats == answer.formats
                tracks[mid] = known if known is not None and is_same else self._track(answer)
                tracks[mid].ssrcs, tracks[mid].rid = answer.section.ssrcs, answer.layer
        # Known ones keep their place, new ones come last.
        kept = {mid: tracks[mid] for mid, track in self._by_mid.items() if tracks.get(mid) is track}
        self._by_mid = kept | tracks
        self._router.set_tracks(tuple(self._by_mid.values()))
        newest = next(reversed(self._by_mid.values()), None)
        if newest is self.shown:
            return False
        sets = [a.parameter_sets for a in answers if newest and a.section.mid == newest.mid]
        self._show(newest, known_parameters=b"".join(sets))
        return True

    def _track(self, answer: SectionAnswer) -> VideoTrack:
        return VideoTrack(
            answer.section.mid,
            formats=answer.formats,
            rid=answer.layer,
            ssrcs=answer.section.ssrcs,
            keyframe_every_s=self._keyframe_every_s,
        )

    def _show(self, track: VideoTrack | None, *, known_parameters: bytes = b"") -> None:
        """Decode this track and no other."""
        was, self.shown = self.shown, track
        if was is not None:
            self._end_decoder(was)
            self._publisher.gap()
        if track is None:
            return
        decoder = TrackDecoder(
            self._publisher,
            label=self._label,
            want_key=self._from_thread(track.want_key),
            on_end=self._from_thread(lambda: self._decoder_ended(track, decoder)),
            known_parameters=known_parameters,
        )
        self._n_decoders += 1
        self._decoders_ended.clear()
        track.show(decoder, now_s=self._clock.monotonic_s())
        decoder.is_muted = self.is_muted  # only now: `mute` runs in another thread
        decoder.start()

    def _end_decoder(self, track: VideoTrack) -> None:
        if track.decoder is not None:
            self._n_decoded_before += track.decoder.counts.decoded
            track.decoder.close()
        track.hide()

    def _decoder_ended(self, track: VideoTrack, decoder: TrackDecoder) -> None:
        if track.decoder is decoder:  # nobody told it to
            self._on_crash()
        self._n_decoders -= 1
        if self._n_decoders == 0:
            self._decoders_ended.set()

    def _from_thread(self, call: Callable[[], None]) -> Callable[[], None]:
        def hand_over() -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(call)

        return hand_over

    def mute(self, *, muted: bool) -> None:
        """Any thread."""
        self.is_muted = muted
        shown = self.shown
        if shown is None:
            return
        if shown.decoder is not None:
            shown.decoder.is_muted = muted
        if not muted:
            self._from_thread(shown.want_key)()

    async def close(self) -> None:
        """No frame comes after the first step of this; wait for the decoders."""
        if self.shown is not None:
            self._end_decoder(self.shown)
            self.shown = None
        self._router.set_tracks(())
        try:
            await asyncio.wait_for(self._decoders_ended.wait(), END_WITHIN_S)
        except TimeoutError:  # inside one huge picture; it ends after that
            log.warning("decode:%s did not end in time", self._label)

    # ── packets ──

    def wants(self, packet: bytes) -> bool:
        """Whether an RTP packet is worth being decrypted."""
        return self._router.wants(packet)

    def packet(self, data: bytes) -> bool:
        """A decrypted packet of RTP; whether `requests` should be called soon."""
        now_s = self._clock.monotonic_s()
        packet = read_rtp(data, self._extensions)
        track = None if packet is None else self._router.route(packet)
        if packet is None or track is None:
            return False
        self.packet_s = now_s
        track.packet(packet, now_s)
        return track is self.shown and track.wants_attention(now_s)

    def control(self, data: bytes) -> None:
        """A decrypted packet of RTCP."""
        now_s = self._clock.monotonic_s()
        for item in read_rtcp(data):
            if isinstance(item, SenderReport):
                track = self._router.by_ssrc(item.ssrc)
                if track is not None:
                    track.sender_report(item.ssrc, item.ntp_middle, now_s)
            elif isinstance(item, Goodbye):
                for ssrc in item.ssrcs:
                    track = self._router.by_ssrc(ssrc)
                    if track is not None:
                        track.goodbye(ssrc)

    # ── what the publisher is told ──

    def requests(self, sender: int) -> tuple[list[bytes], bool]:
        """For packets and key frames, as RTCP of our `sender` number; whether to look again soon."""
        if self.shown is None:
            return [], False
        now_s = self._clock.monotonic_s()
        asked = [receiver_report(sender) + one for one in self.shown.feedback(sender, now_s)]
        return asked, self.shown.wants_attention(now_s)

    def report(self, sender: int, *, max_bitrate_bps: int) -> bytes | None:
        """What arrived, and how much may come: for the whole connection, as one track's limit
        would count for all."""
        now_s = self._clock.monotonic_s()
        blocks = [block for track in self._by_mid.values() for block in track.reports(now_s)]
        if not blocks:
            return None
        media = [track.ssrc for track in self._by_mid.values() if track.ssrc is not None]
        return receiver_report(sender, blocks) + bitrate_cap(sender, max_bitrate_bps, media)

    def stats(self, *, state: str) -> SessionStats:
        """Any thread. What tracks can tell."""
        tracks = list(self._by_mid.values())
        shown = self.shown
        decoder = None if shown is None else shown.decoder
        packet_s = self.packet_s
        return SessionStats(
            state=state,
            codec=None if decoder is None else decoder.codec,
            packets_received=sum(track.n_received for track in tracks),
            packets_lost=sum(track.n_lost for track in tracks),
            packets_recovered=sum(track.assembler.counts.recovered for track in tracks),
            packets_empty=sum(track.n_empty for track in tracks),
            packets_unrouted=self._router.n_unknown,
            keyframe_requests=sum(track.keys.n_sent for track in tracks),
            frames_decoded=self._n_decoded_before
            + (0 if decoder is None else decoder.counts.decoded),
            seconds_since_packet=None if packet_s is None else self._clock.monotonic_s() - packet_s,
        )

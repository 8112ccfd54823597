"""Compressed video to frames: what files, clips and cameras have in common.

`VideoDecoder` makes frames of the packets of one track; `VideoReader` gives it those of a container
that FFmpeg reads, `rtsp.py` those that it receives itself.

A frame that cannot be decoded is left out and counted; the others keep their own times. What
follows a loss is marked `corrupt` until the next picture from which on nothing of it can show.
Before the first key frame nothing comes out. Size, format and rotation may change at any frame.

A loss is noticed by whoever can: who reads (RTP and MPEG-TS count their packets), the stream's own
count of reference pictures (H.264), what the decoder returns and what it says. What none of
them sees: bits flipped inside a picture of H.265, VP8 or VP9 that remain decodable, and a lost
picture of VP8 or VP9; TCP delivers neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import av
from av import Packet, VideoFrame
from av.container import InputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from liveedge.frames.frame import CodedFrame
from liveedge.media import av_log
from liveedge.media.bitstream import Head, watch_for
from liveedge.media.coded import REPLAYABLE, CodedTrail
from liveedge.media.header import read_header
from liveedge.media.pixels import AS_STORED, AvPixels, turn_in

# What cameras and people send. A container may name any of some hundred decoders, few of them
# hardened; the rest is refused.
CODECS = frozenset(
    {"h264", "hevc", "av1", "vp8", "vp9", "mjpeg", "mpeg4", "mpeg2video", "mpeg1video"}
    | {"prores", "ffv1", "png", "rawvideo"}
)
# By default a damaged JPEG comes out as a smeared picture without a word (20 of 30 tries, against
# none). Not for the others: it would refuse frames for a sloppy side note of the camera.
_STRICTNESS = {"mjpeg": {"err_detect": "explode"}}
_HARMLESSLY_NOISY = frozenset({"mjpeg"})  # cheap cameras end every picture a byte early
_COUNTED = frozenset({"h264", "hevc"})  # one frame for every packet that has one
_JPEG_HEADER_BYTES = 4096
_MAX_BAD_READS = 64  # in a row, before a damaged container counts as over
_FALLBACK_FPS = 25.0  # when a stream has neither time stamps nor a rate


class VideoUnreadable(Exception):
    """There is no video here that we can or may decode. Caught by whoever opened it."""

    def __init__(self, reason: str, *, too_large: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.too_large = too_large


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoLimits:
    """How large one frame may be; refused by the decoder before it allocates."""

    max_pixels: int = 4096 * 3072  # a decoder may hold 17 of them, of a hostile camera: 320 MB
    max_side_px: int = 8192
    max_aspect_ratio: int = 200  # no model takes more

    def decoder_options(self) -> dict[str, str]:
        """About the same for FFmpeg, which also decodes while it probes.

        It counts with padded sides, so it gets some slack; `VideoReader` is exact.
        """
        return {"max_pixels": str(self.max_pixels + 128 * self.max_side_px)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackTimes:
    """How a track counts time."""

    base_s: float  # one tick
    start_s: float = 0.0
    period_s: float = 1 / _FALLBACK_FPS  # between frames, for those without a time stamp


@dataclass(frozen=True, slots=True)
class DecodedFrame:
    """One frame with its time."""

    pixels: AvPixels
    time_s: float  # as the stream says, from its own beginning
    corrupt: bool
    coded: CodedFrame | None = None  # where the reader keeps packets and order allows it


@dataclass(slots=True)
class DecodeCounts:
    """What became of the frames that did not come out."""

    broken: int = 0  # could not be decoded
    early: int = 0  # came before the first key frame
    behind: int = 0  # given up, as decoding did not keep up
    inside: int = 0  # still in the decoder, where that is known


class VideoDecoder:
    """The packets of one video track, in decoding order, to frames. Made in the thread that uses it."""

    def __init__(
        self,
        context: VideoCodecContext,
        *,
        limits: VideoLimits,
        times: TrackTimes,
        keeps_packets: bool = False,
    ) -> None:
        """`context` is not open yet; its extradata is what the container or camera gave."""
        self._context = context
        self._limits = limits
        self.codec = context.codec.canonical_name
        self.counts = DecodeCounts()
        self._times = times
        self._is_begun = False
        self._is_behind = False  # and waits for a key frame to go on with
        self._is_due = False  # the packet at hand should give a frame, now or later
        self._damage = _Damage()
        self._turn = AS_STORED
        self._is_first = True
        self._last_s: float | None = None
        self._check_size(context.width, context.height)
        context.options = limits.decoder_options() | _STRICTNESS.get(self.codec, {})
        context.thread_count = 1  # frame threads would add a frame of delay each
        extradata = context.extradata or b""
        self._watch = watch_for(self.codec, extradata)
        self._trail = CodedTrail(self.codec, extradata) if keeps_packets else None
        # Uncompressed pictures of a device are megabytes: nobody copies what nobody looks at.
        self.reads_packets = self.codec in (REPLAYABLE if keeps_packets else _COUNTED)
        av_log.listen()
        self._hearing = av_log.Hearing()

    def lost(self, *, n_doubtful: int) -> None:
        """Packets are missing before the next one; so many from here on may lack a part."""
        self._damage.around_here(n_doubtful)
        self._watch.spoil()

    def missed(self) -> None:
        """A picture was sent of which nothing can be decoded."""
        if self._is_begun:
            self.counts.broken += 1
        else:
            self._pass_over(1)

    def give_up(self) -> None:
        """Decoding does not keep up: leave out what comes, up to the next key frame."""
        if self._is_begun:
            self._is_begun, self._is_behind = False, True

    def change(self, extradata: bytes) -> None:
        """The container announces another configuration."""
        self._watch = watch_for(self.codec, extradata)
        if self._trail is not None:
            self._trail.change(extradata)

    def frames_of(self, packet: Packet[Any], data: bytes) -> Iterator[DecodedFrame | None]:
        """Frames in order, at least one or a None. An empty packet asks for what is still inside.

        `data` is what the packet holds if `reads_packets`, else nothing. Raises `VideoUnreadable` on
        an oversized frame.
        """
        decoded = self._decode(packet) if self._is_usable(packet, data) else []
        if not decoded:
            yield None
        for frame in decoded:
            yield self._accept(frame, self._coded(packet, frame, n_frames=len(decoded)))

    def _is_usable(self, packet: Packet[Any], data: bytes) -> bool:
        """Whether to decode: not before the first key frame. The last packet is empty."""
        self._is_due = False
        if not packet.size:
            return self._is_begun
        head = self._watch.look(data, is_keyframe=packet.is_keyframe)
        if not self._is_begun:
            self._is_begun = head.is_key or head.is_entry or packet.is_keyframe
            if not self._is_begun:
                self._pass_over(int(head.has_frame))
                self._damage.pass_over()
                return False
            self._is_behind = False
            self._damage.begin(head)
        self._damage.packet(head, packet)
        self._is_due = head.has_frame and self.codec in _COUNTED
        if self._trail is not None:
            sets = self._watch.sets_before() if head.is_key else b""
            self._trail.feed(sets + data, is_key=head.is_key)
        return True

    def _pass_over(self, n: int) -> None:
        """Frames that are not decoded, as there is no key frame before them."""
        if self._is_behind:
            self.counts.behind += n
        else:
            self.counts.early += n

    def _decode(self, packet: Packet[Any]) -> list[VideoFrame]:
        try:
            with self._hearing:
                frames = self._context.decode(packet)
        except av.FFmpegError:  # whatever a decoder says about bytes: this frame is lost
            # FFmpeg does not tell a JPEG beyond our limit from a damaged one.
            claim = read_header(bytes(packet)[:_JPEG_HEADER_BYTES])
            if claim is not None:
                self._check_size(claim.width, claim.height)
            self.counts.broken += 1
            self._spoil()
            return []
        if self._hearing.of_damage() and self.codec not in _HARMLESSLY_NOISY:
            self._spoil()
        self._count_withheld(len(frames))
        return frames

    def _count_withheld(self, n_frames: int) -> None:
        """A decoder that holds more than its delay has withheld what it could not make whole."""
        n_inside = max(self.counts.inside + self._is_due - n_frames, 0)
        self.counts.inside = min(n_inside, self._context.reorder_depth)
        if n_inside > self.counts.inside:
            self.counts.broken += n_inside - self.counts.inside
            self._damage.now()

    def _spoil(self) -> None:
        self._damage.now()
        self._watch.spoil()

    def _coded(self, packet: Packet[Any], frame: VideoFrame, *, n_frames: int) -> CodedFrame | None:
        if self._trail is None:
            return None
        is_other = n_frames > 1 or frame.pts != packet.pts
        # RTP gives the first picture no time; then only a decoder without delay is believed.
        if is_other or (frame.pts is None and self._trail.n_waiting > 1):
            self._trail.end()
        return self._trail.take()

    def _accept(self, frame: VideoFrame, coded: CodedFrame | None) -> DecodedFrame | None:
        self._check_size(frame.width, frame.height)
        time_s = self._time_s(frame)
        if frame.is_corrupt:
            self.counts.broken += 1
            self._spoil()
            if self._trail is not None:
                self._trail.interrupt()
            return None
        if frame.key_frame or self._is_first:
            # In the bitstream the rotation stands beside key frames only, and holds until the next.
            self._turn = turn_in(frame) or AS_STORED
            self._is_first = False
        return DecodedFrame(
            AvPixels(frame, self._turn), time_s, self._damage.shows_in(frame), coded
        )

    def _time_s(self, frame: VideoFrame) -> float:
        stamp = frame.pts if frame.pts is not None else frame.dts
        if stamp is not None:
            time_s = stamp * self._times.base_s - self._times.start_s
        elif self._last_s is None:
            time_s = 0.0
        else:
            time_s = self._last_s + self._times.period_s
        self._last_s = time_s
        return time_s

    def _check_size(self, width: int, height: int) -> None:
        limits = self._limits
        if max(width, height) > limits.max_side_px or width * height > limits.max_pixels:
            raise VideoUnreadable(
                f"frames of {width}x{height} exceed the limit of {limits.max_pixels} pixels and"
                f" {limits.max_side_px} a side",
                too_large=True,
            )
        if max(width, height) > limits.max_aspect_ratio * max(1, min(width, height)):
            raise VideoUnreadable(
                f"frames of {width}x{height}: one side is more than {limits.max_aspect_ratio} times"
                " the other"
            )


class VideoReader:
    """Frames of the first video track of an open container. One thread."""

    def __init__(
        self, container: InputContainer, *, limits: VideoLimits, keeps_packets: bool = False
    ) -> None:
        self._container = container
        self._stream = _video_track(container)
        times = _times_of(self._stream)
        self._decoder = VideoDecoder(
            self._stream.codec_context, limits=limits, times=times, keeps_packets=keeps_packets
        )
        self.codec = self._decoder.codec
        self.counts = self._decoder.counts
        self.period_s = times.period_s

    def frames(self) -> Iterator[DecodedFrame | None]:
        """Frames in order, None wherever a packet gave none, so that the caller can look up.

        Raises `av.FFmpegError` when the transport fails, `VideoUnreadable` on an oversized frame.
        """
        decoder = self._decoder
        for packet in self._packets():
            if packet.stream.index != self._stream.index:
                yield None
                continue
            if packet.has_sidedata("new_extradata"):
                decoder.change(bytes(packet.get_sidedata("new_extradata")))
            yield from decoder.frames_of(packet, bytes(packet) if decoder.reads_packets else b"")

    def _packets(self) -> Iterator[Packet[VideoStream]]:
        hearing = av_log.Hearing()
        n_bad = 0
        while n_bad < _MAX_BAD_READS:
            # All tracks: the caller must get its turn even when only sound arrives.
            packets = self._container.demux()
            try:
                while True:
                    with hearing:
                        packet = next(packets, None)
                    if packet is None:
                        return
                    n_bad = 0
                    if hearing.of_lost_packets():
                        # The reader assembles one picture ahead, so that the hole is in the packet
                        # that came or in the next.
                        self._decoder.lost(n_doubtful=2)
                    yield cast("Packet[VideoStream]", packet)  # of ours, once its index was seen
            except av.InvalidDataError:  # a damaged place in the container: read on behind it
                n_bad += 1


class _Damage:
    """Whether remains of a loss may show in what comes out of the decoder."""

    def __init__(self) -> None:
        self.is_present = False
        self._clean_from: int | None = None  # time stamp of the picture that ends it
        self._n_doubtful = 0  # packets that may be the ones with the hole

    def around_here(self, n_doubtful: int) -> None:
        """Packets are missing, also of so many pictures from here on, or of one of them."""
        self._n_doubtful = max(self._n_doubtful, n_doubtful)
        self.now()

    def begin(self, head: Head) -> None:
        """The first packet: it may be whole, but an I frame may be followed by remains."""
        self.is_present = not head.is_clean or self._n_doubtful > 0

    def pass_over(self) -> None:
        """A packet that is not decoded."""
        self._n_doubtful = max(self._n_doubtful - 1, 0)

    def now(self) -> None:
        self.is_present = True
        self._clean_from = None

    def packet(self, head: Head, packet: Packet[Any]) -> None:
        """The next packet in decoding order."""
        is_doubtful = self._n_doubtful > 0
        self._n_doubtful -= is_doubtful
        if head.is_missing or packet.is_corrupt:
            self.now()
        elif self.is_present and head.is_clean and not is_doubtful:
            self._clean_from = packet.pts
            self.is_present = packet.pts is not None

    def shows_in(self, frame: VideoFrame) -> bool:
        """For the next frame in the order of showing, which may be another one."""
        if self._clean_from is not None and (frame.pts is None or frame.pts >= self._clean_from):
            self.is_present = False
            self._clean_from = None
        return self.is_present


def _video_track(container: InputContainer) -> VideoStream:
    # A cover picture of an audio file is formally a video track.
    tracks = [
        s for s in container.streams.video if "ATTACHED_PIC" not in str(s.disposition).upper()
    ]
    if not tracks:
        raise VideoUnreadable("no video track")
    track = tracks[0]
    # PyAV has no context for a track whose codec FFmpeg does not know.
    context = getattr(track, "codec_context", None)
    name = "unknown" if context is None else context.codec.canonical_name
    if name not in CODECS:
        raise VideoUnreadable(f"codec not supported ({name}); use H.264, H.265 or MJPEG")
    return track


def _times_of(stream: VideoStream) -> TrackTimes:
    rate = stream.average_rate or stream.guessed_rate
    base_s = float(stream.time_base or 1 / 90_000)
    return TrackTimes(
        base_s=base_s,
        start_s=0.0 if stream.start_time is None else stream.start_time * base_s,
        period_s=1 / float(rate) if rate else 1 / _FALLBACK_FPS,
    )

"""Whose packet it is: the track behind a sender's number, on a connection that all tracks share.

A sender is known by its number (SSRC) from the offer, or from the first packet that names its
section; one that says nothing belongs to the only track that has its payload type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from liveedge.media.webrtc.rtp import RtpPacket, payload_type_of
from liveedge.media.webrtc.track import VideoTrack

V = TypeVar("V")

_MAX_SENDERS = 64


class Router:
    """The tracks of one connection. One thread."""

    def __init__(self) -> None:
        self.n_unknown = 0
        self._tracks: tuple[VideoTrack, ...] = ()
        self._by_mid: dict[str, VideoTrack] = {}
        self._by_ssrc: dict[int, VideoTrack] = {}
        self._retired: dict[int, None] = {}  # senders of tracks that have ended
        self._payload_types: frozenset[int] = frozenset()

    def set_tracks(self, tracks: Sequence[VideoTrack]) -> None:
        """From now on these; packets still under way of others are thrown away."""
        kept = {ssrc: track for ssrc, track in self._by_ssrc.items() if track in tracks}
        for ssrc in self._by_ssrc:
            if ssrc not in kept:
                _remember(self._retired, ssrc, None)
        self._by_ssrc = kept
        for track in tracks:
            for ssrc in track.ssrcs:
                self._learn(ssrc, track)
        self._tracks = tuple(tracks)
        self._by_mid = {track.mid: track for track in tracks if track.mid}
        self._payload_types = frozenset(
            number for track in tracks for number in (*track.formats.codecs, *track.formats.repairs)
        )

    def wants(self, packet: bytes) -> bool:
        """Whether an RTP packet can be of any track, before it is decrypted."""
        return payload_type_of(packet) in self._payload_types

    def by_ssrc(self, ssrc: int) -> VideoTrack | None:
        return self._by_ssrc.get(ssrc)

    def route(self, packet: RtpPacket) -> VideoTrack | None:
        """The track that the packet is for, if there is one."""
        track = self._by_ssrc.get(packet.ssrc)
        if track is None:
            track = self._identify(packet)
            if track is None:
                self.n_unknown += 1
                return None
            self._learn(packet.ssrc, track)
        return track if packet.payload_type in track.formats else None

    def _identify(self, packet: RtpPacket) -> VideoTrack | None:
        if packet.mid is not None:
            return self._by_mid.get(packet.mid)
        if packet.ssrc in self._retired:
            return None
        able = [track for track in self._tracks if packet.payload_type in track.formats]
        return able[0] if len(able) == 1 else None

    def _learn(self, ssrc: int, track: VideoTrack) -> None:
        self._retired.pop(ssrc, None)
        _remember(self._by_ssrc, ssrc, track)


def _remember(known: dict[int, V], key: int, value: V) -> None:
    """The oldest makes room."""
    if key not in known and len(known) >= _MAX_SENDERS:
        del known[next(iter(known))]
    known[key] = value

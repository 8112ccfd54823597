"""What a publisher has announced, and which of it becomes the stream: the newest video.

Pure: no network, no clock. A track is announced by its client (`cid`), gets our name (`sid`), shows
up as a section of an offer, and is over when an offer no longer sends it: clients say nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from livekit.protocol import models, rtc

from liveedge.media.livekit.sdp import DECODABLE, Section

MAX_TRACKS = 8  # announced at once, audio included


class TrackRefused(Exception):
    """An announced track that this server cannot take; `message` is for people."""

    def __init__(self, message: str, reason: rtc.RequestResponse.Reason) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason


@dataclass(slots=True, kw_only=True)
class Track:
    """An announced track."""

    cids: frozenset[str]  # names under which it may be offered
    info: models.TrackInfo
    codec: str | None  # the one its client wants to send
    was_offered: bool = False

    @property
    def sid(self) -> str:
        return self.info.sid

    @property
    def is_video(self) -> bool:
        return self.info.type == models.VIDEO


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is taken of an offer."""

    section: Section | None = None  # the video that becomes the stream
    track: Track | None = None  # its announcement, where it is known
    others: int = 0  # videos that are not taken
    undecodable: tuple[str, ...] = ()  # codecs of videos that cannot be taken

    @property
    def mid(self) -> str | None:
        return None if self.section is None else self.section.mid


class Tracks:
    """The tracks of one publisher, oldest first."""

    def __init__(self, *, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._tracks: list[Track] = []

    @property
    def has_video(self) -> bool:
        return any(track.is_video for track in self._tracks)

    def infos(self) -> list[models.TrackInfo]:
        return [track.info for track in self._tracks]

    def announce(self, asked: rtc.AddTrackRequest) -> Track:
        """Take in what the client announces. Raises TrackRefused."""
        cids = frozenset((asked.cid, *(codec.cid for codec in asked.simulcast_codecs))) - {""}
        wanted = [codec.codec.lower().rpartition("/")[2] for codec in asked.simulcast_codecs]
        _require_decodable(asked, wanted)
        self._tracks = [track for track in self._tracks if not track.cids & cids]
        if len(self._tracks) >= MAX_TRACKS:
            raise TrackRefused(
                f"{MAX_TRACKS} tracks are published already; unpublish one first",
                rtc.RequestResponse.LIMIT_EXCEEDED,
            )
        is_video = asked.type == models.VIDEO
        info = models.TrackInfo(
            sid=("TR_V" if is_video else "TR_A") + self._new_id(),
            type=asked.type,
            name=asked.name,
            muted=asked.muted,
            width=asked.width,
            height=asked.height,
            source=asked.source,
            stream=asked.stream,
            layers=asked.layers,
            simulcast=len(asked.layers) > 1,
        )
        codec = next((codec for codec in wanted if codec in DECODABLE), None) if is_video else None
        track = Track(cids=cids, info=info, codec=codec)
        self._tracks.append(track)
        return track

    def mute(self, sid: str, *, muted: bool) -> Track | None:
        """Note it; None if there is no such track."""
        track = next((track for track in self._tracks if track.sid == sid), None)
        if track is not None:
            track.info.muted = muted
        return track

    def choose(self, sections: Iterable[Section], names: Mapping[str, str]) -> Choice:
        """The newest video of an offer that can be decoded. Forgets tracks that are sent no more.

        `names` are the tracks of mids, where the client tells them apart from the SDP.
        """
        sending = [section for section in sections if section.sends]
        known = {section.mid: self._of(section, names) for section in sending}
        self._forget_unsent(known.values())
        videos = [section for section in sending if section.is_video]
        good = [section for section in videos if section.is_decodable]
        newest = max(good, key=lambda s: (self._age(known[s.mid]), s.index), default=None)
        return Choice(
            section=newest,
            track=None if newest is None else known[newest.mid],
            others=len(good) - (newest is not None),
            undecodable=tuple(s.codecs[0] for s in videos if s not in good and s.codecs),
        )

    def _of(self, section: Section, names: Mapping[str, str]) -> Track | None:
        ids = {section.track_id, names.get(section.mid, "")} - {""}
        return next((track for track in self._tracks if track.cids & ids), None)

    def _age(self, track: Track | None) -> int:
        return -1 if track is None else self._tracks.index(track)

    def _forget_unsent(self, sent: Iterable[Track | None]) -> None:
        kept = {id(track) for track in sent if track is not None}
        for track in self._tracks:
            track.was_offered = track.was_offered or id(track) in kept
        self._tracks = [t for t in self._tracks if not t.was_offered or id(t) in kept]


def unsupported(codecs: Sequence[str]) -> str:
    """What people are told whose codec cannot be decoded here."""
    names = ", ".join(dict.fromkeys(codec.upper() for codec in codecs))
    return f"the publisher sends {names}, which this server cannot decode; publish VP8 or H.264"


def _require_decodable(asked: rtc.AddTrackRequest, wanted: Sequence[str]) -> None:
    if asked.encryption != models.Encryption.NONE:
        raise TrackRefused(
            "the track is end-to-end encrypted and could not be decoded here; publish without",
            rtc.RequestResponse.NOT_ALLOWED,
        )
    if asked.type == models.DATA:
        raise TrackRefused(
            "only audio and video can be published here", rtc.RequestResponse.UNSUPPORTED_TYPE
        )
    named = [codec for codec in wanted if codec]
    if asked.type == models.VIDEO and named and not any(codec in DECODABLE for codec in named):
        raise TrackRefused(unsupported(named), rtc.RequestResponse.UNSUPPORTED_TYPE)

"""HLS: live playlists and finished ones, as MPEG-TS or fragmented MP4.

Playlists, segments and keys are fetched by our own code, which judges every address; FFmpeg only
sees the bytes of the segments and opens nothing. Frames are paced by the stream's own clock, as
segments arrive seconds at a time.
A finished playlist is played like a file: from its beginning, every frame, in order, to its end,
and where it stopped after a loss. A live one is joined at its newest segment; who falls behind by
more than a few segments goes on at the newest again.
"""

from __future__ import annotations

import importlib
import ssl
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import av
from av.container import InputContainer

from liveedge.core.clock import Clock
from liveedge.media import av_log
from liveedge.media.decode import VideoLimits, VideoReader, VideoUnreadable
from liveedge.media.delivery import deliver
from liveedge.media.playlist import (
    NO_PLAYLIST,
    Key,
    MasterPlaylist,
    MediaPlaylist,
    Part,
    PlaylistInvalid,
    Segment,
    is_playlist,
    parse_playlist,
)
from liveedge.media.pull_http import Web, WebBody, WebLimits
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.source import FrameSink, SourceKind, SourceLost

_DEMUXERS = "mpegts,mov,mp4"
_AES_BLOCK = 16
_SHORTEST_RELOAD_S = 0.5
_BEGIN_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HlsSettings:
    """What is fetched, and when to give up."""

    max_playlist_bytes: int = 2**20
    max_behind: int = 3  # segments of a live playlist, below KEPT_LIVE; then on at the newest
    dead_after_s: float = 20.0  # or three segments, if that is longer: without anything new
    probe_bytes: int = 2**20
    web: WebLimits = field(default_factory=WebLimits)


class HlsSource:
    """One HLS stream. The URL stays inside; `repr` and messages do not show it."""

    kind: SourceKind = "hls"
    restart_on_stall = True

    def __init__(
        self,
        url: str,
        *,
        policy: PullPolicy,
        clock: Clock,
        settings: HlsSettings | None = None,
        limits: VideoLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._settings = settings or HlsSettings()
        self._limits = limits or VideoLimits()
        self._url = url.strip()
        self._web = Web(url, policy=policy, clock=clock, limits=self._settings.web, tls=tls)
        self._target_s = 0.0
        self._resume_at: int | None = None  # of a finished playlist
        av_log.listen()

    @property
    def stall_after_s(self) -> float | None:
        """A segment may take its whole length to appear."""
        return max(10.0, 3 * self._target_s)

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        line = _Line(self._web, self._url, self._clock, self._settings, stopping)
        line.open()
        self._target_s = line.target_s
        if line.is_over:
            line.number = self._resume_at
        pace = Pace(self._clock, is_live=not line.is_over)
        n_runs = 0
        try:
            while not stopping.is_set() and line.await_run():
                if n_runs:
                    sink.gap()
                n_runs += 1
                self._play(line, pace, sink, stopping)
        finally:
            # What a broken segment has already given comes again: better twice than never.
            self._resume_at = line.reading if line.is_over else None
        if line.loss is not None and not stopping.is_set():
            raise _bare(line.loss)

    def _play(self, line: _Line, pace: Pace, sink: FrameSink, stopping: threading.Event) -> None:
        """One run of segments that continue each other."""
        pace.begin()
        with self._open(line) as container:
            try:
                reader = VideoReader(container, limits=self._limits, keeps_packets=True)
                sink.state("waiting_for_keyframe", "connected", codec=reader.codec)
                deliver(
                    reader,
                    sink,
                    stopping,
                    await_due=lambda time_s: self._clock.wait(stopping, pace.wait_s(time_s)),
                )
            except VideoUnreadable as error:
                raise SourceLost(error.reason, hopeless=True) from error
            except (av.FFmpegError, OSError) as error:
                raise SourceLost("a segment cannot be read any further") from error

    def _open(self, line: _Line) -> InputContainer:
        try:
            return av.open(
                line,
                "r",
                metadata_errors="replace",
                options={
                    "format_whitelist": _DEMUXERS,
                    "protocol_whitelist": "none",
                    "probesize": str(self._settings.probe_bytes),
                    # A live stream has its first frame as soon as its first segment is there.
                    "analyzeduration": "100000",
                    "fpsprobesize": "0",
                    **self._limits.decoder_options(),
                },
            )
        except (av.FFmpegError, OSError) as error:
            if line.loss is not None:
                raise _bare(line.loss) from error
            raise SourceLost("its segments are neither MPEG-TS nor MP4") from error


class Pace:
    """When a frame is due. Nobody ever waits long because of a time stamp: a leap begins anew."""

    _LEAP_S = 10.0

    def __init__(self, clock: Clock, *, is_live: bool) -> None:
        self._clock = clock
        self._is_live = is_live
        self._offset_s: float | None = None  # due = time stamp + offset
        self._newest_s = 0.0

    def begin(self) -> None:
        """Another run of time stamps."""
        self._offset_s = None

    def wait_s(self, time_s: float) -> float:
        now_s = self._clock.monotonic_s()
        step_s = time_s - self._newest_s
        self._newest_s = time_s
        if self._offset_s is None or not 0 <= step_s <= self._LEAP_S:
            self._offset_s = now_s - time_s
        late_s = now_s - (time_s + self._offset_s)
        if late_s > 0 and self._is_live:
            self._offset_s += late_s  # the segment came late: so does what follows
        return max(0.0, -late_s)


@dataclass(frozen=True, slots=True)
class _Item:
    """The next bytes of the file, and which of its runs they belong to."""

    part: Part
    segment: Segment
    run: tuple[int, int, Part | None]
    key: Key | None


class _Line:
    """The segments of a stream as one file that FFmpeg reads, run by run. One thread.

    A run ends where what follows does not continue it: at a mark in the playlist, at another head,
    after segments were passed over. A loss ends everything and stays in `loss`: what was read
    before it is still decoded.
    """

    def __init__(
        self,
        web: Web,
        url: str,
        clock: Clock,
        settings: HlsSettings,
        stopping: threading.Event,
    ) -> None:
        self._web = web
        self._url = url
        self._clock = clock
        self._settings = settings
        self._stopping = stopping
        self._playlist = MediaPlaylist((), 0.0, is_over=False)
        self._loaded_s = self._news_s = 0.0
        self._n_leaps = 0
        self._run: tuple[int, int, Part | None] | None = None  # the one being read
        self._last_run: tuple[int, int, Part | None] | None = None  # of what was queued last
        self._waiting: deque[_Item] = deque()  # at most a head and a segment
        self._body: _Plain | _Decrypted | None = None
        self._rest = b""
        self._newest_key: tuple[Part, bytes] | None = None
        self.number: int | None = None  # of the next segment
        self.reading: int | None = None  # of the segment being read
        self.loss: SourceLost | None = None

    @property
    def is_over(self) -> bool:
        return self._playlist.is_over

    @property
    def target_s(self) -> float:
        return self._playlist.target_s

    def open(self) -> None:
        """Fetch the playlist; of several qualities the best. Raises SourceLost."""
        found = self._fetch()
        if isinstance(found, MasterPlaylist):
            try:
                self._url = found.best().part.url
            except PlaylistInvalid as error:
                raise SourceLost(error.reason, hopeless=True) from error
            found = self._fetch()
        if isinstance(found, MasterPlaylist):
            raise SourceLost("the playlist leads to playlists only", hopeless=True)
        self._take(found)

    def await_run(self) -> bool:
        """Wait for the first segment of the next run; False at the end or after a loss."""
        self._run = None
        try:
            return self.loss is None and (bool(self._waiting) or self._queue_next())
        except SourceLost as loss:
            self.loss = _bare(loss)
            return False

    # ── the file that FFmpeg reads ──

    def read(self, n_bytes: int) -> bytes:
        try:
            while not self._stopping.is_set() and self.loss is None:
                if self._body is None and not self._open_next():
                    return b""
                assert self._body is not None
                data = self._rest or self._body.read(n_bytes)
                self._rest = data[n_bytes:]
                if data:
                    return data[:n_bytes]
                self.close()
        except SourceLost as loss:
            self.loss = _bare(loss)
        self.close()
        return b""

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    # ── what comes next ──

    def _open_next(self) -> bool:
        """Begin to fetch the next part; False where this run ends."""
        if not self._waiting and not self._queue_next():
            return False
        item = self._waiting[0]
        if self._run is not None and item.run != self._run:
            return False  # it stays for the next run
        self._run = item.run
        self._waiting.popleft()
        self.reading = item.segment.number
        key = None if item.key is None else self._key(item.key)
        body = self._web.get(item.part, self._stopping, reading_s=2 * item.segment.seconds)
        if item.key is None or key is None:
            self._body = _Plain(body)
        else:
            iv = item.key.iv or item.segment.number.to_bytes(_AES_BLOCK, "big")
            self._body = _Decrypted(body, key, iv)
        return True

    def _queue_next(self) -> bool:
        """Wait until there is a next segment; False at the end."""
        while (segment := self._pick()) is None:
            if self._playlist.is_over or not self._reload():
                return False
        self._n_leaps += self.number not in (None, segment.number)
        self.number = segment.number + 1
        run = (self._n_leaps, segment.run, segment.head)
        if segment.head is not None and run != self._last_run:
            self._waiting.append(_Item(segment.head, segment, run, None))
        self._last_run = run
        self._waiting.append(_Item(segment.part, segment, run, segment.key))
        return True

    def _pick(self) -> Segment | None:
        """The next segment that the playlist has; None: not there yet."""
        segments = self._playlist.segments
        if not segments:
            return None
        newest = segments[-1]
        if self._playlist.is_over:
            at = max((self.number or 0) - segments[0].number, 0)
            return segments[at] if at < len(segments) else None
        if self.number is None or newest.number + 1 < self.number:  # joined, or counting anew
            return newest
        if newest.number - self.number >= self._settings.max_behind:
            return newest
        return next((s for s in segments if s.number >= self.number), None)

    def _reload(self) -> bool:
        """Wait a while and look at the playlist again; False if there is no point."""
        interval_s = max(self.target_s / 2, _SHORTEST_RELOAD_S)
        wait_s = self._loaded_s + interval_s - self._clock.monotonic_s()
        if self._clock.wait(self._stopping, max(wait_s, 0.0)):
            return False
        found = self._fetch()
        if isinstance(found, MasterPlaylist):
            raise SourceLost("the playlist has become another one")
        self._take(found)
        patience_s = max(self._settings.dead_after_s, 3 * self.target_s)
        if self._loaded_s - self._news_s > patience_s:
            raise SourceLost(f"the live playlist has not gone on for {patience_s:g} s")
        return True

    def _take(self, playlist: MediaPlaylist) -> None:
        self._loaded_s = self._clock.monotonic_s()
        if playlist != self._playlist:
            self._news_s = self._loaded_s
        self._playlist = playlist

    def _fetch(self) -> MediaPlaylist | MasterPlaylist:
        try:
            return self._fetched()
        except PlaylistInvalid as error:
            reason = error.reason
        # Not `from`: the error's frames hold the text.
        raise SourceLost(reason, hopeless=True)

    def _fetched(self) -> MediaPlaylist | MasterPlaylist:
        with self._web.get(Part(self._url), self._stopping) as body:
            data = body.read(_BEGIN_BYTES)
            if not is_playlist(data):  # before a film of gigabytes is "more than" anything
                raise PlaylistInvalid(NO_PLAYLIST)
            data += body.read_all(limit_bytes=self._settings.max_playlist_bytes)
            return parse_playlist(data.decode("utf-8", "replace"), url=body.url)

    def _key(self, key: Key) -> bytes:
        if self._newest_key is None or self._newest_key[0] != key.part:
            with self._web.get(key.part, self._stopping) as body:
                found = body.read_all(limit_bytes=1024)
            if len(found) != _AES_BLOCK:
                raise SourceLost("the key of the stream is not one of AES-128")
            self._newest_key = (key.part, found)
        return self._newest_key[1]


def _bare(loss: SourceLost) -> SourceLost:
    """The same without its frames: they hold who keeps it, and nothing of both would be freed."""
    return SourceLost(loss.reason, hopeless=loss.hopeless, final=loss.final)


class _Plain:
    """A body as it comes."""

    def __init__(self, body: WebBody) -> None:
        self._body = body

    def read(self, n_bytes: int) -> bytes:
        return self._body.read(n_bytes)

    def close(self) -> None:
        self._body.close()


class _Decrypted:
    """A body behind AES-128 in CBC mode, padded at its end."""

    def __init__(self, body: WebBody, key: bytes, iv: bytes) -> None:
        self._body = body
        # Here and not at the top: a server without encrypted streams starts without it.
        ciphers: Any = importlib.import_module("cryptography.hazmat.primitives.ciphers")
        how = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CBC(iv))
        self._cipher = how.decryptor()
        self._held = b""  # the newest block: it may be the last, whose padding goes
        self._is_over = False

    def read(self, n_bytes: int) -> bytes:
        while not self._is_over:
            more = self._body.read(max(n_bytes - len(self._held), _AES_BLOCK))
            if not more:
                self._is_over = True
                return self._held[: -self._held[-1]] if self._held else b""
            plain = self._held + self._cipher.update(more)
            self._held = plain[-_AES_BLOCK:]
            if len(plain) > _AES_BLOCK:
                return plain[:-_AES_BLOCK]
        return b""

    def close(self) -> None:
        self._body.close()

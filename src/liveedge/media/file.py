"""A video file as a stream, paced by its own clock.

Nothing is dropped and order is kept, however slow the machine: a late frame is delivered late.
With `loop` it starts again at its end, and its clock goes on.
Only regular files are opened: a pipe or a device would hold its thread inside the kernel for ever.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import av
from av.container import InputContainer

from liveedge.core.clock import Clock
from liveedge.core.errors import SourceUnavailable
from liveedge.media.decode import VideoLimits, VideoReader, VideoUnreadable
from liveedge.media.delivery import Told
from liveedge.media.source import FrameSink, SourceKind, SourceLost

# Demuxers that read nothing but their own file; playlists would open others.
_DEMUXERS = "mov,mp4,matroska,webm,avi,mpegts,mpeg,flv,yuv4mpegpipe,mjpeg,h264,hevc,ivf"
_REWIND_S = 1.0  # of time stamps; less is one that is off
_SHORTEST_PASS_S = 0.1  # of a loop: opening a file for every picture of 1 ms takes half a core
_WAYS = (
    "file: the URL needs to be an absolute path such as /videos/door.mp4, or"
    " file:///videos/door.mp4, which takes the option ?loop=true"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Which file, and whether it begins again at its end."""

    path: Path
    loop: bool = False


def parse_file_url(url: str) -> FileOptions:
    """`file:///videos/door.mp4?loop=true`, or a plain absolute path."""
    if url.startswith("/"):
        return FileOptions(path=_path(url))
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise SourceUnavailable(_WAYS)
    if parts.fragment:
        raise SourceUnavailable("file: a # in the path needs to be written as %23")
    options = parse_qsl(parts.query, keep_blank_values=True)
    loop = dict(options).get("loop", "false").lower()
    if [name for name, _ in options] not in ([], ["loop"]) or loop not in _FLAGS:
        raise SourceUnavailable("file: the only option is loop=true or loop=false")
    return FileOptions(path=_path(unquote(parts.path)), loop=_FLAGS[loop])


def _path(text: str) -> Path:
    if "\0" in text:  # what opens it would read only as far as that
        raise SourceUnavailable("file: the path holds a NUL character, which no file has")
    return Path(text)


_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class FileSource:
    """Plays a file once, or for ever."""

    kind: SourceKind = "file"
    stall_after_s: float | None = None  # a file may hold a minute of nothing
    restart_on_stall = False

    def __init__(
        self, options: FileOptions, *, clock: Clock, limits: VideoLimits | None = None
    ) -> None:
        self._options = options
        self._clock = clock
        self._limits = limits or VideoLimits()
        self._start_s = 0.0

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        self._start_s = self._clock.monotonic_s()
        offset_s = 0.0
        while not stopping.is_set():
            offset_s = self._play(sink, stopping, offset_s=offset_s)
            if not self._options.loop:
                return

    def _play(self, sink: FrameSink, stopping: threading.Event, *, offset_s: float) -> float:
        """One pass; the time at which the next one begins."""
        with self._open() as container:
            try:
                reader = VideoReader(container, limits=self._limits, keeps_packets=True)
                return self._deliver(reader, sink, stopping, offset_s=offset_s)
            except VideoUnreadable as error:
                raise SourceLost(error.reason, hopeless=True) from error
            except av.FFmpegError as error:
                raise SourceLost("the file cannot be read any further", final=True) from error

    def _deliver(
        self, reader: VideoReader, sink: FrameSink, stopping: threading.Event, *, offset_s: float
    ) -> float:
        begun_s = offset_s
        told = Told(reader.counts, sink)
        newest_s: float | None = None
        period_s = reader.period_s
        for frame in reader.frames():
            told.tell()
            if frame is not None:
                if newest_s is None:  # not before: there may be none that can be shown
                    sink.state("live", codec=reader.codec)
                elif frame.time_s < newest_s - _REWIND_S:
                    # Recordings joined to one file: the clock of the second goes on from the first.
                    offset_s += newest_s + period_s - frame.time_s
                due_s = self._start_s + offset_s + frame.time_s
                if self._clock.wait(stopping, max(0.0, due_s - self._clock.monotonic_s())):
                    break
                sink.frame(
                    frame.pixels,
                    source_time_s=offset_s + frame.time_s,
                    corrupt=frame.corrupt,
                    coded=frame.coded,
                )
                period_s = max(reader.period_s, frame.time_s - (newest_s or 0.0))
                newest_s = frame.time_s
            elif stopping.is_set():
                break
        else:
            if newest_s is None:
                raise SourceLost("no frame of the file can be decoded", hopeless=True)
        return max(offset_s + (newest_s or 0.0) + period_s, begun_s + _SHORTEST_PASS_S)

    @contextmanager
    def _open(self) -> Iterator[InputContainer]:
        file = self._regular_file()
        try:
            # By its number, as another file may have its name by now. The prefix keeps FFmpeg from
            # reading it as another protocol.
            container = av.open(
                f"file:/dev/fd/{file}",
                metadata_errors="replace",  # titles are in any encoding and of no interest
                options={
                    "protocol_whitelist": "file",
                    "format_whitelist": _DEMUXERS,
                    **self._limits.decoder_options(),
                },
            )
        except (av.FFmpegError, OSError) as error:
            raise SourceLost("not a readable video file", hopeless=True) from error
        finally:
            os.close(file)  # FFmpeg has its own
        with container:
            yield container

    def _regular_file(self) -> int:
        path = self._options.path
        try:
            _require_regular(path.stat())  # before: opening some devices has effects
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SourceLost(_missing(path), hopeless=True) from error
        except PermissionError as error:
            raise SourceLost("no permission to read the file", hopeless=True) from error
        except OSError as error:
            raise SourceLost("not a readable video file", hopeless=True) from error
        try:
            _require_regular(os.fstat(file))  # it may be another one since
        except SourceLost:
            os.close(file)
            raise
        return file


def _require_regular(found: os.stat_result) -> None:
    for is_one, what in _OTHER_KINDS:
        if is_one(found.st_mode):
            raise SourceLost(f"that is {what}, not a video file", hopeless=True)
    if found.st_size == 0:  # files of the kernel have no size either, and some never end a read
        raise SourceLost("not a readable video file: it is empty", hopeless=True)


def _missing(path: Path) -> str:
    if "?" not in path.name:
        return "no such file"
    return "no such file; an option such as ?loop=true needs the form file:///<absolute path>"


_OTHER_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

"""A video file as a stream, paced by its own clock.

Nothing is dropped and order is kept, however slow the machine: a late frame is delivered late.
With `loop` it starts again at its end, and its clock goes on.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import av
from av.container import InputContainer

from liveedge.core.clock import Clock
from liveedge.core.errors import SourceUnavailable
from liveedge.media.decode import VideoLimits, VideoReader, VideoUnreadable
from liveedge.media.delivery import EARLY
from liveedge.media.source import FrameSink, SourceKind, SourceLost

# Demuxers that read nothing but their own file; playlists would open others.
_DEMUXERS = "mov,mp4,matroska,webm,avi,mpegts,mpeg,flv,yuv4mpegpipe,mjpeg,h264,hevc,ivf"
_REWIND_S = 1.0  # of time stamps; less is one that is off


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Which file, and whether it begins again at its end."""

    path: Path
    loop: bool = False


def parse_file_url(url: str) -> FileOptions:
    """`file:///videos/door.mp4?loop=true`, or a plain absolute path."""
    if url.startswith("/"):
        return FileOptions(path=Path(url))
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise SourceUnavailable("file: the URL needs to be file:///<absolute path>")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    loop = options.pop("loop", "false").lower()
    if options or loop not in ("true", "false", "1", "0"):
        raise SourceUnavailable("file: the only option is loop=true or loop=false")
    return FileOptions(path=Path(unquote(parts.path)), loop=loop in ("true", "1"))


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
                sink.state("live", codec=reader.codec)
                return self._deliver(reader, sink, stopping, offset_s=offset_s)
            except VideoUnreadable as error:
                raise SourceLost(error.reason, hopeless=True) from error
            except av.FFmpegError as error:
                raise SourceLost("the file cannot be read any further", final=True) from error

    def _deliver(
        self, reader: VideoReader, sink: FrameSink, stopping: threading.Event, *, offset_s: float
    ) -> float:
        n_broken = n_early = 0
        newest_s: float | None = None
        period_s = reader.period_s
        for frame in reader.frames():
            if reader.n_broken > n_broken:
                sink.broken(reader.n_broken - n_broken)
                n_broken = reader.n_broken
            if reader.n_early > n_early:
                sink.dropped(EARLY, reader.n_early - n_early)
                n_early = reader.n_early
            if frame is not None:
                if newest_s is not None and frame.time_s < newest_s - _REWIND_S:
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
        return offset_s + (newest_s or 0.0) + period_s

    def _open(self) -> InputContainer:
        path = self._options.path
        try:
            # The prefix keeps a path such as "concat:..." from being read as another protocol.
            return av.open(
                f"file:{path}",
                metadata_errors="replace",  # titles are in any encoding and of no interest
                options={
                    "protocol_whitelist": "file",
                    "format_whitelist": _DEMUXERS,
                    **self._limits.decoder_options(),
                },
            )
        except FileNotFoundError as error:
            raise SourceLost("no such file", hopeless=True) from error
        except PermissionError as error:
            raise SourceLost("no permission to read the file", hopeless=True) from error
        except (av.FFmpegError, OSError) as error:
            raise SourceLost("not a readable video file", hopeless=True) from error

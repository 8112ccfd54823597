"""Cameras of the server's own machine, through Video4Linux.

A device blocks in the kernel where nothing interrupts it: one that freezes costs a thread, which
the supervisor abandons.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import av
from av.container import InputContainer

from liveedge.core.errors import SourceUnavailable
from liveedge.media import av_log
from liveedge.media.decode import VideoLimits, VideoReader, VideoUnreadable
from liveedge.media.delivery import deliver
from liveedge.media.source import FrameSink, SourceKind, SourceLost

Opener: TypeAlias = Callable[[str, dict[str, str]], InputContainer]

# Nothing else under /dev, and no other file: opening some devices has effects.
_DEVICE = re.compile(r"/dev/(video[0-9]{1,3}|v4l/by-(id|path)/[A-Za-z0-9][A-Za-z0-9_.:+-]*)")
_SIZE = re.compile(r"[1-9][0-9]{0,4}x[1-9][0-9]{0,4}")
_FPS = re.compile(r"[1-9][0-9]{0,2}(\.[0-9]{1,3})?")
# Names of FFmpeg's: of codecs first, then of layouts that come uncompressed.
_FORMATS = frozenset({"mjpeg", "h264", "hevc", "yuyv422", "uyvy422", "nv12", "yuv420p", "rgb24"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """Which device, and what to ask of it; None: what it does by itself."""

    path: str
    size: str | None = None  # 1280x720
    fps: str | None = None
    format: str | None = None


def parse_device_url(url: str) -> DeviceOptions:
    """`/dev/video0`, or `device:///dev/video0?size=1280x720&fps=30&format=mjpeg`."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("", "device", "v4l2") or parts.netloc or parts.fragment:
        raise SourceUnavailable("device: the URL needs to be /dev/video0 or device:///dev/video0")
    path = unquote(parts.path)
    if _DEVICE.fullmatch(path) is None:
        raise SourceUnavailable(
            "device: the path needs to be /dev/video<number> or one below /dev/v4l/by-id"
        )
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    size, fps, layout = (options.pop(name, None) for name in ("size", "fps", "format"))
    if options or len({name for name, _ in pairs}) < len(pairs):
        raise SourceUnavailable("device: the only options are size, fps and format, each once")
    if size is not None and _SIZE.fullmatch(size) is None:
        raise SourceUnavailable("device: size needs to look like 1280x720")
    if fps is not None and _FPS.fullmatch(fps) is None:
        raise SourceUnavailable("device: fps needs to be a number such as 30 or 29.97")
    if layout is not None and layout not in _FORMATS:
        raise SourceUnavailable(f"device: format needs to be one of {', '.join(sorted(_FORMATS))}")
    return DeviceOptions(path=path, size=size, fps=fps, format=layout)


class DeviceSource:
    """One camera of this machine."""

    kind: SourceKind = "device"
    stall_after_s: float | None = 5.0
    restart_on_stall = True

    def __init__(
        self,
        options: DeviceOptions,
        *,
        limits: VideoLimits | None = None,
        opener: Opener | None = None,
    ) -> None:
        self._options = options
        self._limits = limits or VideoLimits()
        self._opener = opener or _open_v4l2
        av_log.listen()

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        with self._open() as container:
            try:
                reader = VideoReader(container, limits=self._limits, keeps_packets=True)
                sink.state("waiting_for_keyframe", "opened", codec=reader.codec)
                deliver(reader, sink, stopping)
            except VideoUnreadable as error:
                raise SourceLost(error.reason, hopeless=True) from error
            except (av.FFmpegError, OSError) as error:
                raise _lost(error) from error
        if not stopping.is_set():
            raise SourceLost("the device gives no more frames")

    def _open(self) -> InputContainer:
        asked = self._options
        options = {
            "video_size": asked.size,
            "framerate": asked.fps,
            "input_format": asked.format,
        }
        given = {name: value for name, value in options.items() if value is not None}
        try:
            return self._opener(asked.path, given | self._limits.decoder_options())
        except (av.FFmpegError, OSError) as error:
            raise _lost(error) from error


def _open_v4l2(path: str, options: dict[str, str]) -> InputContainer:
    return av.open(path, format="video4linux2", options=options)


def _lost(error: Exception) -> SourceLost:
    number = getattr(error, "errno", None)
    for numbers, reason, hopeless in _REASONS:
        if number in numbers:
            return SourceLost(reason, hopeless=hopeless)
    return SourceLost(f"the device failed ({type(error).__name__})")


_REASONS: tuple[tuple[tuple[int, ...], str, bool], ...] = (
    ((errno.ENOENT, errno.ENXIO), "there is no such device", True),
    ((errno.EACCES, errno.EPERM), "no permission to use the device: add the user to video", True),
    ((errno.EBUSY,), "the device is in use by another program", False),
    ((errno.ENODEV, errno.EIO), "the device was unplugged or failed", False),
    ((errno.ENOTTY,), "that is not a camera", True),
    ((errno.EINVAL,), "the device refuses this size, rate or format", True),
)

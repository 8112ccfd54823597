"""Where the pictures come from that are published: the simulated workcell, a file, a camera device.

Each runs in a thread and hands over frames in the pace of their source, as YUV with even sides. A
machine that is too slow skips frames; it never sends old ones later.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args
from urllib.parse import parse_qsl, urlsplit

import av
from av import Packet, VideoFrame, VideoStream
from av.container import InputContainer

from liveedge.core.clock import Clock
from liveedge.sim.render import NATIVE_HEIGHT, NATIVE_WIDTH, Difficulty, Renderer
from liveedge.sim.scene import Workcell

Size = tuple[int, int]
Deliver = Callable[[VideoFrame], None]

SIM_FPS = 15.0
FILE_FPS = 25.0  # of a file that does not say
FORGET_EVERY_S = 10.0
DIFFICULTIES: tuple[Difficulty, ...] = get_args(Difficulty)
_DEVICE = re.compile(r"/dev/video\d+")


class NoPictures(Exception):
    """A source that cannot be read; the text is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks of any source; None: as it is."""

    size: Size | None = None
    fps: float | None = None
    once: bool = False  # a file ends, instead of beginning again


class Pictures(Protocol):
    """A source that has been opened, or can be."""

    @property
    def size(self) -> Size: ...

    @property
    def fps(self) -> float:
        """About how often a picture comes."""
        ...

    def run(self, deliver: Deliver, stopping: threading.Event) -> None:
        """Hand over pictures until `stopping` or the end. Blocks. Raises NoPictures."""
        ...


def open_pictures(source: str, wanted: Wanted, *, clock: Clock) -> Pictures:
    """`sim`, `sim://workcell?seed=3`, a device such as `/dev/video0`, or a file. Raises NoPictures."""
    if source == "sim" or source.startswith("sim:"):
        return SimPictures(_sim_options(source), wanted, clock=clock)
    if _DEVICE.fullmatch(source):
        return DevicePictures(source, wanted)
    if not Path(source).is_file():
        raise NoPictures(
            f"{source} is neither a file nor a device; give sim, a video file or /dev/video0"
        )
    return FilePictures(Path(source), wanted, clock=clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimScene:
    """Which scene."""

    seed: int = 0
    difficulty: Difficulty = "normal"


class SimPictures:
    """The workcell, with the time burned in at which each frame was made."""

    def __init__(self, scene: SimScene, wanted: Wanted, *, clock: Clock) -> None:
        self.size = _even(wanted.size or (NATIVE_WIDTH, NATIVE_HEIGHT))
        self.fps = wanted.fps or SIM_FPS
        self._clock = clock
        self._workcell = Workcell(scene.seed)
        self._renderer = Renderer(
            self._workcell, width=self.size[0], height=self.size[1], difficulty=scene.difficulty
        )

    def run(self, deliver: Deliver, stopping: threading.Event) -> None:
        began_s = self._clock.monotonic_s()
        number, forget_at_s = 0, FORGET_EVERY_S
        while not self._clock.wait(
            stopping, began_s + number / self.fps - self._clock.monotonic_s()
        ):
            t_s = number / self.fps
            rgb = self._renderer.render(number, t_s, self._clock.wall_ms())
            deliver(VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format="yuv420p"))
            if t_s >= forget_at_s:
                self._workcell.forget_before(t_s)
                forget_at_s = t_s + FORGET_EVERY_S
            number = max(number + 1, int((self._clock.monotonic_s() - began_s) * self.fps))


class FilePictures:
    """A video file in the pace of its own clock, again and again unless `once`."""

    def __init__(self, path: Path, wanted: Wanted, *, clock: Clock) -> None:
        self._path = path
        self._wanted = wanted
        self._clock = clock
        with _opened(str(path)) as container:
            stream = _video(container, path.name)
            self.size = _even(wanted.size or (stream.width, stream.height))
            self.fps = wanted.fps or float(stream.average_rate or FILE_FPS)

    def run(self, deliver: Deliver, stopping: threading.Event) -> None:
        while not stopping.is_set():
            if not self._once_through(deliver, stopping):
                raise NoPictures(f"{self._path.name} holds no picture that can be decoded")
            if self._wanted.once:
                return

    def _once_through(self, deliver: Deliver, stopping: threading.Event) -> int:
        """How many pictures there were."""
        n, began_s, last_due_s = 0, self._clock.monotonic_s(), -1.0
        for frame, due_s in self._decoded():
            n += 1
            if self._wanted.fps is not None and due_s - last_due_s < 0.999 / self._wanted.fps:
                continue
            last_due_s = due_s
            if self._clock.wait(stopping, began_s + due_s - self._clock.monotonic_s()):
                break
            deliver(_sized(frame, self.size))
        # The last picture is seen as long as the others before the first one comes again.
        self._clock.wait(stopping, 1 / self.fps)
        return n

    def _decoded(self) -> Iterator[tuple[VideoFrame, float]]:
        """Pictures with the seconds since the first one; damaged packets are passed over."""
        with _opened(str(self._path)) as container:
            stream = _video(container, self._path.name)
            stream.thread_count = 1
            first_s: float | None = None
            due_s = 0.0
            for packet in _packets(container, stream, self._path.name):
                for frame in _frames(packet):
                    if frame.pts is None:
                        due_s += 1 / self.fps
                    else:
                        first_s = frame.time if first_s is None else first_s
                        due_s = max(due_s, frame.time - first_s)
                    yield frame, due_s


class DevicePictures:
    """A camera of this machine (V4L2), in its own pace."""

    def __init__(self, path: str, wanted: Wanted) -> None:
        options = {}
        if wanted.size is not None:
            options["video_size"] = f"{wanted.size[0]}x{wanted.size[1]}"
        if wanted.fps is not None:
            options["framerate"] = f"{wanted.fps:g}"
        self._path = path
        self._container = _opened(path, kind="v4l2", options=options)
        self._stream = _video(self._container, path)
        self.size = _even((self._stream.width, self._stream.height))
        self.fps = wanted.fps or float(self._stream.average_rate or FILE_FPS)

    def run(self, deliver: Deliver, stopping: threading.Event) -> None:
        with self._container as container:
            for packet in _packets(container, self._stream, self._path):
                if stopping.is_set():
                    return
                for frame in _frames(packet):
                    deliver(_sized(frame, self.size))
        raise NoPictures(f"{self._path} gives no more pictures")


def _sim_options(source: str) -> SimScene:
    parts = urlsplit(source)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    seed = given.pop("seed", "0")
    wanted = given.pop("difficulty", "normal")
    difficulty = next((known for known in DIFFICULTIES if known == wanted), None)
    known = parts.path.strip("/") in ("", "sim") and parts.netloc in ("", "workcell")
    if given or not known or not seed.isdecimal() or difficulty is None:
        raise NoPictures(
            f"{source} is no simulated camera; write sim, or sim://workcell?seed=3&difficulty=easy"
            f" with one of {', '.join(DIFFICULTIES)}"
        )
    return SimScene(seed=int(seed), difficulty=difficulty)


def _opened(
    what: str, *, kind: str | None = None, options: dict[str, str] | None = None
) -> InputContainer:
    try:
        return av.open(what, format=kind, options=options or {})
    except (av.FFmpegError, OSError) as error:
        raise NoPictures(f"{what} cannot be read: {error.strerror or error}") from error


def _video(container: InputContainer, name: str) -> VideoStream:
    if not container.streams.video:
        container.close()
        raise NoPictures(f"{name} holds no video")
    return container.streams.video[0]


def _packets(
    container: InputContainer, stream: VideoStream, name: str
) -> Iterator[Packet[VideoStream]]:
    """Raises NoPictures where the file is broken off, or the camera unplugged."""
    try:
        yield from container.demux(stream)
    except (av.FFmpegError, OSError) as error:
        raise NoPictures(f"{name} cannot be read any further: {error.strerror or error}") from error


def _frames(packet: Packet[VideoStream]) -> list[VideoFrame]:
    try:
        return packet.decode()
    except av.FFmpegError:  # what comes after it may be whole
        return []


def _sized(frame: VideoFrame, size: Size) -> VideoFrame:
    return frame.reformat(width=size[0], height=size[1], format="yuv420p")


def _even(size: Size) -> Size:
    """Colour has half the resolution: an odd last row or column is left out."""
    return max(2, size[0] & ~1), max(2, size[1] & ~1)

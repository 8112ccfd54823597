"""Files of the simulated workcell: video with the truth of every frame beside it.

`OUT.mp4` is H.264, `OUT.y4m` uncompressed; `OUT.mp4.jsonl` holds one line of labels per frame. The
same options give the same pictures and labels: the burned-in wall clock starts at zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeAlias

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from liveedge.core.errors import SettingsInvalid
from liveedge.media.sim import SimOptions
from liveedge.sim.labels import Labels
from liveedge.sim.render import Difficulty, Renderer
from liveedge.sim.scene import Workcell
from liveedge.sim.y4m import Y4mWriter

SUFFIXES = (".mp4", ".y4m")
Progress: TypeAlias = Callable[[int, int], None]  # frames written, frames in all
_FORGET_EVERY_S = 10.0  # scene time


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What was written."""

    video: Path
    labels: Path
    n_frames: int


def record(
    path: Path,
    *,
    seed: int = 0,
    seconds: float = 10.0,
    fps: float = 30.0,
    size: tuple[int, int] = (854, 480),
    difficulty: Difficulty = "normal",
    progress: Progress | None = None,
) -> Recording:
    """Write `seconds` of the scene of `seed` to `path` and its labels to `<path>.jsonl`.

    `size` is (width, height). The files appear under their names once complete.
    """
    _check(path, seconds, size)
    width, height = size
    options = SimOptions(seed=seed, fps=fps, width=width, height=height, difficulty=difficulty)
    n_frames = max(round(seconds * fps), 1)
    labels_path = path.with_name(path.name + ".jsonl")
    video_part, labels_part = (p.with_name(p.name + ".part") for p in (path, labels_path))
    try:
        with (
            _open(video_part, options, suffix=path.suffix) as video,
            labels_part.open("w", encoding="utf-8", newline="\n") as lines,
        ):
            for rgb, labels in _frames(options, n_frames):
                video.write(rgb)
                lines.write(labels.to_line())
                if progress is not None:
                    progress(labels.frame_number + 1, n_frames)
        labels_part.replace(labels_path)
        video_part.replace(path)
    finally:
        video_part.unlink(missing_ok=True)
        labels_part.unlink(missing_ok=True)
    return Recording(video=path, labels=labels_path, n_frames=n_frames)


def _check(path: Path, seconds: float, size: tuple[int, int]) -> None:
    if path.suffix not in SUFFIXES:
        raise SettingsInvalid(
            f"record: {path.name} has suffix {path.suffix!r}, needs {' or '.join(SUFFIXES)}"
        )
    if not path.parent.is_dir():
        raise SettingsInvalid(f"record: {path.parent} is not a folder: create it first")
    if not 0 < seconds <= 86_400:
        raise SettingsInvalid(
            f"record: seconds is {seconds}, needs to be above 0 and at most 86400"
        )
    if path.suffix == ".mp4" and (size[0] % 2 or size[1] % 2):
        raise SettingsInvalid(
            f"record: size is {size[0]}x{size[1]}, H.264 needs even sides; .y4m takes any size"
        )


def _frames(options: SimOptions, n_frames: int) -> Iterator[tuple[NDArray[np.uint8], Labels]]:
    workcell = Workcell(options.seed)
    renderer = Renderer(
        workcell, width=options.width, height=options.height, difficulty=options.difficulty
    )
    forget_at_s = _FORGET_EVERY_S
    for number in range(n_frames):
        t_s = number / options.fps
        wall_ms = round(t_s * 1000)
        rgb = renderer.render(number, t_s, wall_ms)
        yield rgb, Labels(frame_number=number, wall_ms=wall_ms, state=workcell.state(t_s))
        if t_s >= forget_at_s:
            workcell.forget_before(t_s)
            forget_at_s = t_s + _FORGET_EVERY_S


class _VideoFile(Protocol):
    def write(self, rgb: NDArray[np.uint8]) -> None: ...


def _open(path: Path, options: SimOptions, *, suffix: str) -> AbstractContextManager[_VideoFile]:
    fps = Fraction(options.fps).limit_denominator(1001)  # 29.97 and the like exactly
    if suffix == ".y4m":
        return Y4mWriter(path, width=options.width, height=options.height, fps=fps)
    return _Mp4Writer(path, width=options.width, height=options.height, fps=fps)


class _Mp4Writer:
    """H.264 good enough to read the burned-in code, a key frame per second."""

    def __init__(self, path: Path, *, width: int, height: int, fps: Fraction) -> None:
        self._container = av.open(str(path), "w", format="mp4")
        self._stream: VideoStream = self._container.add_stream("libx264", rate=fps)
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv420p"
        self._stream.options = {"preset": "veryfast", "crf": "18"}
        context = self._stream.codec_context
        context.gop_size = max(round(fps), 1)
        context.thread_count = 1  # the same file on every machine
        context.colorspace = 6  # BT.601, as converted; players guess BT.709 for larger pictures
        self._n_frames = 0

    def write(self, rgb: NDArray[np.uint8]) -> None:
        frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
        frame.pts = self._n_frames
        frame.time_base = 1 / Fraction(self._stream.codec_context.framerate)
        self._n_frames += 1
        self._container.mux(self._stream.encode(frame))

    def __enter__(self) -> _Mp4Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._container.mux(self._stream.encode(None))
        finally:
            self._container.close()

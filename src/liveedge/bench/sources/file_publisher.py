"""`publisher` for videos: `python -m liveedge.bench.sources.file_publisher`.

A video is a camera that begins again at its end. Frame `n` of the camera is that of the video's own
clock; where it has labels, the clock burned into it is written anew with the time of now.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from numpy.typing import NDArray

from liveedge.bench.sources.pictures import Picture
from liveedge.bench.sources.publisher import serve
from liveedge.bench.sources.telling import read_job
from liveedge.bench.sources.truth import labels_of
from liveedge.core.clock import SystemClock
from liveedge.sim.clockcode import CodeReading, read_code, write_code

DEFAULT_FPS = 25.0  # of a file that does not say


class FileCamera:
    """One video at a rate and size of its own. Raises av.FFmpegError where it cannot be read."""

    def __init__(self, video: Path, *, fps: float, size: tuple[int, int]) -> None:
        self.fps = fps
        self._video = video
        self._size = size
        self._is_labelled = labels_of(video).exists()
        self._shown = -1  # frames of the video so far, over all rounds
        self._frames = self._endless()
        self._video_fps = self._rate()
        self._now = next(self._frames)

    def picture(self, number: int, wall_ms: int) -> Picture:
        wanted = int(number / self.fps * self._video_fps + 1e-6)
        while self._shown < wanted:
            self._now = next(self._frames)
        rgb, burned, in_file = self._now
        if burned is None or not self._is_labelled:
            t_ms = round(in_file * 1000 / self._video_fps)
            return Picture(number=in_file, t_ms=t_ms, wall_ms=wall_ms, rgb=rgb)
        rgb = rgb.copy()
        write_code(rgb, CodeReading(burned.frame_number, burned.t_ms, wall_ms))
        return Picture(number=burned.frame_number, t_ms=burned.t_ms, wall_ms=wall_ms, rgb=rgb)

    def _rate(self) -> float:
        with _opened(self._video) as container:
            return float(container.streams.video[0].average_rate or DEFAULT_FPS)

    def _endless(self) -> Iterator[tuple[NDArray[np.uint8], CodeReading | None, int]]:
        """Pictures, the code that was in each, and its number in the file."""
        width, height = self._size
        while True:
            with _opened(self._video) as container:
                for in_file, frame in enumerate(container.decode(video=0)):
                    self._shown += 1
                    burned = read_code(_rgb(frame)) if self._is_labelled else None
                    yield _rgb(frame.reformat(width=width, height=height)), burned, in_file


def _rgb(frame: av.VideoFrame) -> NDArray[np.uint8]:
    return np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8)


def _opened(video: Path) -> InputContainer:
    container = av.open(str(video))
    container.streams.video[0].thread_count = 1
    return container


def file_cameras(job: dict[str, Any]) -> Iterator[FileCamera]:
    for video in job["videos"]:
        yield FileCamera(Path(video), fps=job["fps"], size=(job["width"], job["height"]))


def main() -> None:
    job = read_job()
    serve(file_cameras(job), job, SystemClock())


if __name__ == "__main__":
    main()

"""Frames to an MP4 in memory: what servers take that read a video by themselves."""

from __future__ import annotations

import io
from collections.abc import Iterable
from fractions import Fraction

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

TIME_BASE = Fraction(1, 1000)
ALONE_MS = 500  # how long a frame without a successor is shown


def encode_mp4(frames: Iterable[tuple[float, NDArray[np.uint8]]]) -> bytes:
    """H.264 of (seconds, RGB [height, width, 3]) in order, all of one size; times as given, to the
    millisecond. Odd sizes lose a row or a column. Blocking.

    The last frame comes twice, at the same distance again: a video has an end, and readers that
    need two frames get them.
    """
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        writer: _Writer | None = None
        for time_s, rgb in frames:
            if writer is None:
                writer = _Writer(container, height=rgb.shape[0], width=rgb.shape[1])
            writer.write(rgb, round(time_s * 1000))
        if writer is not None:
            writer.finish()
    return out.getvalue()


class _Writer:
    def __init__(self, container: av.container.OutputContainer, *, height: int, width: int) -> None:
        self._container = container
        self._height, self._width = height // 2 * 2, width // 2 * 2
        stream: VideoStream = container.add_stream("libx264", rate=30)
        stream.width, stream.height = self._width, self._height
        stream.pix_fmt = "yuv420p"
        stream.options = {"preset": "veryfast", "crf": "18", "bf": "0"}
        stream.time_base = stream.codec_context.time_base = TIME_BASE
        stream.codec_context.thread_count = 1  # of several questions at once, each has one
        stream.codec_context.colorspace = 6  # BT.601, as converted; readers guess by the size
        self._stream = stream
        self._last: tuple[NDArray[np.uint8], int] | None = None
        self._distance_ms = ALONE_MS

    def write(self, rgb: NDArray[np.uint8], at_ms: int) -> None:
        if self._last is not None:
            self._distance_ms = max(1, at_ms - self._last[1])
            at_ms = self._last[1] + self._distance_ms
        self._last = (rgb, at_ms)
        cut = np.ascontiguousarray(rgb[: self._height, : self._width])
        frame = av.VideoFrame.from_ndarray(cut, format="rgb24")
        frame.pts, frame.time_base = at_ms, TIME_BASE
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        assert self._last is not None, "there is a frame"
        rgb, at_ms = self._last
        self.write(rgb, at_ms + self._distance_ms)
        self._container.mux(self._stream.encode(None))

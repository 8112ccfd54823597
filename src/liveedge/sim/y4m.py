"""Uncompressed video: YUV4MPEG2 files with 4:2:0 planes, in numpy alone.

Colours are BT.601 in video range, chroma in the middle of its four pixels (`C420jpeg`): what every
player assumes of such a file. Any size; an odd side's last chroma sample covers one pixel row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

_FRAME = b"FRAME\n"
_MAX_HEADER_BYTES = 1024

# RGB to Y, Cb, Cr in video range; rows are outputs.
_TO_YUV = np.array(
    [
        [0.299 * 219, 0.587 * 219, 0.114 * 219],
        [-0.168736 * 224, -0.331264 * 224, 0.5 * 224],
        [0.5 * 224, -0.418688 * 224, -0.081312 * 224],
    ],
    np.float32,
) / np.float32(255)
_OFFSET = np.array([16, 128, 128], np.float32)
_TO_RGB = np.linalg.inv(_TO_YUV)


@dataclass(frozen=True, slots=True, kw_only=True)
class Y4mHeader:
    """What the first line of a file says."""

    width: int
    height: int
    fps: Fraction


class Y4mWriter:
    """Writes frames one after another. A context manager: leaving it closes the file."""

    def __init__(self, path: Path, *, width: int, height: int, fps: Fraction) -> None:
        if width < 1 or height < 1 or fps <= 0:
            raise ValueError(f"a video of {width}x{height} at {fps} frames/s cannot be")
        self.header = Y4mHeader(width=width, height=height, fps=fps)
        self._file = path.open("wb")
        rate = f"F{fps.numerator}:{fps.denominator}"
        first = f"YUV4MPEG2 W{width} H{height} {rate} Ip A1:1 C420jpeg XCOLORRANGE=LIMITED\n"
        self._file.write(first.encode())

    def write(self, rgb: NDArray[np.uint8]) -> None:
        """Append one frame [height, width, 3]."""
        want = (self.header.height, self.header.width, 3)
        if rgb.shape != want:
            raise ValueError(f"frame has shape {rgb.shape}, this file needs {want}")
        self._file.write(_FRAME)
        for plane in to_planes(rgb):
            self._file.write(plane.tobytes())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Y4mWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_y4m(path: Path) -> tuple[Y4mHeader, list[NDArray[np.uint8]]]:
    """The header and every frame as RGB: for files of our own writer, small enough for memory."""
    with path.open("rb") as file:
        header = _read_header(file)
        return header, list(_read_frames(file, header))


def to_planes(rgb: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], ...]:
    """Y [h, w] and Cb, Cr [ceil(h / 2), ceil(w / 2)] of a picture [h, w, 3]."""
    full = rgb.astype(np.float32) @ _TO_YUV.T + _OFFSET
    height, width, _ = rgb.shape
    even = np.pad(full[..., 1:], ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    rows, columns = even.shape[0] // 2, even.shape[1] // 2
    chroma = even.reshape(rows, 2, columns, 2, 2).mean(axis=(1, 3))
    return _bytes(full[..., 0]), _bytes(chroma[..., 0]), _bytes(chroma[..., 1])


def to_rgb(y: NDArray[np.uint8], cb: NDArray[np.uint8], cr: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture of three planes; each chroma sample fills its four pixels."""
    height, width = y.shape
    wide = (plane.repeat(2, axis=0).repeat(2, axis=1)[:height, :width] for plane in (cb, cr))
    yuv = np.stack([y, *wide], axis=-1).astype(np.float32)
    return _bytes((yuv - _OFFSET) @ _TO_RGB.T)


def _bytes(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _read_header(file: BinaryIO) -> Y4mHeader:
    words = file.readline(_MAX_HEADER_BYTES).decode("ascii", "replace").split()
    known = {word[0]: word[1:] for word in words[1:] if word[0] != "X"}
    if words[:1] != ["YUV4MPEG2"] or known.get("C") != "420jpeg":
        raise ValueError("not a YUV4MPEG2 file with C420jpeg planes")
    return Y4mHeader(
        width=int(known["W"]),
        height=int(known["H"]),
        fps=Fraction(*map(int, known["F"].split(":"))),
    )


def _read_frames(file: BinaryIO, header: Y4mHeader) -> Iterator[NDArray[np.uint8]]:
    full = (header.height, header.width)
    half = ((header.height + 1) // 2, (header.width + 1) // 2)
    while marker := file.readline(_MAX_HEADER_BYTES):
        if marker != _FRAME:
            raise ValueError(f"expected FRAME, found {marker[:20]!r}")
        yield to_rgb(*(_read_plane(file, shape) for shape in (full, half, half)))


def _read_plane(file: BinaryIO, shape: tuple[int, int]) -> NDArray[np.uint8]:
    data = file.read(shape[0] * shape[1])
    if len(data) != shape[0] * shape[1]:
        raise ValueError("the file ends in the middle of a frame")
    return np.frombuffer(data, np.uint8).reshape(shape)

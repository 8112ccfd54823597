"""Decoded video pixels, kept as the decoder gave them and turned upright when somebody looks.

Most frames of a camera are never looked at, and a planar frame is half the size of RGB.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from av import VideoFrame
from av.sidedata.sidedata import SideData, SideDataContainer
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

_MATRIX = struct.Struct("@9i")  # rows a b u, c d v, x y w: x' = ax + cy, y' = bx + dy, y downwards


@dataclass(frozen=True, slots=True)
class Turn:
    """How stored pixels become upright: sides swapped first, then mirrored."""

    swap: bool = False
    mirror_x: bool = False
    mirror_y: bool = False

    def apply(self, stored: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """[height, width, 3] in, upright and C-contiguous out."""
        turned = stored.transpose(1, 0, 2) if self.swap else stored
        turned = turned[:: -1 if self.mirror_y else 1, :: -1 if self.mirror_x else 1]
        return np.ascontiguousarray(turned)


AS_STORED = Turn()


@dataclass(frozen=True, slots=True)
class AvPixels:
    """A decoded frame of PyAV. Any number of threads may read it."""

    frame: VideoFrame
    turn: Turn = AS_STORED
    nbytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Asked for as often as the frame changes its place; the planes are objects made each time.
        n_bytes = sum(plane.buffer_size for plane in self.frame.planes)
        object.__setattr__(self, "nbytes", n_bytes)

    @property
    def width(self) -> int:
        return self.frame.height if self.turn.swap else self.frame.width

    @property
    def height(self) -> int:
        return self.frame.width if self.turn.swap else self.frame.height

    def rgb(self) -> NDArray[np.uint8]:
        # A converter of its own: the one that a frame keeps is not safe for two threads. One
        # thread: making a pool costs three times the conversion of a 480p frame.
        as_rgb = VideoReformatter().reformat(self.frame, format="rgb24", threads=1)
        return self.turn.apply(cast("NDArray[np.uint8]", as_rgb.to_ndarray()))


def turn_in(frame: VideoFrame) -> Turn | None:
    """The rotation that a frame carries; None: it says nothing about it."""
    # Not `frame.side_data`: the frame would keep it, and it the frame, until the garbage collector
    # finds the two, which may be minutes and hundreds of megabytes later.
    matrix = SideDataContainer(frame).get("DISPLAYMATRIX")  # type: ignore[call-arg]
    return None if matrix is None else turn_of(bytes(cast(SideData, matrix)))


def turn_of(display_matrix: bytes) -> Turn:
    """The nearest of the eight turns; cameras and phones use no other angles."""
    a, b, _, c, d, *_ = _MATRIX.unpack_from(display_matrix)
    if abs(b) + abs(c) > abs(a) + abs(d):
        return Turn(swap=True, mirror_x=c < 0, mirror_y=b < 0)
    return Turn(mirror_x=a < 0, mirror_y=d < 0)

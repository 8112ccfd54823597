"""One frame of a stream, and how its pixels are reached.

Pixels stay as they were decoded and become RGB only when somebody needs them: at 30 frames a
second most never do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Pixels(Protocol):
    """Decoded pixels in whatever layout the decoder gave, upright (rotation applied)."""

    @property
    def width(self) -> int: ...

    @property
    def height(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes held in memory; counted against the stream's cap."""
        ...

    def rgb(self) -> NDArray[np.uint8]:
        """[height, width, 3] RGB, C-contiguous; converted at each call, never cached."""
        ...


@dataclass(frozen=True, slots=True)
class RgbPixels:
    """Pixels that are RGB already: [height, width, 3] uint8, C-contiguous."""

    array: NDArray[np.uint8]

    @property
    def width(self) -> int:
        return int(self.array.shape[1])

    @property
    def height(self) -> int:
        return int(self.array.shape[0])

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    def rgb(self) -> NDArray[np.uint8]:
        return self.array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodecParams:
    """What a decoder has to know before the first packet. One object per run of equal packets."""

    codec: str  # FFmpeg's name: h264, hevc, vp8, vp9, av1, mjpeg
    extradata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedFrame:
    """The compressed bytes behind one decoded frame, as its source sent them.

    Feeding the packets of consecutive frames from a key frame on, in order, to a fresh decoder of
    one thread gives the same frames again, one per `CodedFrame`. A source that cannot promise this
    (reordered frames) gives none.
    """

    params: CodecParams
    packets: tuple[bytes, ...]  # fed since the frame before; the last one gave this frame
    is_key: bool  # nothing before is needed: decoding can begin here

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.packets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame with its place in the life of the stream."""

    index: int  # lifetime, from 0, never reused
    stream_time_ms: int  # since the stream's first frame, on the arrival clock, monotonic
    captured_at_ms: int  # Unix wall clock: first frame's wall time + stream_time_ms
    arrived_s: float  # monotonic seconds
    pixels: Pixels
    corrupt: bool = False
    after_gap: bool = False
    coded: CodedFrame | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held in memory, with those that it was decoded from."""
        return self.pixels.nbytes + (0 if self.coded is None else self.coded.nbytes)

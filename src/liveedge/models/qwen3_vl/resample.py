"""The weights with which torch resizes uint8 pictures, for kernels that must equal it to the bit.

They are torch's own: resizing ones among zeros in float64 gives them as torch computes them, in
every version and on every processor. Only the rounding to 16 bits is repeated here.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from liveedge.native.pixels import AxisWeights

LANES: Final = 4  # taps that the kernels take at once
BICUBIC_REACH: Final = 2  # inputs on each side of the middle; more when the picture shrinks
COLUMNS: Final = 64  # inputs told apart in one call; one that is 1 wide would be another case
MAX_PRECISION: Final = 22


def interpolate(image: Tensor, size: tuple[int, int]) -> Tensor:
    """[n, channels, height, width] resized as the reference does it; uint8 stays uint8."""
    return functional.interpolate(
        image, size=size, mode="bicubic", align_corners=False, antialias=True
    )


@lru_cache(maxsize=64)
def axis_weights(n_in: int, n_out: int) -> AxisWeights | None:
    """Of an axis of `n_in` that becomes `n_out`; remembered, because a stream has one size."""
    if n_in == n_out:
        return None
    start, exact = _exact_weights(n_in, n_out)
    precision = _precision(float(exact.max()))
    scaled = exact * (1 << precision)
    rounded = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int16)
    return _packed(start, rounded, precision=precision, n_in=n_in)


def _exact_weights(n_in: int, n_out: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of each output: where its window starts [n_out], and the weights in it [n_out, length].

    Input i has a one in column i modulo the window's length, which is more than any output reads:
    so the window of an output has exactly one input of each column.
    """
    scale = n_in / n_out
    reach = math.ceil(BICUBIC_REACH * max(scale, 1.0)) + 2
    length = 2 * reach
    start = np.floor((np.arange(n_out) + 0.5) * scale).astype(np.int64) - reach
    by_column = np.empty((n_out, length))
    inputs = torch.arange(n_in)
    with torch.inference_mode():
        for first in range(0, length, COLUMNS):
            comb = (inputs[:, None] - first) % length == torch.arange(COLUMNS)
            made = interpolate(comb.double()[None, None], (n_out, COLUMNS))[0, 0].numpy()
            by_column[:, first : first + COLUMNS] = made[:, : length - first]
    places = start[:, None] + np.arange(length)
    weights = np.take_along_axis(by_column, places % length, 1)
    weights[(places < 0) | (places >= n_in)] = 0
    return start, weights


def _precision(largest: float) -> int:
    """As many bits as leave the largest weight below 2^15."""
    for bits in range(MAX_PRECISION):
        if int(0.5 + largest * (1 << (bits + 1))) >= 1 << 15:
            return bits
    return MAX_PRECISION


def _packed(
    start: NDArray[np.int64], weights: NDArray[np.int16], *, precision: int, n_in: int
) -> AxisWeights:
    """Only the part of each window that is not zero, in equal lengths that end inside the input."""
    used = weights != 0
    end = start + weights.shape[1] - used[:, ::-1].argmax(1)
    first = start + used.argmax(1)
    # A weight rounded to zero at the edge of one window must not make it begin after the next.
    first = np.minimum.accumulate(first[::-1])[::-1]
    n_taps = -(-int((end - first).max()) // LANES) * LANES
    first = np.clip(first, 0, max(0, n_in - n_taps))
    taps = (first - start)[:, None] + np.arange(n_taps)
    inside = (taps >= 0) & (taps < weights.shape[1])
    packed = np.where(inside, np.take_along_axis(weights, np.where(inside, taps, 0), 1), 0)
    return AxisWeights(first.astype(np.int32), packed.astype(np.int16), precision)

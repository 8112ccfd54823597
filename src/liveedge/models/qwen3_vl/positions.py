"""Places of tokens in time, height and width (M-RoPE), as numbers. Torch-free.

Text advances all three together. A temporal group stays at one time, spreads over rows and columns
from there, and the text after it goes on behind its longer side.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def mrope_positions(
    n_tokens: int, groups: Iterable[tuple[int, int, int]]
) -> tuple[NDArray[np.int64], int]:
    """Positions [3, n_tokens], and the delta: token number n of an answer sits at n + delta.

    `groups` are (start, rows, columns) of the visual tokens of each temporal group, in order.
    """
    positions = np.empty((3, n_tokens), dtype=np.int64)
    done, next_position = 0, 0
    for start, rows, columns in groups:
        next_position = _text(positions, done, start, next_position)
        done = start + rows * columns
        grid = np.indices((rows, columns)).reshape(2, -1)
        positions[0, start:done] = next_position
        positions[1:, start:done] = next_position + grid
        next_position += max(rows, columns)
    next_position = _text(positions, done, n_tokens, next_position)
    return positions, next_position - n_tokens


def _text(positions: NDArray[np.int64], start: int, end: int, first: int) -> int:
    positions[:, start:end] = np.arange(first, first + end - start)
    return first + end - start

"""Places of tokens in time, height and width (M-RoPE), as numbers. Torch-free.

Text advances all three together. A temporal group stays at one time, spreads over rows and columns
from there, and the text after it goes on behind its longer side.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray


def mrope_positions(
    n_tokens: int, groups: Iterable[tuple[int, int, int]]
) -> tuple[NDArray[np.int64], int]:
    """Positions [3, n_tokens], and the delta: token number n of an answer sits at n + delta.

    `groups` are (start, rows, columns) of the visual tokens of each temporal group, in order.
    """
    found = list(groups)
    stops = [start + rows * columns for start, rows, columns in found]
    # A group takes as many places as its longer side: what follows moves up by the others.
    saved = [max(rows, columns) - rows * columns for _, rows, columns in found]
    shifts = [0, *accumulate(saved)]
    lengths = [end - begin for begin, end in pairwise([0, *stops, n_tokens])]
    positions = np.empty((3, n_tokens), dtype=np.int64)
    positions[:] = np.arange(n_tokens) + np.repeat(shifts, lengths)
    for (start, rows, columns), stop, shift in zip(found, stops, shifts, strict=False):
        np.add(_grid(rows, columns), start + shift, out=positions[:, start:stop])
    return positions, shifts[-1]


@lru_cache(64)
def _grid(rows: int, columns: int) -> NDArray[np.int64]:
    """Places of a group's tokens from its own start; not to be written."""
    grid = np.indices((1, rows, columns)).reshape(3, -1)
    grid.setflags(write=False)
    return grid

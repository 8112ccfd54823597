"""Counts of values by size, as Prometheus' histograms are: exact counts, bounds chosen beforehand.

Thread  one: whoever observes also reads. In the server that is the event loop.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """How many values were at most as large as each bound, how many there were, and their sum."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` rise; values above the last one are counted too."""
        assert list(bounds) == sorted(set(bounds)), bounds
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value. About half a microsecond."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Each bound with the number of values up to and including it; infinity is the last."""
        bounds = (*self.bounds, math.inf)
        return list(zip(bounds, itertools.accumulate(self._counts), strict=True))

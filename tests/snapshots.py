"""Snapshots made by hand, and hypothesis strategies for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from liveedge.frames.snapshot import Snapshot

FIRST_AT_MS = 1_750_000_000_000


@dataclass(frozen=True, slots=True)
class Past:
    """All frames a stream ever produced, and which of them are retained."""

    times_ms: tuple[int, ...]
    retained: frozenset[int]

    def snapshot(self) -> Snapshot:
        return make_snapshot(self.times_ms, retained=sorted(self.retained))


def make_snapshot(
    times_ms: Sequence[int],
    *,
    retained: Sequence[int] | None = None,
    sizes: Sequence[tuple[int, int]] | None = None,
    corrupt: Sequence[int] = (),
) -> Snapshot:
    """A snapshot of a stream that produced frames at these times."""
    kept = np.array(range(len(times_ms)) if retained is None else retained, dtype=np.int64)
    times = np.array(times_ms, dtype=np.int64)[kept]
    all_sizes = np.array(sizes or [(640, 480)] * len(times_ms), dtype=np.int32).reshape(-1, 2)[kept]
    return Snapshot(
        stream_id="cam",
        taken_at_s=1_000.0,
        n_produced=len(times_ms),
        newest_ms=times_ms[-1] if times_ms else 0,
        index=kept,
        stream_time_ms=times,
        captured_at_ms=times + FIRST_AT_MS,
        arrived_s=times / 1000,
        width=all_sizes[:, 0],
        height=all_sizes[:, 1],
        corrupt=np.isin(kept, list(corrupt)),
    )


@st.composite
def pasts(draw: st.DrawFn) -> Past:
    """Steady, jittery and broken streams, with evicted beginnings and holes, and sometimes nothing
    left; the newest is retained unless nothing is."""
    steps = draw(st.lists(st.sampled_from([0, 1, 33, 34, 40, 100, 500, 4321]), max_size=40))
    times = [0]
    for step in steps:
        times.append(times[-1] + step)
    if draw(st.integers(0, 19)) == 0:
        return Past(tuple(times), frozenset())
    n = len(times)
    oldest = draw(st.integers(0, n - 1))
    holes = draw(st.frozensets(st.integers(0, n - 1), max_size=4)) - {n - 1}
    return Past(tuple(times), frozenset(range(oldest, n)) - holes)

"""What was retained at one instant: the only thing the resolver looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int64s: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The retained frames of a stream as parallel arrays, oldest first; nobody writes to them.

    `index` rises strictly, `stream_time_ms` never falls. Holes are frames evicted before their
    elders: the history could not keep up.
    """

    stream_id: str
    taken_at_s: float  # monotonic
    n_produced: int  # frames there ever were: the newest has index n_produced - 1
    newest_ms: int  # stream time of the newest frame ever produced; 0 before the first
    index: Int64s  # [n]
    stream_time_ms: Int64s  # [n]
    captured_at_ms: Int64s  # [n] Unix wall clock
    arrived_s: NDArray[np.float64]  # [n] monotonic: freshness is measured by this
    width: NDArray[np.int32]  # [n] pixels
    height: NDArray[np.int32]  # [n]
    corrupt: NDArray[np.bool_]  # [n]

    @property
    def ever_produced(self) -> bool:
        return self.n_produced > 0

    def __len__(self) -> int:
        return len(self.index)

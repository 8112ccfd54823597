"""What a long run looks at from outside: memory of processes, and whether it rises."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from liveedge.bench.processes import process_tree
from report import slope

PROCESSES = Path("/proc")
SETTLING_SHARE = 0.2  # of a run: caches and histories fill
LARGE_SHARE = 0.005  # a rise below this share of the level is no rise

_SHARE = re.compile(r"^(Pss(?:_Anon|_Shmem)?):\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through the later part of a series."""

    first: float  # on the line
    last: float
    per_min: float
    noise: float  # standard deviation around the line

    @property
    def is_flat(self) -> bool:
        """Rises by no more than it scatters, or by next to nothing."""
        return self.last - self.first <= max(self.noise, LARGE_SHARE * abs(self.first))


def trend(points: Sequence[tuple[float, float]]) -> Trend:
    """Least squares over (s, value), without the first fifth of the time."""
    later = [point for point in points if point[0] >= SETTLING_SHARE * points[-1][0]]
    per_s = slope(later)
    if math.isnan(per_s):
        return Trend(math.nan, math.nan, math.nan, math.nan)
    middle_s = statistics.fmean(s for s, _ in later)
    level = statistics.fmean(value for _, value in later)

    def line(s: float) -> float:
        return level + per_s * (s - middle_s)

    noise = statistics.pstdev([value - line(s) for s, value in later])
    return Trend(line(later[0][0]), line(later[-1][0]), per_s * 60, noise)


def memory_mb(pid: int) -> Mapping[str, float]:
    """Memory of a server, of its engine (the largest process below it), and of all others.

    Each process's share of pages that several have: what shared pixels take is counted once. Pages
    of files are left out: the system keeps and drops those of libraries as it likes, and a process's
    share of them grows when an unrelated one that has them too ends.
    """
    below = sorted(map(_share_mb, process_tree(pid)[1:]), reverse=True)
    return {
        "server": _share_mb(pid),
        "engine": below[0] if below else 0.0,
        "others": sum(below[1:]),
    }


def _share_mb(pid: int) -> float:
    try:
        text = (PROCESSES / str(pid) / "smaps_rollup").read_text()
    except OSError:  # ended meanwhile
        return 0.0
    return share_kb(text) / 1024


def share_kb(rollup: str) -> int:
    """Of what is not a file; of everything where the system (Linux before 5.9) does not tell apart."""
    found = {name: int(kb) for name, kb in _SHARE.findall(rollup)}
    if "Pss_Anon" not in found:
        return found["Pss"]
    return found["Pss_Anon"] + found["Pss_Shmem"]

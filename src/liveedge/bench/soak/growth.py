"""Whether a series grows: its slope and interval against a stated tolerance. Pure.

What leaks goes on, what fills comes to rest: so the later half of each life has a say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from liveedge.bench.soak.series import Kind, Series
from liveedge.bench.soak.slopes import (
    MOST_SHARED,
    Points,
    Slope,
    beside,
    later_half,
    slope,
    widened,
)

Growth: TypeAlias = Literal["flat", "grows", "undecided", "pool"]

# Per hour: the larger of a share of the level and an amount in the unit of the series.
TOLERANCES: dict[Kind, tuple[float, float]] = {
    "memory": (0.005, 2.0),  # MB
    "count": (0.02, 1.0),
    "time": (0.05, 20.0),  # ms
    "pool": (0.02, 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A series, its slope, and what that means."""

    series: Series
    slope: Slope | None  # None: too few points
    tolerance: float  # per hour, in the series' unit
    growth: Growth
    says: str


def judge(series: Series) -> Judged:
    """Flat where the interval ends below the tolerance, or that of the later halves does; growing where
    it begins above it and the later halves go on. Times are judged at the same load of the machine."""
    shared = 0.0
    if series.load:
        points, shared = beside(series.points, series.load)
        series = replace(series, points=list(points))
    found = _slope(series.points, shared)
    level = abs(found.level) if found else 0.0
    share, amount = TOLERANCES[series.kind]
    tolerance = max(share * level, amount)
    growth, says = _growth(series, found, tolerance, shared)
    if growth == "grows" and shared > MOST_SHARED:
        growth, says = "undecided", f"{says}; but the machine's load rose with it"
    return Judged(series=series, slope=found, tolerance=tolerance, growth=growth, says=says)


def _slope(points: Points, shared: float) -> Slope | None:
    found = slope(points)
    return None if found is None else widened(found, min(shared, MOST_SHARED))


def _growth(
    series: Series, found: Slope | None, tolerance: float, shared: float
) -> tuple[Growth, str]:
    unit = f" {series.unit}" if series.unit else ""
    if found is None:
        return "undecided", "too few points after the settling"
    rate = f"{found.per_h:+.3g} ({found.low:+.3g} to {found.high:+.3g}){unit} per hour"
    if series.is_bounded and found.high > tolerance:
        return _pool(series, rate, unit)
    if found.high <= tolerance:
        return "flat", f"{rate}, below {tolerance:.3g}"
    late = _slope(later_half(series.points), shared)
    half = "too few points in the later halves"
    if late is not None:
        half = f"in the later half of each life {late.per_h:+.3g} ({late.low:+.3g} to {late.high:+.3g})"
        if late.high <= tolerance:
            return "flat", f"{rate} at first; {half}, below {tolerance:.3g}"
    if found.low > tolerance and late is not None and late.low > 0 and late.per_h > tolerance:
        return "grows", f"{rate}, above {tolerance:.3g}; {half}"
    hours = found.hours_to_exclude(tolerance)
    needed = "a longer run" if hours is None else f"about {hours:.1f} hours"
    return "undecided", f"{rate}; {half}: whether below {tolerance:.3g} takes {needed} to tell"


def _pool(series: Series, rate: str, unit: str) -> tuple[Growth, str]:
    """What has a bound may fill up to it; above it, it leaks."""
    most = max((value for _, value, _ in series.points), default=0.0)
    if series.bound is None:
        return "pool", f"{rate}; a pool that is allocated at the start"
    if most > series.bound:
        return "grows", f"{most:.3g}{unit} is above its bound of {series.bound:.3g}{unit}"
    return "pool", f"{rate}; fills a pool of {series.bound:.3g}{unit}, most {most:.3g}{unit}"

"""Whether a series grows: its slope and interval against a stated tolerance. Pure.

What leaks goes on, what fills comes to rest: so the later half of each life has a say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from liveedge.bench.soak.series import Kind, Series
from liveedge.bench.soak.slopes import Slope, later_half, slope

Growth: TypeAlias = Literal["flat", "grows", "undecided", "pool"]

# Per hour: the larger of a share of the level and an amount in the unit of the series.
TOLERANCES: dict[Kind, tuple[float, float]] = {
    "memory": (0.005, 2.0),  # MB
    "count": (0.02, 1.0),
    "time": (0.05, 20.0),  # ms
    "pool": (0.02, 1.0),
}


BUSIER = 0.5  # of the load average, over the run


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
    it begins above it and the later halves go on."""
    found = slope(series.points)
    level = abs(found.level) if found else 0.0
    share, amount = TOLERANCES[series.kind]
    tolerance = max(share * level, amount)
    growth, says = _growth(series, found, tolerance)
    return Judged(series=series, slope=found, tolerance=tolerance, growth=growth, says=says)


def beside_load(found: Judged, load: Slope | None) -> Judged:
    """A time that grew while the whole machine grew busier tells nothing about the server."""
    is_time = found.series.kind == "time" and found.growth == "grows"
    if not is_time or load is None or load.high <= 0 or load.per_h * load.hours < BUSIER:
        return found
    rose = load.per_h * load.hours
    says = f"{found.says}; but the machine's load rose by {rose:.1f} meanwhile"
    return replace(found, growth="undecided", says=says)


def _growth(series: Series, found: Slope | None, tolerance: float) -> tuple[Growth, str]:
    unit = f" {series.unit}" if series.unit else ""
    if found is None:
        return "undecided", "too few points after the settling"
    rate = f"{found.per_h:+.3g} ({found.low:+.3g} to {found.high:+.3g}){unit} per hour"
    if series.is_bounded and found.high > tolerance:
        return _pool(series, rate, unit)
    if found.high <= tolerance:
        return "flat", f"{rate}, below {tolerance:.3g}"
    late = slope(later_half(series.points))
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

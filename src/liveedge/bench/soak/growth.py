"""Whether a series grows: its slope and interval against a stated tolerance. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from liveedge.bench.soak.series import Kind, Series
from liveedge.bench.soak.slopes import Slope, slope

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
    """Flat where the interval ends below the tolerance, growing where it begins above it."""
    found = slope(series.points)
    level = abs(found.level) if found else 0.0
    share, amount = TOLERANCES[series.kind]
    tolerance = max(share * level, amount)
    growth, says = _growth(series, found, tolerance)
    return Judged(series=series, slope=found, tolerance=tolerance, growth=growth, says=says)


def _growth(series: Series, found: Slope | None, tolerance: float) -> tuple[Growth, str]:
    unit = f" {series.unit}" if series.unit else ""
    if found is None:
        return "undecided", "too few points after the settling"
    rate = f"{found.per_h:+.3g} ({found.low:+.3g} to {found.high:+.3g}){unit} per hour"
    if series.is_bounded and found.high > tolerance:
        return _pool(series, rate, unit)
    if found.high <= tolerance:
        return "flat", f"{rate}, below {tolerance:.3g}"
    if found.low > tolerance:
        return "grows", f"{rate}, above {tolerance:.3g}"
    hours = found.hours_to_exclude(tolerance)
    needed = "a longer run" if hours is None else f"about {hours:.1f} hours"
    return "undecided", f"{rate}: whether below {tolerance:.3g} takes {needed} to tell"


def _pool(series: Series, rate: str, unit: str) -> tuple[Growth, str]:
    """What has a bound may fill up to it; above it, it leaks."""
    most = max((value for _, value, _ in series.points), default=0.0)
    if series.bound is None:
        return "pool", f"{rate}; a pool that is allocated at the start"
    if most > series.bound:
        return "grows", f"{most:.3g}{unit} is above its bound of {series.bound:.3g}{unit}"
    return "pool", f"{rate}; fills a pool of {series.bound:.3g}{unit}, most {most:.3g}{unit}"

"""How fast a series grows, and how sure that is. Pure.

The model: each group of points (a start of the server, a life of a process) has a level of its own,
and all share one slope. The slope is by least squares within the groups. Its interval does not take
the points as independent, which those of memory and ages never are: it is the widest of

- the slope's exact variance under autoregressive noise of first order, its coefficient estimated
  from the residuals and corrected for the downward bias that short groups have; once for the points
  as they are, and again for means of 3, 9 and 27 neighbours, so that slow noise under fast noise
  counts;
- a HAC variance (Bartlett kernel over a tenth of the points) with the critical value of Kiefer and
  Vogelsang for that share, for noise of any other shape.

On simulated noise (`tests/unit/test_soak_slopes.py`) it covers the truth in 93 % of runs and more,
from independent points to coefficients of 0.97 and mixtures of both, with 600 points; with 120 or
fewer, noise that is slower than a tenth of the run makes it too narrow.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Points: TypeAlias = Sequence[tuple[float, float, Hashable]]  # at s, value, group
Floats: TypeAlias = NDArray[np.float64]

FEWEST_IN_GROUP = 3
FEWEST = 12
SCALES = (1, 3, 9, 27)
FEWEST_MEANS = 20
KERNEL_SHARE = 0.1
# The 97.5 % quantile of the fixed-b distribution, Bartlett kernel (Kiefer and Vogelsang, 2005).
FIXED_B = 1.96 + 2.9694 * KERNEL_SHARE + 0.416 * KERNEL_SHARE**2 - 0.5324 * KERNEL_SHARE**3
TWO_SIDED = 2.0  # a little more than the normal 1.96, for what is estimated besides
LARGEST_RHO = 0.99
MOST_SHARED = 0.9
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Growth per hour with its 95 % interval."""

    per_h: float
    low: float
    high: float
    level: float  # mean of the values
    scatter: float  # standard deviation around the line
    hours: float  # that the points cover, gaps between groups left out
    n: int
    groups: int

    def hours_to_exclude(self, tolerance: float) -> float | None:
        """About how many hours would show that the growth is below `tolerance`; None where it may
        well be above. The interval of one long group narrows with T^1.5, of many short ones with
        the root of T."""
        room = tolerance - self.per_h
        if room <= 0 or self.high <= self.per_h:
            return None
        missing = (self.high - self.per_h) / room
        return self.hours * float(missing ** (2.0 if self.groups > 3 else 2.0 / 3.0))


@dataclass(frozen=True, slots=True)
class _Within:
    """Points as differences from the means of their groups."""

    t: Floats
    y: Floats
    starts: NDArray[np.bool_]  # True at the first point of each group

    @property
    def n_groups(self) -> int:
        return int(self.starts.sum())

    @property
    def slope(self) -> float:
        return float((self.t * self.y).sum() / (self.t**2).sum())

    @property
    def residuals(self) -> Floats:
        return self.y - self.slope * self.t


def slope(points: Points) -> Slope | None:
    """None where there are too few points to say anything."""
    grouped = _grouped(points)
    n = sum(len(group) for group in grouped)
    if n < FEWEST:
        return None
    fit = _within(grouped)
    if not fit.t.any():
        return None
    half = max(_hac_half(fit), *(_ar_half(grouped, scale) for scale in SCALES))
    spans_s = [float(group[-1, 0] - group[0, 0]) for group in grouped]
    return Slope(
        per_h=fit.slope * HOUR_S,
        low=(fit.slope - half) * HOUR_S,
        high=(fit.slope + half) * HOUR_S,
        level=float(np.concatenate(grouped)[:, 1].mean()),
        scatter=float(fit.residuals.std()),
        hours=sum(spans_s) / HOUR_S,
        n=n,
        groups=len(grouped),
    )


def beside(points: Points, other: Sequence[float]) -> tuple[Points, float]:
    """The points without what goes along with `other`, a value of each, within the groups.

    Also the share (0 to 1) of `other` that goes along with time: how much of a slope may be lost so.
    """
    grouped: dict[Hashable, list[int]] = {}
    for place, (_, _, group) in enumerate(points):
        grouped.setdefault(group, []).append(place)
    values = np.array(
        [(at_s, value, side) for (at_s, value, _), side in zip(points, other, strict=True)]
    )
    for places in grouped.values():
        values[places] -= values[places].mean(axis=0)
    t, y, along = values.T
    spread = float((t**2).sum() * (along**2).sum())
    if spread == 0.0:
        return points, 0.0
    shared = float((t * along).sum()) ** 2 / spread
    if shared > MOST_SHARED:
        return points, shared
    (_, per_other), *_ = np.linalg.lstsq(np.stack([t, along], axis=1), y, rcond=None)
    freed = [
        (at_s, value - float(per_other * side), group)
        for (at_s, value, group), side in zip(points, along, strict=True)
    ]
    return freed, shared


def widened(found: Slope, shared: float) -> Slope:
    """The slope of points out of `beside`, whose interval knows that two slopes were estimated."""
    factor = 1 / np.sqrt(1 - shared)
    return replace(
        found,
        low=found.per_h - factor * (found.per_h - found.low),
        high=found.per_h + factor * (found.high - found.per_h),
    )


def later_half(points: Points) -> Points:
    """Those of each group from its middle on."""
    spans: dict[Hashable, tuple[float, float]] = {}
    for at_s, _, group in points:
        first, last = spans.get(group, (at_s, at_s))
        spans[group] = min(first, at_s), max(last, at_s)
    return [point for point in points if point[0] >= sum(spans[point[2]]) / 2]


def _grouped(points: Points) -> list[Floats]:
    """[points, 2] of each group, in time."""
    found: dict[Hashable, list[tuple[float, float]]] = {}
    for at_s, value, group in points:
        found.setdefault(group, []).append((at_s, value))
    return [
        np.array(sorted(group), np.float64)
        for group in found.values()
        if len(group) >= FEWEST_IN_GROUP
    ]


def _within(grouped: Sequence[Floats]) -> _Within:
    centred = np.concatenate([group - group.mean(axis=0) for group in grouped])
    starts = np.zeros(len(centred), np.bool_)
    starts[np.cumsum([0, *(len(group) for group in grouped[:-1])])] = True
    return _Within(centred[:, 0], centred[:, 1], starts)


def _hac_half(fit: _Within) -> float:
    moments = fit.t * fit.residuals
    reach = max(1, int(KERNEL_SHARE * len(moments)))
    variance = float((moments**2).sum())
    for lag in range(1, reach):
        variance += 2 * (1 - lag / reach) * float((moments[lag:] * moments[:-lag]).sum())
    return FIXED_B * float(np.sqrt(max(variance, 0.0)) / (fit.t**2).sum())


def _ar_half(grouped: Sequence[Floats], scale: int) -> float:
    """Half of the interval under autoregressive noise of the means of `scale` neighbours."""
    means = [_means(group, scale) for group in grouped]
    fit_of = [group for group in means if len(group) >= FEWEST_IN_GROUP]
    if scale > 1 and sum(len(group) for group in fit_of) < FEWEST_MEANS:
        return 0.0
    fit = _within(fit_of)
    n, freedom = len(fit.t), len(fit.t) - 2 * fit.n_groups - 1
    residuals, follows = fit.residuals, ~fit.starts[1:]
    before = residuals[:-1][follows]
    if freedom < 1 or not before.any():
        return 0.0
    rho = float((residuals[1:][follows] * before).sum() / (before**2).sum())
    rho = min(LARGEST_RHO, max(0.0, rho + (1 + 3 * rho) * (1 + fit.n_groups) / n))
    steps = residuals[1:][follows] - rho * before
    variance = float((steps**2).sum()) / freedom / (1 - rho**2)
    spread = _spread(fit, rho)
    return TWO_SIDED * float(np.sqrt(variance * max(spread, 0.0)) / (fit.t**2).sum())


def _means(group: Floats, scale: int) -> Floats:
    n = len(group) // scale
    means: Floats = group[: n * scale].reshape(n, scale, 2).mean(axis=1)
    return means


def _spread(fit: _Within, rho: float) -> float:
    """t' R t, where R holds rho to the power of the distance between two points of one group."""
    total, carried = 0.0, 0.0
    before = 0.0
    for t, is_start in zip(fit.t.tolist(), fit.starts.tolist(), strict=True):
        carried = 0.0 if is_start else rho * (carried + before)
        total += t * t + 2 * t * carried
        before = t
    return total

"""Percentiles, proportions and their confidence. Pure: numbers in, numbers out.

Percentile   nearest rank (Hyndman and Fan's type 1): the smallest sample with at least p % of all at or
             below it. Always a value that was measured, never one between an answer and a time-out.
Intervals    95 %. Of a percentile: between two order statistics, their ranks from the binomial
             distribution, so that no shape of distribution is assumed. Of a share: Wilson's. Of a
             ratio, and where samples come in groups: the bootstrap, with seeded chance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from liveedge.bench.result import PERCENTS, Distribution, Proportion

PERCENTILE_METHOD = "nearest rank (Hyndman-Fan type 1); intervals: 95 %, order statistics"
CONFIDENCE = 0.95
Z = 1.959963984540054  # of the normal distribution, two-sided 95 %
RESAMPLES = 1000
FEWEST_RESAMPLES = 200  # of so many samples that more would take too long
FEWEST_NEIGHBOURS = 8  # of which an autocorrelation says anything
FEWEST = 6  # samples of which a bootstrap says anything
SEED = 6_2026  # of every bootstrap that is given no other chance
_MOST_WEIGHTS = 40_000_000  # numbers drawn for one interval: bounds its time to about a second

Floats: TypeAlias = npt.NDArray[np.float64]
Interval: TypeAlias = tuple[float, float]
# Rows of resamples to one number per row.
Statistic: TypeAlias = Callable[[Floats], Floats]


def percentile(values: Sequence[float] | Floats, percent: float) -> float:
    """The smallest of `values` with at least `percent` % of them at or below it; nan of nothing."""
    ranked = np.sort(np.asarray(values, dtype=np.float64))
    return float(ranked[_rank(len(ranked), percent) - 1]) if len(ranked) else math.nan


def distribution(
    values: Sequence[float] | Floats, *, n_independent: int | None = None
) -> Distribution:
    """Of samples that are as much evidence as `n_independent` independent ones; None: each is one."""
    ranked = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ranked)
    if not n:
        return Distribution(n=0)
    counted = n if n_independent is None else min(n, n_independent)
    intervals = {}
    for percent in PERCENTS:
        ranks = interval_ranks(counted, percent)
        if ranks is not None:
            low = max(1, math.floor(ranks[0] * n / counted))
            high = min(n, math.ceil(ranks[1] * n / counted))
            intervals[f"p{percent}"] = (float(ranked[low - 1]), float(ranked[high - 1]))
    return _distribution(ranked, intervals, counted)


def readings(values: Sequence[float]) -> Distribution:
    """Of looks at a gauge, one after another: no intervals, since each look resembles the last."""
    ranked = np.sort(np.asarray(values, dtype=np.float64))
    return _distribution(ranked, {}, None) if len(ranked) else Distribution(n=0)


def independent(values: Sequence[float] | Floats) -> int:
    """How many independent samples these are worth, in the order in which they were taken.

    Requests that wait in one queue resemble their neighbours: of n with the rank autocorrelation r at
    lag 1 the evidence is that of n (1 - r) / (1 + r). Where r is within chance, all n.
    """
    n, r = len(values), autocorrelation(values)
    if n < FEWEST_NEIGHBOURS or r < Z / math.sqrt(n):
        return n
    return max(1, round(n * (1 - r) / (1 + r)))


def grouped_distribution(groups: Sequence[Sequence[float]], chance: random.Random) -> Distribution:
    """Of samples that come in groups whose members resemble each other, as the gaps of one answer do.

    The intervals come from drawing whole groups: they are as wide as the number of groups demands, and
    a percentile is carried where that number would carry it.
    """
    groups = [group for group in groups if len(group)]
    if not groups:
        return Distribution(n=0)
    values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups])
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    order = np.argsort(values, kind="stable")
    carried = [percent for percent in PERCENTS if interval_ranks(len(groups), percent)]
    intervals = _group_intervals(values[order], owner[order], carried, chance)
    return _distribution(values[order], intervals, len(groups))


def share_of(flags: Sequence[bool]) -> Proportion:
    """Of the requests in their order for which something holds; neighbours may resemble each other."""
    return proportion(sum(flags), len(flags), n_independent=independent(flags))


def proportion(k: int, n: int, *, n_independent: int | None = None) -> Proportion:
    """k of n with Wilson's interval, which stays inside 0 and 1 and is honest at both ends."""
    if not n:
        return Proportion(k=k, n=n)
    share, counted = k / n, n_independent or n
    middle = (share + Z * Z / (2 * counted)) / (1 + Z * Z / counted)
    spread = share * (1 - share) / counted + Z * Z / (4 * counted * counted)
    half = Z / (1 + Z * Z / counted) * math.sqrt(spread)
    low = 0.0 if k == 0 else max(0.0, middle - half)
    high = 1.0 if k == n else min(1.0, middle + half)
    return Proportion(k=k, n=n, share=share, interval=(low, high))


def samples_needed(percent: float) -> int:
    """The fewest samples whose interval of this percentile has two ends: 6, 36, 72, 368 for 50 to 99."""
    tail = (1 - CONFIDENCE) / 2
    share = max(percent, 100 - percent) / 100
    return math.ceil(math.log(tail) / math.log(share))


@lru_cache(maxsize=4096)
def interval_ranks(n: int, percent: float) -> tuple[int, int] | None:
    """The ranks, from 1, of the two order statistics around a percentile; None for too few samples.

    With each tail at most 2.5 %: P(x[low] <= true percentile < x[high]) >= 95 %.
    """
    if n < samples_needed(percent):
        return None
    below = _binomial_cdf(n, percent / 100)  # [n + 1]: P(at most k samples lie below)
    tail = (1 - CONFIDENCE) / 2
    low = int(np.searchsorted(below, tail, side="right"))  # the largest with P(count < low) <= tail
    high = int(np.searchsorted(below, 1 - tail, side="left")) + 1
    return max(low, 1), min(high, n)


def autocorrelation(values: Sequence[float] | Floats) -> float:
    """Of neighbours (lag 1), by rank, so that a few huge values do not hide it; 0 for too few."""
    if len(values) < FEWEST_NEIGHBOURS:
        return 0.0
    centred = _centred_ranks(values)
    spread = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / spread if spread else 0.0


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's; 0 where one of them does not vary."""
    a, b = _centred_ranks(first), _centred_ranks(second)
    spread = math.sqrt(float((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / spread if spread else 0.0


def block_length(values: Sequence[float] | Floats) -> int:
    """How many neighbours to draw together: 1 where they are independent, more where they queue."""
    n = len(values)
    r = autocorrelation(values)
    if n < FEWEST_NEIGHBOURS or r < Z / math.sqrt(n):
        return 1
    decay = math.ceil(2 / max(1 - r, 0.02))  # twice the time in which a memory of this r fades
    return max(1, min(n // 4, max(math.ceil(n ** (1 / 3)), decay)))


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of B to A, with its bootstrap interval; `interval` is None where too few samples carry one."""

    value: float
    interval: Interval | None


def ratios(
    a: Sequence[float] | Floats,
    b: Sequence[float] | Floats,
    statistics: Sequence[Statistic],
    chance: random.Random,
) -> list[Ratio]:
    """`statistic(b) / statistic(a)` for each, of two independent runs in the order of their requests.

    Percentile bootstrap. Draws blocks of neighbours where those resemble each other.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    found = [_divide(of(second[None, :]), of(first[None, :]))[0] for of in statistics]
    if min(len(first), len(second)) < FEWEST:
        return [Ratio(float(value), None) for value in found]
    above = resampled(second, statistics, chance)
    below = resampled(first, statistics, chance)
    drawn = [_divide(up, down) for up, down in zip(above, below, strict=True)]
    return [Ratio(float(value), _middle(one)) for value, one in zip(found, drawn, strict=True)]


def ratio(
    a: Sequence[float] | Floats, b: Sequence[float] | Floats, of: Statistic, chance: random.Random
) -> Ratio:
    """`ratios` of one statistic."""
    return ratios(a, b, [of], chance)[0]


def bootstrap(
    values: Sequence[float] | Floats, of: Statistic, chance: random.Random
) -> Interval | None:
    """The 95 % interval of a statistic, in the order of the requests; None for too few samples."""
    known = np.asarray(values, dtype=np.float64)
    return _middle(resampled(known, [of], chance)[0]) if len(known) >= FEWEST else None


def resampled(
    values: Floats, statistics: Sequence[Statistic], chance: random.Random
) -> list[Floats]:
    """Each statistic of the same resamples (circular blocks). [n] -> statistics x [resamples]"""
    n = len(values)
    length = block_length(values)
    generator = numpy_generator(chance)
    n_blocks = math.ceil(n / length)
    found: list[list[Floats]] = [[] for _ in statistics]
    left = max(FEWEST_RESAMPLES, min(RESAMPLES, _MOST_WEIGHTS // n))
    while left > 0:
        n_rows = max(1, min(left, 2_000_000 // n))  # bounds the memory of one go
        starts = generator.integers(0, n, size=(n_rows, n_blocks, 1))
        index = (starts + np.arange(length)).reshape(n_rows, -1)[:, :n] % n
        rows = values[index]
        for drawn, of in zip(found, statistics, strict=True):
            drawn.append(of(rows))
        left -= n_rows
    return [np.concatenate(drawn) for drawn in found]


def mean_of(rows: Floats) -> Floats:
    """[resamples, n] -> [resamples]"""
    means: Floats = rows.mean(axis=1)
    return means


def percentile_of(percent: float) -> Statistic:
    """A percentile as a statistic: [resamples, n] -> [resamples]."""

    def of(rows: Floats) -> Floats:
        rank = _rank(rows.shape[1], percent) - 1
        found: Floats = np.partition(rows, rank, axis=1)[:, rank]
        return found

    return of


def numpy_generator(chance: random.Random) -> np.random.Generator:
    """numpy's chance from ours: the same seed gives the same figures."""
    return np.random.default_rng(chance.getrandbits(64))


def share_difference(a: Proportion, b: Proportion) -> tuple[float, Interval] | None:
    """b - a with Newcombe's interval (made of Wilson's two); None where one has no samples."""
    if a.share is None or b.share is None or a.interval is None or b.interval is None:
        return None
    gap = b.share - a.share
    below = math.hypot(b.share - b.interval[0], a.interval[1] - a.share)
    above = math.hypot(b.interval[1] - b.share, a.share - a.interval[0])
    return gap, (gap - below, gap + above)


def _centred_ranks(values: Sequence[float] | Floats) -> Floats:
    """Equal values share their mean rank."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks - ranks.mean()


def _rank(n: int, percent: float) -> int:
    """Nearest rank, from 1. The small term undoes what 0.95 * 20 has too much as a float."""
    return min(n, max(1, math.ceil(percent / 100 * n - 1e-9)))


def _distribution(
    ranked: Floats, intervals: Mapping[str, Interval], n_independent: int | None
) -> Distribution:
    found = {f"p{percent}": float(ranked[_rank(len(ranked), percent) - 1]) for percent in PERCENTS}
    return Distribution(
        n=len(ranked),
        mean=float(ranked.mean()),
        low=float(ranked[0]),
        high=float(ranked[-1]),
        percentiles=found,
        intervals=intervals,
        too_few=tuple(name for name in found if name not in intervals) if n_independent else (),
        n_independent=n_independent,
    )


def _group_intervals(
    ranked: Floats,
    owner: npt.NDArray[np.intp],
    percents: Sequence[int],
    chance: random.Random,
) -> dict[str, Interval]:
    """Weights instead of copies: a group drawn twice counts twice in the cumulated weight."""
    if not percents:
        return {}
    n_groups = int(owner.max()) + 1
    generator = numpy_generator(chance)
    found: dict[int, list[float]] = {percent: [] for percent in percents}
    for _ in range(max(100, min(RESAMPLES, _MOST_WEIGHTS // len(ranked)))):
        times = np.bincount(generator.integers(0, n_groups, size=n_groups), minlength=n_groups)
        weight = np.cumsum(times[owner])
        for percent in percents:
            at = int(np.searchsorted(weight, percent / 100 * weight[-1] - 1e-9))
            found[percent].append(float(ranked[min(at, len(ranked) - 1)]))
    return {f"p{percent}": _middle(np.asarray(drawn)) for percent, drawn in found.items()}


def _middle(drawn: Floats) -> Interval:
    """The inner 95 % of what was drawn; what is no number (0 / 0) is left out."""
    finite = np.sort(drawn[~np.isnan(drawn)])
    if not len(finite):
        return math.nan, math.nan
    tail = (1 - CONFIDENCE) / 2
    return (
        float(finite[_rank(len(finite), 100 * tail) - 1]),
        float(finite[_rank(len(finite), 100 * (1 - tail)) - 1]),
    )


def _divide(above: Floats, below: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        quotients: Floats = np.divide(above, below)
    return quotients


def _binomial_cdf(n: int, share: float) -> Floats:
    """P(count <= k) for k = 0..n. In logarithms: n may be a million."""
    k = np.arange(1, n + 1, dtype=np.float64)
    log_choose = np.concatenate([[0.0], np.cumsum(np.log((n - k + 1) / k))])
    counts = np.arange(n + 1, dtype=np.float64)
    log_mass = log_choose + counts * math.log(share) + (n - counts) * math.log1p(-share)
    cumulated: Any = np.minimum(np.cumsum(np.exp(log_mass)), 1.0)
    return np.asarray(cumulated, dtype=np.float64)

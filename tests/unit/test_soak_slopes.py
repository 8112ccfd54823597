"""Slopes of series that are noisy the way memory and ages are: steps, and neighbours alike."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from liveedge.bench.soak.growth import judge
from liveedge.bench.soak.series import Series
from liveedge.bench.soak.slopes import slope

pytestmark = pytest.mark.unit

EVERY_S = 10.0


def noise(rng: np.random.Generator, n: int, rho: float) -> NDArray[np.float64]:
    """Standard deviation 1; `rho`: how much of a value the next one keeps."""
    steps = rng.normal(size=n) * np.sqrt(1 - rho**2)
    values = np.empty(n)
    values[0] = rng.normal()
    for i in range(1, n):
        values[i] = rho * values[i - 1] + steps[i]
    return values


def points(
    rng: np.random.Generator, *, n: int, lives: int, per_h: float, rho: float, scatter: float = 1.0
) -> list[tuple[float, float, object]]:
    """A leak of `per_h` under noise; each life begins at a level of its own."""
    at_s = np.arange(n) * EVERY_S
    life = np.arange(n) * lives // n
    values = 500 + rng.normal(size=lives)[life] * 20 + per_h * at_s / 3600
    values += scatter * noise(rng, n, rho)
    return [(float(t), float(v), int(g)) for t, v, g in zip(at_s, values, life, strict=True)]


@pytest.mark.parametrize("lives", [1, 5])
@pytest.mark.parametrize("per_h", [4.0, 30.0])
def test_a_leak_under_noise_and_steps_is_found_with_its_rate(lives: int, per_h: float) -> None:
    rng = np.random.default_rng(5)
    series = Series("memory", "memory", "MB", points(rng, n=720, lives=lives, per_h=per_h, rho=0.8))
    found = judge(series)
    assert found.slope is not None
    assert found.slope.low < per_h < found.slope.high
    assert (found.slope.groups, found.slope.n) == (lives, 720)
    if lives == 1 or per_h > 4.0:
        assert found.growth == "grows", found.says


@pytest.mark.parametrize("lives", [1, 5])
def test_a_noisy_series_without_a_leak_is_flat(lives: int) -> None:
    rng = np.random.default_rng(6)
    series = Series(
        "memory", "memory", "MB", points(rng, n=720, lives=lives, per_h=0, rho=0.8, scatter=0.3)
    )
    found = judge(series)
    assert found.growth == "flat", found.says


def test_what_fills_and_comes_to_rest_is_flat_and_what_goes_on_is_not() -> None:
    rng = np.random.default_rng(4)
    at_s = np.arange(720) * EVERY_S
    quiet = 0.2 * noise(rng, 720, 0.5)
    filled = 500 + 40 * (1 - np.exp(-at_s / 400)) + quiet
    series = Series(
        "memory", "memory", "MB", [(t, v, 0) for t, v in zip(at_s, filled, strict=True)]
    )
    found = judge(series)
    assert found.growth == "flat", found.says
    assert "at first; in the later half of each life" in found.says
    leaking: list[tuple[float, float, object]] = [
        (t, v + 20 * t / 3600, 0) for t, v, _ in series.points
    ]
    assert judge(Series("memory", "memory", "MB", leaking)).growth == "grows"


def test_steps_between_lives_are_no_growth() -> None:
    levels = [(float(10 * i), 100.0 * (i // 100) + i % 2, i // 100) for i in range(600)]
    found = slope(levels)
    assert found is not None
    assert found.low <= 0 <= found.high
    assert abs(found.per_h) < 1


@pytest.mark.parametrize("rho", [0.0, 0.7, 0.97])
def test_the_interval_covers_the_truth_as_often_as_it_says(rho: float) -> None:
    rng = np.random.default_rng(7)
    n_runs, covered = 120, 0
    for _ in range(n_runs):
        found = slope(points(rng, n=600, lives=1, per_h=3.0, rho=rho))
        assert found is not None
        covered += found.low <= 3.0 <= found.high
    assert covered / n_runs >= 0.93


def test_noise_that_is_slow_under_fast_noise_is_not_taken_for_a_leak() -> None:
    rng = np.random.default_rng(8)
    n_runs, covered = 60, 0
    for _ in range(n_runs):
        mixed = points(rng, n=600, lives=1, per_h=0, rho=0.97, scatter=0.7)
        fast = 0.7 * rng.normal(size=600)
        found = slope([(t, v + f, g) for (t, v, g), f in zip(mixed, fast, strict=True)])
        assert found is not None
        covered += found.low <= 0 <= found.high
    assert covered / n_runs >= 0.9


def test_what_goes_along_with_the_load_of_the_machine_is_no_growth_and_a_leak_stays_one() -> None:
    rng = np.random.default_rng(11)
    busy = [float(load) for load in 10 + 8 * noise(rng, 600, 0.99)]
    widths: list[float] = []
    for per_h, beside in ((0.0, busy), (100.0, busy), (0.0, [])):
        quiet = points(rng, n=600, lives=1, per_h=per_h, rho=0.3, scatter=20.0)
        slowed = [(t, v + 30 * load, g) for (t, v, g), load in zip(quiet, busy, strict=True)]
        found = judge(Series("age", "time", "ms", slowed, load=beside))
        assert found.slope is not None
        assert found.slope.low <= per_h <= found.slope.high
        if beside:
            assert found.growth == ("grows" if per_h else "flat"), found.says
        widths.append(found.slope.high - found.slope.low)
    assert widths[2] > 3 * widths[1]


def test_a_run_too_short_to_tell_says_how_long_it_would_take() -> None:
    rng = np.random.default_rng(9)
    short = points(rng, n=60, lives=1, per_h=0, rho=0.5, scatter=5.0)
    found = judge(Series("memory", "memory", "MB", short))
    assert found.growth == "undecided"
    assert "hours to tell" in found.says or "a longer run" in found.says
    assert found.slope is not None
    hours = found.slope.hours_to_exclude(1000.0)
    assert hours is not None
    assert hours < found.slope.hours


def test_a_few_points_say_nothing() -> None:
    assert slope([(float(i), 1.0, 0) for i in range(11)]) is None
    assert slope([]) is None
    found = judge(Series("memory", "memory", "MB", [(0.0, 1.0, 0)]))
    assert (found.growth, found.says) == ("undecided", "too few points after the settling")


def test_a_pool_may_fill_up_to_its_bound_and_no_further() -> None:
    filling: list[tuple[float, float, object]] = [(10.0 * i, 0.1 * i, 0) for i in range(600)]
    pool = Series("cache", "pool", "MB", filling, bound=64.0, is_bounded=True)
    assert judge(pool).growth == "pool"
    pool.bound = 50.0
    assert judge(pool).growth == "grows"

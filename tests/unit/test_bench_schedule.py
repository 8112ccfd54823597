"""When requests are due."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from liveedge.bench.scenario import Load
from liveedge.bench.schedule import Step, arrivals, steps


def step(rate_per_s: float, *, duration_s: float = 10.0, warmup_s: float = 2.0) -> Step:
    return Step(repeat=0, step=0, rate_per_s=rate_per_s, warmup_s=warmup_s, duration_s=duration_s)


def test_a_sweep_goes_through_every_rate_and_then_again() -> None:
    load = Load(rates_per_s=(1.0, 4.0), repeats=2, warmup_s=1.0, duration_s=3.0)

    found = [(one.repeat, one.step, one.rate_per_s, one.concurrency) for one in steps(load)]

    assert found == [(0, 0, 1.0, None), (0, 1, 4.0, None), (1, 0, 1.0, None), (1, 1, 4.0, None)]


def test_steps_of_a_closed_loop_are_numbers_of_workers() -> None:
    found = [
        (one.rate_per_s, one.concurrency) for one in steps(Load(kind="closed", concurrency=(3,)))
    ]

    assert found == [(None, 3)]


def test_a_constant_rate_has_equal_gaps_and_adds_up_no_rounding() -> None:
    load = Load(kind="constant")

    due_s = list(arrivals(load, step(0.3, duration_s=1e5, warmup_s=0.0), Random(1)))

    assert len(due_s) == 30_000
    assert due_s[-1] == 29_999 / 0.3


def test_poisson_has_its_rate_and_gaps_that_vary_as_much_as_their_mean() -> None:
    load = Load(kind="poisson")

    due_s = list(arrivals(load, step(5.0, duration_s=4_000.0), Random(7)))
    gaps = [after - before for before, after in itertools.pairwise(due_s)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))

    # 20,000 gaps: both figures are within 2 % of their value at 2.8 standard errors.
    assert mean == pytest.approx(0.2, rel=0.02)
    assert deviation == pytest.approx(0.2, rel=0.02)
    assert due_s[-1] < 4_002.0


def test_the_same_seed_gives_the_same_moments() -> None:
    load = Load(kind="poisson")

    assert list(arrivals(load, step(2.0), Random(3))) == list(arrivals(load, step(2.0), Random(3)))
    assert list(arrivals(load, step(2.0), Random(3))) != list(arrivals(load, step(2.0), Random(4)))


def test_a_closed_loop_has_no_arrivals() -> None:
    closed = Step(repeat=0, step=0, concurrency=1, warmup_s=0.0, duration_s=1.0)

    with pytest.raises(ValueError, match="closed loop has no arrivals"):
        arrivals(Load(kind="closed"), closed, Random(1))

"""What was measured lately."""

from __future__ import annotations

import pytest

from liveedge.engine.decide.rates import Rates, Ratio


def test_the_first_observation_pays_for_starting_and_is_left_out():
    ratio = Ratio()
    ratio.add(100.0, 1)
    assert ratio.value is None
    ratio.add(2.0, 4)
    assert ratio.value == 0.5


def test_large_observations_weigh_more_than_small_ones():
    ratio = Ratio()
    for above, below in ((0.0, 1), (1.0, 1000), (1.0, 1)):
        ratio.add(above, below)
    assert ratio.value == pytest.approx(1.9 / 901)


def test_the_newest_observations_win():
    ratio = Ratio()
    for _ in range(50):
        ratio.add(1.0, 1)
    for _ in range(50):
        ratio.add(3.0, 1)
    assert ratio.value == pytest.approx(3.0, rel=0.02)


def test_nothing_done_is_no_observation():
    ratio = Ratio()
    for _ in range(3):
        ratio.add(1.0, 0)
    assert ratio.value is None


def test_work_that_was_never_measured_cannot_be_predicted():
    rates = Rates()
    for _ in range(2):
        rates.prefill.add(1.0, 1000)
    assert rates.work_s(n_tokens=500, n_pixels=0) == 0.5
    assert rates.work_s(n_tokens=500, n_pixels=10) is None
    assert rates.work_s(n_tokens=0, n_pixels=0) == 0.0

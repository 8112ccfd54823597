"""Axes of reports: every value has a place, ticks are round, texts say no more than is known."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from liveedge.bench.report.scale import (
    Scale,
    clock_text,
    duration,
    duration_between,
    fitting,
    linear,
    logarithmic,
    percent,
    percent_between,
    plain,
    ticks,
    time_ticks,
)

VALUES = strategies.lists(strategies.floats(0, 1e9), min_size=1, max_size=20)


@given(VALUES)
def test_every_value_lies_on_its_axis(values: list[float]) -> None:
    for scale in (linear(values), logarithmic(values), fitting(values)):
        assert scale.low < scale.high
        for value in values:
            assert 0 <= scale.share(value) <= 1
            if value >= scale.low:
                assert value <= scale.high * 1.000001


@given(VALUES)
def test_ticks_lie_on_their_axis_and_are_few(values: list[float]) -> None:
    for scale in (linear(values), logarithmic(values)):
        made = ticks(scale, plain)
        assert 1 <= len(made) <= 11
        for tick in made:
            assert scale.low * 0.998 - 1e-9 <= tick.at <= scale.high * 1.002 + 1e-9


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (Scale(0, 10), ["0", "2", "4", "6", "8", "10"]),
        (Scale(0, 1), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (Scale(0, 0.03), ["0", "0.01", "0.02", "0.03"]),
        (Scale(0, 23_000), ["0", "5,000", "10,000", "15,000", "20,000"]),
        (Scale(90, 3000, log=True), ["100", "200", "500", "1,000", "2,000"]),
        (Scale(1, 100_000, log=True), ["1", "10", "100", "1,000", "10,000", "100,000"]),
        (Scale(210, 260, log=True), ["210", "220", "230", "240", "250", "260"]),
    ],
)
def test_ticks_are_round(scale: Scale, expected: list[str]) -> None:
    assert [tick.text for tick in ticks(scale, plain)] == expected


def test_nothing_has_an_axis_too() -> None:
    for scale in (linear([]), logarithmic([]), fitting([])):
        assert ticks(scale, plain)


def test_low_values_are_not_pressed_together() -> None:
    assert fitting([50, 30_000]).log
    assert not fitting([50, 300]).log


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 5, ["0 s", "1 s", "2 s", "3 s", "4 s", "5 s"]),
        (0, 90, ["0 s", "20 s", "40 s", "1:00", "1:20"]),
        (3, 7300, ["20:00", "40:00", "1:00:00", "1:20:00", "1:40:00", "2:00:00"]),
    ],
)
def test_time_has_the_steps_of_clocks(low: float, high: float, expected: list[str]) -> None:
    assert [tick.text for tick in time_ticks(Scale(low, high))] == expected


def test_a_year_has_few_ticks_as_well() -> None:
    assert len(time_ticks(Scale(0, 365 * 86_400))) <= 12


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (duration(0.4), "0.4 ms"),
        (duration(249.6), "250 ms"),
        (duration(1500), "1.5 s"),
        (duration(-4580), "-4.58 s"),
        (duration(75_000), "75 s"),
        (duration_between(250, 230.4, 1020), "250 [230, 1,020] ms"),
        (duration_between(2360, 1590, 2770), "2.36 [1.59, 2.77] s"),
        (percent(0), "0 %"),
        (percent(1), "100 %"),
        (percent(0.9999), ">99.9 %"),
        (percent(0.0001), "<0.1 %"),
        (percent(0.975), "97.5 %"),
        (percent_between(0.5, 0.42, 0.5801), "50 [42, 58] %"),
        (plain(1234.5), "1,234"),
        (plain(0.000_25), "0.00025"),
        (clock_text(3725), "1:02:05"),
    ],
)
def test_numbers_are_written_with_what_is_known(text: str, expected: str) -> None:
    assert text == expected

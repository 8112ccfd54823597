"""The arithmetic that all benchmarks share."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from report import finish, percentile, slope, table


def test_the_last_line_is_json_with_rounded_figures_and_null_for_unknown(capsys):
    finish({"ms": 1.23456, "n": 3, "unknown": math.nan, "inner": {"ms": 0.00049}})
    assert json.loads(capsys.readouterr().out) == {
        "ms": 1.235,
        "n": 3,
        "unknown": None,
        "inner": {"ms": 0.0},
    }


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 5), (95, 10), (100, 10)])
def test_percentiles_are_values_that_were_seen(percent: float, value: float):
    assert percentile([10, 1, 9, 2, 8, 3, 7, 4, 6, 5], percent) == value


def test_the_percentile_of_nothing_is_unknown():
    assert math.isnan(percentile([], 50))


def test_the_slope_is_the_rise_per_unit():
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)
    assert math.isnan(slope([(0.0, 1.0)]))


def test_tables_align_texts_to_the_left_and_numbers_to_the_right(capsys):
    table(("side", "ms"), [("cold", 12.0), ("warm", 3.5)])
    assert capsys.readouterr().out.splitlines()[:4] == [
        "side     ms",
        "----  -----",
        "cold  12.00",
        "warm   3.50",
    ]


def test_a_table_without_rows_is_its_head(capsys):
    table(("side", "ms"), [])
    assert capsys.readouterr().out.splitlines()[0] == "side  ms"

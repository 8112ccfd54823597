"""Every program under `bench/` runs, and ends with one line of JSON that has its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
FIGURES = {
    "warm_ttft": {
        "model",
        "frames",
        "stock_ms",
        "cold_ms",
        "warm_ms",
        "limit_ms",
        "cold_ratio",
        "warm_ratio",
        "limit_ratio",
    },
    "cold_start": {"model", "runs", "ours_ms", "stock_ms", "ratio", "ready_ms", "first_answer_ms"},
    "soak_sim": {
        "asked",
        "errors",
        "counters_add_up",
        "rss_slope_mb_per_min",
        "rest_slope_mb_per_min",
        "ttft_ms_p50",
        "age_ms_p50",
    },
}
HELPERS = {"report", "all"}  # shared code, and the program that runs the others


def test_every_program_is_known_here():
    assert {path.stem for path in BENCH.glob("*.py")} == FIGURES.keys() | HELPERS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", sorted(FIGURES))
def test_a_benchmark_prints_a_table_and_ends_with_its_figures_as_json(program: str):
    command = [sys.executable, str(BENCH / f"{program}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *table, last = done.stdout.splitlines()
    assert any(set(line) <= {"-", " "} and line.strip() for line in table), "there is no table"
    figures = json.loads(last)
    assert figures.keys() >= FIGURES[program]
    assert figures.get("errors", 0) == 0
    assert figures.get("counters_add_up", True)

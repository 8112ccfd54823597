"""docs/benchmark.md defines every figure and every key that there is."""

from __future__ import annotations

import re
import tomllib
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from liveedge.bench import definitions
from liveedge.bench.figures import COUNTS, SHARES
from liveedge.bench.gate import Rule, gate_of
from liveedge.bench.record import OUTCOMES
from liveedge.bench.scenario import Scenario
from liveedge.bench.stats import samples_needed

TEXT = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text()
FIGURES = [
    *definitions.LATENCIES,
    *definitions.RATES,
    *definitions.TOKENS,
    *definitions.MACHINE,
    *definitions.CAPACITY,
    *definitions.COLD,
    *SHARES,
    *COUNTS,
    *OUTCOMES,
]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_defined(name: str) -> None:
    assert f"`{name}`" in TEXT


def section(title: str) -> str:
    """From a heading to the next of its depth."""
    match = re.search(
        rf"^(#+) [^\n]*{re.escape(title)}.*?(?=^\1 |\Z)", TEXT, re.DOTALL | re.MULTILINE
    )
    assert match is not None, f"no section {title}"
    return match[0]


def tables() -> list[tuple[str, Any]]:
    """Each table of a scenario with its class."""
    hints = typing.get_type_hints(Scenario)
    found = []
    for name, hint in hints.items():
        inner = typing.get_args(hint)
        kind = inner[0] if inner and is_dataclass(inner[0]) else hint
        if is_dataclass(kind):
            found.append((f"[[{name}]]" if kind is not hint else f"[{name}]", kind))
    return found


@pytest.mark.parametrize(
    ("title", "key"),
    [(title, one.name) for title, kind in tables() for one in fields(kind)],
)
def test_every_key_of_a_scenario_is_explained(title: str, key: str) -> None:
    assert f"`{key}`" in section(f"`{title}`")


def test_every_key_of_a_rule_is_explained_and_the_example_is_a_gate() -> None:
    gates = section("Gates")
    for one in fields(Rule):
        assert f"`{one.name}`" in gates
    example = re.search(r"```toml\n(.*?)```", gates, re.DOTALL)
    assert example is not None
    assert len(gate_of(tomllib.loads(example[1])).rules) == 6


def test_it_says_how_many_samples_a_percentile_needs() -> None:
    needed = ", ".join(str(samples_needed(percent)) for percent in (50, 90, 95, 99))
    assert f"from {needed} independent answers" in TEXT

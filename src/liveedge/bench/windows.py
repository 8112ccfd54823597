"""The measured time of every step: between its warm-up and the end of its arrivals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from liveedge.bench.record import Record
from liveedge.bench.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Of one step of one repeat, on the clock of the records."""

    repeat: int
    step: int
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def holds(self, at_s: float | None) -> bool:
        return at_s is not None and self.start_s <= at_s < self.end_s


def windows_from(scenario: Scenario, samples: Iterable[Mapping[str, Any]]) -> list[Window]:
    """As the run told them: by its rows of the kind `generator`, one per step."""
    load = scenario.load
    return [
        Window(
            repeat=int(row["repeat"]),
            step=int(row["step"]),
            start_s=float(row["begun_s"]) + load.warmup_s,
            end_s=float(row["begun_s"]) + load.warmup_s + load.duration_s,
        )
        for row in samples
        if row.get("kind") == "generator"
    ]


def estimated_windows(scenario: Scenario, records: Sequence[Record]) -> list[Window]:
    """From the records alone: the warm-up ended between its last request and the first measured one.

    Right to half the distance of two arrivals.
    """
    groups: dict[tuple[int, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.repeat, record.step), []).append(record)
    return [
        Window(repeat=repeat, step=step, start_s=start, end_s=start + scenario.load.duration_s)
        for (repeat, step), group in sorted(groups.items())
        for start in _starts(scenario, step, group)
    ]


def _starts(scenario: Scenario, step: int, group: Sequence[Record]) -> list[float]:
    """One start, or none where nothing was measured."""
    measured = [record.due_s for record in group if not record.warmup]
    if not measured:
        return []
    first = min(measured)
    before = [record.due_s for record in group if record.warmup and record.due_s <= first]
    if before:
        return [(max(before) + first) / 2]
    if scenario.load.kind == "closed":
        return [first]
    return [first - 0.5 / scenario.load.rates_per_s[step]]

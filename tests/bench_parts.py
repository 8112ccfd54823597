"""Stand-ins for the other parts of a run: cameras that give the same words, nothing beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from liveedge.bench.interfaces import Prepared
from liveedge.bench.record import Record
from liveedge.bench.result import Summary
from liveedge.bench.scenario import Scenario, scenario_of

BASE_URL = "http://stub.test/v1"


class FixedSource:
    """Every request asks the same; every answer that is `ok` is correct."""

    def __init__(self) -> None:
        self.state = "new"
        self.prepared: list[int] = []

    async def open(self) -> None:
        self.state = "open"

    def prepare(self, index: int) -> Prepared:
        assert self.state == "open"
        self.prepared.append(index)
        return Prepared(
            content=({"type": "text", "text": "Which lamp?"},),
            question="lamp",
            source=index % 2,
            note={"truth": "red"},
        )

    async def judge(self, records: Sequence[Record], notes: Mapping[int, Prepared]) -> None:
        for record in records:
            record.truth = notes[record.index].note["truth"]
            record.correct = record.text.strip() == record.truth

    async def close(self) -> None:
        self.state = "closed"


class NoSampler:
    """Looks at nothing."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def no_summary(
    scenario: Scenario, records: Sequence[Record], samples: Sequence[Mapping[str, Any]]
) -> Summary:
    return Summary(
        name=scenario.name,
        work_digest=scenario.work_digest(),
        valid=not any(record.outcome == "not_sent" for record in records),
        invalid=(),
        warnings=(),
        percentile_method="none",
        clock={},
        steps=(),
    )


def scenario(**sections: Any) -> Scenario:
    target = {"base_url": BASE_URL, **sections.pop("target", {})}
    return scenario_of({"name": "t", "target": target, **sections})

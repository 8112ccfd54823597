"""One run as reports read it: its documents, and of each request only what charts need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from liveedge.bench.measures import Offsets, latency
from liveedge.bench.record import Outcome, Record
from liveedge.bench.result import SUMMARY, ResultFolder, StepSummary, Summary
from liveedge.bench.scenario import Scenario

Summarise: TypeAlias = Callable[[ResultFolder], Summary]
ARRIVING = ("ttft_ms", "freshness_ms", "known_freshness_ms")  # those with a curve of arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A request: when, how it ended, and what it took. Seconds since the run began."""

    step: int
    repeat: int
    warmup: bool
    outcome: Outcome
    due_s: float
    sent_s: float | None
    ended_s: float | None
    latencies: Mapping[str, float]  # of ARRIVING, what is known


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Everything that a report of one run needs."""

    label: str  # what tells it from others in the same report
    scenario: Scenario
    environment: Mapping[str, Any]
    summary: Summary
    events: Sequence[Event]
    samples: Sequence[Mapping[str, Any]]

    @property
    def is_open(self) -> bool:
        """Arrivals on a schedule; else as many in flight as the step says."""
        return self.scenario.load.kind != "closed"

    def load_of(self, step: StepSummary) -> float:
        """Its place on the axis of load."""
        return (step.offered_per_s if self.is_open else step.concurrency) or 0.0

    def step_name(self, step: StepSummary) -> str:
        """ "4/s", or "8 in flight"."""
        return f"{self.load_of(step):g}/s" if self.is_open else f"{self.load_of(step):g} in flight"

    def has(self, measure: str) -> bool:
        return any(measure in step.latencies for step in self.summary.steps)


def opened(folder: ResultFolder, summarise: Summarise, *, label: str = "") -> RunView:
    """Reads a folder; makes and keeps its summary where it has none. Raises ResultInvalid."""
    scenario = folder.scenario()
    if (folder.path / SUMMARY).exists():
        summary = folder.summary()
    else:
        summary = summarise(folder)
        folder.write(SUMMARY, summary.as_json())
    offsets = Offsets.of(scenario, summary.clock)
    return RunView(
        label=label or scenario.name,
        scenario=scenario,
        environment=folder.environment(),
        summary=summary,
        events=[event_of(record, offsets) for record in folder.records()],
        samples=list(folder.samples()),
    )


def event_of(record: Record, offsets: Offsets) -> Event:
    """The part of a record that charts need. Of answers that are not whole, TTFT alone counts."""
    names = ARRIVING if record.outcome == "ok" else ARRIVING[:1]
    found = {name: latency(record, name, offsets) for name in names}
    return Event(
        step=record.step,
        repeat=record.repeat,
        warmup=record.warmup,
        outcome=record.outcome,
        due_s=record.due_s,
        sent_s=record.sent_s,
        ended_s=record.ended_s,
        latencies={name: value for name, value in found.items() if value is not None},
    )


def freshness_measure(runs: Sequence[RunView]) -> str | None:
    """The bench's own knowledge where every run has it: it is the same for every server."""
    for measure in ("known_freshness_ms", "freshness_ms"):
        if all(run.has(measure) for run in runs):
            return measure
    return next((one for one in ARRIVING[1:] if any(run.has(one) for run in runs)), None)


def labels(names: Iterable[str]) -> list[str]:
    """Names that differ: equal ones get a number."""
    made: list[str] = []
    for name in names:
        count = 1
        while (candidate := name if count == 1 else f"{name} ({count})") in made:
            count += 1
        made.append(candidate)
    return made

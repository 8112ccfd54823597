"""A result folder and what its summary holds.

    scenario.json     the scenario, whole          environment.json  machine, versions, server, command
    records.jsonl     a line per request           samples.jsonl     a line per look at server and machine
    summary.json      the figures                  report.html .md .png

A run that was killed leaves the records of its last step in records.unjudged.jsonl: without truth.

Everything after the first four is made from them alone: `liveedge bench report FOLDER` makes it again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from liveedge.bench.record import Record, record_of
from liveedge.bench.scenario import Scenario, scenario_of

SCENARIO, ENVIRONMENT = "scenario.json", "environment.json"
RECORDS, SAMPLES, SUMMARY = "records.jsonl", "samples.jsonl", "summary.json"
UNJUDGED = "records.unjudged.jsonl"
HALVES = "backslashreplace"  # of a character, which no UTF-8 has: written as JSON escapes them
PERCENTS = (50, 90, 95, 99)


class ResultInvalid(Exception):
    """A folder that is no result, or not whole: which file, and why."""


class ResultUnwritable(OSError):
    """A file of a result could not be written: which, and why. The disk is full, for instance."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises ResultUnwritable for what the block cannot write."""
    try:
        yield
    except OSError as error:
        raise ResultUnwritable(f"{path} cannot be written: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """As UTF-8. Raises ResultUnwritable."""
    with writing(path):
        path.write_text(text, encoding="utf-8", errors=HALVES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Of one measure in one step. Percentiles by the method that `Summary.percentile_method` names."""

    n: int
    mean: float | None = None
    low: float | None = None  # smallest
    high: float | None = None  # largest
    percentiles: Mapping[str, float] = field(default_factory=dict)  # "p50", "p90", "p95", "p99"
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # 95 % confidence
    too_few: Sequence[str] = ()  # percentiles that so few samples do not carry
    # As how many independent samples they count: fewer where neighbours wait in one queue. None:
    # looks at a gauge, which have no intervals.
    n_independent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proportion:
    """k of n, with a 95 % Wilson interval."""

    k: int
    n: int
    share: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSummary:
    """The requests of one share of a mix, in one step. All as in the step itself."""

    sent: int
    outcomes: Mapping[str, int]
    good: Proportion
    accuracy: Proportion
    latencies: Mapping[str, Distribution]
    with_timeouts: Mapping[str, Distribution]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """One step of the sweep, all repeats together. Rates are per second, warm-up is left out."""

    step: int
    offered_per_s: float | None  # None: closed loop
    concurrency: int | None  # None: open loop
    seconds: float  # measured, all repeats together
    sent: int
    achieved_per_s: float  # complete answers
    goodput_per_s: float  # of those, within the objectives
    good: Proportion
    outcomes: Mapping[str, int]  # by Outcome, all of them
    codes: Mapping[str, int]  # of what was not ok: "429 queue_full", "timeout"
    # By measure, as `definitions.LATENCIES` and docs/benchmark.md define them: ttft_ms, service_ttft_ms,
    # itl_ms, tpot_ms, total_ms, service_total_ms, capture_to_request_ms, age_ms, freshness_ms (the
    # server's evidence), known_freshness_ms (the bench's own), connect_ms, headers_ms
    latencies: Mapping[str, Distribution]
    with_timeouts: Mapping[str, Distribution]  # total_ms and ttft_ms, time-outs at their bound
    server_ms: Mapping[str, Distribution]  # the server's own stages
    tokens: Mapping[str, float]  # prompt, completion, cached: per second and share
    accuracy: Proportion
    accuracy_by_kind: Mapping[str, Proportion]
    lateness_ms: Distribution  # of the generator: sent after it was due
    machine: Mapping[str, Distribution]  # sampled beside: cpu_share, rss_mb, queue_depth, gpu_...
    warnings: Sequence[str] = ()
    invalid: Sequence[str] = ()  # why this step says nothing about the server
    shares: Mapping[str, ShareSummary] = field(default_factory=dict)  # by name, of a mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All figures of a run."""

    name: str
    work_digest: str
    valid: bool
    invalid: Sequence[str]  # reasons
    warnings: Sequence[str]
    percentile_method: str
    clock: Mapping[str, float]  # offset_ms and uncertainty_ms between this machine and the server
    steps: Sequence[StepSummary]
    cold: Mapping[str, float] = field(default_factory=dict)  # process_start_ms, model_load_ms, ...
    # Of a rate sweep, requests per second: sustained_per_s, saturated_per_s, within_slo_per_s,
    # peak_achieved_per_s, peak_goodput_per_s; what was not found is not there.
    capacity: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return finite(asdict(self))


def summary_of(document: Mapping[str, Any]) -> Summary:
    """A summary from its JSON."""
    steps = [_step(step) for step in document["steps"]]
    return Summary(**{**document, "steps": steps})


def _step(document: Mapping[str, Any]) -> StepSummary:
    made = _values(document)
    made["lateness_ms"] = Distribution(**document["lateness_ms"])
    kinds = document["accuracy_by_kind"]
    made["accuracy_by_kind"] = {name: Proportion(**one) for name, one in kinds.items()}
    shares = document.get("shares", {})
    made["shares"] = {name: ShareSummary(**_values(one)) for name, one in shares.items()}
    return StepSummary(**made)


def _values(document: Mapping[str, Any]) -> dict[str, Any]:
    """With what a step and a share of it have in common."""
    made: dict[str, Any] = dict(document)
    for key in ("latencies", "with_timeouts", "server_ms", "machine"):
        if key in document:
            made[key] = {name: Distribution(**one) for name, one in document[key].items()}
    for key in ("good", "accuracy"):
        made[key] = Proportion(**document[key])
    return made


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """The files of one run. Writing appends line by line, so that a run that breaks leaves what it had."""

    path: Path

    def scenario(self) -> Scenario:
        return scenario_of(self._json(SCENARIO))

    def environment(self) -> dict[str, Any]:
        return self._json(ENVIRONMENT)

    def summary(self) -> Summary:
        document = self._json(SUMMARY)
        try:
            return summary_of(document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ResultInvalid(
                f"{self.path / SUMMARY} holds no summary ({_said(error)}): delete it, and"
                " `liveedge bench report` makes it again"
            ) from error

    def records(self) -> Iterator[Record]:
        for number, row in enumerate(self._rows(RECORDS), start=1):
            try:
                yield record_of(row)
            except (TypeError, ValueError, AttributeError) as error:
                raise ResultInvalid(
                    f"{self.path / RECORDS}: record {number} is none: {_said(error)}"
                ) from error

    def samples(self) -> Iterator[dict[str, Any]]:
        """Each with `at_s` (clock of the records), `metrics` and `machine`: name to number.

        Rows with a `kind` are none of these. `generator`, one per step: `repeat`, `step`, `begun_s`,
        `seconds` (of sending), `cpu_share` (of one core), `max_in_flight` (the most that was open),
        `in_flight_limit`, `n_sent`, `n_not_sent`, `lateness_ms_max`, `loop_late_ms_p99`, `loop_stall_ms_max`,
        `n_loop_stalls` (above 50 ms), `loop_stalled_s` (all of them), `connections_made`,
        `connections_dropped`. `cold`: `name`, `ms`, and `record`.
        """
        return self._rows(SAMPLES)

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        text = json.dumps(finite(document), indent=1, ensure_ascii=False)
        write_text(self.path / name, text + "\n")

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        path = self.path / name
        with writing(path), path.open("a", encoding="utf-8", errors=HALVES) as file:
            for row in rows:
                file.write(json.dumps(finite(row), ensure_ascii=False) + "\n")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads((self.path / name).read_text(encoding="utf-8"))
        except OSError as error:
            raise ResultInvalid(f"{self.path / name} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ResultInvalid(f"{self.path / name} is no JSON: {error}") from error
        if not isinstance(document, dict):
            raise ResultInvalid(f"{self.path / name} holds no object")
        return document

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Every whole line; one that was being written when the run broke is left out."""
        try:
            with (self.path / name).open(encoding="utf-8") as file:
                for line in file:
                    if line.endswith("\n"):
                        yield _row_of(line)
        except OSError as error:
            raise ResultInvalid(f"{self.path / name} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ResultInvalid(
                f"{self.path / name} holds a line that is no JSON: {error}"
            ) from error


def _row_of(line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"{line[:40]!r} is no object")
    return row


def _said(error: Exception) -> str:
    name = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{name}{str(error)[:200]}"


def finite(value: Any) -> Any:
    """JSON has no nan: what is not known is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value

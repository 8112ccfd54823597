"""From records to figures. Pure: the same records give the same summary, whoever makes it.

`definitions` says what each figure means, `stats` how it is computed, `validity` which steps say nothing.
Every measured request is counted in exactly one outcome; latencies are of whole answers, and time-outs
count at their bound in a series of their own.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from liveedge.bench import stats
from liveedge.bench.capacity import capacity
from liveedge.bench.definitions import LATENCIES, WITH_TIMEOUTS
from liveedge.bench.record import OUTCOMES, Record, measured
from liveedge.bench.result import (
    Distribution,
    Proportion,
    ResultFolder,
    ResultInvalid,
    ShareSummary,
    StepSummary,
    Summary,
)
from liveedge.bench.scenario import Objectives, Scenario
from liveedge.bench.validity import StepFacts, judge_run, judge_step
from liveedge.bench.windows import Window, estimated_windows, windows_from

Samples = Sequence[Mapping[str, Any]]


NO_OFFSET: Mapping[str, float] = {"offset_ms": 0.0, "uncertainty_ms": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """What is to be taken from a moment of evidence to have it on our wall clock, in ms.

    What the server says is on its clock: it dates frames by their arrival, whatever a publisher claims.
    What the bench knows is on ours, but where the server itself draws the pictures.
    """

    evidence_ms: float = 0.0  # of what the server says
    known_ms: float = 0.0  # of what the bench knows, or read from the frame
    uncertainty_ms: float = 0.0  # by which moments of two clocks may seem to be in the wrong order

    @classmethod
    def of(cls, scenario: Scenario, clock: Mapping[str, float]) -> Offsets:
        """`clock` as `Summary.clock`."""
        server_ms = clock.get("offset_ms", 0.0)
        is_drawn_there = scenario.target.delivery == "ovs" and scenario.sources.kind == "sim"
        return cls(
            evidence_ms=server_ms,
            known_ms=server_ms if is_drawn_there else 0.0,
            uncertainty_ms=clock.get("uncertainty_ms", math.inf),
        )


# What rows of samples.jsonl or an environment raise that no run has written so.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
OURS = Offsets()  # every moment is on our clock


def summarise_folder(folder: ResultFolder) -> Summary:
    """From the four files of a run. Raises ResultInvalid."""
    clock = folder.environment().get("clock")
    scenario, records, samples = folder.scenario(), list(folder.records()), list(folder.samples())
    try:
        return summarise(scenario, records, samples, clock=clock)
    except _DAMAGE as error:
        told = f"{type(error).__name__}: {error}"[:200]
        raise ResultInvalid(f"{folder.path} is damaged, or of another version: {told}") from error


def summarise(
    scenario: Scenario,
    records: Sequence[Record],
    samples: Samples,
    *,
    clock: Mapping[str, Any] | None = None,
) -> Summary:
    """All figures of a run. `clock` is a `ClockOffset` as JSON; none: the server's clock is ours."""
    known = _clock(clock or NO_OFFSET)
    windows = windows_from(scenario, samples) or estimated_windows(scenario, records)
    steps = []
    for step in range(scenario.n_steps):
        of_step = [record for record in records if record.step == step]
        mine = [window for window in windows if window.step == step]
        if mine:
            offsets = Offsets.of(scenario, known)
            steps.append(_StepOf(scenario, step, of_step, mine, samples, offsets).summary())
    invalid, warnings = judge_run(scenario, steps, known)
    return Summary(
        name=scenario.name,
        work_digest=scenario.work_digest(),
        valid=not invalid,
        invalid=invalid,
        warnings=warnings,
        percentile_method=stats.PERCENTILE_METHOD,
        clock=known,
        steps=steps,
        cold=_cold(samples),
        capacity=capacity(steps),
    )


def latency(record: Record, name: str, offsets: Offsets = OURS) -> float | None:
    """One measure of one whole answer, in ms; None where it is not known. Not `itl_ms`: see `gaps_ms`."""
    return _LATENCY[name](record, offsets)


def gaps_ms(record: Record) -> list[float]:
    """Between neighbouring events with content."""
    moments = record.content_s
    return [(after - before) * 1000 for before, after in itertools.pairwise(moments)]


def bounded_latency(record: Record, name: str, timeout_s: float) -> float | None:
    """`ttft_ms` or `total_ms` with a time-out at its bound, or later where it was noticed later.

    Content that came before the time-out has its own TTFT. None for what was refused or failed.
    """
    if record.outcome == "ok":
        return latency(record, name)
    if record.outcome != "timeout":
        return None
    if name == "ttft_ms" and record.first_content_s is not None:
        return latency(record, name)
    return timeout_s * 1000


def is_good(record: Record, slo: Objectives, offsets: Offsets = OURS) -> bool:
    """A whole answer that keeps to every objective at once; one that cannot be looked at is not kept.

    An answer whose truth is not decidable is not held to be wrong. Evidence from the future, beyond
    what the clocks leave open, is none.
    """
    if record.outcome != "ok" or (slo.correct and record.correct is False):
        return False
    limits = {
        "ttft_ms": slo.ttft_ms,
        "total_ms": slo.total_ms,
        _freshness_name(record): slo.freshness_ms,
    }
    found = {name: latency(record, name, offsets) for name, limit in limits.items() if limit}
    least = -offsets.uncertainty_ms
    return all(
        value is not None and least <= value <= limits[name] for name, value in found.items()
    )


def _freshness_name(record: Record) -> str:
    """What the bench knows by itself wins over what the server says."""
    known = record.known_evidence_at_ms is not None
    return "known_freshness_ms" if known else "freshness_ms"


@dataclass(frozen=True, slots=True)
class _StepOf:
    """One step's material."""

    scenario: Scenario
    step: int
    records: Sequence[Record]  # of this step, warm-up too
    windows: Sequence[Window]
    samples: Samples
    offsets: Offsets

    def summary(self) -> StepSummary:
        scenario, load = self.scenario, self.scenario.load
        sent = sorted(measured(self.records), key=lambda record: (record.repeat, record.due_s))
        ok = [record for record in sent if record.outcome == "ok"]
        seconds = sum(window.seconds for window in self.windows)
        ended = self._ended_within()
        good = [is_good(record, scenario.slo, self.offsets) for record in sent]
        found = StepSummary(
            step=self.step,
            offered_per_s=None if load.kind == "closed" else load.rates_per_s[self.step],
            concurrency=load.concurrency[self.step] if load.kind == "closed" else None,
            seconds=seconds,
            sent=len(sent),
            achieved_per_s=len(ended) / seconds,
            goodput_per_s=sum(is_good(one, scenario.slo, self.offsets) for one in ended) / seconds,
            good=stats.share_of(good),
            outcomes=_outcomes(sent),
            codes=_codes(sent),
            latencies=self._latencies(ok),
            with_timeouts={name: self._bounded(sent, name) for name in WITH_TIMEOUTS},
            server_ms=_server_ms(ok),
            tokens=_tokens(ok, ended, seconds),
            accuracy=_accuracy(ok),
            accuracy_by_kind=_accuracy_by_kind(ok),
            lateness_ms=stats.readings(_lateness(sent)),
            machine=self._machine(),
            shares=self._shares(sent),
        )
        generator = [row for row in self.samples if _is_generator(row, self.step)]
        return judge_step(found, StepFacts(scenario, self.records, self.windows, generator))

    def _shares(self, sent: Sequence[Record]) -> dict[str, ShareSummary]:
        """Empty where the scenario has no mix."""
        names = sorted({record.share for record in sent} - {""})
        return {name: self._share([one for one in sent if one.share == name]) for name in names}

    def _share(self, sent: Sequence[Record]) -> ShareSummary:
        ok = [record for record in sent if record.outcome == "ok"]
        slo = self.scenario.slo
        return ShareSummary(
            sent=len(sent),
            outcomes=_outcomes(sent),
            good=stats.share_of([is_good(record, slo, self.offsets) for record in sent]),
            accuracy=_accuracy(ok),
            latencies=self._latencies(ok),
            with_timeouts={name: self._bounded(sent, name) for name in WITH_TIMEOUTS},
        )

    def _ended_within(self) -> list[Record]:
        """Whole answers that ended in the measured time, of requests of the warm-up too: those make
        up for the ones that were sent in it and ended after it."""
        by_repeat = {window.repeat: window for window in self.windows}
        return [
            record
            for record in self.records
            if record.outcome == "ok"
            and record.repeat in by_repeat
            and by_repeat[record.repeat].holds(record.ended_s)
        ]

    def _latencies(self, ok: Sequence[Record]) -> dict[str, Distribution]:
        found = {}
        for name in LATENCIES:
            if name == "itl_ms":
                groups = [gaps_ms(record) for record in ok]
                made = stats.grouped_distribution(groups, random.Random(stats.SEED))
            else:
                made = _distribution([latency(record, name, self.offsets) for record in ok])
            if made.n:
                found[name] = made
        return found

    def _bounded(self, sent: Sequence[Record], name: str) -> Distribution:
        bound_s = self.scenario.load.timeout_s
        return _distribution([bounded_latency(record, name, bound_s) for record in sent])

    def _machine(self) -> dict[str, Distribution]:
        values: dict[str, list[float]] = {}
        for row in self.samples:
            if "kind" not in row and any(window.holds(row.get("at_s")) for window in self.windows):
                for name, value in {**row.get("metrics", {}), **row.get("machine", {})}.items():
                    if value is not None:
                        values.setdefault(name, []).append(float(value))
        return {name: stats.readings(found) for name, found in sorted(values.items())}


def _is_generator(row: Mapping[str, Any], step: int) -> bool:
    return row.get("kind") == "generator" and row["step"] == step


def _clock(clock: Mapping[str, Any]) -> dict[str, float]:
    """What of it is known: an uncertainty that nobody could bound is left out."""
    numbers = {name: clock.get(name) for name in NO_OFFSET}
    found = {name: value for name, value in numbers.items() if isinstance(value, (int, float))}
    return {"offset_ms": 0.0, **{n: float(v) for n, v in found.items() if math.isfinite(v)}}


def _cold(samples: Samples) -> dict[str, float]:
    """The probes before the first step; several of one name are the last one's."""
    rows = (row for row in samples if row.get("kind") == "cold" and row.get("ms") is not None)
    return {str(row["name"]): float(row["ms"]) for row in rows}


def _distribution(values: Iterable[float | None]) -> Distribution:
    known = [value for value in values if value is not None]
    return stats.distribution(known, n_independent=stats.independent(known))


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else (end_s - start_s) * 1000


def _wall_end_ms(record: Record) -> float | None:
    if record.sent_at_ms is None or record.sent_s is None or record.ended_s is None:
        return None
    return record.sent_at_ms + (record.ended_s - record.sent_s) * 1000


def _moved(at_ms: float | None, by_ms: float) -> float | None:
    return None if at_ms is None else at_ms - by_ms


def _capture_to_request(record: Record, offsets: Offsets) -> float | None:
    captured = _moved(record.evidence_at_ms, offsets.evidence_ms)
    if captured is None:
        captured = _moved(record.known_evidence_at_ms, offsets.known_ms)
    if captured is None or record.sent_at_ms is None:
        return None
    return record.sent_at_ms - captured


def _freshness(record: Record, captured_ms: float | None) -> float | None:
    ended_ms = _wall_end_ms(record)
    return None if captured_ms is None or ended_ms is None else ended_ms - captured_ms


def _tpot(record: Record) -> float | None:
    """Needs two events at least: one that holds the whole answer tells nothing of the pace."""
    if (
        record.completion_tokens is None
        or record.completion_tokens < 2
        or len(record.content_s) < 2
    ):
        return None
    return (record.content_s[-1] - record.content_s[0]) * 1000 / (record.completion_tokens - 1)


_LATENCY: Mapping[str, Callable[[Record, Offsets], float | None]] = {
    "ttft_ms": lambda one, _: _between(one.due_s, one.first_content_s),
    "service_ttft_ms": lambda one, _: _between(one.sent_s, one.first_content_s),
    "tpot_ms": lambda one, _: _tpot(one),
    "total_ms": lambda one, _: _between(one.due_s, one.ended_s),
    "service_total_ms": lambda one, _: _between(one.sent_s, one.ended_s),
    "capture_to_request_ms": _capture_to_request,
    "age_ms": lambda one, _: one.age_ms,
    "freshness_ms": lambda one, by: _freshness(one, _moved(one.evidence_at_ms, by.evidence_ms)),
    "known_freshness_ms": lambda one, by: _freshness(
        one, _moved(one.known_evidence_at_ms, by.known_ms)
    ),
    "connect_ms": lambda one, _: _between(one.sent_s, one.connected_s),
    "headers_ms": lambda one, _: _between(one.sent_s, one.headers_s),
}


def _outcomes(sent: Sequence[Record]) -> dict[str, int]:
    counted = Counter(record.outcome for record in sent)
    return {outcome: counted[outcome] for outcome in OUTCOMES}


def _codes(sent: Sequence[Record]) -> dict[str, int]:
    """ "429 queue_full", "timeout", "failed cut": most frequent first."""
    names = (_code(record) for record in sent if record.outcome != "ok")
    return dict(Counter(names).most_common())


def _code(record: Record) -> str:
    first = str(record.status) if record.outcome == "refused" else record.outcome
    return first if record.code in ("", record.outcome) else f"{first} {record.code}"


def _server_ms(ok: Sequence[Record]) -> dict[str, Distribution]:
    """The server's stages; `outside` is what of sent-to-end it does not know: network and client."""
    stages: dict[str, list[float]] = {}
    for record in ok:
        for name, value in record.timings_ms.items():
            stages.setdefault(name, []).append(value)
        total, seen = record.timings_ms.get("total"), latency(record, "service_total_ms")
        if total is not None and seen is not None:
            stages.setdefault("outside", []).append(seen - total)
    return {name: _distribution(values) for name, values in stages.items()}


def _tokens(ok: Sequence[Record], ended: Sequence[Record], seconds: float) -> dict[str, float]:
    """Rates of what ended within the measured time; means of all measured answers."""
    found = {}
    for name in ("prompt", "completion"):
        counts = [count for one in ok if (count := getattr(one, f"{name}_tokens")) is not None]
        if counts:
            within = sum(getattr(one, f"{name}_tokens") or 0 for one in ended)
            found[f"{name}_per_s"] = within / seconds
            found[f"{name}_per_answer"] = sum(counts) / len(counts)
    told = [one for one in ok if one.cached_tokens is not None and one.prompt_tokens]
    if told:
        cached = sum(one.cached_tokens or 0 for one in told)
        found["cached_share"] = cached / sum(one.prompt_tokens or 0 for one in told)
    streamed = [one for one in ok if one.content_s and one.completion_tokens is not None]
    if streamed:
        tokens = sum(one.completion_tokens or 0 for one in streamed)
        found["completion_per_event"] = tokens / sum(len(one.content_s) for one in streamed)
    return found


def _accuracy(ok: Sequence[Record]) -> Proportion:
    judged = [record.correct for record in ok if record.correct is not None]
    return stats.share_of(judged)


def _accuracy_by_kind(ok: Sequence[Record]) -> dict[str, Proportion]:
    kinds = sorted({record.question for record in ok if record.correct is not None})
    return {kind: _accuracy([one for one in ok if one.question == kind]) for kind in kinds}


def _lateness(sent: Sequence[Record]) -> list[float]:
    found = (_between(record.due_s, record.sent_s) for record in sent)
    return [value for value in found if value is not None]

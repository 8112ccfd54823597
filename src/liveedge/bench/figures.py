"""Figures by name, as gates and comparisons ask for them: `ttft_ms.p95`, `accuracy.door`, `timeout_share`.

Pure. A figure of a step has a value and, where one can be given, a 95 % interval; counts are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from liveedge.bench import stats
from liveedge.bench.definitions import LATENCIES, WITH_TIMEOUTS
from liveedge.bench.record import Record, measured
from liveedge.bench.result import Distribution, Proportion, StepSummary

Interval = tuple[float, float]

SHARES: Mapping[str, tuple[str, ...]] = {  # of all requests, by outcomes
    "timeout_share": ("timeout",),
    "refused_share": ("refused",),
    "disconnected_share": ("failed", "unreachable"),
    "lost_share": ("refused", "failed", "unreachable", "timeout", "not_sent"),
}
COUNTS: Mapping[str, str] = {
    "timeouts": "requests that were not complete within load.timeout_s",
    "disconnects": "streams that were cut, and connections that could not be made or were lost",
    "server_errors": "a status of 500 or more, errors in mid-answer, and answers that are none",
    "refusals_without_retry_after": "429 and 503 that do not say when to come back",
}
LOST = frozenset(
    {"cut_stream", "connection_lost", "run_ended"}
)  # codes of failures without an error
STATISTICS = ("p50", "p90", "p95", "p99")


class NoSuchFigure(Exception):
    """A name that is no figure: which, and what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`value` is None where the run has nothing of the kind. `interval` equals the value for counts."""

    value: float | None
    interval: Interval | None = None
    n: int = 0


def figure(name: str, step: StepSummary, records: Sequence[Record]) -> Figure:
    """Of one step; `records` are those of the run. Raises NoSuchFigure."""
    head, _, tail = name.partition(".")
    if head == "with_timeouts":
        measure, _, statistic = tail.partition(".")
        return _of_distribution(name, step.with_timeouts, measure, statistic)
    if head in LATENCIES:
        return _of_distribution(name, step.latencies, head, tail)
    if head == "accuracy" and tail:
        return _of_proportion(step.accuracy_by_kind.get(tail, Proportion(k=0, n=0)))
    plain = _PLAIN.get(name)
    if plain is None:
        raise NoSuchFigure(f"{name} is no figure; known: {', '.join(names())}")
    return plain(step, records)


def names() -> list[str]:
    """Every name, with PNN for a percentile and KIND for a kind of question."""
    latencies = [f"{name}.PNN" for name in LATENCIES]
    bounded = [f"with_timeouts.{name}.PNN" for name in WITH_TIMEOUTS]
    return [*latencies, *bounded, "accuracy.KIND", *_PLAIN]


def outcome_share(
    step: StepSummary, records: Sequence[Record], outcomes: Sequence[str]
) -> Proportion:
    """Of the requests of a step that ended in one of these ways."""
    return stats.share_of([one.outcome in outcomes for one in in_order(step, records)])


def in_order(step: StepSummary, records: Sequence[Record]) -> list[Record]:
    """The measured requests of a step, as they were due."""
    mine = (record for record in measured(records) if record.step == step.step)
    return sorted(mine, key=lambda record: (record.repeat, record.due_s))


def _count(step: StepSummary, outcomes: Sequence[str]) -> int:
    return sum(step.outcomes[one] for one in outcomes)


def _of_distribution(
    name: str, found: Mapping[str, Distribution], measure: str, statistic: str
) -> Figure:
    if statistic not in STATISTICS:
        raise NoSuchFigure(f"{name} must end in one of {', '.join(STATISTICS)}")
    one = found.get(measure)
    if one is None or not one.n:
        return Figure(value=None)
    return Figure(value=one.percentiles[statistic], interval=one.intervals.get(statistic), n=one.n)


def _of_proportion(one: Proportion) -> Figure:
    return Figure(value=one.share, interval=one.interval, n=one.n)


def _exact(value: float) -> Figure:
    return Figure(value=value, interval=(value, value), n=1)


def _server_errors(step: StepSummary, records: Sequence[Record]) -> Figure:
    mine = in_order(step, records)
    return _exact(sum(one.status >= 500 or _is_broken(one) for one in mine))


def _is_broken(record: Record) -> bool:
    """An error in mid-answer, or an answer that is none; lost connections are `disconnects`."""
    return record.outcome == "failed" and record.code not in LOST


def _without_retry_after(step: StepSummary, records: Sequence[Record]) -> Figure:
    refused = [one for one in in_order(step, records) if one.status in (429, 503)]
    return _exact(sum(one.retry_after_s is None for one in refused))


def _share(outcomes: Sequence[str]) -> Callable[[StepSummary, Sequence[Record]], Figure]:
    return lambda step, records: _of_proportion(outcome_share(step, records, outcomes))


_PLAIN: Mapping[str, Callable[[StepSummary, Sequence[Record]], Figure]] = {
    "accuracy": lambda step, _: _of_proportion(step.accuracy),
    "good_share": lambda step, _: _of_proportion(step.good),
    "achieved_per_s": lambda step, _: _exact(step.achieved_per_s),
    "goodput_per_s": lambda step, _: _exact(step.goodput_per_s),
    "timeouts": lambda step, _: _exact(step.outcomes["timeout"]),
    "disconnects": lambda step, _: _exact(_count(step, SHARES["disconnected_share"])),
    **{name: _share(outcomes) for name, outcomes in SHARES.items()},
    "server_errors": _server_errors,
    "refusals_without_retry_after": _without_retry_after,
}

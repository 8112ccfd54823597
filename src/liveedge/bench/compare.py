"""Two runs of the same work, side by side: what got better, what worse, what nobody can tell. Pure.

Ratios are B to A with bootstrap intervals, shares are differences with Newcombe's. A line is `better` or
`worse` where its 95 % interval excludes "no change", `same` where it lies within 5 % (2 points) of it,
else `undecided`: the samples do not tell.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from liveedge.bench import stats
from liveedge.bench.figures import SHARES, in_order, outcome_share
from liveedge.bench.measures import Offsets, bounded_latency, latency
from liveedge.bench.record import Record
from liveedge.bench.result import Proportion, ResultFolder, StepSummary, Summary
from liveedge.bench.scenario import Scenario
from liveedge.bench.windows import Window, estimated_windows, windows_from

Verdict: TypeAlias = Literal["better", "worse", "same", "undecided"]
SAME_RATIO = 0.05
SAME_SHARE = 0.02
PERCENTS = (50, 95, 99)
BOUNDED = ("ttft_ms", "total_ms")  # with time-outs at their bound: else a server gains by losing
WHOLE = ("tpot_ms", "freshness_ms", "known_freshness_ms")
COMPARED_SHARES = ("timeout_share", "refused_share", "disconnected_share")
MAX_SHOWN = 60  # characters of a value that differs
NEVER = frozenset({"target", "about"})  # of a scenario: may differ


class NotComparable(Exception):
    """Two runs that did not do the same work, or that say nothing: why."""


@dataclass(frozen=True, slots=True)
class Run:
    """A result folder, read whole."""

    name: str
    scenario: Scenario
    summary: Summary
    records: Sequence[Record]
    windows: Sequence[Window]

    @classmethod
    def of(cls, folder: ResultFolder) -> Run:
        """Raises ResultInvalid."""
        scenario, records = folder.scenario(), list(folder.records())
        windows = windows_from(scenario, folder.samples()) or estimated_windows(scenario, records)
        return cls(folder.path.name, scenario, folder.summary(), records, windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure of one step. `change` is B / A for a `ratio`, B - A for a `difference`."""

    step: int
    load: str  # "4 per s", "8 at once"
    figure: str
    a: float | None
    b: float | None
    kind: Literal["ratio", "difference"]
    change: float | None
    interval: tuple[float, float] | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All lines, and what to know before reading them."""

    a: str
    b: str
    notes: Sequence[str]
    lines: Sequence[Line]

    @property
    def shown(self) -> list[Line]:
        """Those for people."""
        return _shown(self.lines)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _shown(lines: Sequence[Line]) -> list[Line]:
    """Losses that neither side had need no row; a gate may ask for them."""
    return [one for one in lines if one.figure not in COMPARED_SHARES or one.a or one.b]


def is_compared(figure: str) -> bool:
    """Whether steps have a line of this name wherever there is enough of it."""
    name, _, percent = figure.rpartition(": ")[2].removeprefix("with_timeouts.").partition(".p")
    if percent:
        return name in (*BOUNDED, *WHOLE) and percent in map(str, PERCENTS)
    return name in ("achieved_per_s", "good_share", "accuracy", *COMPARED_SHARES)


def differences(a: Scenario, b: Scenario) -> list[str]:
    """Keys of the work that are not equal, with both values."""
    first, second = _flat(a.as_json()), _flat(b.as_json())
    keys = sorted(first.keys() | second.keys())
    return [
        f"{key}: {_short(first.get(key))} in A, {_short(second.get(key))} in B"
        for key in keys
        if key.partition(".")[0] not in NEVER and first.get(key) != second.get(key)
    ]


def _short(value: Any) -> str:
    """A whole mix would hide what else differs."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def check_comparable(a: Run, b: Run) -> None:
    """Raises NotComparable with every reason."""
    reasons = differences(a.scenario, b.scenario)
    for label, run in (("A", a), ("B", b)):
        reasons += [f"{label} is invalid: {reason}" for reason in run.summary.invalid]
    if reasons:
        raise NotComparable(
            "; ".join(reasons) + ". --anyway compares them all the same, and says so"
        )


def compare(a: Run, b: Run, chance: random.Random | None = None) -> Comparison:
    """Every line of every step that both have."""
    chance = chance or random.Random(stats.SEED)
    by_step = {step.step: step for step in b.summary.steps}
    lines = [
        line
        for step in a.summary.steps
        if step.step in by_step
        for line in _Pair(a, b, step, by_step[step.step], chance).lines()
    ]
    return Comparison(a=a.name, b=b.name, notes=_notes(a, b, _shown(lines)), lines=lines)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One step of both."""

    a: Run
    b: Run
    step_a: StepSummary
    step_b: StepSummary
    chance: random.Random

    def lines(self) -> Iterator[Line]:
        for share in ("", *self.step_a.shares):
            for name in BOUNDED:
                values = [self._bounded(run, name, share) for run in (self.a, self.b)]
                shown = f"{share}: with_timeouts.{name}".removeprefix(": ")
                yield from self._percentiles(shown, values[0], values[1])
        for name in WHOLE:
            values = [self._whole(run, name) for run in (self.a, self.b)]
            yield from self._percentiles(name, values[0], values[1])
        yield from self._rate()
        yield self._share("good_share", (self.step_a.good, self.step_b.good), is_gain=True)
        for name in COMPARED_SHARES:
            outcomes = SHARES[name]
            first = outcome_share(self.step_a, self.a.records, outcomes)
            second = outcome_share(self.step_b, self.b.records, outcomes)
            yield self._share(name, (first, second), is_gain=False)
        if self.step_a.accuracy.n and self.step_b.accuracy.n:
            pair = (self.step_a.accuracy, self.step_b.accuracy)
            yield self._share("accuracy", pair, is_gain=True)

    def _bounded(self, run: Run, name: str, share: str) -> list[float]:
        """Of one share of a mix; empty: of all."""
        timeout_s = run.scenario.load.timeout_s
        mine = (one for one in in_order(self.step_a, run.records) if share in ("", one.share))
        found = (bounded_latency(one, name, timeout_s) for one in mine)
        return [value for value in found if value is not None]

    def _whole(self, run: Run, name: str) -> list[float]:
        offsets = Offsets.of(run.scenario, run.summary.clock)
        ok = (one for one in in_order(self.step_a, run.records) if one.outcome == "ok")
        return [value for one in ok if (value := latency(one, name, offsets)) is not None]

    def _percentiles(
        self, name: str, first: Sequence[float], second: Sequence[float]
    ) -> Iterator[Line]:
        if not first or not second:
            return
        counted = min(stats.independent(first), stats.independent(second))
        percents = [one for one in PERCENTS if stats.interval_ranks(counted, one)] or [50]
        of = [stats.percentile_of(percent) for percent in percents]
        found = stats.ratios(first, second, of, self.chance)
        for percent, ratio in zip(percents, found, strict=True):
            values = (stats.percentile(first, percent), stats.percentile(second, percent))
            if min(values) <= 0:  # of evidence from the future: there is no ratio to it
                ratio = stats.Ratio(math.nan, None)
            yield self._line(f"{name}.p{percent}", values, ratio, is_gain=False)

    def _rate(self) -> Iterator[Line]:
        """Whole answers per second, from the counts of slices of the measured time."""
        first, second = self._slices(self.a), self._slices(self.b)
        if first and second and sum(first):
            ratio = stats.ratio(first, second, stats.mean_of, self.chance)
            values = (self.step_a.achieved_per_s, self.step_b.achieved_per_s)
            yield self._line("achieved_per_s", values, ratio, is_gain=True)

    def _slices(self, run: Run) -> list[float]:
        windows = [one for one in run.windows if one.step == self.step_a.step]
        length_s = max(1.0, sum(one.seconds for one in windows) / 200)
        ended = [
            (one.repeat, one.ended_s)
            for one in run.records
            if one.step == self.step_a.step and one.outcome == "ok" and one.ended_s is not None
        ]
        counts: list[float] = []
        for window in windows:
            mine = [0.0] * int(window.seconds / length_s)
            for repeat, ended_s in ended:
                at = int((ended_s - window.start_s) // length_s)
                if repeat == window.repeat and 0 <= at < len(mine):
                    mine[at] += 1
            counts += mine
        return counts

    def _line(
        self, name: str, values: tuple[float, float], ratio: stats.Ratio, *, is_gain: bool
    ) -> Line:
        return Line(
            step=self.step_a.step,
            load=load_of(self.step_a),
            figure=name,
            a=values[0],
            b=values[1],
            kind="ratio",
            change=ratio.value,
            interval=ratio.interval,
            verdict=self._verdict(ratio.interval, 1.0, SAME_RATIO, is_gain=is_gain),
        )

    def _share(self, name: str, pair: tuple[Proportion, Proportion], *, is_gain: bool) -> Line:
        gap = stats.share_difference(*pair)
        change, interval = gap or (None, None)
        return Line(
            step=self.step_a.step,
            load=load_of(self.step_a),
            figure=name,
            a=pair[0].share,
            b=pair[1].share,
            kind="difference",
            change=change,
            interval=interval,
            verdict=self._verdict(interval, 0.0, SAME_SHARE, is_gain=is_gain),
        )

    def _verdict(
        self, interval: tuple[float, float] | None, no_change: float, near: float, *, is_gain: bool
    ) -> Verdict:
        """Steps that are invalid in either run decide nothing."""
        if interval is None or self.step_a.invalid or self.step_b.invalid:
            return "undecided"
        low, high = interval
        if low > no_change:
            return "better" if is_gain else "worse"
        if high < no_change:
            return "worse" if is_gain else "better"
        return "same" if no_change - near <= low and high <= no_change + near else "undecided"


def load_of(step: StepSummary) -> str:
    """Of a step, for people."""
    if step.offered_per_s is not None:
        return f"{step.offered_per_s:g} per s"
    return f"{step.concurrency} at once"


def markdown(comparison: Comparison) -> str:
    """A table, its notes before it."""
    rows = [
        "| load | figure | A | B | B to A | 95 % interval | verdict |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    rows += [
        f"| {line.load} | {line.figure} | {_number(line.a)} | {_number(line.b)} |"
        f" {_change(line.kind, line.change)} | {_interval(line)} | {line.verdict} |"
        for line in comparison.shown
    ]
    notes = [f"- {note}" for note in comparison.notes]
    head = [f"A: {comparison.a}", f"B: {comparison.b}", ""]
    return "\n".join([*head, *notes, *([""] if notes else []), *rows])


def _notes(a: Run, b: Run, lines: Sequence[Line]) -> list[str]:
    found = [
        f"not the same work: {difference}" for difference in differences(a.scenario, b.scenario)
    ]
    for label, run in (("A", a), ("B", b)):
        found += [f"{label} is invalid: {reason}" for reason in run.summary.invalid]
    deliveries = (a.scenario.target.delivery, b.scenario.target.delivery)
    if deliveries[0] != deliveries[1]:
        found.append(
            f"delivery differs: {deliveries[0]} in A, {deliveries[1]} in B. The questions and frames are"
            " of the same cameras; how they reach the model is part of what is compared"
        )
    found += _answered(a, b)
    called = sum(line.verdict in ("better", "worse") for line in lines)
    found.append(
        f"{len(lines)} lines, {called} of them better or worse; by chance alone about"
        f" {0.05 * len(lines):.0f} would be: believe what several steps agree on"
    )
    return found


def _answered(a: Run, b: Run) -> Iterator[str]:
    """Steps at which one of them answered less: its latencies are of fewer requests."""
    by_step = {step.step: step for step in b.summary.steps}
    for first in a.summary.steps:
        second = by_step.get(first.step)
        if second is None or not first.sent or not second.sent:
            continue
        shares = [one.outcomes["ok"] / one.sent for one in (first, second)]
        if abs(shares[0] - shares[1]) > SAME_SHARE:
            yield (
                f"at {load_of(first)} A answered {shares[0]:.1%} of the requests and B {shares[1]:.1%}:"
                " latencies are of those alone (and time-outs), which refusing the others keeps short"
            )


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        found: dict[str, Any] = {}
        for key, inner in value.items():
            found |= _flat(inner, f"{path}.{key}" if path else str(key))
        return found
    return {path: list(value) if isinstance(value, tuple) else value}


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _change(kind: str, value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"×{value:.3f}" if kind == "ratio" else f"{100 * value:+.1f} points"


def _interval(line: Line) -> str:
    if line.interval is None:
        return "no ratio" if line.change is None or math.isnan(line.change) else "too few samples"
    low, high = line.interval
    if line.kind == "ratio":
        return f"{low:.3f} to {high:.3f}"
    return f"{100 * low:+.1f} to {100 * high:+.1f}"

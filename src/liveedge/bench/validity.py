"""Which steps say nothing about the server, and what to beware of in the others. Pure.

Invalid: the generator, not the server, shaped the figures. Warned: the figures hold, but not for what
a hasty reader would take them for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from liveedge.bench import stats
from liveedge.bench.capacity import LOST_SHARE, UNSTEADY
from liveedge.bench.record import Record, measured
from liveedge.bench.result import StepSummary
from liveedge.bench.scenario import Scenario
from liveedge.bench.windows import Window

LATENESS_SHARE = 0.10  # of the median whole answer that the generator's p99 lateness may be
LATENESS_FLOOR_MS = 5.0  # below which no lateness matters
GENERATOR_CPU_SHARE = 0.90  # of one processor
STALLED_SHARE = 0.01  # of the time: stalls of the event loop above 50 ms
MACHINE_CPU_SHARE = (
    0.98  # of all processors: generator and server, on one machine, share what is left
)
TREND = 0.6  # rank correlation of time and latency that is no wave any more
GROWTH = 1.3  # of the median, from the first half of a step to the second
FEWEST_OF_COURSE = 20  # answers of which a trend says anything
DISAGREE = 1.05
CODES_NAMED = 3
INGEST_MS = 1000.0  # by which a server may date a frame later than it was taken, and be honest
UNDECIDED_SHARE = 0.2  # of the answers whose truth may be undecidable
DEVIATIONS = 4.0  # of a Poisson count that a schedule's may be away from its mean


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a step was to be, and every record of it."""

    scenario: Scenario
    records: Sequence[Record]  # warm-up too
    windows: Sequence[Window]
    generator: Sequence[Mapping[str, Any]] = ()  # its own rows of samples.jsonl, one per repeat

    @property
    def measured(self) -> list[Record]:
        return sorted(measured(self.records), key=lambda record: (record.repeat, record.due_s))


def judge_step(step: StepSummary, facts: StepFacts) -> StepSummary:
    """The step with its reasons and warnings."""
    invalid = [
        *_not_sent(step),
        *_late(step),
        *_slow_generator(step, facts),
        *_starved(step, facts),
        *_schedule(step),
        *_unmeasured(step),
        *_broken_off(facts),
    ]
    warnings = [
        *_lost(step),
        *_unsteady(facts),
        *_too_few(step),
        *_queueing(step),
        *_disagreeing(facts),
        *_unjudged(step, facts),
        *_busy_machine(step),
    ]
    return replace(step, invalid=tuple(invalid), warnings=tuple(warnings))


def judge_run(
    scenario: Scenario, steps: Sequence[StepSummary], clock: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """Reasons for which the whole run is invalid, and warnings about all of it."""
    invalid = [f"step {step.step}: {reason}" for step in steps for reason in step.invalid]
    if len(steps) < scenario.n_steps:
        invalid.append(f"the run has {len(steps)} of {scenario.n_steps} steps: it broke off")
    warnings = [f"step {step.step}: {warning}" for step in steps for warning in step.warnings]
    return invalid, [*_clock(steps, clock), *_evidence(steps, clock), *warnings]


def _not_sent(step: StepSummary) -> Iterator[str]:
    count = step.outcomes["not_sent"]
    if not count:
        return
    yield (
        f"{count} of {step.sent} requests were not sent: load.max_in_flight was open; raise it, or"
        " lower load.timeout_s or the rate"
    )


def _late(step: StepSummary) -> Iterator[str]:
    late = step.lateness_ms.percentiles.get("p99")
    limit = _share_of_median(step, LATENESS_SHARE, LATENESS_FLOOR_MS)
    if late is None or late <= limit:
        return
    yield (
        f"the generator was late: p99 of sending after due is {late:.1f} ms, allowed are {limit:.1f} ms"
        f" ({LATENESS_SHARE:.0%} of the median answer); lower the rate, or run it on another machine"
    )


def _slow_generator(step: StepSummary, facts: StepFacts) -> Iterator[str]:
    """Its thread's share where that was sampled, else that of its whole process."""
    thread = step.machine.get("generator_cpu_share")
    whole = max((row.get("cpu_share") or 0.0 for row in facts.generator), default=0.0)
    busy = whole if thread is None or thread.mean is None else thread.mean
    if busy > GENERATOR_CPU_SHARE:
        yield (
            f"the generator was busy {busy:.0%} of the time, allowed are {GENERATOR_CPU_SHARE:.0%} of a"
            " processor: it could not have sent more"
        )
    for row in facts.generator:
        stalled_s = row.get("loop_stalled_s", 0.0)
        if stalled_s > STALLED_SHARE * row["seconds"]:
            yield (
                f"the generator's event loop stood still for {stalled_s:.2f} of {row['seconds']:.1f} s,"
                f" allowed are {STALLED_SHARE:.0%}: too many moments were noticed too late"
            )


def _starved(step: StepSummary, facts: StepFacts) -> Iterator[str]:
    """A closed loop has no schedule to be late for; still it reads answers late."""
    late_ms = max((row.get("loop_late_ms_p99", 0.0) for row in facts.generator), default=0.0)
    limit_ms = _share_of_median(step, LATENESS_SHARE, LATENESS_FLOOR_MS)
    if late_ms > limit_ms:
        yield (
            f"the generator's event loop was late: p99 is {late_ms:.1f} ms, allowed are {limit_ms:.1f} ms"
            f" ({LATENESS_SHARE:.0%} of the median answer): something else took its processor"
        )


def _schedule(step: StepSummary) -> Iterator[str]:
    """The arrivals must be those of the rate; a closed loop has none."""
    if step.offered_per_s is None:
        return
    due = step.offered_per_s * step.seconds
    if abs(step.sent - due) <= DEVIATIONS * math.sqrt(due) + 1:
        return
    yield (
        f"{step.sent} requests were due in {step.seconds:.1f} s, {due:.0f} are {step.offered_per_s:g} per"
        " second: the schedule was not carried out"
    )


def _unmeasured(step: StepSummary) -> Iterator[str]:
    if not step.sent:
        yield (
            "no request was due in the measured time: in a closed loop, every worker still waited for an"
            " answer of the warm-up; make load.duration_s longer than load.timeout_s"
        )


def _lost(step: StepSummary) -> Iterator[str]:
    """Whoever refuses most requests can be quick with the rest."""
    lost = step.sent - step.outcomes["ok"]
    if not step.sent or lost <= LOST_SHARE * step.sent:
        return
    codes = ", ".join(f"{count} {code}" for code, count in list(step.codes.items())[:CODES_NAMED])
    yield (
        f"requests without an answer: {lost} of {step.sent} ({codes}); latencies are of the others, which"
        " a server keeps short by refusing"
    )


def _broken_off(facts: StepFacts) -> Iterator[str]:
    repeats = facts.scenario.load.repeats
    if len(facts.windows) < repeats:
        yield f"it has {len(facts.windows)} of {repeats} repeats: the run broke off"


def _unsteady(facts: StepFacts) -> Iterator[str]:
    """A queue that grows: then figures depend on how long one looks."""
    points = list(_course(facts))
    if len(points) < FEWEST_OF_COURSE:
        return
    half_s = facts.windows[0].seconds / 2
    halves = [[took for at, took in points if (at >= half_s) is late] for late in (False, True)]
    if not all(halves) or stats.rank_correlation(*zip(*points, strict=True)) < TREND:
        return
    growth = stats.percentile(halves[1], 50) / max(stats.percentile(halves[0], 50), 1e-3)
    if growth >= GROWTH:
        yield (
            f"{UNSTEADY}: the median answer of the second half takes {growth:.1f} times that of the"
            " first; the queue grows, and a longer step would show longer times"
        )


def _course(facts: StepFacts) -> Iterator[tuple[float, float]]:
    """When each request was due, from the start of its window, and how long it took; time-outs at
    their bound, what was refused left out."""
    starts = {window.repeat: window.start_s for window in facts.windows}
    for record in facts.measured:
        took_s = facts.scenario.load.timeout_s
        if record.outcome == "ok" and record.ended_s is not None:
            took_s = record.ended_s - record.due_s
        elif record.outcome != "timeout":
            continue
        if record.repeat in starts:
            yield record.due_s - starts[record.repeat], took_s


def _too_few(step: StepSummary) -> Iterator[str]:
    """By the series that has all answers; the others have no more."""
    total = step.latencies.get("total_ms")
    if total is None:
        yield "no request was answered: there are no latencies"
        return
    if not total.too_few:
        return
    needed = ", ".join(f"{name} {stats.samples_needed(float(name[1:]))}" for name in total.too_few)
    counted = total.n if total.n_independent is None else total.n_independent
    yield f"too few samples: {counted} independent answers; needed are for {needed}"


def _queueing(step: StepSummary) -> Iterator[str]:
    total = step.latencies.get("total_ms")
    if total is None or total.n_independent is None or total.n_independent * 2 > total.n:
        return
    yield (
        f"neighbours resemble each other: {total.n} answers count as {total.n_independent} independent"
        " ones, and intervals are wider for it"
    )


def _disagreeing(facts: StepFacts) -> Iterator[str]:
    """Repeats whose medians differ by more than their own intervals explain."""
    by_repeat: dict[int, list[float]] = {}
    for record in facts.measured:
        if record.outcome == "ok" and record.ended_s is not None:
            by_repeat.setdefault(record.repeat, []).append((record.ended_s - record.due_s) * 1000)
    found = [
        stats.distribution(values, n_independent=stats.independent(values))
        for values in by_repeat.values()
    ]
    found = [one for one in found if "p50" in one.intervals]
    if len(found) < 2:
        return
    low = min(found, key=lambda one: one.percentiles["p50"])
    high = max(found, key=lambda one: one.percentiles["p50"])
    if (
        low.intervals["p50"][1] >= high.intervals["p50"][0]
        or high.percentiles["p50"] < DISAGREE * low.percentiles["p50"]
    ):
        return
    yield (
        f"repeats disagree: p50 of total_ms is {low.percentiles['p50']:.0f} ms in one and"
        f" {high.percentiles['p50']:.0f} ms in another, more than chance within a run explains"
    )


def _unjudged(step: StepSummary, facts: StepFacts) -> Iterator[str]:
    answered = step.outcomes["ok"]
    has_truth = bool(facts.scenario.questions.kinds)
    if not has_truth or not answered or step.accuracy.n >= (1 - UNDECIDED_SHARE) * answered:
        return
    yield (
        f"{answered - step.accuracy.n} of {answered} answers could not be judged: accuracy is of the rest"
    )


def _busy_machine(step: StepSummary) -> Iterator[str]:
    cpu = step.machine.get("cpu_share")
    if cpu is None or cpu.mean is None or cpu.mean < MACHINE_CPU_SHARE:
        return
    yield (
        f"the machine was {cpu.mean:.0%} busy: server, cameras and generator wait for each other, where"
        " they share it"
    )


def _clock(steps: Sequence[StepSummary], clock: Mapping[str, float]) -> Iterator[str]:
    uncertainty = clock.get("uncertainty_ms", math.inf)
    medians = [
        one.percentiles["p50"]
        for step in steps
        for name, one in step.latencies.items()
        if name == "freshness_ms"
    ]
    if not medians or uncertainty <= 0.1 * min(medians):
        return
    yield (
        f"the server's clock is known to {uncertainty:.0f} ms only: freshness by its evidence is no"
        " better than that"
    )


def _evidence(steps: Sequence[StepSummary], clock: Mapping[str, float]) -> Iterator[str]:
    """What cannot be true of the moments of frames, however far the clocks may be from each other."""
    uncertainty = clock.get("uncertainty_ms", math.inf)
    for step in steps:
        said, known = (step.latencies.get(name) for name in ("freshness_ms", "known_freshness_ms"))
        for name, one in (("freshness_ms", said), ("known_freshness_ms", known)):
            if one is not None and one.low is not None and one.low < -uncertainty:
                yield (
                    f"step {step.step}: evidence from the future: the least {name} is {one.low:.0f} ms, so"
                    " the server's evidence is wrong, or a clock was set during the run"
                )
        if said is None or known is None:
            continue
        younger = known.percentiles["p50"] - said.percentiles["p50"]
        if younger > INGEST_MS + uncertainty:
            yield (
                f"step {step.step}: the server dates its frames {younger:.0f} ms later than they were"
                " taken (medians): believe known_freshness_ms, not freshness_ms"
            )


def _share_of_median(step: StepSummary, share: float, floor_ms: float) -> float:
    total = step.latencies.get("total_ms")
    return max(floor_ms, share * total.percentiles["p50"]) if total else floor_ms

"""The first screen of a report: the verdict, the few numbers that matter, warnings, the key table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from liveedge.bench.report.accuracy_charts import envelope, has_accuracy, overall
from liveedge.bench.report.document import Cell, Fact, Table, Verdict
from liveedge.bench.report.load_axis import not_ok
from liveedge.bench.report.run_view import RunView, freshness_measure
from liveedge.bench.report.scale import duration, percent, plain
from liveedge.bench.report.step_tables import first_cell, run_head, value
from liveedge.bench.result import Proportion, StepSummary

MOST_STEPS_NAMED = 4


def verdict(runs: Sequence[RunView]) -> Verdict:
    """Whether the figures say anything about the server, and why not."""
    reasons = [reason for run in runs for reason in _invalid(run, named=len(runs) > 1)]
    steps = [step for run in runs for step in run.summary.steps]
    if not any(step.sent for step in steps):
        return Verdict(word="Nothing was measured", tone="bad", reasons=reasons)
    if all(run.summary.valid for run in runs) and not reasons:
        word = "Valid: the generator kept its schedule, and every step can be read as it is"
        return Verdict(word=word, tone="good")
    n_invalid = sum(bool(step.invalid) for step in steps)
    if 0 < n_invalid < len(steps):
        word = f"Not valid: {n_invalid} of {len(steps)} steps say nothing about the server"
        return Verdict(word=word, tone="bad", reasons=reasons)
    return Verdict(word="Not valid", tone="bad", reasons=reasons)


def _invalid(run: RunView, *, named: bool) -> Iterator[str]:
    """Reasons, steps by their load."""
    before = f"{run.label}: " if named else ""
    of_steps = {f"step {step.step}: {text}" for step in run.summary.steps for text in step.invalid}
    yield from (before + text for text in run.summary.invalid if text not in of_steps)
    for step in run.summary.steps:
        yield from (f"{before}at {run.step_name(step)}: {text}" for text in step.invalid)


def facts(run: RunView) -> list[Fact]:
    """Of one run."""
    return [
        fact
        for fact in (_capacity(run), _knee(run), _good(run), _latency(run), _accuracy(run))
        if fact
    ]


def _capacity(run: RunView) -> Fact | None:
    found = run.summary.capacity
    if "sustained_per_s" in found:
        then = found.get("saturated_per_s")
        detail = f"saturated at {then:g}/s" if then else "no step saturated it"
        return Fact(name="Sustained rate", value=f"{found['sustained_per_s']:g}/s", detail=detail)
    if "peak_achieved_per_s" not in found:
        return None
    detail = "most that any step achieved" + (
        f"; the first step, {found['saturated_per_s']:g}/s, was not sustained"
        if "saturated_per_s" in found
        else ""
    )
    return Fact(
        name="Most achieved", value=f"{plain(found['peak_achieved_per_s'])}/s", detail=detail
    )


def _knee(run: RunView) -> Fact | None:
    found = run.summary.capacity
    if not _has_objectives(run) or "peak_goodput_per_s" not in found:
        return None
    peak = f"{plain(found['peak_goodput_per_s'])}/s"
    if not run.is_open:
        return Fact(name="Most goodput", value=peak, detail="of any step")
    holds = found.get("within_slo_per_s")
    return Fact(
        name="Goodput holds up to",
        value="no step" if holds is None else f"{holds:g}/s",
        detail=f"95 % within the objectives up to here; most goodput {peak}",
    )


def _has_objectives(run: RunView) -> bool:
    slo = run.scenario.slo
    return bool(slo.ttft_ms or slo.total_ms or slo.freshness_ms or slo.correct)


def reference_step(run: RunView) -> StepSummary | None:
    """The step that is spoken of: the last within the objectives, else the last sustained, else the first."""
    valid = [step for step in run.summary.steps if not step.invalid and step.sent]
    for name in ("within_slo_per_s", "sustained_per_s"):
        rate = run.summary.capacity.get(name)
        for step in valid:
            if rate is not None and step.offered_per_s == rate:
                return step
    return valid[0] if valid else None


def _good(run: RunView) -> Fact | None:
    step = reference_step(run)
    if step is None or step.good.share is None or not _has_objectives(run):
        return None
    return Fact(
        name=f"Within the objectives at {run.step_name(step)}",
        value=percent(step.good.share),
        detail=_interval(step.good),
    )


def _latency(run: RunView) -> Fact | None:
    step = reference_step(run)
    ttft = step.latencies.get("ttft_ms") if step else None
    if step is None or ttft is None or "p95" not in ttft.percentiles:
        return None
    parts = [f"p50 {duration(ttft.percentiles['p50'])}"]
    fresh = freshness_measure([run])
    one = step.latencies.get(fresh) if fresh else None
    if one and "p95" in one.percentiles:
        parts.append(f"freshness p95 {duration(one.percentiles['p95'])}")
    if lost := not_ok(step):
        parts.append(f"without the {percent(lost)} that got no answer")
    return Fact(
        name=f"TTFT p95 at {run.step_name(step)}",
        value=duration(ttft.percentiles["p95"]),
        detail="; ".join(parts),
    )


def _accuracy(run: RunView) -> Fact | None:
    if not has_accuracy(run):
        return None
    found = overall(run)
    if found.share is None:
        return None
    return Fact(
        name="Right answers",
        value=percent(found.share),
        detail=f"{_interval(found)}, {found.k:,} of {found.n:,}",
    )


def _interval(one: Proportion) -> str:
    if one.interval is None:
        return f"{one.k} of {one.n}"
    return f"{percent(one.interval[0])} to {percent(one.interval[1])}"


def warnings(run: RunView, *, named: bool = False) -> list[str]:
    """Of the run, then of its steps: equal kinds together, with the first as an example."""
    before = f"{run.label}: " if named else ""
    by_kind: dict[str, list[tuple[str, str]]] = {}
    of_steps = set()
    for step in run.summary.steps:
        for text in step.warnings:
            of_steps |= {f"step {step.step}: {text}", text}
            by_kind.setdefault(text.split(":")[0], []).append((run.step_name(step), text))
    whole = [text for text in run.summary.warnings if text not in of_steps]
    return [before + text for text in whole] + [
        f"{before}at {_steps(found)}: {found[0][1]}" for found in by_kind.values()
    ]


def _steps(found: Sequence[tuple[str, str]]) -> str:
    names = [name for name, _ in found]
    if len(names) > MOST_STEPS_NAMED:
        return f"{names[0]} and {len(names) - 1} more steps"
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def key_table(runs: Sequence[RunView]) -> Table:
    """A row per step: what was offered, what came of it."""
    fresh = freshness_measure(runs)
    kinds = any(has_accuracy(run) for run in runs)
    head = [*run_head(runs), "offered" if runs[0].is_open else "in flight", "achieved", "goodput"]
    head += ["good", "not ok", "TTFT p50", "p95", "p99", "answer p50", "p95"]
    head += ["fresh p95"] if fresh else []
    head += ["right"] if kinds else []
    rows = [
        [*first_cell(runs, run), *_key_row(run, step, fresh=fresh, kinds=kinds)]
        for run in runs
        for step in run.summary.steps
    ]
    return Table(
        caption="Every step",
        head=head,
        rows=rows,
        n_names=len(run_head(runs)),
        note="Rates per second; latencies of whole answers. good: share of all requests within the"
        " objectives. † too few samples for this percentile. ✗ this step is not valid.",
    )


def _key_row(
    run: RunView, step: StepSummary, *, fresh: str | None, kinds: bool
) -> list[str | Cell]:
    lost = not_ok(step)
    load = f"{run.load_of(step):g}"
    ttft, total = step.latencies.get("ttft_ms"), step.latencies.get("total_ms")
    row: list[str | Cell] = [Cell(f"✗ {load}", "bad") if step.invalid else load]
    row += [plain(step.achieved_per_s), plain(step.goodput_per_s)]
    row += [percent(step.good.share) if step.good.share is not None else "–"]
    row += [Cell(percent(lost), "bad") if lost else "0 %"]
    row += [value(ttft, "p50"), value(ttft, "p95"), value(ttft, "p99")]
    row += [value(total, "p50"), value(total, "p95")]
    row += [value(step.latencies.get(fresh), "p95")] if fresh else []
    if kinds:
        share = step.accuracy.share
        row.append(percent(share) if share is not None else "–")
    return row


def subtitle(run: RunView) -> list[str]:
    """What was measured, in words."""
    scenario = run.scenario
    load, media = scenario.load, scenario.media
    target = scenario.target
    cameras = "1 camera" if scenario.sources.count == 1 else f"{scenario.sources.count} cameras"
    arrivals = {"poisson": "open loop, Poisson arrivals", "constant": "open loop, even arrivals"}
    how = arrivals.get(load.kind, "closed loop")
    fresh = f", no older than {media.max_age_ms} ms" if media.max_age_ms else ""
    repeats = f", {load.repeats} times" if load.repeats > 1 else ""
    measured = (
        f"Measured from outside: {target.model or 'the default model'} at {target.base_url},"
        f" {cameras} ({scenario.sources.kind}), {envelope(scenario)}{fresh},"
        f" {scenario.questions.max_tokens} tokens at most."
    )
    loaded = (
        f"Load: {how}, {scenario.n_steps} step{'s' if scenario.n_steps != 1 else ''} of {load.duration_s:g} s after {load.warmup_s:g} s"
        f" of warm-up{repeats}; time-out {load.timeout_s:g} s. {objectives(run)}"
    )
    return [*([scenario.about] if scenario.about else []), measured, loaded]


def objectives(run: RunView) -> str:
    """The stated limits as a sentence."""
    slo = run.scenario.slo
    limits = (
        ("TTFT", slo.ttft_ms),
        ("answer", slo.total_ms),
        ("freshness", slo.freshness_ms),
    )
    parts = [f"{name} within {duration(limit)}" for name, limit in limits if limit]
    parts += ["the right answer"] if slo.correct else []
    if not parts:
        return "No objectives are stated: goodput counts every whole answer."
    return f"Objectives: {', '.join(parts)}."

"""Which share of all requests had its first content, or an answer of some freshness, by when.

A curve ends below 100 % where the rest never arrived: nothing is left out of what it is a share of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from liveedge.bench.report.chart import (
    DASHES,
    Axis,
    Chart,
    EndLabel,
    Mark,
    Rule,
    Series,
    Strip,
    Style,
)
from liveedge.bench.report.latency_charts import NAMES, RUN_STYLES, objective
from liveedge.bench.report.palette import ramp
from liveedge.bench.report.run_view import RunView, freshness_measure
from liveedge.bench.report.scale import duration, linear, logarithmic, percent, ticks
from liveedge.bench.result import StepSummary

MOST_POINTS = 160  # of one curve; in between it rises evenly
WHOLE = 0.9995
NEVER = (
    "What a curve lacks to 100 % (at its right end) never arrived: time-outs, refusals, failures."
)
MOST_STEPS = 3  # of several runs: each of these steps is a chart


def arrival_charts(runs: Sequence[RunView]) -> list[Chart]:
    """Of one run a curve per step; of several a chart per step that all have."""
    shown = arriving(runs)
    if len(runs) == 1:
        return [_by_step(runs[0], measure) for measure in shown]
    return [_by_run(runs, measure, load) for measure in shown for load in _shared(runs)]


def arriving(runs: Sequence[RunView]) -> list[str]:
    """The measures that have curves."""
    fresh = freshness_measure(runs)
    return ["ttft_ms"] + ([fresh] if fresh else [])


def _shared(runs: Sequence[RunView]) -> list[float]:
    """Loads that all runs have; a few of them, spread from the first to the last."""
    sets = [{run.load_of(step) for step in run.summary.steps} for run in runs]
    found = sorted(set.intersection(*sets))
    if len(found) <= MOST_STEPS:
        return found
    places = {round(n * (len(found) - 1) / (MOST_STEPS - 1)) for n in range(MOST_STEPS)}
    return [found[place] for place in sorted(places)]


def _by_step(run: RunView, measure: str) -> Chart:
    values = _values([run], measure)
    steps = run.summary.steps
    curves = []
    for number, step in enumerate(steps):
        style = Style(colour=ramp(number, len(steps)), dash=DASHES[number % 4], width=1.7)
        curves.append((run, step, run.step_name(step), style))
    marks = [mark for curve in curves for mark in _curve(curve, values[run.label, curve[1].step])]
    return _chart([run], measure, f"{NAMES[measure]}: arrived by", marks)


def _by_run(runs: Sequence[RunView], measure: str, load: float) -> Chart:
    values = _values(runs, measure)
    marks: list[Mark] = []
    name = ""
    for number, run in enumerate(runs):
        step = next(step for step in run.summary.steps if run.load_of(step) == load)
        style = Style(colour=RUN_STYLES[number % len(RUN_STYLES)].colour, dash=DASHES[number % 4])
        name = run.step_name(step)
        marks += _curve((run, step, run.label, style), values[run.label, step.step])
    return _chart(runs, measure, f"{NAMES[measure]} at {name}: arrived by", marks)


def _values(runs: Sequence[RunView], measure: str) -> Mapping[tuple[str, int], list[float]]:
    """What arrived, in order, by run and step."""
    found: dict[tuple[str, int], list[float]] = {
        (run.label, step.step): [] for run in runs for step in run.summary.steps
    }
    for run in runs:
        for event in run.events:
            value = event.latencies.get(measure)
            if not event.warmup and value is not None and (run.label, event.step) in found:
                found[run.label, event.step].append(value)
    for values in found.values():
        values.sort()
    return found


def _curve(
    what: tuple[RunView, StepSummary, str, Style], values: Sequence[float]
) -> Iterator[Mark]:
    _, step, label, style = what
    if not values or not step.sent:
        yield Series(label=f"{label}: nothing arrived", points=[], style=style)
        return
    share = min(len(values) / step.sent, 1.0)
    yield Series(label=label, points=_thin_curve(values, step.sent), style=style, stairs=True)
    if share < WHOLE:
        yield EndLabel(y=share, text=percent(share), colour=style.colour)


def _thin_curve(values: Sequence[float], sent: int) -> list[tuple[float, float | None]]:
    """(value, share of all requests with at most it), with both ends."""
    stride = max(len(values) / MOST_POINTS, 1.0)
    places = [int(n * stride) for n in range(int(len(values) / stride))]
    places += [len(values) - 1] if places[-1] != len(values) - 1 else []
    first: list[tuple[float, float | None]] = [(values[0], 0.0)]
    return first + [(values[place], (place + 1) / sent) for place in places]


def _chart(runs: Sequence[RunView], measure: str, title: str, marks: Sequence[Mark]) -> Chart:
    curves = [mark for mark in marks if isinstance(mark, Series)]
    bound_ms = max(run.scenario.load.timeout_s for run in runs) * 1000
    limits = sorted({objective(run.scenario.slo, measure) for run in runs} - {0.0})
    values = [x for curve in curves for x, _ in curve.points]
    lost = any(isinstance(mark, EndLabel) for mark in marks)
    x = logarithmic([*values, *limits, *([bound_ms] if lost else [])])
    y = linear([0.0, 1.0], headroom=0.0)
    rules = [
        Rule(at=at, along="y", style=Style(colour="good", dash="dashdot", width=1.4))
        for at in limits
    ]
    named = [(at, f"SLO {duration(at)}") for at in limits]
    if lost:
        rules.append(Rule(at=bound_ms, along="y"))
        named.append((bound_ms, f"time-out {duration(bound_ms)}"))
    strip = Strip(caption="", items=named, style=Style(colour="muted"))
    return Chart(
        title=title,
        about="Cumulative share of all measured requests; where a curve ends, the rest never came.",
        x=Axis(label="log scale", scale=x, ticks=ticks(x, duration)),
        y=Axis(label="of all requests", scale=y, ticks=ticks(y, percent)),
        marks=[strip, *rules, *(_kept(mark, x.high) for mark in marks)],
        notes=[NEVER] if lost else [],
    )


def _kept(mark: Mark, until: float) -> Mark:
    """A curve that keeps its last share up to the edge."""
    if not isinstance(mark, Series) or not mark.points:
        return mark
    points = [*mark.points, (until, mark.points[-1][1])]
    return Series(label=mark.label, points=points, style=mark.style, stairs=True)

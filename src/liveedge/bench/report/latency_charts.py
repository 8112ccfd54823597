"""Latency against load: percentiles with their intervals, objectives, and time-outs at their bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from liveedge.bench.report.chart import Axis, Chart, Mark, Rule, Series, Style
from liveedge.bench.report.load_axis import invalid_steps, load_axis, lost_shares
from liveedge.bench.report.run_view import RunView, freshness_measure
from liveedge.bench.report.scale import duration, fitting, ticks
from liveedge.bench.result import Distribution, StepSummary
from liveedge.bench.scenario import Objectives

NAMES: Mapping[str, str] = {
    "ttft_ms": "Time to first content (TTFT)",
    "total_ms": "Whole answer",
    "freshness_ms": "Freshness by the server's evidence",
    "known_freshness_ms": "Freshness as the bench knows it",
}
PERCENTILES: Mapping[str, Style] = {
    "p50": Style(colour="c0", shape="dot"),
    "p95": Style(colour="c1", shape="square"),
    "p99": Style(colour="c4", shape="diamond"),
}
RUN_STYLES = (
    Style(colour="c0", shape="dot"),
    Style(colour="c1", shape="square"),
    Style(colour="c2", shape="diamond"),
    Style(colour="c3", shape="up"),
    Style(colour="c5", shape="down"),
    Style(colour="c6", shape="plus"),
)
DODGE = 3.0  # px


def objective(slo: Objectives, measure: str) -> float:
    """The stated limit of a measure, 0 for none."""
    limits = {
        "ttft_ms": slo.ttft_ms,
        "total_ms": slo.total_ms,
        "freshness_ms": slo.freshness_ms,
        "known_freshness_ms": slo.freshness_ms,
    }
    return limits.get(measure, 0.0)


def measures(runs: Sequence[RunView]) -> list[str]:
    """What is shown, in this order."""
    fresh = freshness_measure(runs)
    return ["ttft_ms", "total_ms"] + ([fresh] if fresh else [])


def latency_charts(runs: Sequence[RunView]) -> list[Chart]:
    """A chart per measure; of several runs, per measure and percentile."""
    if len(runs) == 1:
        return [_of_one(runs[0], measure) for measure in measures(runs)]
    return [
        _of_several(runs, measure, name) for name in ("p50", "p95") for measure in measures(runs)
    ]


def _of_one(run: RunView, measure: str) -> Chart:
    series = []
    for number, (name, style) in enumerate(PERCENTILES.items()):
        dodge = (number - 1) * DODGE
        series += list(_series(run, (measure, name), name, style=style, dodge=dodge))
    return _chart([run], measure, NAMES[measure], series)


def _of_several(runs: Sequence[RunView], measure: str, name: str) -> Chart:
    series = []
    for number, run in enumerate(runs):
        style = RUN_STYLES[number % len(RUN_STYLES)]
        dodge = (number - (len(runs) - 1) / 2) * DODGE
        series += list(_series(run, (measure, name), run.label, style=style, dodge=dodge))
    return _chart(runs, measure, f"{NAMES[measure]}, {name}", series)


def _series(
    run: RunView, what: tuple[str, str], label: str, *, style: Style, dodge: float
) -> Iterator[Series]:
    """With time-outs first, so that the line of answers alone lies over it."""
    measure, name = what
    steps = run.summary.steps
    bounded = [step.with_timeouts.get(measure) for step in steps]
    alone = [step.latencies.get(measure) for step in steps]
    if any(
        _value(one, name) != _value(other, name)
        for one, other in zip(bounded, alone, strict=True)
        if one
    ):
        dashed = Style(colour=style.colour, dash="dashed", shape=style.shape, width=1.2, size=2.6)
        hollow = frozenset(range(len(steps)))
        yield Series(
            label="",
            points=_points(run, bounded, name),
            style=dashed,
            hollow=hollow,
            dodge=dodge,
            tips=_tips(run, bounded, f"{label} with time-outs", name),
        )
    yield Series(
        label=label,
        points=_points(run, alone, name),
        style=style,
        intervals=[one.intervals.get(name) if one else None for one in alone],
        hollow=_weak(steps, alone, name),
        dodge=dodge,
        tips=_tips(run, alone, label, name),
    )


def _value(one: Distribution | None, name: str) -> float | None:
    return one.percentiles.get(name) if one and one.n else None


def _points(
    run: RunView, found: Sequence[Distribution | None], name: str
) -> list[tuple[float, float | None]]:
    steps = run.summary.steps
    return [(run.load_of(step), _value(one, name)) for step, one in zip(steps, found, strict=True)]


def _weak(
    steps: Sequence[StepSummary], found: Sequence[Distribution | None], name: str
) -> frozenset[int]:
    return frozenset(
        number
        for number, (step, one) in enumerate(zip(steps, found, strict=True))
        if step.invalid or (one and name in one.too_few)
    )


def _tips(run: RunView, found: Sequence[Distribution | None], label: str, name: str) -> list[str]:
    tips = []
    for step, one in zip(run.summary.steps, found, strict=True):
        value = _value(one, name)
        text = "no answer" if value is None else duration(value)
        interval = one.intervals.get(name) if one else None
        between = f" ({duration(interval[0])} to {duration(interval[1])})" if interval else ""
        tips.append(f"{run.step_name(step)}: {label} {text}{between}")
    return tips


def _chart(runs: Sequence[RunView], measure: str, title: str, series: Sequence[Series]) -> Chart:
    limits = {objective(run.scenario.slo, measure) for run in runs} - {0.0}
    rules = [
        Rule(
            at=limit,
            label=f"SLO {duration(limit)}",
            style=Style(colour="good", dash="dashdot", width=1.4),
        )
        for limit in sorted(limits)
    ]
    values = [y for one in series for _, y in one.points if y is not None]
    values += [end for one in series for span in one.intervals if span for end in span]
    scale = fitting([*values, *limits])
    axis = load_axis(runs)
    if any(one.style.dash == "dashed" for one in series):
        dashed = Style(colour="muted", dash="dashed", width=1.2)
        series = [*series, Series(label="time-outs at their bound", points=[], style=dashed)]
    marks: list[Mark] = [*invalid_steps(runs, axis), *lost_shares(runs), *rules, *series]
    weak = any(one.hollow for one in series if one.style.dash == "solid")
    notes = ["Bars: 95 % intervals."] + (
        ["Hollow: too few samples for this percentile, or a step that is not valid."]
        if weak
        else []
    )
    return Chart(
        title=title,
        about=f"{title} in milliseconds against load; the table below has every value.",
        x=axis,
        y=Axis(label="log scale" if scale.log else "", scale=scale, ticks=ticks(scale, duration)),
        marks=marks,
        notes=notes,
    )

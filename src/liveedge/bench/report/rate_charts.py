"""What a server achieved of what was offered, and how far the generator was behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from liveedge.bench.report.chart import Axis, Chart, Mark, Rule, Series, Style
from liveedge.bench.report.latency_charts import PERCENTILES, RUN_STYLES
from liveedge.bench.report.load_axis import invalid_steps, load_axis, lost_shares
from liveedge.bench.report.run_view import RunView
from liveedge.bench.report.scale import duration, fitting, linear, percent, plain, ticks


def throughput(runs: Sequence[RunView]) -> Chart:
    """Achieved rate and goodput; for open loops the line on which nothing is lost."""
    series = [one for number, run in enumerate(runs) for one in _rates(run, number, len(runs))]
    axis = load_axis(runs, evenly=True)
    highest = [y for one in series for _, y in one.points if y is not None]
    loads = [tick.at for tick in axis.ticks]
    scale = linear(highest + (loads if runs[0].is_open else []))
    marks: list[Mark] = [*invalid_steps(runs, axis), *lost_shares(runs)]
    if runs[0].is_open and loads:
        diagonal = [(0.0, 0.0), (loads[-1], loads[-1])]
        style = Style(colour="muted", dash="dotted", width=1.4)
        marks.append(Series(label="offered", points=diagonal, style=style))
    return Chart(
        title="Achieved rate and goodput",
        about="Answers per second, and answers per second within the objectives, against load.",
        x=axis,
        y=Axis(label="per second", scale=scale, ticks=ticks(scale, plain)),
        marks=[*marks, *series],
    )


def _rates(run: RunView, number: int, count: int) -> list[Series]:
    style = RUN_STYLES[number % len(RUN_STYLES)]
    good = Style(colour="c2", shape="diamond") if count == 1 else style
    good = replace(good, dash="dashed")
    steps = run.summary.steps
    hollow = frozenset(n for n, step in enumerate(steps) if step.invalid)
    name = "" if count == 1 else f"{run.label}: "
    rates = {
        "achieved": (style, [step.achieved_per_s for step in steps]),
        "goodput": (good, [step.goodput_per_s for step in steps]),
    }
    return [
        Series(
            label=f"{name}{word}",
            points=[(run.load_of(step), rate) for step, rate in zip(steps, found, strict=True)],
            style=look,
            hollow=hollow,
            tips=[
                f"{run.step_name(step)}: {name}{word} {plain(rate)}/s"
                for step, rate in zip(steps, found, strict=True)
            ],
        )
        for word, (look, found) in rates.items()
    ]


def good_share(runs: Sequence[RunView]) -> Chart:
    """The share of requests within all objectives, with intervals."""
    series = []
    for number, run in enumerate(runs):
        steps = run.summary.steps
        series.append(
            Series(
                label=run.label if len(runs) > 1 else "share within the objectives",
                points=[(run.load_of(step), step.good.share) for step in steps],
                intervals=[step.good.interval for step in steps],
                style=RUN_STYLES[number % len(RUN_STYLES)],
                hollow=frozenset(n for n, step in enumerate(steps) if step.invalid),
                dodge=(number - (len(runs) - 1) / 2) * 3,
                tips=[f"{run.step_name(step)}: {step.good.k} of {step.good.n}" for step in steps],
            )
        )
    scale = linear([0.0, 1.0], headroom=0.02)
    axis = load_axis(runs)
    line = Rule(at=0.95, label="95 %", style=Style(colour="good", dash="dashdot", width=1.4))
    return Chart(
        title="Requests within the objectives",
        about="Share of all measured requests that keep to every objective, against load.",
        x=axis,
        y=Axis(label="", scale=scale, ticks=ticks(scale, percent)),
        marks=[*invalid_steps(runs, axis), line, *series],
        notes=["Of all requests, refused and failed ones too. Bars: 95 % intervals (Wilson)."],
    )


def lateness(runs: Sequence[RunView]) -> Chart:
    """How long after its moment each request was sent."""
    series = [one for number, run in enumerate(runs) for one in _late(run, number, len(runs))]
    values = [y for one in series for _, y in one.points if y is not None]
    axis = load_axis(runs)
    scale = fitting(values) if values else linear([])
    return Chart(
        title="Lateness of the generator",
        about="How long after the moment at which it was due each request was sent.",
        x=axis,
        y=Axis(label="log scale" if scale.log else "", scale=scale, ticks=ticks(scale, duration)),
        marks=[*invalid_steps(runs, axis), *series],
        notes=["A step is not valid where the generator was the bottleneck."],
    )


def _late(run: RunView, number: int, count: int) -> Iterator[Series]:
    """p50 and p99: by colour where there is one run, by dash where there are several."""
    own = RUN_STYLES[number % len(RUN_STYLES)]
    looks = {"p50": own, "p99": replace(own, dash="dashed")}
    if count == 1:
        looks = {name: PERCENTILES[name] for name in looks}
    for name, style in looks.items():
        yield Series(
            label=name if count == 1 else f"{run.label} {name}",
            points=[
                (run.load_of(step), step.lateness_ms.percentiles.get(name))
                for step in run.summary.steps
            ],
            style=style,
        )

"""The axis that most charts share: the load of each step, and what is marked along it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from liveedge.bench.report.chart import Axis, Mark, Shade, Strip
from liveedge.bench.report.run_view import RunView
from liveedge.bench.report.scale import Scale, Tick, linear, logarithmic, percent
from liveedge.bench.result import StepSummary

LOG_FROM = 6.0  # highest to lowest rate: sweeps by factors lie evenly on a logarithmic axis


def load_axis(runs: Sequence[RunView], *, evenly: bool = False) -> Axis:
    """A tick at every step of every run; `evenly`: linear whatever the steps are."""
    loads = sorted({run.load_of(step) for run in runs for step in run.summary.steps})
    known = [load for load in loads if load > 0]
    is_log = not evenly and len(known) > 1 and known[-1] / known[0] >= LOG_FROM
    scale = logarithmic(known, headroom=0.06) if is_log else linear(loads, headroom=0.05)
    is_open = runs[0].is_open
    label = "offered rate, requests per second" if is_open else "requests in flight (closed loop)"
    return Axis(
        label=label + (", log scale" if is_log else ""),
        scale=scale,
        ticks=[Tick(load, f"{load:g}") for load in loads],
        grid=False,
    )


def invalid_steps(runs: Sequence[RunView], axis: Axis) -> Iterator[Mark]:
    """What stands behind a plot over load: steps that say nothing about the server."""
    if invalid := [(run, step) for run in runs for step in run.summary.steps if step.invalid]:
        spans = sorted({_span(axis, run.load_of(step)) for run, step in invalid})
        for number, (low, high) in enumerate(spans):
            yield Shade(x0=low, x1=high, label="" if number else "step is not valid")


def lost_shares(runs: Sequence[RunView]) -> Iterator[Mark]:
    """What stands above a plot over load: the share of requests without a whole answer."""
    for run in runs:
        items = [
            (run.load_of(step), _short_percent(not_ok(step)))
            for step in run.summary.steps
            if not_ok(step) > 0
        ]
        if items:
            caption = "not ok" if len(runs) == 1 else run.label[:14]
            yield Strip(caption=caption, items=items)


def _short_percent(share: float) -> str:
    """Steps stand close to each other."""
    return f"{share * 100:.0f} %" if 0.1 <= share < 0.995 else percent(share)


def _span(axis: Axis, at: float) -> tuple[float, float]:
    """From half-way to the step before until half-way to the next."""
    loads = [tick.at for tick in axis.ticks]
    place = loads.index(at)
    scale = axis.scale
    low = _between(scale, loads[place - 1], at) if place else scale.low
    high = _between(scale, at, loads[place + 1]) if place + 1 < len(loads) else scale.high
    return low, high


def _between(scale: Scale, low: float, high: float) -> float:
    return float((low * high) ** 0.5) if scale.log else (low + high) / 2


def not_ok(step: StepSummary) -> float:
    """The share of requests without a whole answer."""
    return 1 - step.outcomes.get("ok", 0) / step.sent if step.sent else 0.0

"""The run along time: each request by how it ended, and what was sampled beside.

Everything has its mark: time-outs lie at their bound, what has no end stands in a row of its own above.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from liveedge.bench.record import OUTCOMES, Outcome
from liveedge.bench.report.chart import Axis, Chart, Mark, Series, Shade, Strip, Style
from liveedge.bench.report.run_view import Event, RunView
from liveedge.bench.report.scale import (
    Scale,
    duration,
    linear,
    logarithmic,
    percent,
    plain,
    ticks,
    time_ticks,
)

MOST_POINTS = 5000  # of one chart, and of each outcome but whole answers:
MOST_OF_ONE = 400
CELLS = (700, 90)  # points of one outcome in one cell lie on each other
MB_PER_GB = 1024.0
MOST_BUCKETS = 360  # of a line along time
LOOKS: Mapping[Outcome, tuple[str, Style]] = {
    "ok": ("whole answer", Style(colour="c0", shape="dot", size=1.7, strength=0.55)),
    "refused": ("refused", Style(colour="c1", shape="diamond", size=2.6)),
    "failed": ("failed in the answer", Style(colour="c4", shape="cross", size=3.0)),
    "unreachable": ("no connection", Style(colour="c3", shape="down", size=3.2)),
    "timeout": ("time-out", Style(colour="c6", shape="up", size=3.0)),
    "not_sent": ("not sent", Style(colour="c7", shape="plus", size=3.2)),
}
# Names of samples with what they are called; those that a run has are drawn.
SHARES: Mapping[str, tuple[str, Style]] = {
    "cpu_share": ("processors of the machine", Style(colour="c0")),
    "gpu_share": ("GPU", Style(colour="c2", dash="dashed")),
    "kv_used_share": ("KV memory of the server", Style(colour="c3", dash="dashdot")),
    "generator_cpu_share": ("generator, of one processor", Style(colour="c7", dash="dotted")),
}
MEMORY: Mapping[str, tuple[str, Style]] = {
    "rss_mb": ("server, RSS", Style(colour="c0")),
    "pss_mb": ("server, PSS", Style(colour="c5", dash="dotted")),
    "gpu_memory_mb": ("GPU memory", Style(colour="c2", dash="dashed")),
}
COUNTS: Mapping[str, tuple[str, Style]] = {
    "queue_depth": ("waiting in the server", Style(colour="c4", dash="dashed")),
    "running": ("running in the server", Style(colour="c2", dash="dotted")),
}


def timeline_charts(run: RunView) -> list[Chart]:
    """Requests, then what runs and waits, then processors and memory where they were sampled."""
    if not run.events:
        return []
    axis = _time_axis(run)
    beside = list(_spans(run))
    charts = [_requests(run, axis, beside), _in_flight(run, axis, beside)]
    shares = _sampled(run, SHARES)
    if shares:
        scale = linear([0.0, 1.0], headroom=0.03)
        y = Axis(label="busy or used", scale=scale, ticks=ticks(scale, percent, wanted=4))
        about = "Shares of processors, GPU and memory pools along time."
        charts.append(_chart("Utilisation", about, (axis, y), [*beside, *shares]))
    memory = _sampled(run, MEMORY)
    if memory:
        charts.append(_memory_chart(axis, beside, memory))
    return charts


def _chart(
    title: str,
    about: str,
    axes: tuple[Axis, Axis],
    marks: Sequence[Mark],
    notes: Sequence[str] = (),
) -> Chart:
    return Chart(
        title=title, about=about, x=axes[0], y=axes[1], marks=marks, notes=notes, wide=True
    )


def _memory_chart(axis: Axis, beside: Sequence[Mark], memory: Sequence[Series]) -> Chart:
    """In the unit that reads best."""
    is_large = max(_heights(memory)) >= 2 * MB_PER_GB
    per_unit = MB_PER_GB if is_large else 1.0
    lines = [
        replace(one, points=[(x, None if y is None else y / per_unit) for x, y in one.points])
        for one in memory
    ]
    scale = linear(_heights(lines))
    unit = "GB (of 1,024 MB)" if is_large else "MB"
    y = Axis(label=unit, scale=scale, ticks=ticks(scale, plain, wanted=4))
    about = "Memory of the server's processes and of the GPUs along time."
    return _chart("Memory", about, (axis, y), [*beside, *lines])


def _time_axis(run: RunView) -> Axis:
    ends = [event.ended_s for event in run.events if event.ended_s is not None]
    dues = [event.due_s for event in run.events]
    low, high = min(dues), max([*ends, *dues])
    room = max((high - low) * 0.005, 0.1)
    scale = Scale(max(low - room, 0.0), high + room)
    return Axis(
        label="time since the run began",
        scale=scale,
        ticks=time_ticks(scale),
        grid=False,
    )


def _spans(run: RunView) -> Iterator[Mark]:
    """Steps by name above, warm-ups behind."""
    names = {step.step: run.step_name(step) for step in run.summary.steps}
    dues: dict[tuple[int, int], list[Event]] = {}
    for event in run.events:
        dues.setdefault((event.repeat, event.step), []).append(event)
    items = []
    labelled = False
    for (_, step), events in sorted(dues.items()):
        begin, end = min(one.due_s for one in events), max(one.due_s for one in events)
        measured = min((one.due_s for one in events if not one.warmup), default=end)
        if measured > begin:
            yield Shade(
                x0=begin,
                x1=measured,
                label="" if labelled else "warm-up, not counted",
                style=Style(colour="quiet"),
            )
            labelled = True
        items.append(((begin + end) / 2, names.get(step, f"step {step}")))
    yield Strip(caption="step", items=items, style=Style(colour="muted"))


def _requests(run: RunView, axis: Axis, beside: Sequence[Mark]) -> Chart:
    found = {outcome: _took(run.events, outcome) for outcome in OUTCOMES}
    heights = [ms for points in found.values() for _, ms in points if ms]
    scale = logarithmic(heights)
    marks: list[Mark] = [*beside]
    n_shown = n_all = 0
    for outcome, (label, style) in LOOKS.items():
        points = [(at, ms) for at, ms in found[outcome] if ms is not None]
        endless = [at for at, ms in found[outcome] if ms is None]
        most = MOST_OF_ONE if outcome != "ok" else MOST_POINTS - MOST_OF_ONE * (len(LOOKS) - 1)
        shown = _apart(points, (axis.scale, scale), most)
        n_shown += len(shown)
        n_all += len(points)
        count = len(points) + len(endless)
        if shown:
            name = f"{label} ({count:,})"
            marks.append(Series(label=name, points=shown, style=style, joined=False))
        if endless:
            rug = [
                (at, "")
                for at, _ in _apart([(at, 1.0) for at in endless], (axis.scale, scale), most)
            ]
            name = "" if shown else f"{label} ({count:,})"
            marks.append(Strip(caption=label, items=rug, style=style, label=name))
    notes = ["By the moment at which each was due; height: until its end, log scale."]
    if n_shown < n_all:
        notes.append(
            f"{n_shown:,} of {n_all:,} points are drawn: of those that lie on each other one stays,"
            f" and at most {MOST_POINTS:,} in all."
        )
    about = "Each request by the moment at which it was due and how long it took, by outcome."
    y = Axis(label="", scale=scale, ticks=ticks(scale, duration, wanted=4))
    return _chart("Requests", about, (axis, y), marks, notes)


def _took(events: Sequence[Event], outcome: Outcome) -> list[tuple[float, float | None]]:
    """Moment and duration in ms; None for what has no end."""
    return [
        (
            event.due_s,
            None if event.ended_s is None else max((event.ended_s - event.due_s) * 1000, 0.01),
        )
        for event in events
        if event.outcome == outcome
    ]


def _apart(
    points: Sequence[tuple[float, float]], scales: tuple[Scale, Scale], most: int
) -> list[tuple[float, float | None]]:
    """One point per cell, and no more than the bound: then evenly along time."""
    x, y = scales
    cells = {
        (round(x.share(at) * CELLS[0]), round(y.share(value) * CELLS[1])): (at, value)
        for at, value in points
    }
    kept = sorted(cells.values())
    stride = max(len(kept) / most, 1.0)
    return [kept[int(number * stride)] for number in range(int(len(kept) / stride))]


def _in_flight(run: RunView, axis: Axis, beside: Sequence[Mark]) -> Chart:
    open_at = _buckets(_open_requests(run.events), axis.scale)
    sampled = _sampled(run, COUNTS)
    line = Series(
        label="open at the generator", points=open_at, style=Style(colour="c0"), stairs=True
    )
    scale = linear([*_heights([line, *sampled]), 1.0])
    y = Axis(label="requests", scale=scale, ticks=ticks(scale, plain, wanted=4))
    about = "Requests sent and not ended, and those that wait in the server, along time."
    notes = ["Highest value of each moment."]
    if not sampled:
        notes.append("The server's queue was not sampled.")
    return _chart("In flight and waiting", about, (axis, y), [*beside, line, *sampled], notes)


def _open_requests(events: Iterable[Event]) -> list[tuple[float, float]]:
    changes = []
    for event in events:
        if event.sent_s is not None and event.ended_s is not None:
            changes += [(event.sent_s, 1), (event.ended_s, -1)]
    count, found = 0, []
    for at, change in sorted(changes):
        count += change
        found.append((at, float(count)))
    return found


def _buckets(values: Sequence[tuple[float, float]], x: Scale) -> list[tuple[float, float | None]]:
    """The highest of each part of the axis; a part without a change keeps what was before."""
    if len(values) <= MOST_BUCKETS:
        return list(values)
    highest: dict[int, float] = {}
    last: dict[int, float] = {}
    for at, value in values:
        place = int(x.share(at) * MOST_BUCKETS)
        highest[place] = max(value, highest.get(place, value))
        last[place] = value
    found: list[tuple[float, float | None]] = []
    width = (x.high - x.low) / MOST_BUCKETS
    for place, following in pairwise([*sorted(highest), MOST_BUCKETS + 1]):
        found.append((x.low + place * width, highest[place]))
        if following > place + 1:
            found.append((x.low + (place + 1) * width, last[place]))
    return found


def _sampled(run: RunView, names: Mapping[str, tuple[str, Style]]) -> list[Series]:
    """The samples that there are, as lines."""
    found = []
    for name, (label, style) in names.items():
        values = [
            (float(row["at_s"]), float(value))
            for row in run.samples
            if (value := row.get("metrics", {}).get(name, row.get("machine", {}).get(name)))
            is not None
        ]
        if values:
            axis = Scale(values[0][0], max(values[-1][0], values[0][0] + 1e-9))
            found.append(Series(label=label, points=_buckets(values, axis), style=style))
    return found


def _heights(series: Iterable[Series]) -> list[float]:
    return [y for one in series for _, y in one.points if y is not None]

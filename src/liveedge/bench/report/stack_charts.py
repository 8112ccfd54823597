"""Stacks per step: how requests failed, and where the server's time went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from liveedge.bench.report.chart import HATCHES, Axis, Bars, Box, Chart, Series, Style
from liveedge.bench.report.run_view import RunView
from liveedge.bench.report.scale import Scale, Tick, duration, linear, percent, plain, ticks
from liveedge.bench.result import StepSummary

MOST_CODES = 6  # with a colour of their own, the rest is one part
COLOURS = ("c4", "c1", "c3", "c6", "c5", "c0", "c7")
HALF = 0.36  # of a stack, in distances between two
# In the order in which they happen; `rest` is what of the first token no stage explains.
STAGES: Mapping[str, Style] = {
    "resolve": Style(colour="c7"),
    "queue": Style(colour="c4", hatch=1),
    "preprocess": Style(colour="c6", hatch=3),
    "encode": Style(colour="c5", hatch=2),
    "prefill": Style(colour="c0"),
    "rest": Style(colour="axis", hatch=4),
    "decode": Style(colour="c2"),
}
LABELS = {"rest": "other, before the first token"}


def failures(run: RunView) -> Chart:
    """The share of each code, stacked."""
    steps = run.summary.steps
    names = _codes(steps)
    floors = [0.0] * len(steps)
    marks: list[Bars] = []
    for number, (label, codes) in enumerate(names.items()):
        boxes = []
        for place, step in enumerate(steps):
            count = sum(step.codes.get(code, 0) for code in codes)
            if count and step.sent:
                top = floors[place] + count / step.sent
                tip = f"{run.step_name(step)}: {label}, {count} of {step.sent}"
                boxes.append(Box(place - HALF, place + HALF, floors[place], top, tip))
                floors[place] = top
        style = Style(colour=COLOURS[number % len(COLOURS)], hatch=number % HATCHES)
        marks.append(Bars(label=label, boxes=boxes, style=style))
    highest = max(floors, default=0.0)
    scale = linear([highest or 0.1])
    none = "" if highest else " None failed."
    return Chart(
        title="Requests without a whole answer",
        about=f"Share of requests by code of the failure, stacked for each step.{none}",
        x=_steps_axis(run),
        y=Axis(label="of all requests", scale=scale, ticks=ticks(scale, percent)),
        marks=marks,
        notes=[] if highest else ["Every request of every step got its whole answer."],
    )


def _codes(steps: Sequence[StepSummary]) -> dict[str, list[str]]:
    """Label to codes: the most frequent by themselves, then the others together."""
    counted: dict[str, int] = {}
    for step in steps:
        for code, count in step.codes.items():
            counted[code] = counted.get(code, 0) + count
    ordered = sorted(counted, key=lambda code: (-counted[code], code))
    names = {code[:60]: [code] for code in ordered[:MOST_CODES]}
    if rest := ordered[MOST_CODES:]:
        names[f"{len(rest)} other codes"] = rest
    return names


def has_stages(run: RunView) -> bool:
    return any(_parts(step) for step in run.summary.steps)


def stages(run: RunView) -> Chart:
    """Mean time of each stage, stacked; means alone add up."""
    parts = [_parts(step) for step in run.summary.steps]
    marks, floors = _stacked(run, parts, duration)
    first = [(n, _mean(step, "first_token")) for n, step in enumerate(run.summary.steps)]
    scale = linear([*floors, *(y for _, y in first if y)])
    diamonds = Series(
        label="first token", points=first, joined=False, style=Style(colour="ink", shape="diamond")
    )
    return Chart(
        title="Where the server's time goes",
        about="Mean milliseconds per stage of the server, as it says itself, for each step.",
        x=_steps_axis(run),
        y=Axis(label="mean", scale=scale, ticks=ticks(scale, duration)),
        marks=[*marks, *([diamonds] if any(y for _, y in first) else [])],
        notes=[
            "Means of whole answers, by the server's own clock: they add up, percentiles do not."
        ],
    )


def stage_shares(run: RunView) -> Chart:
    """What each stage takes of the whole: readable also where a queue hides all else."""
    parts = [_parts(step) for step in run.summary.steps]
    shares = [
        {name: spent / sum(part.values()) for name, spent in part.items()}
        if any(part.values())
        else {}
        for part in parts
    ]
    marks, _ = _stacked(run, shares, percent)
    scale = linear([0.0, 1.0], headroom=0.02)
    return Chart(
        title="Where it goes, as shares",
        about="Shares of the stages in the server's mean time, for each step.",
        x=_steps_axis(run),
        y=Axis(label="of the mean time", scale=scale, ticks=ticks(scale, percent)),
        marks=marks,
    )


def _stacked(
    run: RunView, parts: Sequence[Mapping[str, float]], written: Callable[[float], str]
) -> tuple[list[Bars], list[float]]:
    """The parts of each step on each other, and how high each stack is."""
    floors = [0.0] * len(parts)
    names = [*STAGES, *sorted({name for part in parts for name in part} - set(STAGES))]
    marks: list[Bars] = []
    for number, name in enumerate(names):
        boxes = []
        for place, step in enumerate(run.summary.steps):
            spent = parts[place].get(name, 0.0)
            if spent > 0:
                tip = f"{run.step_name(step)}: {LABELS.get(name, name)} {written(spent)}"
                top = floors[place] + spent
                boxes.append(Box(place - HALF, place + HALF, floors[place], top, tip))
                floors[place] = top
        if boxes:
            style = STAGES.get(name, Style(colour=COLOURS[number % 7], hatch=number % HATCHES))
            marks.append(Bars(label=LABELS.get(name, name)[:40], boxes=boxes, style=style))
    return marks, floors


def _parts(step: StepSummary) -> dict[str, float]:
    """Stages that do not hold each other."""
    whole = ("first_token", "total", "outside")
    parts = {
        name: one.mean for name, one in step.server_ms.items() if name not in whole and one.mean
    }
    first = _mean(step, "first_token")
    if first:
        before = sum(spent for name, spent in parts.items() if name != "decode")
        parts["rest"] = max(first - before, 0.0)
    return parts


def _mean(step: StepSummary, name: str) -> float | None:
    one = step.server_ms.get(name)
    return one.mean if one else None


def _steps_axis(run: RunView) -> Axis:
    """Steps beside each other, whatever their loads."""
    steps = run.summary.steps
    written = [Tick(place, plain(run.load_of(step))) for place, step in enumerate(steps)]
    label = (
        "offered rate, requests per second" if run.is_open else "requests in flight (closed loop)"
    )
    return Axis(label=label, scale=Scale(-0.6, max(len(steps), 1) - 0.4), ticks=written, grid=False)

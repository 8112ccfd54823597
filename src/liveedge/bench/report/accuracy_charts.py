"""Right answers, with intervals: against load, by kind of question, by what the model was shown."""

from __future__ import annotations

from collections.abc import Sequence

from liveedge.bench.report.chart import Axis, Chart, Series, Style
from liveedge.bench.report.latency_charts import RUN_STYLES
from liveedge.bench.report.load_axis import invalid_steps, load_axis
from liveedge.bench.report.run_view import RunView
from liveedge.bench.report.scale import Scale, Tick, linear, percent, ticks
from liveedge.bench.result import Proportion
from liveedge.bench.scenario import Media, Scenario
from liveedge.bench.stats import proportion


def has_accuracy(run: RunView) -> bool:
    return any(step.accuracy.n for step in run.summary.steps)


def accuracy_charts(runs: Sequence[RunView]) -> list[Chart]:
    """Against load and by kind; of a mix and of several runs by envelope, too."""
    judged = [run for run in runs if has_accuracy(run)]
    if not judged:
        return []
    by_envelope = _by_envelope(judged)
    return [_by_load(judged), _by_kind(judged), *([by_envelope] if by_envelope else [])]


def _by_load(runs: Sequence[RunView]) -> Chart:
    series = []
    for number, run in enumerate(runs):
        steps = run.summary.steps
        series.append(
            Series(
                label=run.label if len(runs) > 1 else "right answers",
                points=[(run.load_of(step), step.accuracy.share) for step in steps],
                intervals=[step.accuracy.interval for step in steps],
                style=RUN_STYLES[number % len(RUN_STYLES)],
                hollow=frozenset(n for n, step in enumerate(steps) if step.invalid),
                dodge=(number - (len(runs) - 1) / 2) * 3,
                tips=[
                    f"{run.step_name(step)}: {step.accuracy.k} of {step.accuracy.n} right"
                    for step in steps
                ],
            )
        )
    ends = [end for one in series for span in one.intervals if span for end in span]
    scale = _shares(ends)
    axis = load_axis(runs)
    return Chart(
        title="Accuracy against load",
        about="Share of right answers among whole answers whose truth is decidable, against load.",
        x=axis,
        y=Axis(label="right answers", scale=scale, ticks=ticks(scale, percent)),
        marks=[*invalid_steps(runs, axis), *series],
        notes=["Bars: 95 % intervals (Wilson)."]
        + (["The axis does not begin at 0."] if scale.low > 0 else []),
    )


def _by_kind(runs: Sequence[RunView]) -> Chart:
    found = [kinds(run) for run in runs]
    names = sorted({name for one in found for name in one})
    rows = [
        (run.label if len(runs) > 1 else "right answers", [(name, one.get(name)) for name in names])
        for run, one in zip(runs, found, strict=True)
    ]
    return _rows("Accuracy by kind of question", names, rows)


def _by_envelope(runs: Sequence[RunView]) -> Chart | None:
    """A row for each share of a mix and for each run without one; none where that is a single row."""
    shown = [
        (run.label, name if len(runs) == 1 else f"{run.label}: {name}", one)
        for run in runs
        for name, one in envelopes(run).items()
    ]
    names = [name for _, name, _ in shown]
    if len(names) < 2:
        return None
    rows = [
        (
            run.label if len(runs) > 1 else "right answers",
            [(name, one if label == run.label else None) for label, name, one in shown],
        )
        for run in runs
    ]
    return _rows("Accuracy by what the model was shown", names, rows)


def _rows(
    title: str,
    names: Sequence[str],
    rows: Sequence[tuple[str, Sequence[tuple[str, Proportion | None]]]],
) -> Chart:
    """Shares along x, a row for each name, the first on top."""
    series = []
    for number, (label, values) in enumerate(rows):
        known = [
            (len(names) - 1 - place, name, one)
            for place, (name, one) in enumerate(values)
            if one is not None and one.share is not None
        ]
        series.append(
            Series(
                label=label,
                points=[(one.share or 0.0, float(place)) for place, _, one in known],
                intervals=[one.interval for _, _, one in known],
                across=True,
                joined=False,
                style=Style(
                    colour=RUN_STYLES[number % len(RUN_STYLES)].colour,
                    shape=RUN_STYLES[number % len(RUN_STYLES)].shape,
                    size=3.6,
                ),
                tips=[f"{name}: {one.k} of {one.n} right" for _, name, one in known],
            )
        )
    ends = [end for one in series for span in one.intervals if span for end in span]
    scale = _shares(ends)
    places = [Tick(len(names) - 1 - place, _short(name)) for place, name in enumerate(names)]
    return Chart(
        title=title,
        about="Share of right answers with 95 % intervals, a row each; valid steps together.",
        x=Axis(label="right answers", scale=scale, ticks=ticks(scale, percent)),
        y=Axis(label="", scale=Scale(-0.6, max(len(names), 1) - 0.4), ticks=places),
        marks=series,
        notes=["All valid steps together. Bars: 95 % intervals (Wilson)."],
    )


def _short(name: str, most: int = 32) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _shares(ends: Sequence[float]) -> Scale:
    """Up to 100 %; from 0, or from a round share where all lies above half."""
    low = min(ends, default=0.0)
    begin = 0.0 if low < 0.55 else max(int(low * 20) / 20 - 0.02, 0.0)
    return Scale(begin, 1.0) if begin == 0 else linear([begin, 1.0], zero=False, headroom=0.02)


def kinds(run: RunView) -> dict[str, Proportion]:
    """By kind, valid steps together."""
    right: dict[str, int] = {}
    judged: dict[str, int] = {}
    for step in run.summary.steps:
        if not step.invalid:
            for name, one in step.accuracy_by_kind.items():
                right[name] = right.get(name, 0) + one.k
                judged[name] = judged.get(name, 0) + one.n
    return {name: proportion(right[name], judged[name]) for name in judged}


def overall(run: RunView) -> Proportion:
    """Of all kinds, valid steps together."""
    valid = [step.accuracy for step in run.summary.steps if not step.invalid]
    return proportion(sum(one.k for one in valid), sum(one.n for one in valid))


def envelopes(run: RunView) -> dict[str, Proportion]:
    """Right answers by what was shown, valid steps together: a share of the mix each, or the one."""
    scenario = run.scenario
    found: dict[str, Proportion] = {}
    for share in scenario.mix:
        words = media_words(share.media, scenario.sources.width, scenario.sources.height)
        steps = [
            step for step in run.summary.steps if not step.invalid and share.name in step.shares
        ]
        judged = [step.shares[share.name].accuracy for step in steps]
        pooled = proportion(sum(one.k for one in judged), sum(one.n for one in judged))
        found[f"{share.name}, {words}"] = pooled
    return found or {envelope(scenario): overall(run)}


def envelope(scenario: Scenario) -> str:
    """What one question looks at, in few words."""
    width, height = scenario.sources.width, scenario.sources.height
    if not scenario.mix:
        return media_words(scenario.media, width, height)
    whole = sum(share.weight for share in scenario.mix)
    parts = [
        f"{percent(share.weight / whole)} {share.name} ({media_words(share.media, width, height)})"
        for share in scenario.mix
    ]
    return f"a mix of {', '.join(parts)}"


def media_words(media: Media, width: int, height: int) -> str:
    pictures = "1 frame" if media.frames == 1 else f"{media.frames} frames"
    budget = f", at most {media.max_pixels:,} px" if media.max_pixels else ""
    return f"{pictures} of {width}x{height}{budget}"

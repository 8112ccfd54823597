"""The tables behind the charts: a row per step of each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from liveedge.bench import definitions
from liveedge.bench.record import OUTCOMES
from liveedge.bench.report.document import Cell, Table
from liveedge.bench.report.latency_charts import NAMES
from liveedge.bench.report.run_view import RunView
from liveedge.bench.report.scale import duration, duration_between, percent, percent_between, plain
from liveedge.bench.result import Distribution, Proportion, ShareSummary, StepSummary

Row: TypeAlias = Sequence[str | Cell]
PERCENTILES = ("p50", "p90", "p95", "p99")
UNKNOWN = "–"


def step_table(
    runs: Sequence[RunView],
    caption: str,
    head: Sequence[str],
    cells: Callable[[RunView, StepSummary], Row | None],
    *,
    note: str = "",
    columns: Literal[1, 2, 3] = 3,
) -> Table | None:
    """`cells` are those behind the step's name; a step without any has no row."""
    before = run_head(runs)
    rows = [
        [*first_cell(runs, run), run.step_name(step), *found]
        for run in runs
        for step in run.summary.steps
        if (found := cells(run, step)) is not None
    ]
    if not rows or not head:
        return None
    return Table(
        caption=caption,
        head=[*before, "step", *head],
        rows=rows,
        n_names=len(before) + 1,
        note=note,
        columns=columns,
    )


def run_head(runs: Sequence[RunView]) -> list[str]:
    """The column that tells runs apart, where there are several."""
    return ["run"] if len(runs) > 1 else []


def first_cell(runs: Sequence[RunView], run: RunView) -> list[str]:
    return [run.label] if len(runs) > 1 else []


def value(one: Distribution | None, name: str) -> str | Cell:
    """A percentile, marked where it has too few samples."""
    if one is None or name not in one.percentiles:
        return Cell(UNKNOWN, "muted")
    text = duration(one.percentiles[name])
    return Cell(f"{text} †", "muted") if name in one.too_few else text


def with_interval(one: Distribution | None, name: str) -> str | Cell:
    """A percentile and between what it lies."""
    made = value(one, name)
    interval = one.intervals.get(name) if one else None
    if one is None or interval is None or isinstance(made, Cell):
        return made
    return duration_between(one.percentiles[name], *interval)


def share_text(one: Proportion | None) -> str:
    """ "97.5 [95, 98.8] %"."""
    if one is None or one.share is None:
        return UNKNOWN
    if one.interval is None:
        return percent(one.share)
    return percent_between(one.share, *one.interval)


def latency_table(runs: Sequence[RunView], measure: str) -> Table | None:
    """Percentiles with intervals; with time-outs beside where there is such a series."""
    steps = [step for run in runs for step in run.summary.steps]
    bounded = ("p95", "p99") if any(measure in step.with_timeouts for step in steps) else ()

    def cells(_: RunView, step: StepSummary) -> Row | None:
        one, other = step.latencies.get(measure), step.with_timeouts.get(measure)
        if one is None and other is None:
            return None
        return [
            f"{one.n:,}" if one else "0",
            *(with_interval(one, name) for name in PERCENTILES),
            duration(one.high) if one and one.high is not None else UNKNOWN,
            *(value(other, name) for name in bounded),
        ]

    meaning = definitions.LATENCIES.get(measure, "")
    return step_table(
        runs,
        f"{NAMES.get(measure, measure)}: {measure}",
        ["answers", *PERCENTILES, "highest", *(f"{name} with time-outs" for name in bounded)],
        cells,
        note=f"{meaning[:1].upper()}{meaning[1:]}." if meaning else "",
    )


def other_latencies(runs: Sequence[RunView], shown: Sequence[str]) -> Table | None:
    """Measures without a chart."""
    names = [
        name
        for name in definitions.LATENCIES
        if name not in shown and any(run.has(name) for run in runs)
    ]

    def pair(one: Distribution | None) -> str:
        if one is None or "p50" not in one.percentiles:
            return UNKNOWN
        return f"{duration(one.percentiles['p50'])} / {duration(one.percentiles['p95'])}"

    return step_table(
        runs,
        "Other latencies, p50 / p95",
        names,
        lambda _, step: [pair(step.latencies.get(name)) for name in names],
    )


def rate_table(runs: Sequence[RunView]) -> Table | None:
    """What was achieved, with the interval of the good share."""
    return step_table(
        runs,
        "Rates per second, and the good share",
        ["achieved", "goodput", "good"],
        lambda _, step: [
            plain(step.achieved_per_s),
            plain(step.goodput_per_s),
            share_text(step.good),
        ],
        columns=1 if len(runs) == 1 else 2,
    )


def arrival_table(runs: Sequence[RunView], measures: Sequence[str]) -> Table | None:
    """Of all requests, how many arrived at all."""
    arrived = {
        run.label: Counter(
            (event.step, name)
            for event in run.events
            if not event.warmup
            for name in event.latencies
        )
        for run in runs
    }

    def cells(run: RunView, step: StepSummary) -> Row:
        counts = [arrived[run.label][step.step, name] for name in measures]
        shares = [percent(count / step.sent) if step.sent else UNKNOWN for count in counts]
        return [f"{step.sent:,}", *shares]

    names = ["first content" if name == "ttft_ms" else "fresh answer" for name in measures]
    note = "A fresh answer is one whose freshness is known, whatever it is."
    return step_table(
        runs,
        "Of all requests, what arrived",
        ["requests", *names],
        cells,
        columns=1 if len(runs) == 1 else 2,
        note=note if len(names) > 1 else "",
    )


def outcome_table(runs: Sequence[RunView]) -> Table | None:
    """Requests by how they ended."""

    def cells(_: RunView, step: StepSummary) -> Row:
        counts = [step.outcomes.get(outcome, 0) for outcome in OUTCOMES]
        return [
            f"{step.sent:,}",
            *(f"{count:,}" if count else Cell("0", "muted") for count in counts),
        ]

    return step_table(
        runs,
        "Requests by outcome",
        ["requests", *(name.replace("_", " ") for name in OUTCOMES)],
        cells,
        note="Each request ends exactly once.",
        columns=2,
    )


def share_table(runs: Sequence[RunView]) -> Table | None:
    """The shares of a mix apart, a row for each in each step."""
    rows = [
        [*first_cell(runs, run), run.step_name(step), name, *_share_cells(share)]
        for run in runs
        for step in run.summary.steps
        for name, share in step.shares.items()
    ]
    if not rows:
        return None
    names = [*run_head(runs), "step", "share"]
    head = [
        "requests",
        "not ok",
        "good",
        "right",
        "TTFT p50",
        "p95",
        "answer p50",
        "p95",
        "fresh p95",
    ]
    return Table(
        caption="The shares of the mix", head=[*names, *head], rows=rows, n_names=len(names)
    )


def _share_cells(share: ShareSummary) -> Row:
    lost = 1 - share.outcomes.get("ok", 0) / share.sent if share.sent else 0.0
    ttft, total = share.latencies.get("ttft_ms"), share.latencies.get("total_ms")
    fresh = share.latencies.get("known_freshness_ms", share.latencies.get("freshness_ms"))
    return [
        f"{share.sent:,}",
        Cell(percent(lost), "bad") if lost else "0 %",
        share_text(share.good),
        share_text(share.accuracy),
        *(value(one, name) for one in (ttft, total) for name in ("p50", "p95")),
        value(fresh, "p95"),
    ]


def accuracy_table(runs: Sequence[RunView]) -> Table | None:
    """Right answers per step, all kinds and each."""
    names = sorted(
        {kind for run in runs for step in run.summary.steps for kind in step.accuracy_by_kind}
    )

    def text(one: Proportion | None) -> str:
        return f"{share_text(one)} of {one.n:,}" if one and one.n else UNKNOWN

    return step_table(
        runs,
        "Right answers of those whose truth is decidable",
        ["all", *names],
        lambda _, step: [
            text(step.accuracy),
            *(text(step.accuracy_by_kind.get(name)) for name in names),
        ],
    )


def stage_table(runs: Sequence[RunView]) -> Table | None:
    """Means and p95 of the server's stages."""
    names = _in_order(step.server_ms for run in runs for step in run.summary.steps)

    def text(one: Distribution | None) -> str:
        if one is None or one.mean is None:
            return UNKNOWN
        return f"{duration(one.mean)} / {duration(one.percentiles.get('p95', one.mean))}"

    return step_table(
        runs,
        "Server stages, mean / p95",
        names,
        lambda _, step: [text(step.server_ms.get(name)) for name in names],
        note="outside: what of sent-to-end the server does not know, network and client.",
    )


def token_table(runs: Sequence[RunView]) -> Table | None:
    """Tokens per second and per answer."""
    names = [
        name
        for name in definitions.TOKENS
        if any(name in step.tokens for run in runs for step in run.summary.steps)
    ]
    return step_table(
        runs,
        "Tokens",
        [name.replace("_per_", "/").replace("_", " ") for name in names],
        lambda _, step: [_number(name, step.tokens.get(name)) for name in names],
        columns=2,
    )


def _number(name: str, number: float | None) -> str:
    if number is None:
        return UNKNOWN
    return percent(number) if name.endswith("_share") else plain(number)


def machine_table(runs: Sequence[RunView]) -> Table | None:
    """What was sampled beside, mean and highest of each step."""
    names = sorted({name for run in runs for step in run.summary.steps for name in step.machine})

    def text(name: str, one: Distribution | None) -> str:
        if one is None:
            return UNKNOWN
        return f"{_number(name, one.mean)} / {_number(name, one.high)}"

    return step_table(
        runs,
        "Sampled beside, mean / highest",
        names,
        lambda _, step: [text(name, step.machine.get(name)) for name in names],
    )


def lateness_table(runs: Sequence[RunView]) -> Table | None:
    """How far behind its schedule the generator was."""

    def cells(_: RunView, step: StepSummary) -> Row:
        late = step.lateness_ms
        return [
            f"{late.n:,}",
            *(value(late, name) for name in PERCENTILES),
            duration(late.high) if late.high is not None else UNKNOWN,
            Cell("not valid", "bad") if step.invalid else "valid",
        ]

    return step_table(
        runs,
        "Lateness of the generator",
        ["sent", *PERCENTILES, "highest", "step is"],
        cells,
        note="From the moment at which a request was due to the moment at which it was sent.",
        columns=2,
    )


def _in_order(groups: Iterable[Iterable[str]]) -> list[str]:
    """Names as they first appear."""
    return list(dict.fromkeys(name for group in groups for name in group))

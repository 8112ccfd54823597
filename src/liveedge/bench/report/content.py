"""What a report of runs says: the document, filled. Decides the order, writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from liveedge.bench.report import details, overview, step_tables
from liveedge.bench.report.accuracy_charts import accuracy_charts
from liveedge.bench.report.arrival_charts import arrival_charts, arriving
from liveedge.bench.report.chart import Chart
from liveedge.bench.report.document import Document, Fact, Section, Table, Verdict
from liveedge.bench.report.latency_charts import latency_charts, measures
from liveedge.bench.report.rate_charts import good_share, lateness, throughput
from liveedge.bench.report.run_view import RunView
from liveedge.bench.report.stack_charts import failures, has_stages, stage_shares, stages
from liveedge.bench.report.timeline_charts import timeline_charts

T = TypeVar("T")
FOOT = (
    "Made from scenario.json, environment.json, records.jsonl and samples.jsonl of the run alone:"
    " `liveedge bench report FOLDER` makes it again."
)


def content(runs: Sequence[RunView]) -> Document:
    """The report of one run, or of several beside each other."""
    first = runs[0]
    one = len(runs) == 1
    return Document(
        kind="Benchmark" if one else "Benchmarks side by side",
        title=first.label if one else " and ".join(run.label for run in runs),
        subtitle=overview.subtitle(first) if one else _subtitles(runs),
        verdict=_verdict(runs),
        facts=overview.facts(first) if one else _facts(runs),
        warnings=[text for run in runs for text in overview.warnings(run, named=not one)],
        key_table=overview.key_table(runs),
        sections=list(_sections(runs)),
        foot=FOOT,
    )


def _subtitles(runs: Sequence[RunView]) -> list[str]:
    """What all have in common once, the rest by run."""
    lines = [overview.subtitle(run)[-2:] for run in runs]
    made: list[str] = []
    for of_runs in zip(*lines, strict=True):
        if len(set(of_runs)) == 1:
            made.append(of_runs[0])
        else:
            made += [f"{run.label}: {line}" for run, line in zip(runs, of_runs, strict=True)]
    return made


def _verdict(runs: Sequence[RunView]) -> Verdict:
    """Runs of unequal work are shown, and it is said."""
    made = overview.verdict(runs)
    if len({run.summary.work_digest for run in runs}) == 1:
        return made
    reason = (
        "The runs did not do the same work: their scenarios differ in more than the target, so that"
        " differences are not those of the servers alone."
    )
    tone = "doubt" if made.tone == "good" else made.tone
    word = "Valid, but not the same work" if made.tone == "good" else made.word
    return Verdict(word=word, tone=tone, reasons=[reason, *made.reasons])


def _facts(runs: Sequence[RunView]) -> list[Fact]:
    """The same fact of each run beside each other."""
    return [
        Fact(name=f"{run.label}: {fact.name}", value=fact.value, detail=fact.detail)
        for run in runs
        for fact in overview.facts(run)[:2]
    ]


def _known(tables: Iterable[T | None]) -> list[T]:
    return [one for one in tables if one is not None]


def _sections(runs: Sequence[RunView]) -> Iterator[Section]:
    yield from _performance(runs)
    yield from _behaviour(runs)
    yield _about(runs)


def _performance(runs: Sequence[RunView]) -> Iterator[Section]:
    shown = measures(runs)
    yield Section(
        name="latency",
        title="Latency against load",
        texts=[_latency_text(runs)],
        charts=latency_charts(runs),
        tables=_known(
            [step_tables.share_table(runs)]
            + [step_tables.latency_table(runs, measure) for measure in shown]
            + [step_tables.other_latencies(runs, shown)]
        ),
    )
    yield Section(
        name="rates",
        title="Achieved rate and goodput",
        charts=[throughput(runs), good_share(runs)],
        tables=_known([step_tables.rate_table(runs), step_tables.token_table(runs)]),
    )
    yield Section(
        name="arrivals",
        title="Distributions",
        texts=[
            "Shares are of all measured requests, so that what never came is part of the picture."
        ],
        charts=arrival_charts(runs),
        tables=_known([step_tables.arrival_table(runs, arriving(runs))]),
    )


def _latency_text(runs: Sequence[RunView]) -> str:
    measured = "From the moment at which a request was due, so that waiting to be sent counts."
    if not runs[0].is_open:
        measured = (
            "A closed loop sends the next request when an answer is there: it slows down with the"
            " server and does not show what overload does to those who do not wait."
        )
    return (
        f"{measured} Lines are of whole answers; dashed ones count each time-out at its bound. Above:"
        " the share of requests without a whole answer, a triangle where there is no room for it."
    )


def _behaviour(runs: Sequence[RunView]) -> Iterator[Section]:
    along = [chart for run in runs for chart in _named(timeline_charts(run), run, runs)]
    machine = step_tables.machine_table(runs)
    if along or machine:
        yield Section(name="timeline", title="Timeline", charts=along, tables=_known([machine]))
    accuracy = accuracy_charts(runs)
    if accuracy:
        yield Section(
            name="accuracy",
            title="Accuracy",
            texts=["Answers against the ground truth of the frames that the server looked at."],
            charts=accuracy,
            tables=_known([details.kind_table(runs), step_tables.accuracy_table(runs)]),
        )
    yield Section(
        name="failures",
        title="Failures",
        charts=[chart for run in runs for chart in _named([failures(run)], run, runs)],
        tables=_known([step_tables.outcome_table(runs), details.code_table(runs)]),
    )
    staged = [run for run in runs if has_stages(run)]
    if staged:
        yield Section(
            name="stages",
            title="Server stages",
            charts=[
                chart
                for run in staged
                for chart in _named([stages(run), stage_shares(run)], run, runs)
            ],
            tables=_known([step_tables.stage_table(staged)]),
        )
    yield Section(
        name="generator",
        title="The generator itself",
        charts=[lateness(runs)],
        tables=_known([step_tables.lateness_table(runs)]),
    )


def _named(charts: Sequence[Chart], run: RunView, runs: Sequence[RunView]) -> Iterator[Chart]:
    """With the run's name, where there are several."""
    for chart in charts:
        yield chart if len(runs) == 1 else replace(chart, title=f"{chart.title}: {run.label}")


def _about(runs: Sequence[RunView]) -> Section:
    tables: list[Table | None] = [details.cold_table(runs), details.warning_table(runs)]
    tables += [*details.environment_tables(runs), details.clock_table(runs)]
    tables.append(details.definition_table(runs))
    return Section(
        name="about",
        title="Environment, scenario, definitions",
        tables=_known(tables),
        listings=details.listings(runs),
    )

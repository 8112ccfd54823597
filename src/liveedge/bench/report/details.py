"""The tables behind the figures, and the last part of a report: where, with what, and what words mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from liveedge.bench import definitions
from liveedge.bench.record import OUTCOMES
from liveedge.bench.report.document import Cell, Listing, Table
from liveedge.bench.report.latency_figures import NAMES
from liveedge.bench.report.overview import value
from liveedge.bench.report.run_view import RunView
from liveedge.bench.report.scale import duration, percent, plain
from liveedge.bench.result import Distribution, Proportion

GUIDE = "docs/benchmark.md"
PERCENTILES = ("p50", "p90", "p95", "p99")
MOST_TEXT = 300  # of one value of the environment
NOT_HERE = frozenset({"command", "clock", "cold", "windows"})  # said elsewhere in the report


def latency_table(runs: Sequence[RunView], measure: str) -> Table | None:
    """Percentiles with intervals, a row per step; with time-outs beside where there is such a series."""
    rows: list[list[str | Cell]] = []
    bounded = any(measure in step.with_timeouts for run in runs for step in run.summary.steps)
    for run in runs:
        for step in run.summary.steps:
            one = step.latencies.get(measure)
            if one is None and measure not in step.with_timeouts:
                continue
            row: list[str | Cell] = [run.label] if len(runs) > 1 else []
            row += [run.step_name(step), f"{one.n:,}" if one else "0"]
            row += [_with_interval(one, name) for name in PERCENTILES]
            row += [duration(one.high) if one and one.high is not None else "–"]
            if bounded:
                row += [value(step.with_timeouts.get(measure), name) for name in ("p95", "p99")]
            rows.append(row)
    if not rows:
        return None
    head = (["run"] if len(runs) > 1 else []) + ["step", "answers", *PERCENTILES, "highest"]
    head += ["p95 with time-outs", "p99 with time-outs"] if bounded else []
    meaning = definitions.LATENCIES.get(measure, "")
    return Table(
        caption=f"{NAMES.get(measure, measure)}: {measure}",
        head=head,
        rows=rows,
        n_names=2 if len(runs) > 1 else 1,
        note=f"{meaning[:1].upper()}{meaning[1:]}." if meaning else "",
    )


def _with_interval(one: Distribution | None, name: str) -> str | Cell:
    made = value(one, name)
    interval = one.intervals.get(name) if one else None
    if interval is None:
        return made
    text = made.text if isinstance(made, Cell) else made
    between = f"{text} [{duration(interval[0])}, {duration(interval[1])}]"
    return Cell(between, made.tone) if isinstance(made, Cell) else between


def other_latencies(runs: Sequence[RunView], shown: Sequence[str]) -> Table | None:
    """Measures without a figure: p50 and p95 of each step."""
    names = [
        name
        for name in definitions.LATENCIES
        if name not in shown and any(run.has(name) for run in runs)
    ]
    if not names:
        return None
    rows: list[list[str | Cell]] = []
    for run in runs:
        for step in run.summary.steps:
            row: list[str | Cell] = [run.label] if len(runs) > 1 else []
            row.append(run.step_name(step))
            for name in names:
                one = step.latencies.get(name)
                row.append(_pair(one))
            rows.append(row)
    return Table(
        caption="Other latencies, p50 / p95",
        head=(["run"] if len(runs) > 1 else []) + ["step", *names],
        rows=rows,
        n_names=2 if len(runs) > 1 else 1,
    )


def _pair(one: Distribution | None) -> str:
    if one is None or "p50" not in one.percentiles:
        return "–"
    return f"{duration(one.percentiles['p50'])} / {duration(one.percentiles['p95'])}"


def outcome_table(runs: Sequence[RunView]) -> Table:
    """Requests by how they ended."""
    rows: list[list[str | Cell]] = []
    for run in runs:
        for step in run.summary.steps:
            row: list[str | Cell] = [run.label] if len(runs) > 1 else []
            row += [run.step_name(step), f"{step.sent:,}"]
            for outcome in OUTCOMES:
                count = step.outcomes.get(outcome, 0)
                row.append(Cell("0", "muted") if not count else f"{count:,}")
            rows.append(row)
    head = (["run"] if len(runs) > 1 else []) + ["step", "requests"]
    return Table(
        caption="Requests by outcome",
        head=head + [name.replace("_", " ") for name in OUTCOMES],
        rows=rows,
        n_names=2 if len(runs) > 1 else 1,
        note="Each request ends exactly once.",
        columns=2,
    )


def code_table(runs: Sequence[RunView]) -> Table | None:
    """Codes of what was not ok, over all steps."""
    rows: list[list[str | Cell]] = []
    for run in runs:
        counted: dict[str, int] = {}
        for step in run.summary.steps:
            for code, count in step.codes.items():
                counted[code] = counted.get(code, 0) + count
        for code, count in sorted(counted.items(), key=lambda one: (-one[1], one[0]))[:20]:
            first: list[str | Cell] = [run.label] if len(runs) > 1 else []
            rows.append([*first, code[:120], f"{count:,}"])
    if not rows:
        return None
    head = (["run"] if len(runs) > 1 else []) + ["code", "requests"]
    return Table(caption="Codes, all steps", head=head, rows=rows, n_names=len(head) - 1, columns=1)


def proportion_text(one: Proportion | None) -> str:
    """ "97.5 % [95 %, 98.8 %] of 200"."""
    if one is None or one.share is None:
        return "–"
    between = f" [{percent(one.interval[0])}, {percent(one.interval[1])}]" if one.interval else ""
    return f"{percent(one.share)}{between} of {one.n:,}"


def accuracy_table(runs: Sequence[RunView]) -> Table:
    """Right answers per step, all kinds and each."""
    kinds = sorted(
        {kind for run in runs for step in run.summary.steps for kind in step.accuracy_by_kind}
    )
    rows: list[list[str | Cell]] = []
    for run in runs:
        for step in run.summary.steps:
            row: list[str | Cell] = [run.label] if len(runs) > 1 else []
            row += [run.step_name(step), proportion_text(step.accuracy)]
            row += [proportion_text(step.accuracy_by_kind.get(kind)) for kind in kinds]
            rows.append(row)
    return Table(
        caption="Right answers of those whose truth is decidable",
        head=(["run"] if len(runs) > 1 else []) + ["step", "all", *kinds],
        rows=rows,
        n_names=2 if len(runs) > 1 else 1,
    )


def stage_table(runs: Sequence[RunView]) -> Table | None:
    """Means and p95 of the server's stages."""
    names: list[str] = []
    for run in runs:
        for step in run.summary.steps:
            names += [name for name in step.server_ms if name not in names]
    if not names:
        return None
    rows: list[list[str | Cell]] = []
    for run in runs:
        for step in run.summary.steps:
            row: list[str | Cell] = [run.label] if len(runs) > 1 else []
            row.append(run.step_name(step))
            row += [_mean_and_p95(step.server_ms.get(name)) for name in names]
            rows.append(row)
    return Table(
        caption="Server stages, mean / p95",
        head=(["run"] if len(runs) > 1 else []) + ["step", *names],
        rows=rows,
        n_names=2 if len(runs) > 1 else 1,
        columns=3 if len(runs) > 1 else 2,
        note="outside: what of sent-to-end the server does not know, network and client.",
    )


def _mean_and_p95(one: Distribution | None) -> str:
    if one is None or one.mean is None:
        return "–"
    return f"{duration(one.mean)} / {duration(one.percentiles.get('p95', one.mean))}"


def token_table(runs: Sequence[RunView]) -> Table | None:
    """Tokens per second and per answer."""
    names = [
        name
        for name in definitions.TOKENS
        if any(name in step.tokens for run in runs for step in run.summary.steps)
    ]
    if not names:
        return None
    rows: list[list[str | Cell]] = []
    for run in runs:
        for step in run.summary.steps:
            row: list[str | Cell] = [run.label] if len(runs) > 1 else []
            row.append(run.step_name(step))
            row += [_token(name, step.tokens.get(name)) for name in names]
            rows.append(row)
    return Table(
        caption="Tokens",
        head=(["run"] if len(runs) > 1 else [])
        + ["step"]
        + [name.replace("_", " ") for name in names],
        rows=rows,
        n_names=2 if len(runs) > 1 else 1,
        columns=2,
    )


def _token(name: str, number: float | None) -> str:
    if number is None:
        return "–"
    return percent(number) if name.endswith("_share") else plain(number)


def machine_table(runs: Sequence[RunView]) -> Table | None:
    """What was sampled beside, mean and highest of each step."""
    names = sorted({name for run in runs for step in run.summary.steps for name in step.machine})
    if not names:
        return None
    rows: list[list[str | Cell]] = []
    for run in runs:
        for step in run.summary.steps:
            row: list[str | Cell] = [run.label] if len(runs) > 1 else []
            row.append(run.step_name(step))
            for name in names:
                one = step.machine.get(name)
                known = one is not None and one.mean is not None and one.high is not None
                row.append(
                    f"{plain(one.mean or 0)} / {plain(one.high or 0)}" if one and known else "–"
                )
            rows.append(row)
    return Table(
        caption="Sampled beside, mean / highest",
        head=(["run"] if len(runs) > 1 else []) + ["step", *names],
        rows=rows,
        n_names=2 if len(runs) > 1 else 1,
    )


def lateness_table(runs: Sequence[RunView]) -> Table:
    """How far behind its schedule the generator was."""
    rows: list[list[str | Cell]] = []
    for run in runs:
        for step in run.summary.steps:
            row: list[str | Cell] = [run.label] if len(runs) > 1 else []
            late = step.lateness_ms
            row += [run.step_name(step), f"{late.n:,}"]
            row += [
                duration(late.percentiles[name]) if name in late.percentiles else "–"
                for name in PERCENTILES
            ]
            row += [duration(late.high) if late.high is not None else "–"]
            row += [Cell("not valid", "bad") if step.invalid else "valid"]
            rows.append(row)
    return Table(
        caption="Lateness of the generator",
        head=(["run"] if len(runs) > 1 else [])
        + ["step", "sent", *PERCENTILES, "highest", "step is"],
        rows=rows,
        n_names=2 if len(runs) > 1 else 1,
        columns=2,
        note="From the moment at which a request was due to the moment at which it was sent.",
    )


def warning_table(runs: Sequence[RunView]) -> Table | None:
    """Everything that was said of a step, whole."""
    rows: list[list[str | Cell]] = []
    for run in runs:
        for step in run.summary.steps:
            first: list[str | Cell] = [run.label] if len(runs) > 1 else []
            rows += [
                [*first, run.step_name(step), Cell("not valid", "bad"), text]
                for text in step.invalid
            ]
            rows += [
                [*first, run.step_name(step), Cell("warning", "doubt"), text]
                for text in step.warnings
            ]
    if not rows:
        return None
    head = (["run"] if len(runs) > 1 else []) + ["step", "", "what"]
    return Table(caption="All warnings", head=head, rows=rows, n_names=len(head))


def cold_table(runs: Sequence[RunView]) -> Table | None:
    """Start-up, apart from everything warm."""
    rows: list[list[str | Cell]] = []
    for run in runs:
        first: list[str | Cell] = [run.label] if len(runs) > 1 else []
        for name, number in run.summary.cold.items():
            text = duration(number) if name.endswith("_ms") else plain(number)
            rows.append([*first, name, text, definitions.COLD.get(name, "")])
    if not rows:
        return None
    head = (["run"] if len(runs) > 1 else []) + ["what", "took", "meaning"]
    return Table(caption="Cold start", head=head, rows=rows, n_names=len(head))


def environment_tables(runs: Sequence[RunView]) -> Iterator[Table]:
    """Machine, versions, server: as the run wrote them."""
    for run in runs:
        named = f": {run.label}" if len(runs) > 1 else ""
        known = {key: one for key, one in run.environment.items() if key not in NOT_HERE}
        rows = [[name, text[:MOST_TEXT]] for name, text in _flat(known, "")]
        yield Table(
            caption=f"Environment{named}",
            head=["what", "value"],
            rows=rows,
            n_names=2,
            columns=2 if len(runs) == 1 else 1,
        )


def _flat(inner: Any, name: str) -> Iterator[tuple[str, str]]:
    """Nested values by their paths."""
    if isinstance(inner, Mapping) and inner:
        for key, one in inner.items():
            yield from _flat(one, f"{name}.{key}" if name else str(key))
    elif isinstance(inner, list) and inner:
        if all(not isinstance(one, (Mapping, list)) for one in inner):
            yield name, ", ".join(map(str, inner))
        else:
            for number, one in enumerate(inner):
                yield from _flat(one, f"{name}[{number}]")
    else:
        yield name, "–" if inner in (None, "", [], {}) else str(inner)


def clock_table(runs: Sequence[RunView]) -> Table:
    """How well the two machines' clocks are known to each other."""
    rows: list[list[str | Cell]] = []
    for run in runs:
        clock = run.summary.clock
        first: list[str | Cell] = [run.label] if len(runs) > 1 else []
        rows += [[*first, name, plain(number)] for name, number in clock.items()]
    head = (["run"] if len(runs) > 1 else []) + ["clock", "value"]
    return Table(
        caption="Clocks of server and bench",
        head=head,
        rows=rows,
        n_names=len(head) - 1,
        columns=1,
        note="offset_ms: the server's wall clock minus the bench's; freshness by the server's evidence"
        " is corrected by it and no better than uncertainty_ms.",
    )


def definition_table(runs: Sequence[RunView]) -> Table:
    """Every word that this report uses for a number."""
    used = {
        name: meaning
        for name, meaning in definitions.LATENCIES.items()
        if any(run.has(name) for run in runs)
    }
    used |= definitions.RATES | definitions.CAPACITY
    used |= {
        name: meaning
        for names in (definitions.TOKENS, definitions.MACHINE)
        for name, meaning in names.items()
        if any(
            name in step.tokens or name in step.machine
            for run in runs
            for step in run.summary.steps
        )
    }
    return Table(
        caption=f"What the words mean ({GUIDE} has more, and what they do not mean)",
        head=["word", "meaning"],
        rows=[[name, meaning] for name, meaning in used.items()],
        n_names=2,
        note=f"Percentiles: {runs[0].summary.percentile_method}. Latencies are of whole answers; time-outs"
        " count at their bound in a series of their own.",
    )


def listings(runs: Sequence[RunView]) -> list[Listing]:
    """The exact command and the scenario, whole."""
    made = []
    for run in runs:
        named = f": {run.label}" if len(runs) > 1 else ""
        command = run.environment.get("command")
        if command:
            text = command if isinstance(command, str) else " ".join(map(str, command))
            made.append(Listing(caption=f"Command{named}", text=text))
        scenario = json.dumps(run.scenario.as_json(), indent=1, ensure_ascii=False)
        digest = run.summary.work_digest
        made.append(
            Listing(caption=f"Scenario{named} (digest of the work: {digest})", text=scenario)
        )
    return made

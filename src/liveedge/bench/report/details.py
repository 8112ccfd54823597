"""The last part of a report: where it was measured, with what, by which command, and what words mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from liveedge.bench import definitions
from liveedge.bench.report.accuracy_charts import kinds, overall
from liveedge.bench.report.document import Cell, Listing, Table
from liveedge.bench.report.run_view import RunView
from liveedge.bench.report.scale import duration, plain
from liveedge.bench.report.step_tables import Row, first_cell, run_head, share_text

GUIDE = "docs/benchmark.md"
MOST_TEXT = 300  # characters of one value of the environment
MOST_CODES = 20
MOST_PLACES = 200  # rows of the environment
SAID_ELSEWHERE = frozenset({"command", "clock", "cold", "windows"})


def named_table(
    runs: Sequence[RunView], caption: str, head: Sequence[str], rows: Sequence[tuple[RunView, Row]]
) -> Table | None:
    """Rows that belong to runs, not to steps; all but the last column stand at the left."""
    if not rows:
        return None
    heads = [*run_head(runs), *head]
    return Table(
        caption=caption,
        head=heads,
        rows=[[*first_cell(runs, run), *row] for run, row in rows],
        n_names=len(heads) - 1,
        columns=1 if len(runs) == 1 else 2,
    )


def code_table(runs: Sequence[RunView]) -> Table | None:
    """Codes of what was not ok, over all steps."""
    rows: list[tuple[RunView, Row]] = []
    for run in runs:
        counted: dict[str, int] = {}
        for step in run.summary.steps:
            for code, count in step.codes.items():
                counted[code] = counted.get(code, 0) + count
        ordered = sorted(counted.items(), key=lambda one: (-one[1], one[0]))
        rows += [(run, [code[:120], f"{count:,}"]) for code, count in ordered[:MOST_CODES]]
        if rest := ordered[MOST_CODES:]:
            total = sum(count for _, count in rest)
            rows.append((run, [f"{len(rest)} other codes", f"{total:,}"]))
    return named_table(runs, "Codes, all steps", ["code", "requests"], rows)


def kind_table(runs: Sequence[RunView]) -> Table | None:
    """Right answers by kind, valid steps together."""
    rows: list[tuple[RunView, Row]] = [
        (run, [name, f"{one.k:,} of {one.n:,}", share_text(one)])
        for run in runs
        for name, one in {**kinds(run), "all": overall(run)}.items()
    ]
    return named_table(runs, "By kind, valid steps together", ["kind", "right", "share"], rows)


def clock_table(runs: Sequence[RunView]) -> Table | None:
    """How well the clocks of the two machines are known to each other."""
    rows: list[tuple[RunView, Row]] = [
        (run, [name, plain(number)]) for run in runs for name, number in run.summary.clock.items()
    ]
    return named_table(runs, "Clock of the server against the bench's", ["what", "value"], rows)


def warning_table(runs: Sequence[RunView]) -> Table | None:
    """Everything that was said of a step, whole."""
    rows: list[Row] = []
    for run in runs:
        for step in run.summary.steps:
            first = [*first_cell(runs, run), run.step_name(step)]
            rows += [[*first, Cell("not valid", "bad"), text] for text in step.invalid]
            rows += [[*first, Cell("warning", "doubt"), text] for text in step.warnings]
    if not rows:
        return None
    head = [*run_head(runs), "step", "is", "because"]
    return Table(caption="Warnings of each step", head=head, rows=rows, n_names=len(head))


def cold_table(runs: Sequence[RunView]) -> Table | None:
    """Start-up, apart from everything warm."""
    rows = [
        [
            *first_cell(runs, run),
            name,
            duration(number) if name.endswith("_ms") else plain(number),
            definitions.COLD.get(name, ""),
        ]
        for run in runs
        for name, number in run.summary.cold.items()
    ]
    if not rows:
        return None
    head = [*run_head(runs), "what", "took", "meaning"]
    return Table(caption="Cold start", head=head, rows=rows, n_names=len(head), columns=2)


def environment_tables(runs: Sequence[RunView]) -> Iterator[Table]:
    """Machine, versions, server: as the run wrote them."""
    for run in runs:
        known = {key: one for key, one in run.environment.items() if key not in SAID_ELSEWHERE}
        rows = [[name, text[:MOST_TEXT]] for name, text in _flat(known, "")]
        left_out = len(rows) - MOST_PLACES
        yield Table(
            caption=f"Environment{_of(runs, run)}",
            head=["what", "value"],
            rows=rows[:MOST_PLACES],
            n_names=2,
            columns=2,
            note=f"{left_out} more in environment.json." if left_out > 0 else "",
        )


def _of(runs: Sequence[RunView], run: RunView) -> str:
    return f": {run.label}" if len(runs) > 1 else ""


def _flat(inner: Any, name: str) -> Iterator[tuple[str, str]]:
    """Nested values by their paths."""
    if isinstance(inner, Mapping) and inner:
        for key, one in inner.items():
            yield from _flat(one, f"{name}.{key}" if name else str(key))
    elif isinstance(inner, list) and any(isinstance(one, (Mapping, list)) for one in inner):
        for number, one in enumerate(inner):
            yield from _flat(one, f"{name}[{number}]")
    elif isinstance(inner, list) and inner:
        yield name, ", ".join(map(str, inner))
    else:
        yield name, "–" if inner in (None, "", [], {}) else str(inner)


def definition_table(runs: Sequence[RunView]) -> Table:
    """Every word that this report uses for a number."""
    steps = [step for run in runs for step in run.summary.steps]
    used = {
        name: meaning
        for group in (definitions.LATENCIES, definitions.TOKENS, definitions.MACHINE)
        for name, meaning in group.items()
        if any(name in {**step.latencies, **step.tokens, **step.machine} for step in steps)
    }
    used.update({**definitions.RATES, **definitions.CAPACITY})
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
        command = run.environment.get("command")
        if command:
            text = command if isinstance(command, str) else " ".join(map(str, command))
            made.append(Listing(caption=f"Command{_of(runs, run)}", text=text))
        written = json.dumps(run.scenario.as_json(), indent=1, ensure_ascii=False)
        digest = run.summary.work_digest
        caption = f"Scenario{_of(runs, run)} (digest of the work: {digest})"
        made.append(Listing(caption=caption, text=written))
    return made

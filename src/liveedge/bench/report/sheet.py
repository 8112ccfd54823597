"""The report as one picture: verdict, then the charts that decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from liveedge.bench.report.accuracy_charts import accuracy_charts
from liveedge.bench.report.chart import Chart
from liveedge.bench.report.document import Document
from liveedge.bench.report.draw import Letters
from liveedge.bench.report.latency_charts import latency_charts
from liveedge.bench.report.png import FINE, Sheet
from liveedge.bench.report.rate_charts import throughput
from liveedge.bench.report.run_view import RunView
from liveedge.bench.report.stack_charts import failures

CELL = (440.0, 320.0)
COLUMNS = 3
MARGIN = 28.0
GAP = 30.0
HEAD = 118.0
MOST_FACTS = 5


def sheet_charts(runs: Sequence[RunView]) -> list[Chart]:
    """Latency, rates, failures and accuracy."""
    made = [*latency_charts(runs), throughput(runs)]
    for run in runs:
        chart = failures(run)
        named = chart if len(runs) == 1 else replace(chart, title=f"{chart.title}: {run.label}")
        made.append(named)
    return made + accuracy_charts(runs)[:1]


def write_sheet(
    document: Document, charts: Sequence[Chart], path: Path, *, fine: int = FINE
) -> None:
    """A PNG."""
    rows = -(-len(charts) // COLUMNS)
    width = MARGIN * 2 + CELL[0] * COLUMNS + GAP * (COLUMNS - 1)
    sheet = Sheet(width, HEAD + rows * (CELL[1] + GAP) + MARGIN / 2, fine=fine)
    _head(sheet, document, width)
    for number, chart in enumerate(charts):
        row, column = divmod(number, COLUMNS)
        corner = (MARGIN + column * (CELL[0] + GAP), HEAD + row * (CELL[1] + GAP))
        sheet.chart(chart, corner, CELL)
    sheet.save(path)


def _head(sheet: Sheet, document: Document, width: float) -> None:
    sheet.text((MARGIN, 38), document.title, Letters(colour="ink", size=22, bold=True))
    tone = document.verdict.tone if document.verdict.tone in ("good", "bad", "doubt") else "ink"
    sheet.text((MARGIN, 60), document.verdict.word, Letters(colour=tone, size=13, bold=True))
    facts = document.facts[:MOST_FACTS]
    step = (width - 2 * MARGIN) / max(len(facts), 1)
    for number, fact in enumerate(facts):
        x = MARGIN + number * step
        sheet.text((x, 82), fact.name, Letters(size=11))
        sheet.text((x, 101), fact.value, Letters(colour="ink", size=17, bold=True))

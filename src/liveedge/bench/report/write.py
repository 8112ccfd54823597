"""Writes the report of a folder, or of several beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from liveedge.bench.measures import summarise_folder
from liveedge.bench.report.content import content
from liveedge.bench.report.html import html
from liveedge.bench.report.markdown import markdown
from liveedge.bench.report.png import FINE
from liveedge.bench.report.run_view import RunView, Summarise, labels, opened
from liveedge.bench.report.sheet import sheet_charts, write_sheet
from liveedge.bench.result import ResultFolder, ResultInvalid, write_text, writing


def write_report(
    folder: ResultFolder, *, summarise: Summarise = summarise_folder, fine: int = FINE
) -> list[Path]:
    """report.html, report.md and report.png of one run, into its folder. Raises ResultInvalid."""
    return _written([opened(folder, summarise)], folder.path / "report", fine)


def write_comparison(
    folders: Sequence[ResultFolder],
    into: Path,
    *,
    summarise: Summarise = summarise_folder,
    fine: int = FINE,
) -> list[Path]:
    """compare.html, compare.md and compare.png of several runs, into a folder. Raises ResultInvalid.

    Runs of other scenarios are shown beside each other too, with a word about it; a closed loop and an
    open one have no axis in common and are refused.
    """
    names = [folder.scenario().name for folder in folders]
    if len(set(names)) < len(names):
        names = [folder.path.resolve().name for folder in folders]
    runs = [
        opened(folder, summarise, label=label)
        for folder, label in zip(folders, labels(names), strict=True)
    ]
    if len({run.is_open for run in runs}) > 1:
        loops = ", ".join(f"{run.label} is {run.scenario.load.kind}" for run in runs)
        raise ResultInvalid(
            f"an open loop and a closed one have no axis of load in common: {loops}"
        )
    with writing(into):
        into.mkdir(parents=True, exist_ok=True)
    return _written(runs, into / "compare", fine)


def _written(runs: Sequence[RunView], stem: Path, fine: int) -> list[Path]:
    document = content(runs)
    page, text, picture = (stem.with_suffix(end) for end in (".html", ".md", ".png"))
    write_text(page, html(document))
    write_text(text, markdown(document))
    with writing(picture):
        write_sheet(document, sheet_charts(runs), picture, fine=fine)
    return [page, text, picture]

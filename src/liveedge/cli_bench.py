"""`liveedge bench` and `liveedge soak`: measure a server from outside."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from liveedge.bench.report.write import write_comparison, write_report
from liveedge.bench.result import ResultFolder, ResultInvalid
from liveedge.bench.scenario import ScenarioInvalid


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench run|compare|envelope|report`."""
    what = "measure any OpenAI-compatible server on live streams"
    bench = commands.add_parser("bench", help=what, description=f"{what[0].upper()}{what[1:]}.")
    parts = bench.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_report(parts)


# report


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench report`."""
    report = commands.add_parser(
        "report",
        help="write the report of a result again, or of several side by side",
        description="Write report.html, report.md and report.png of a result folder, from its records"
        " alone. With --compare, write compare.html, compare.md and compare.png with all of them in the"
        " same charts. Prints the files.",
    )
    report.add_argument("folder", type=Path, metavar="FOLDER", help="a result folder")
    report.add_argument(
        "--compare",
        type=Path,
        metavar="OTHER",
        nargs="+",
        default=[],
        help="result folders to show beside it, such as a peer's",
    )
    report.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where to write a comparison (default: the first)",
    )
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    folder = ResultFolder(options.folder)
    try:
        if options.compare:
            folders = [folder, *map(ResultFolder, options.compare)]
            written = write_comparison(folders, options.out or options.folder)
        else:
            written = write_report(folder)
    except (ResultInvalid, ScenarioInvalid) as error:
        print(f"liveedge: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(path)
    return 0

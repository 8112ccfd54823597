"""`liveedge bench report`."""

from __future__ import annotations

import argparse

from liveedge.bench.report.write import write_comparison, write_report
from liveedge.bench.result import ResultFolder, ResultInvalid, ResultUnwritable
from liveedge.bench.scenario import ScenarioInvalid
from liveedge.cli_bench.telling import say


def report(options: argparse.Namespace) -> int:
    folder = ResultFolder(options.folder)
    try:
        if options.compare:
            folders = [folder, *map(ResultFolder, options.compare)]
            written = write_comparison(folders, options.out or options.folder)
        else:
            written = write_report(folder)
    except (ResultInvalid, ResultUnwritable, ScenarioInvalid) as error:
        say(f"liveedge: {error}")
        return 1
    for path in written:
        print(path)
    return 0

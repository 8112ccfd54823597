"""`liveedge soak`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from liveedge.bench.result import ResultUnwritable, write_text
from liveedge.bench.soak.log import LogBroken
from liveedge.bench.soak.options import OptionsInvalid, SoakOptions, differences, logged_options
from liveedge.bench.soak.page import html
from liveedge.bench.soak.run import ServerFailed, begin, go_on
from liveedge.bench.soak.verdict import Verdict, as_json, as_text, judged
from liveedge.cli_bench.telling import printable, say


def _asked(options: argparse.Namespace) -> Mapping[str, Any]:
    """What was given on the command line."""
    found = {f.name: getattr(options, f.name) for f in dataclasses.fields(SoakOptions)}
    given = {name: value for name, value in found.items() if value is not None}
    if "serve_flags" in given:
        given["serve_flags"] = tuple(given["serve_flags"])
    return given


def soak(options: argparse.Namespace) -> int:
    folder: Path = options.out or options.resume or options.report
    try:
        if options.report is None:
            _soak_in(folder, options, _asked(options))
        verdict = judged(folder)
    except KeyboardInterrupt:
        say(
            f"liveedge: what was logged is kept: liveedge soak --resume {folder} goes on,"
            f" --report {folder} judges it"
        )
        raise
    except (OptionsInvalid, LogBroken) as error:
        say(f"liveedge: {error}")
        return 2
    except ResultUnwritable as error:
        say(f"liveedge: {error}; with room for it, liveedge soak --resume {folder} goes on")
        return 1
    except ServerFailed as error:
        say(f"liveedge: {error}")
        return 1
    unwritable = _written(folder, verdict)
    print(printable(as_text(verdict)))
    if unwritable is not None:
        say(f"liveedge: {unwritable}")
        return 1
    print(f"\nreport: {folder / 'report.html'}")
    return verdict.status


def _written(folder: Path, verdict: Verdict) -> ResultUnwritable | None:
    """The files beside the log; why they could not be."""
    try:
        write_text(folder / "verdict.json", json.dumps(as_json(verdict), indent=1) + "\n")
        write_text(folder / "report.html", html(verdict))
    except ResultUnwritable as error:
        return error
    return None


def _soak_in(folder: Path, options: argparse.Namespace, asked: Mapping[str, Any]) -> None:
    if options.resume is None:
        if "hours" not in asked:
            raise OptionsInvalid("how long? give --hours")
        begin(folder, SoakOptions(**asked))
    elif changed := differences(logged_options(folder), asked):
        raise OptionsInvalid(
            "a soak goes on as it began, and these settings differ: " + "; ".join(changed)
        )
    go_on(folder, say)

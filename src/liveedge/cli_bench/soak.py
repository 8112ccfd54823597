"""`liveedge soak`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from liveedge.bench.soak.log import LogBroken
from liveedge.bench.soak.options import OptionsInvalid, SoakOptions, differences, logged_options
from liveedge.bench.soak.page import html
from liveedge.bench.soak.run import ServerFailed, begin, go_on
from liveedge.bench.soak.verdict import as_json, as_text, judged


def _asked(options: argparse.Namespace) -> Mapping[str, Any]:
    """What was given on the command line."""
    found = {f.name: getattr(options, f.name) for f in dataclasses.fields(SoakOptions)}
    given = {name: value for name, value in found.items() if value is not None}
    if "serve_flags" in given:
        given["serve_flags"] = tuple(given["serve_flags"])
    return given


def soak(options: argparse.Namespace) -> int:
    asked = _asked(options)
    try:
        if options.report is None:
            _soak_in(options, asked)
        folder: Path = options.out or options.resume or options.report
        verdict = judged(folder)
    except (OptionsInvalid, LogBroken) as error:
        print(f"liveedge: {error}", file=sys.stderr)
        return 2
    except ServerFailed as error:
        print(f"liveedge: {error}", file=sys.stderr)
        return 1
    (folder / "verdict.json").write_text(json.dumps(as_json(verdict), indent=1) + "\n")
    (folder / "report.html").write_text(html(verdict))
    print(as_text(verdict))
    print(f"\nreport: {folder / 'report.html'}")
    return verdict.status


def _soak_in(options: argparse.Namespace, asked: Mapping[str, Any]) -> None:
    if options.resume is None:
        if "hours" not in asked:
            raise OptionsInvalid("how long? give --hours")
        begin(options.out, SoakOptions(**asked))
    elif changed := differences(logged_options(options.resume), asked):
        raise OptionsInvalid(
            "a soak goes on as it began, and these settings differ: " + "; ".join(changed)
        )
    go_on(options.out or options.resume, lambda text: print(text, file=sys.stderr, flush=True))

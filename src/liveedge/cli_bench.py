"""`liveedge bench` and `liveedge soak`: measure a server from outside."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from liveedge.bench.soak.log import LogBroken
from liveedge.bench.soak.options import OptionsInvalid, SoakOptions, differences
from liveedge.bench.soak.page import html
from liveedge.bench.soak.run import ServerFailed, begin, go_on, logged_options
from liveedge.bench.soak.verdict import as_json, as_text, judged


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench run|compare|envelope|report`."""
    what = "measure any OpenAI-compatible server on live streams"
    bench = commands.add_parser("bench", help=what, description=f"{what[0].upper()}{what[1:]}.")
    bench.add_subparsers(title="commands", required=True, metavar="COMMAND")


# soak

SOAK_HELP = {
    "hours": "of stream time; with --speed 8 an hour takes 7.5 minutes",
    "speed": "let all time of the server run so many times as fast: ACCELERATED, said so everywhere",
    "seed": "of the schedules, the cameras and all chance",
    "model": "checkpoint folder; default: the shipped model",
    "url": "soak a server that runs already; without --pid nothing is killed and no memory measured",
    "pid": "of that server's process, on this machine: its engine may be killed",
    "serve_flags": "a flag of `liveedge serve` for the server that is started, as --serve-flag=--queue=8;"
    " may be repeated",
    "retention_s": "of the server that is started: short, so that rings fill soon",
    "sim_streams": "simulated cameras that the server pulls",
    "push_streams": "cameras that push JPEGs",
    "whip_streams": "cameras that publish by WHIP (liveedge[bench])",
    "fps": "pictures of each camera per second of stream time",
    "width": "of the pictures, in pixels",
    "height": "of the pictures, in pixels",
    "question_every_s": "a question whose true answer is known",
    "watch_every_s": "the period of the standing questions",
    "look_every_s": "a look at processes, metrics and streams",
    "disconnect_every_s": "a client leaves in the middle",
    "hostile_every_s": "an upload that nobody honest sends",
    "slow_every_s": "one more reader that reads next to nothing",
    "slow_for_s": "and stays so long",
    "leave_every_s": "a camera leaves, and another joins",
    "loss_every_s": "a camera falls silent",
    "loss_for_s": "for so long",
    "flap_every_s": "a camera reconnects several times within seconds",
    "flaps": "how often",
    "kill_every_s": "kill -9 of the engine's process, three times; the fourth lives five times as long",
    "rest_real_s": "real time at the end in which what is in progress may end",
}


def add_soak(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge soak`."""
    soak = commands.add_parser(
        "soak",
        help="hours of everything at once, and a verdict",
        description="Run streams with churn, questions, watches, slow readers, disconnects, hostile"
        " uploads and engine kills against a server for hours, and judge whether anything grows or"
        " breaks. Periods are of stream time. Exit status: 0 pass, 1 fail, 3 undecided.",
    )
    where = soak.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, metavar="FOLDER", help="begin a soak in this new folder")
    where.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="go on with what is left of the one there"
    )
    where.add_argument(
        "--report",
        type=Path,
        metavar="FOLDER",
        help="judge what its log holds so far; runs nothing",
    )
    kinds = typing.get_type_hints(SoakOptions)
    for field in dataclasses.fields(SoakOptions):
        name = "serve-flag" if field.name == "serve_flags" else field.name.replace("_", "-")
        default = field.default
        shown = "" if default in (dataclasses.MISSING, None, ()) else f" (default: {default:g})"
        soak.add_argument(
            f"--{name}",
            dest=field.name,
            metavar="N" if kinds[field.name] in (int, float) else "TEXT",
            help=SOAK_HELP[field.name] + shown,
            **_soak_argument(kinds[field.name]),
        )
    soak.set_defaults(command=_soak)


def _soak_argument(kind: Any) -> dict[str, Any]:
    if kind == tuple[str, ...]:
        return {"action": "append"}
    plain = next((one for one in (int, float) if kind in (one, one | None)), str)
    return {"type": plain}


def _asked(options: argparse.Namespace) -> Mapping[str, Any]:
    """What was given on the command line."""
    found = {f.name: getattr(options, f.name) for f in dataclasses.fields(SoakOptions)}
    given = {name: value for name, value in found.items() if value is not None}
    if "serve_flags" in given:
        given["serve_flags"] = tuple(given["serve_flags"])
    return given


def _soak(options: argparse.Namespace) -> int:
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

"""The commands and their flags. What a command does is imported when it is asked for: a server, which
is a command too, starts no slower for it."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from liveedge.bench.soak.options import SoakOptions


def later(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """A function of this package, found when it is called."""

    def command(options: argparse.Namespace) -> int:
        found = getattr(importlib.import_module(f"liveedge.cli_bench.{module}"), name)
        status: int = found(options)
        return status

    return command


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench run|compare|envelope|report`."""
    what = "measure any OpenAI-compatible server on live streams"
    bench = commands.add_parser("bench", help=what, description=f"{what[0].upper()}{what[1:]}.")
    parts = bench.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(parts)
    _add_compare(parts)
    _add_report(parts)
    _add_envelope(parts)


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench run`."""
    run = commands.add_parser(
        "run",
        help="run a scenario against a server",
        description="Run a scenario against a server and write its result into a folder. What happens"
        " goes to standard error, the folder to standard output. Exit status: 0 the figures are valid;"
        " 1 the run failed, or its first request was refused; 2 the scenario is wrong; 3 the generator was"
        " the bottleneck; 130 Ctrl-C.",
    )
    run.add_argument("scenario", type=Path, metavar="SCENARIO", help="a TOML file")
    run.add_argument(
        "--out", type=Path, metavar="FOLDER", help="default: a new one in bench-results"
    )
    _add_target(run)
    run.add_argument("--json", action="store_true", help="end with the summary as a line of JSON")
    run.set_defaults(command=later("run", "run"))


def _add_target(command: argparse.ArgumentParser) -> None:
    """What is run against which server."""
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="a key of the scenario, such as load.duration_s=5; may be repeated",
    )
    command.add_argument("--base-url", metavar="URL", help="instead of target.base_url")
    command.add_argument("--model", metavar="ID", help="instead of target.model")
    command.add_argument(
        "--pid", type=int, metavar="N", help="of a server on this machine, to sample its processes"
    )
    command.add_argument(
        "--start-server",
        metavar="FLAGS",
        help="start `liveedge serve FLAGS` for this run, measure its start too, and end it; written"
        " --start-server='--hot-mb 8', or --start-server= without any",
    )


def _add_envelope(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench envelope`."""
    envelope = commands.add_parser(
        "envelope",
        help="the smallest picture and number of frames whose answers are right often enough",
        description="Run a scenario in a closed loop at each size and number of frames, from the smallest"
        " up, until every kind of question is answered well enough; say which is the smallest, and what"
        " it costs. Each run is a result in a folder of its own. Exit status: 0 found for every kind; 1 a"
        " run failed; 2 the scenario is wrong; 4 some kind did not reach it.",
    )
    envelope.add_argument("scenario", type=Path, metavar="BASE", help="a TOML file")
    envelope.add_argument("--sizes", required=True, metavar="WxH,...", help="as 284x160,426x240")
    envelope.add_argument(
        "--frames", default="1", metavar="N,...", help="as 1,2,4,8 (default: %(default)s)"
    )
    envelope.add_argument(
        "--threshold", type=float, default=0.9, metavar="SHARE", help="(default: %(default)s)"
    )
    envelope.add_argument(
        "--by",
        choices=("lower", "point"),
        default="lower",
        help="what has to reach it: the lower end of the 95 %% interval, or the share itself"
        " (default: %(default)s)",
    )
    envelope.add_argument(
        "--out", type=Path, metavar="FOLDER", help="default: a new one in bench-results"
    )
    _add_target(envelope)
    envelope.set_defaults(command=later("envelope", "envelope"))


def _add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench compare`."""
    compare = commands.add_parser(
        "compare",
        help="hold one result against another, or against the rules of a gate",
        description="Compare two results of the same scenario: ratios with 95 % intervals, and whether B"
        " is better or worse. With --gate, hold B (or the only result) against rules. Exit status: 0"
        " the gate passed, or there is none; 1 an error; 4 the gate failed.",
    )
    compare.add_argument(
        "a", type=Path, metavar="A", help="a result folder; the base of the ratios"
    )
    compare.add_argument("b", type=Path, metavar="B", nargs="?", help="the one that is judged")
    compare.add_argument(
        "--gate", type=Path, metavar="FILE", help="rules (TOML, docs/benchmark.md)"
    )
    compare.add_argument("--json", action="store_true", help="print JSON instead of tables")
    compare.add_argument(
        "--anyway", action="store_true", help="compare also what is invalid or not the same work"
    )
    compare.set_defaults(command=later("compare", "compare"))


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench report`."""
    report = commands.add_parser(
        "report",
        help="write the report of a result again, or of several side by side",
        description="Write report.html, report.md and report.png of a result folder, from its records"
        " alone. With --compare, write compare.html, compare.md and compare.png with all of them in the"
        " same charts. Prints the files. Exit status: 0 written; 1 not a result, or no axis in common.",
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
    report.set_defaults(command=later("report", "report"))


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
        " breaks. Periods are of stream time. Exit status: 0 pass, 1 fail,"
        " no server came up or the disk is full; 2 wrong command line or log; 3 undecided; 130 Ctrl-C.",
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
    soak.set_defaults(command=later("soak", "soak"))


def _soak_argument(kind: Any) -> dict[str, Any]:
    if kind == tuple[str, ...]:
        return {"action": "append"}
    plain = next((one for one in (int, float) if kind in (one, one | None)), str)
    return {"type": plain}

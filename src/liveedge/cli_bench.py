"""`liveedge bench` and `liveedge soak`: measure a server from outside."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from liveedge.bench.compare import NotComparable
from liveedge.bench.figures import NoSuchFigure
from liveedge.bench.gate import GateInvalid, hold, load_gate
from liveedge.bench.result import ResultFolder, ResultInvalid, Summary
from liveedge.bench.scenario import Scenario, ScenarioInvalid, load_scenario
from liveedge.client.local_server import ServerFailed, running_server
from liveedge.core.clock import Clock, SystemClock


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench run|compare|envelope|report`."""
    what = "measure any OpenAI-compatible server on live streams"
    bench = commands.add_parser("bench", help=what, description=f"{what[0].upper()}{what[1:]}.")
    parts = bench.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(parts)
    _add_compare(parts)


# compare

GATE_FAILED = 4


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
    compare.set_defaults(command=_compare)


def _compare(options: argparse.Namespace) -> int:
    try:
        found = hold(
            ResultFolder(options.a),
            options.b and ResultFolder(options.b),
            gate=options.gate and load_gate(options.gate),
            anyway=options.anyway,
        )
    except (ResultInvalid, ScenarioInvalid, NotComparable, GateInvalid, NoSuchFigure) as error:
        print(f"liveedge: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found.as_json(), indent=1) if options.json else found.as_markdown())
    return 0 if found.passed else GATE_FAILED


# run

INVALID = 3  # the generator was the bottleneck: the figures say nothing about the server


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench run`."""
    run = commands.add_parser(
        "run",
        help="run a scenario against a server",
        description="Run a scenario against a server and write its result into a folder. What happens"
        " goes to standard error, the folder to standard output. Exit status: 0 the figures are valid;"
        " 1 the run failed; 2 the scenario is wrong; 3 the generator was the bottleneck.",
    )
    run.add_argument("scenario", type=Path, metavar="SCENARIO", help="a TOML file")
    run.add_argument(
        "--out", type=Path, metavar="FOLDER", help="default: a new one in bench-results"
    )
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="a key of the scenario, such as load.duration_s=5; may be repeated",
    )
    run.add_argument("--base-url", metavar="URL", help="instead of target.base_url")
    run.add_argument("--model", metavar="ID", help="instead of target.model")
    run.add_argument(
        "--pid", type=int, metavar="N", help="of a server on this machine, to sample its processes"
    )
    run.add_argument(
        "--start-server",
        metavar="FLAGS",
        help="start `liveedge serve FLAGS` for this run, measure its start too, and end it",
    )
    run.add_argument("--json", action="store_true", help="end with the summary as a line of JSON")
    run.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from liveedge.bench import wiring  # noqa: PLC0415  half a second; no other command needs it

    clock = SystemClock()
    try:
        scenario = load_scenario(options.scenario, _overrides(options, wiring.overrides_of))
        folder = wiring.new_folder(options.out, scenario.name, clock)
        with _server(options.start_server, scenario, clock) as (scenario, started_ms):
            asked = wiring.Asked(
                command=["liveedge", *sys.argv[1:]],
                variables=os.environ,
                started_ms=started_ms,
                say=_say,
            )
            summary = asyncio.run(wiring.run(scenario, folder, asked, clock))
    except ScenarioInvalid as error:
        print(f"liveedge: {error}", file=sys.stderr)
        return 2
    except (wiring.RunFailed, wiring.SourceFailed, ServerFailed) as error:
        print(f"liveedge: {error}", file=sys.stderr)
        return 1
    _end(folder, summary, as_json=options.json)
    return 0 if summary.valid else INVALID


def _overrides(
    options: argparse.Namespace, read: Callable[[list[str]], dict[str, Any]]
) -> dict[str, Any]:
    flags = {
        "target.base_url": options.base_url,
        "target.model": options.model,
        "target.pid": options.pid,
    }
    return read(options.settings) | {
        key: value for key, value in flags.items() if value is not None
    }


@contextlib.contextmanager
def _server(
    flags: str | None, scenario: Scenario, clock: Clock
) -> Iterator[tuple[Scenario, Mapping[str, float]]]:
    """A server for this run, where one is asked for; the scenario is aimed at it."""
    from liveedge.bench.cold import started_ms  # noqa: PLC0415  with the rest of a run

    if flags is None:
        yield scenario, {}
        return
    _say(f"starting liveedge serve {flags}")
    with running_server(model=None, port=None, clock=clock, flags=shlex.split(flags)) as started:
        target = replace(scenario.target, base_url=f"{started.url}/v1", pid=started.pid)
        yield replace(scenario, target=target), started_ms(started)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end(folder: ResultFolder, summary: Summary, *, as_json: bool) -> None:
    for reason in summary.invalid:
        _say(f"invalid: {reason}")
    for warning in summary.warnings:
        _say(f"warning: {warning}")
    print(folder.path)
    if as_json:
        print(json.dumps(summary.as_json(), ensure_ascii=False))

"""`liveedge bench` and `liveedge soak`: measure a server from outside."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from liveedge.bench.compare import NotComparable
from liveedge.bench.figures import NoSuchFigure
from liveedge.bench.gate import GateInvalid, hold, load_gate
from liveedge.bench.result import ResultFolder, ResultInvalid
from liveedge.bench.scenario import ScenarioInvalid


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`liveedge bench run|compare|envelope|report`."""
    what = "measure any OpenAI-compatible server on live streams"
    bench = commands.add_parser("bench", help=what, description=f"{what[0].upper()}{what[1:]}.")
    parts = bench.add_subparsers(title="commands", required=True, metavar="COMMAND")
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

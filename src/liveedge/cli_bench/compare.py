"""`liveedge bench compare`."""

from __future__ import annotations

import argparse
import json

from liveedge.bench.compare import NotComparable
from liveedge.bench.figures import NoSuchFigure
from liveedge.bench.gate import GateInvalid, hold, load_gate
from liveedge.bench.result import ResultFolder, ResultInvalid
from liveedge.bench.scenario import ScenarioInvalid
from liveedge.cli_bench.telling import printable, say

GATE_FAILED = 4


def compare(options: argparse.Namespace) -> int:
    try:
        found = hold(
            ResultFolder(options.a),
            options.b and ResultFolder(options.b),
            gate=options.gate and load_gate(options.gate),
            anyway=options.anyway,
        )
    except (ResultInvalid, ScenarioInvalid, NotComparable, GateInvalid, NoSuchFigure) as error:
        say(f"liveedge: {error}")
        return 1
    print(json.dumps(found.as_json(), indent=1) if options.json else printable(found.as_markdown()))
    return 0 if found.passed else GATE_FAILED

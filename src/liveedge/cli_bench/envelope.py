"""`liveedge bench envelope`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence

from liveedge.bench import wiring
from liveedge.bench.envelope import Rule, Run, envelopes, markdown, search, write
from liveedge.bench.result import ResultFolder, ResultUnwritable
from liveedge.bench.scenario import Scenario, ScenarioInvalid, load_scenario
from liveedge.cli_bench.run import asked, overrides, server_for
from liveedge.cli_bench.telling import say
from liveedge.client.local_server import ServerFailed
from liveedge.core.clock import Clock, SystemClock

NOT_REACHED = 4


def envelope(options: argparse.Namespace) -> int:
    clock = SystemClock()
    try:
        rule = _rule(options)
        wanted = envelopes(options.sizes.split(","), _numbers(options.frames))
        base = load_scenario(options.scenario, overrides(options, wiring.overrides_of))
        folder = wiring.new_folder(options.out, f"{base.name}-envelope", clock)
        with server_for(options.start_server, base, clock) as (base, started_ms):
            run = _run(clock, started_ms)
            found = search(base, wanted, rule, run=run, folder=folder.path, say=say)
        write(found, folder.path)
    except ScenarioInvalid as error:
        say(f"liveedge: {error}")
        return 2
    except (wiring.RunFailed, wiring.SourceFailed, ResultUnwritable, ServerFailed) as error:
        say(f"liveedge: {error}")
        return 1
    print(markdown(found))
    print(folder.path)
    return 0 if all(one.verdict == "reached" for one in found.smallest) else NOT_REACHED


def _run(clock: Clock, started_ms: Mapping[str, float]) -> Run:
    """One envelope, as `liveedge bench run` runs it."""

    def run(scenario: Scenario, folder: ResultFolder) -> Sequence[str]:
        say(f"── {scenario.name}")
        summary = asyncio.run(wiring.run(scenario, folder, asked(started_ms), clock))
        for reason in summary.invalid:
            say(f"invalid: {reason}")
        return summary.invalid

    return run


def _rule(options: argparse.Namespace) -> Rule:
    if not 0 < options.threshold < 1:
        raise ScenarioInvalid(f"--threshold is {options.threshold}, it must be between 0 and 1")
    return Rule(threshold=options.threshold, bound=options.by)


def _numbers(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError as error:
        raise ScenarioInvalid(f"--frames is {text!r}; write it as 1,2,4") from error

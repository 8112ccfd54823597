"""`liveedge bench run`."""

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
from typing import Any

from liveedge.bench import wiring
from liveedge.bench.cold import started_ms
from liveedge.bench.result import ResultFolder, Summary
from liveedge.bench.scenario import Scenario, ScenarioInvalid, load_scenario
from liveedge.cli_bench.telling import say
from liveedge.client.local_server import ServerFailed, running_server
from liveedge.core.clock import Clock, SystemClock

INVALID = 3  # the generator was the bottleneck: the figures say nothing about the server


def run(options: argparse.Namespace) -> int:
    clock = SystemClock()
    try:
        scenario = load_scenario(options.scenario, overrides(options, wiring.overrides_of))
        folder = wiring.new_folder(options.out, scenario.name, clock)
        with server_for(options.start_server, scenario, clock) as (scenario, started_ms):
            summary = _run(scenario, folder, asked(started_ms), clock)
    except ScenarioInvalid as error:
        say(f"liveedge: {error}")
        return 2
    except (wiring.RunFailed, wiring.SourceFailed, ServerFailed) as error:
        say(f"liveedge: {error}")
        return 1
    _end(folder, summary, as_json=options.json)
    return 0 if summary.valid else INVALID


def _run(scenario: Scenario, folder: ResultFolder, asked: wiring.Asked, clock: Clock) -> Summary:
    try:
        return asyncio.run(wiring.run(scenario, folder, asked, clock))
    except KeyboardInterrupt:
        say(f"liveedge: broken off{wiring.what_is_left(folder)}")
        raise


def asked(started_ms: Mapping[str, float]) -> wiring.Asked:
    """What this command was told beside the scenario."""
    return wiring.Asked(
        command=["liveedge", *sys.argv[1:]],
        variables=os.environ,
        started_ms=started_ms,
        say=say,
    )


def overrides(
    options: argparse.Namespace, read: Callable[[list[str]], dict[str, Any]]
) -> dict[str, Any]:
    """What the command line changes in the scenario."""
    flags = {
        "target.base_url": options.base_url,
        "target.model": options.model,
        "target.pid": options.pid,
    }
    return read(options.settings) | {
        key: value for key, value in flags.items() if value is not None
    }


@contextlib.contextmanager
def server_for(
    flags: str | None, scenario: Scenario, clock: Clock
) -> Iterator[tuple[Scenario, Mapping[str, float]]]:
    """A server for this run, where one is asked for; the scenario is aimed at it."""
    if flags is None:
        yield scenario, {}
        return
    say(f"starting liveedge serve {flags}")
    with running_server(model=None, port=None, clock=clock, flags=shlex.split(flags)) as started:
        target = replace(scenario.target, base_url=f"{started.url}/v1", pid=started.pid)
        yield replace(scenario, target=target), started_ms(started)


def _end(folder: ResultFolder, summary: Summary, *, as_json: bool) -> None:
    for reason in summary.invalid:
        say(f"invalid: {reason}")
    for warning in summary.warnings:
        say(f"warning: {warning}")
    print(folder.path)
    if as_json:
        print(json.dumps(summary.as_json(), ensure_ascii=False))

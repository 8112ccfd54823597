"""Which processes a server has, by role, and what each takes. Linux only.

A process that ends while it is looked at is left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from liveedge.bench.processes import (
    PROC,
    Taken,
    machine_ticks,
    process_tree,
    started_ticks,
    taken,
)

ENGINE = "liveedge.engine.process.main"
_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process at one moment."""

    pid: int
    born_ticks: int  # with the pid: which process it is
    took: Taken


def process(pid: int) -> Process | None:
    """None where there is no such process any more."""
    born_ticks, took = started_ticks(pid), taken([pid], with_pss=False)
    if born_ticks is None or not took.n_processes or took.n_files is None:
        return None
    return Process(pid=pid, born_ticks=born_ticks, took=took)


def of_server(pid: int) -> dict[str, list[Process]]:
    """By role: the server, its engine, the process that stands by for it, and all others."""
    below = [found for child in process_tree(pid)[1:] if (found := process(child)) is not None]
    engines = sorted(
        (found for found in below if _is_engine(found.pid)), key=lambda found: found.born_ticks
    )
    known = {found.pid for found in engines}
    server = process(pid)
    return {
        "server": [] if server is None else [server],
        "engine": engines[:1],  # the oldest: the others wait until it is gone
        "standby": engines[1:],
        "others": [found for found in below if found.pid not in known],
    }


def machine() -> Mapping[str, float]:
    """How busy the machine is with everything that runs on it."""
    ticks, per_s = machine_ticks(), os.sysconf("SC_CLK_TCK")
    spent = (
        {}
        if ticks is None
        else {
            "busy_s": round(ticks.busy / per_s, 1),
            "idle_s": round((ticks.total - ticks.busy) / per_s, 1),
        }
    )
    return {"load": round(os.getloadavg()[0], 2), **spent}


def engine_pid(server: int) -> int | None:
    """The engine that answers."""
    engines = of_server(server)["engine"]
    return engines[0].pid if engines else None


def _is_engine(pid: int) -> bool:
    try:
        return ENGINE in (PROC / str(pid) / "cmdline").read_text()
    except OSError:
        return False


def as_json(found: Process) -> Mapping[str, float | None]:
    return {
        "pid": found.pid,
        "born": found.born_ticks,
        "rss_mb": round(found.took.rss_bytes / _MB, 3),
        "anon_mb": round(found.took.anon_bytes / _MB, 3),
        "fds": found.took.n_files,
        "threads": found.took.n_threads,
        "cpu_s": round(found.took.cpu_s, 2),
    }

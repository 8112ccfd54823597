"""What the processes of a server take, as the system tells: memory, descriptors, threads, time.

Linux only. A process that ends while it is looked at is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from liveedge.bench.processes import machine_ticks, process_tree

PROC = Path("/proc")
ENGINE = "liveedge.engine.process.main"
_KB = re.compile(r"^(VmRSS|RssAnon|RssShmem):\s+(\d+) kB$", re.MULTILINE)
_THREADS = re.compile(r"^Threads:\s+(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One process at one moment."""

    pid: int
    started_ticks: int  # with the pid: which process it is
    rss_kb: int  # VmRSS: pages of files included, which the system keeps and drops as it likes
    anon_kb: int  # what the process itself has asked for
    fds: int
    threads: int
    cpu_s: float  # since it started


def taken(pid: int) -> Taken | None:
    """None where there is no such process any more."""
    folder = PROC / str(pid)
    try:
        stat = (folder / "stat").read_text().rpartition(")")[2].split()
        status = (folder / "status").read_text()
        n_fds = sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        return None
    kb = {name: int(value) for name, value in _KB.findall(status)}
    threads = _THREADS.search(status)
    if "RssAnon" not in kb or threads is None:  # a zombie
        return None
    return Taken(
        pid=pid,
        started_ticks=int(stat[19]),
        rss_kb=kb["VmRSS"],
        anon_kb=kb["RssAnon"],
        fds=n_fds,
        threads=int(threads[1]),
        cpu_s=(int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
    )


def of_server(pid: int) -> dict[str, list[Taken]]:
    """By role: the server, its engine, the process that stands by for it, and all others."""
    below = [found for child in process_tree(pid)[1:] if (found := taken(child)) is not None]
    engines = sorted(
        (found for found in below if _is_engine(found.pid)), key=lambda found: found.started_ticks
    )
    known = {found.pid for found in engines}
    server = taken(pid)
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


def as_json(found: Taken) -> Mapping[str, float]:
    return {
        "pid": found.pid,
        "born": found.started_ticks,
        "rss_mb": round(found.rss_kb / 1024, 3),
        "anon_mb": round(found.anon_kb / 1024, 3),
        "fds": found.fds,
        "threads": found.threads,
        "cpu_s": round(found.cpu_s, 2),
    }

"""What the processes of a server take, as the system tells: memory, descriptors, threads, time.

Linux only. A process that ends while it is looked at is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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
    below = [found for child in descendants(pid) if (found := taken(child)) is not None]
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
    ticks = [int(word) for word in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]  # waiting for disks included
    per_s = os.sysconf("SC_CLK_TCK")
    return {
        "load": round(os.getloadavg()[0], 2),
        "busy_s": round((sum(ticks) - idle) / per_s, 1),
        "idle_s": round(idle / per_s, 1),
    }


def engine_pid(server: int) -> int | None:
    """The engine that answers."""
    engines = of_server(server)["engine"]
    return engines[0].pid if engines else None


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, as of now."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found, wanted = [], [pid]
    while wanted:
        below = children.get(wanted.pop(), [])
        found += below
        wanted += below
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # ended meanwhile
            continue
        # The name before it stands in parentheses and may hold anything.
        yield int(entry.name), int(stat.rpartition(")")[2].split()[1])


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

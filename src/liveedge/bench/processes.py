"""What the machine and its processes take, from /proc and nvidia-smi. Elsewhere than on Linux: nothing.

A reading is None where the system does not give it; nothing here raises for a process that ended.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
GPU_TIMEOUT_S = 3.0
GPU_FIELDS = "index,name,utilization.gpu,memory.used,memory.total,power.draw,driver_version"
_KB = 1024


@dataclass(frozen=True, slots=True)
class MachineTicks:
    """Processor time of the whole machine since its start, in ticks."""

    busy: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What processes take together."""

    n_processes: int
    cpu_s: float  # since their start
    rss_bytes: int  # pages of files included, which the system keeps and drops as it likes
    anon_bytes: int  # what the processes themselves have asked for
    pss_bytes: int | None  # None where it was not asked for, or /proc does not let us read it
    n_threads: int
    n_files: int | None  # open file descriptors


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU at one moment."""

    index: int
    name: str
    busy_share: float | None
    memory_used_mb: float | None
    memory_mb: float | None
    power_w: float | None
    driver: str


def machine_ticks(*, proc: Path = PROC) -> MachineTicks | None:
    fields = _text(proc / "stat").partition("\n")[0].split()[1:9]
    if len(fields) < 8:
        return None
    spent = [int(field) for field in fields]  # user nice system idle iowait irq softirq steal
    return MachineTicks(busy=sum(spent) - spent[3] - spent[4], total=sum(spent))


def busy_share(before: MachineTicks | None, after: MachineTicks | None) -> float | None:
    """Of all processors between two looks."""
    if before is None or after is None or after.total <= before.total:
        return None
    return (after.busy - before.busy) / (after.total - before.total)


def memory_available_bytes(*, proc: Path = PROC) -> int | None:
    return _kilobytes(_text(proc / "meminfo"), "MemAvailable:")


def process_tree(pid: int, *, proc: Path = PROC) -> list[int]:
    """A process and all its descendants; empty once it is gone."""
    found: list[int] = []
    waiting = [pid] if (proc / str(pid)).is_dir() else []
    everybody: dict[int, list[int]] | None = None
    while waiting:
        one = waiting.pop()
        found.append(one)
        children = _children(proc / str(one))
        if children is None:
            everybody = _by_parent(proc) if everybody is None else everybody
            children = everybody.get(one, [])
        waiting += children
    return found


def _children(process: Path) -> list[int] | None:
    """As each of its threads tells; None where this system does not tell it."""
    try:
        files = [thread / "children" for thread in (process / "task").iterdir()]
    except OSError:  # gone
        return []
    if files and not files[0].exists():
        return None
    return [int(child) for file in files for child in _text(file).split()]


def _by_parent(proc: Path) -> dict[int, list[int]]:
    """All processes of the machine: a millisecond for a hundred."""
    found: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        parent = _stat(entry, 1) if entry.name.isdigit() else None
        if parent is not None:
            found.setdefault(parent, []).append(int(entry.name))
    return found


def taken(pids: Iterable[int], *, with_pss: bool = True, proc: Path = PROC) -> Taken:
    """What those of the processes that are still there take.

    The system walks all pages of a process for `with_pss`, and keeps it from mapping memory meanwhile.
    """
    found = (_taken(proc / str(pid), with_pss=with_pss) for pid in pids)
    each = [one for one in found if one is not None]
    pss = [one.pss_bytes for one in each if one.pss_bytes is not None]
    files = [one.n_files for one in each if one.n_files is not None]
    return Taken(
        n_processes=len(each),
        cpu_s=sum(one.cpu_s for one in each),
        rss_bytes=sum(one.rss_bytes for one in each),
        anon_bytes=sum(one.anon_bytes for one in each),
        pss_bytes=sum(pss) if pss and len(pss) == len(each) else None,
        n_threads=sum(one.n_threads for one in each),
        n_files=sum(files) if len(files) == len(each) else None,
    )


def started_ticks(pid: int, *, proc: Path = PROC) -> int | None:
    """Since the machine's start. With the pid it tells which process this is."""
    return _stat(proc / str(pid), 19)


def thread_cpu_s(thread_id: int, *, proc: Path = PROC) -> float | None:
    """Of one thread of this process."""
    return _cpu_s(proc / "self" / "task" / str(thread_id))


def gpus(*, command: str = "nvidia-smi") -> list[Gpu]:
    """Every GPU that nvidia-smi tells; none where there is no such program."""
    asked = [command, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, timeout=GPU_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [gpu for line in done.stdout.splitlines() if (gpu := _gpu(line)) is not None]


def _gpu(line: str) -> Gpu | None:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 7 or not fields[0].isdigit():
        return None
    busy, used, memory, power = (_number(field) for field in fields[2:6])
    return Gpu(
        index=int(fields[0]),
        name=fields[1],
        busy_share=None if busy is None else busy / 100,
        memory_used_mb=used,
        memory_mb=memory,
        power_w=power,
        driver=fields[6],
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def _taken(process: Path, *, with_pss: bool) -> Taken | None:
    cpu_s = _cpu_s(process)
    status = _text(process / "status")
    rss_bytes = _kilobytes(status, "VmRSS:")
    if cpu_s is None or rss_bytes is None:  # gone, or a zombie
        return None
    return Taken(
        n_processes=1,
        cpu_s=cpu_s,
        rss_bytes=rss_bytes,
        anon_bytes=_kilobytes(status, "RssAnon:") or 0,
        pss_bytes=_kilobytes(_text(process / "smaps_rollup"), "Pss:") if with_pss else None,
        n_threads=_stat(process, 17) or 0,
        n_files=_n_entries(process / "fd"),
    )


def _cpu_s(process: Path) -> float | None:
    user, system = _stat(process, 11), _stat(process, 12)
    if user is None or system is None:
        return None
    return (user + system) / os.sysconf("SC_CLK_TCK")


def _stat(process: Path, field: int) -> int | None:
    """A field of `stat`, counted from 0 at the state, which follows the name in brackets."""
    fields = _text(process / "stat").rpartition(")")[2].split()
    return int(fields[field]) if len(fields) > field else None


def _kilobytes(text: str, name: str) -> int | None:
    for line in text.splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * _KB
    return None


def _n_entries(folder: Path) -> int | None:
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # gone, or somebody else's
        return ""

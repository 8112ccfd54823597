"""What this machine, or the container around this process, has and what a process of it takes."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from liveedge.core.clock import Clock

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
PROCESSES = Path("/proc")

# Of mallopt, in glibc.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
N_ARENAS = 2
LARGE_BYTES = 8 * 2**20  # more than a frame of most cameras, less than an uploaded photograph
GIVE_BACK_EVERY_S = 60.0
KEPT_BYTES = 64 * 2**20  # free memory at a heap's end: frames come and go without the system


def physical_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_ceiling_bytes(*, cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """The most memory that can be had: the machine's, or less where a control group limits it."""
    return min([physical_bytes(), *_limits(cgroups, own)])


def resident_bytes(pid: int | None = None, *, processes: Path = PROCESSES) -> int | None:
    """What a process has in memory, this one by default; None once it is gone."""
    try:
        fields = (processes / str(pid or "self") / "statm").read_text(encoding="ascii").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def steady_heap() -> None:
    """Keep what the process's heap takes from creeping up. To be called before there are threads.

    All threads share few heaps: by default each thread of a camera gets one, and each grows to its
    own worst moment. And what is large never lies in a heap: by default it does once a block of that
    size was freed, and uploads then leave holes between frames: 3 MB a minute over half an hour.
    Does nothing where the C library has no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, N_ARENAS)
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_free_memory() -> None:
    """Return every free page of the heap to the system, those between blocks in use too.

    A large upload is taken apart in small blocks, frames that come meanwhile lie behind them, and
    what is freed stays: 270 to 460 MB in turns over hours. Takes 3 to 30 ms, in which other threads
    may wait for memory; to be called seldom. Does nothing where the C library has no such call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_giving_back(clock: Clock, stopping: threading.Event) -> None:
    """Once a minute, until told to stop. For a thread of its own."""
    while not clock.wait(stopping, GIVE_BACK_EVERY_S):
        give_back_free_memory()


def _limits(cgroups: Path, own: Path) -> list[int]:
    """Every limit on the way from this process's group to the root, of either version."""
    found: list[int] = []
    for line in _text(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found += _up(cgroups, path, "memory.max")
        elif "memory" in controllers.split(","):
            found += _up(cgroups / "memory", path, "memory.limit_in_bytes")
    return found


def _up(root: Path, path: str, file: str) -> list[int]:
    """The limits of a group and of those around it. Inside a container the path may be the host's:
    then the root is the container's own group."""
    group = root / path.strip("/")
    places = [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    texts = (_text(place / file).strip() for place in places)
    return [int(text) for text in texts if text.isdigit() and int(text) > 0]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""

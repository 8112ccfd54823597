"""What a measurement must know of the machine: is it quiet, and what does a model folder stand for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "src/liveedge/assets/workcell-tiny"
MAKER = ROOT / "tools/random_checkpoint.py"
BUSY_SHARE = 0.1  # of the processors, used by others: more spoils a measurement
LOOK_S = 0.5
SETTLE_S = 0.05  # after this the worker threads of a library have stopped spinning


def checkpoint(name: str) -> Path:
    """A checkpoint folder, or `random-9m`, `random-267m`: made in the user's cache if need be."""
    if not name.startswith("random-"):
        return Path(name)
    print(f"{name}: random weights, kept in the user's cache", flush=True)
    command = [sys.executable, str(MAKER), *name.split(":")[:1], *_size(name)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Path(done.stdout.splitlines()[-1])


def _size(name: str) -> list[str]:
    return ["--full-size"] if name.endswith(":full") else []


def announce() -> None:
    """Print how busy the machine is; a ratio of a busy machine is not worth writing down."""
    busy = others_busy()
    print(f"{os.cpu_count()} processors, {busy:.0%} of them busy before we began, ", end="")
    print(f"load average of the last minute {os.getloadavg()[0]:.2f}")
    if busy > BUSY_SHARE:
        print("WARNING  something else runs here: not for the log")
    print(flush=True)


def others_busy() -> float:
    """The share of the processors' time that is used while this process waits."""
    before = _times()
    time.sleep(LOOK_S)
    spent = [after - was for after, was in zip(_times(), before, strict=True)]
    return 1 - sum(spent[3:5]) / max(sum(spent), 1)  # idle, and waiting for a disk


def _times() -> list[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal of all processors, in ticks."""
    first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    return [int(field) for field in first.split()[1:9]]


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection inside: it takes milliseconds at moments of its own choice."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def settle() -> None:
    """Between two sides, so that neither shares the processors with the other's idle threads."""
    time.sleep(SETTLE_S)

"""Looks at server and machine beside a run: a row of samples.jsonl each.

Owns    a thread, `bench-sampler`. A look takes 4 ms of a processor, and what the server needs for /metrics.
Never   breaks a run: what cannot be read is left out, counted, and told at the end (`trouble`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from liveedge.bench import processes, prometheus
from liveedge.bench.clocks import LOCAL
from liveedge.core.clock import Clock
from liveedge.core.tasks import OwnedThread

EVERY_S = 1.0
PSS_EVERY_S = 5.0  # ten milliseconds of a processor for a gigabyte, and the target waits for some
GPU_EVERY_S = 2.0  # nvidia-smi takes a tenth of a second of a processor
METRICS_TIMEOUT_S = 2.0
MAX_METRICS_BYTES = 4 << 20
GIVE_UP_AFTER = 5  # failures in a row of a server without /metrics: it is asked no more
_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What is looked at."""

    metrics_url: str = ""  # Prometheus; empty: no server is asked
    headers: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0  # of the target on this machine, with its descendants; 0: unknown
    every_s: float = EVERY_S


class Sampler:
    """Looks once a second between `start` and `stop`."""

    def __init__(
        self,
        looks: Looks,
        keep: Callable[[Mapping[str, Any]], None],
        *,
        clock: Clock,
        began_s: float,
    ) -> None:
        """`keep` takes each row, in the sampler's thread; `began_s` is where the run's clock began."""
        self._looks, self._keep, self._clock, self._began_s = looks, keep, clock, began_s
        self._thread = OwnedThread("bench-sampler", self._run)
        self._generator: int | None = None
        self._machine = _Machine(looks.pid, clock)
        self._metrics = _Metrics(looks, clock)
        self._failures: Counter[str] = Counter()
        self.n_rows = 0

    async def start(self) -> None:
        """From the thread of the generator: it is the one whose time is looked at."""
        self._generator = threading.get_native_id()
        self._thread.start()

    async def stop(self) -> None:
        """After the look in progress."""
        if not await asyncio.to_thread(self._thread.stop):
            self._failures["ending the last look"] += 1
        self._metrics.close()

    @property
    def trouble(self) -> list[str]:
        """What could not be read, how often; empty where all went well."""
        found = self._failures + self._metrics.failures
        told = [f"sampling: {name} failed {count} times" for name, count in sorted(found.items())]
        if self._thread.error is not None:
            told.append(f"sampling ended early: {self._thread.error!r}")
        return told

    def _run(self, stopping: threading.Event) -> None:
        next_s = self._clock.monotonic_s()
        while not stopping.is_set():
            self.look()
            next_s = max(next_s + self._looks.every_s, self._clock.monotonic_s())
            self._clock.wait(stopping, next_s - self._clock.monotonic_s())

    def look(self) -> None:
        """One row. Where it cannot be kept, that is counted."""
        at_s = self._clock.monotonic_s() - self._began_s
        machine = self._machine.look(self._generator)
        row = {
            "at_s": round(at_s, 3),
            "metrics": _short(self._metrics.look()),
            "machine": _short(machine),
        }
        try:
            self._keep(row)
            self.n_rows += 1
        except OSError:  # a full disk must not end the run before its records are safe
            self._failures["writing a row"] += 1


class _Metrics:
    """Of the server."""

    def __init__(self, looks: Looks, clock: Clock) -> None:
        self._clock = clock
        self.failures: Counter[str] = Counter()
        self._in_a_row = 0
        self._url = looks.metrics_url
        try:
            is_local = httpx.URL(self._url).host in LOCAL
        except httpx.InvalidURL:
            self._url, is_local = "", False
            self.failures["the URL of /metrics"] += 1
        self._http = httpx.Client(
            headers=dict(looks.headers), timeout=METRICS_TIMEOUT_S, trust_env=not is_local
        )

    def look(self) -> dict[str, float]:
        if not self._url or self._in_a_row >= GIVE_UP_AFTER:
            return {}
        try:
            text = self._text()
        except (httpx.HTTPError, httpx.InvalidURL):
            self._in_a_row += 1
            self.failures["/metrics"] += 1
            return {}
        self._in_a_row = 0
        return prometheus.looked_at(text)

    def _text(self) -> str:
        """Within bounds of size and time, whatever the server sends. Raises httpx.HTTPError."""
        body = bytearray()
        until_s = self._clock.monotonic_s() + METRICS_TIMEOUT_S
        with self._http.stream("GET", self._url) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                body += piece
                if len(body) > MAX_METRICS_BYTES or self._clock.monotonic_s() > until_s:
                    raise httpx.ReadTimeout("too long, or too slow")
        return bytes(body).decode(errors="replace")

    def close(self) -> None:
        self._http.close()


class _Machine:
    """Of the system: differences between two looks."""

    def __init__(self, pid: int, clock: Clock) -> None:
        self._pid, self._clock = pid, clock
        self._ticks = processes.machine_ticks()
        self._cpu: dict[str, tuple[float, float]] = {}  # name: when, how much
        self._pss_at_s = float("-inf")
        self._has_gpu = True
        self._gpu: dict[str, float] = {}
        self._gpu_at_s = float("-inf")

    def look(self, thread_id: int | None) -> dict[str, float]:
        found = {"cpu_share": self._share()}
        available = processes.memory_available_bytes()
        found["memory_available_mb"] = None if available is None else available / _MB
        if thread_id is not None:
            used_s = processes.thread_cpu_s(thread_id)
            found["generator_cpu_share"] = self._rate("generator", used_s)
        if self._pid:
            found |= self._target()
        found |= self._gpus()
        return {name: value for name, value in found.items() if value is not None}

    def _share(self) -> float | None:
        before, self._ticks = self._ticks, processes.machine_ticks()
        return processes.busy_share(before, self._ticks)

    def _target(self) -> dict[str, float | None]:
        tree = processes.process_tree(self._pid)
        if not tree:
            return {}
        now_s = self._clock.monotonic_s()
        with_pss = now_s - self._pss_at_s >= PSS_EVERY_S
        if with_pss:
            self._pss_at_s = now_s
        took = processes.taken(tree, with_pss=with_pss)
        return {
            "target_cpu_cores": self._rate("target", took.cpu_s),
            "rss_mb": took.rss_bytes / _MB,
            "pss_mb": None if took.pss_bytes is None else took.pss_bytes / _MB,
        }

    def _gpus(self) -> dict[str, float]:
        """Asked again every few seconds only; a machine without one is not asked again."""
        now_s = self._clock.monotonic_s()
        if self._has_gpu and now_s - self._gpu_at_s >= GPU_EVERY_S:
            seen = processes.gpus()
            self._has_gpu, self._gpu_at_s = bool(seen), now_s
            self._gpu = _gpu_row(seen)
        return self._gpu

    def _rate(self, name: str, used_s: float | None) -> float | None:
        """Processors in use since the last look; None at the first, and where a process has ended
        and took its time with it."""
        now_s = self._clock.monotonic_s()
        before = self._cpu.get(name)
        if used_s is None:
            return None
        self._cpu[name] = (now_s, used_s)
        if before is None or now_s <= before[0] or used_s < before[1]:
            return None
        return (used_s - before[1]) / (now_s - before[0])


def _short(values: Mapping[str, float]) -> dict[str, float]:
    """As many digits as mean something: a run of minutes has thousands of these."""
    return {name: round(value, 4 if abs(value) < 10 else 1) for name, value in values.items()}


def _gpu_row(seen: list[processes.Gpu]) -> dict[str, float]:
    busy = [gpu.busy_share for gpu in seen if gpu.busy_share is not None]
    used = [gpu.memory_used_mb for gpu in seen if gpu.memory_used_mb is not None]
    power = [gpu.power_w for gpu in seen if gpu.power_w is not None]
    found = {}
    if busy:
        found["gpu_share"] = sum(busy) / len(busy)
    if used:
        found["gpu_memory_mb"] = sum(used)
    if power:
        found["gpu_power_w"] = sum(power)
    return found

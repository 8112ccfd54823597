"""Where the time of a start goes, told stage by stage as it passes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from liveedge.core.clock import Clock

MAX_START_S = 600.0  # a process that claims to have started earlier has another clock


class Startup:
    """Where the time of the start goes, told as it passes."""

    def __init__(self, clock: Clock, *, say: Callable[[str], None]) -> None:
        self._clock = clock
        self._say = say
        self._since_s = clock.monotonic_s()
        self._began_s = self._since_s
        self._stages: list[tuple[str, float]] = []

    def passed(self, stage: str, *, since_s: float | None = None) -> None:
        """A stage is over; the next one begins now."""
        now_s = self._clock.monotonic_s()
        since_s = self._since_s if since_s is None else since_s
        self._began_s = min(self._began_s, since_s)
        self._stages.append((stage, now_s - since_s))
        self._since_s = now_s

    def say(self, text: str) -> None:
        self._say(text)

    def breakdown(self, headline: str, details: Mapping[str, float] | None = None) -> None:
        """One line: the total, and each stage so far; `details` are milliseconds within the last."""
        stages = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in self._stages)
        within = ", ".join(f"{name} {ms:.0f} ms" for name, ms in (details or {}).items())
        total_s = self._clock.monotonic_s() - self._began_s
        self._say(f"{headline} after {total_s:.2f} s: {stages}{f' ({within})' if within else ''}")


def process_started_s(clock: Clock) -> float | None:
    """When this process started, on the monotonic clock; None where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return started_s if 0 <= clock.monotonic_s() - started_s < MAX_START_S else None

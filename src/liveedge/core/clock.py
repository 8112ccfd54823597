"""Time, injected: the only module that reads the machine's clocks.

Wall-clock milliseconds are for people and the wire; monotonic seconds are for every decision.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from. `testing.clock.FakeClock` moves by hand."""

    def monotonic_s(self) -> float:
        """Seconds that never go backwards."""
        ...

    def wall_ms(self) -> int:
        """Unix milliseconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling coroutine."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Block the calling thread until `event` is set (True) or the time is over (False)."""
        ...


class SystemClock:
    """The machine's clocks; wall time is anchored once so that it never jumps in a process."""

    def __init__(self) -> None:
        self._wall_offset_s = time.time() - time.monotonic()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return int((time.monotonic() + self._wall_offset_s) * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


class ScaledClock:
    """Time that runs `speed` times as fast as the machine's, for tests of long runs.

    All processes of one machine agree: monotonic time is the machine's times `speed`, and wall time
    is counted from when the machine's monotonic clock began, so a process that starts later, or
    again, goes on where the others are. Sleeps and waits take `1 / speed` of the real time.
    """

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._began_wall_s = time.time() - time.monotonic()

    def monotonic_s(self) -> float:
        return time.monotonic() * self.speed

    def wall_ms(self) -> int:
        return int((self._began_wall_s + self.monotonic_s()) * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.speed)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s / self.speed)


def clock_at(speed: float) -> Clock:
    """The machine's clock, or at another speed than 1 a scaled one."""
    return SystemClock() if speed == 1.0 else ScaledClock(speed)

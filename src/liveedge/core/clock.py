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

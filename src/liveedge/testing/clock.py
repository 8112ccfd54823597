"""Time that a test moves by hand, with the promises of `core.clock.Clock`.

Nothing passes until `advance` (coroutines) or `move` (threads and plain code) is called. Sleepers
wake in the order of their deadlines, each seeing exactly its own deadline as the time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from dataclasses import dataclass, field

NS_PER_S = 1_000_000_000
_SETTLE_TURNS = 20  # turns of the loop given to woken coroutines before time moves on
_THREAD_POLL_S = 0.002  # real time between two looks of a waiting thread at its event


@dataclass(order=True, slots=True)
class _Sleeper:
    due_ns: int
    order: int
    loop: asyncio.AbstractEventLoop = field(compare=False)
    future: asyncio.Future[None] = field(compare=False)

    def wake(self) -> None:
        self.loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class FakeClock:
    """A clock that stands still until it is moved. All methods may be called from any thread."""

    def __init__(self, *, monotonic_s: float = 1_000.0, wall_ms: int = 1_750_000_000_000) -> None:
        self._now_ns = round(monotonic_s * NS_PER_S)
        self._wall_offset_ns = wall_ms * 1_000_000 - self._now_ns
        self._sleepers: list[_Sleeper] = []
        self._order = itertools.count()
        self._moved = threading.Condition()
        self._waits: list[int] = []  # until when, of every thread in `wait`

    def monotonic_s(self) -> float:
        return self._now_ns / NS_PER_S

    def wall_ms(self) -> int:
        return (self._now_ns + self._wall_offset_ns) // 1_000_000

    @property
    def n_sleepers(self) -> int:
        """Coroutines suspended in `sleep`."""
        with self._moved:
            return sum(not sleeper.future.done() for sleeper in self._sleepers)

    @property
    def n_waiting(self) -> int:
        """Threads in `wait` that only time, or their event, can wake."""
        with self._moved:
            return sum(due_ns > self._now_ns for due_ns in self._waits)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._moved:
            # What is left of a sum of floats is some time: a loop around it would never end.
            due_ns = self._now_ns + max(1, round(seconds * NS_PER_S))
            sleeper = _Sleeper(due_ns, next(self._order), loop, future)
            heapq.heappush(self._sleepers, sleeper)
        await future

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        with self._moved:
            due_ns = self._now_ns + round(timeout_s * NS_PER_S)
            self._waits.append(due_ns)
            try:
                while not event.is_set():
                    if self._now_ns >= due_ns:
                        return False
                    self._moved.wait(_THREAD_POLL_S)
            finally:
                self._waits.remove(due_ns)
        return True

    def move(self, seconds: float) -> None:
        """Move time at once and wake everything that is due; does not wait for what wakes."""
        with self._moved:
            self._now_ns += round(seconds * NS_PER_S)
            self._wake_due()

    async def advance(self, seconds: float) -> None:
        """Move time from deadline to deadline, letting the woken coroutines run at each.

        A coroutine that sleeps again before the end of the span is woken again.
        """
        await _settle()
        end_ns = self._now_ns + round(seconds * NS_PER_S)
        while self._step(end_ns):
            await _settle()
        await _settle()

    def _step(self, end_ns: int) -> bool:
        """Move to the next deadline, at most to `end_ns`; False once there."""
        with self._moved:
            self._drop_cancelled()
            next_ns = self._sleepers[0].due_ns if self._sleepers else end_ns
            self._now_ns = max(self._now_ns, min(next_ns, end_ns))
            self._wake_due()
            return self._now_ns < end_ns

    def _drop_cancelled(self) -> None:
        while self._sleepers and self._sleepers[0].future.done():
            heapq.heappop(self._sleepers)

    def _wake_due(self) -> None:
        while self._sleepers and self._sleepers[0].due_ns <= self._now_ns:
            heapq.heappop(self._sleepers).wake()
        self._moved.notify_all()


async def _settle() -> None:
    for _ in range(_SETTLE_TURNS):
        await asyncio.sleep(0)

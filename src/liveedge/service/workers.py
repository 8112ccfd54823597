"""Threads for work that would block the event loop: decoding pictures, ending cameras.

The executor's own queue has no bound; its users have: a request waits for its one piece of work,
and the number of requests in progress is limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from liveedge.core.clock import Clock
from liveedge.core.errors import DeadlineExceeded
from liveedge.core.tasks import TaskSet

T = TypeVar("T")


class Workers:
    """A fixed number of named threads, owned by whoever makes it."""

    def __init__(self, name: str, *, n_threads: int) -> None:
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix=f"liveedge-{name}")

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread. A cancelled caller leaves at once; started work ends by itself."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def run_until(
        self, work: Callable[[], T], *, deadline_s: float, clock: Clock, what: str
    ) -> T:
        """`run`, or DeadlineExceeded, which says `what` was not done in time."""
        timers = TaskSet("deadline")
        timer = timers.start(clock.sleep(deadline_s - clock.monotonic_s()), name=what)
        running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        running.add_done_callback(_look_at_error)
        try:
            await asyncio.wait((running, timer), return_when=asyncio.FIRST_COMPLETED)
            if not running.done() or clock.monotonic_s() >= deadline_s:
                raise DeadlineExceeded(f"the deadline (timeout_ms) passed during {what}")
            return running.result()
        finally:
            running.cancel()
            await timers.close()

    def close(self) -> None:
        """Drop what has not started and wait for the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _look_at_error(work: asyncio.Future[T]) -> None:
    """An error that comes too late for its caller is nobody's: asyncio would log it as lost."""
    if not work.cancelled():
        work.exception()

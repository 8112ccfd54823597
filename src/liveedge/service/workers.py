"""Threads for work that would block the event loop: decoding pictures, ending cameras.

The executor's own queue has no bound; its users have: a request waits for its one piece of work,
and the number of requests in progress is limited. Where it is not, work is done in turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from liveedge.core.clock import Clock
from liveedge.core.errors import DeadlineExceeded, QueueFull
from liveedge.core.tasks import TaskSet

T = TypeVar("T")


MAX_WAITING = 8


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A piece of work that waits for its turn."""

    owner: str
    part: str
    turn: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class _Turns:
    """Whose work is next: owners one after the other, of each the oldest whose part is not at work."""

    def __init__(self, n_at_once: int) -> None:
        self._n_free = n_at_once
        self._busy: set[str] = set()  # parts
        self._waiting: dict[str, deque[_Place]] = {}  # by owner, whose turn is next comes first

    def join(self, owner: str, part: str, max_waiting: int) -> _Place:
        """Raises QueueFull."""
        places = self._waiting.get(owner, deque())
        if sum(place.part == part for place in places) >= max_waiting:
            raise QueueFull(
                f"{max_waiting} requests for {part} wait to be worked on already; send the next one"
                " when one of them is answered"
            )
        place = _Place(owner, part)
        places.append(place)
        self._waiting[owner] = places
        self._go_on()
        return place

    def leave(self, place: _Place) -> None:
        """It is not wanted any more."""
        if not place.turn.cancelled():
            self.end(place)
        elif place in (places := self._waiting.get(place.owner, deque())):
            places.remove(place)
            if not places:
                del self._waiting[place.owner]

    def end(self, place: _Place) -> None:
        """Its work is done."""
        self._n_free += 1
        self._busy.discard(place.part)
        self._go_on()

    def _go_on(self) -> None:
        while self._n_free and (place := self._next()) is not None:
            self._n_free -= 1
            self._busy.add(place.part)
            place.turn.set_result(None)

    def _next(self) -> _Place | None:
        for owner, places in self._waiting.items():
            for place in places:
                if place.part not in self._busy and not place.turn.cancelled():
                    places.remove(place)
                    del self._waiting[owner]
                    if places:
                        self._waiting[owner] = places  # behind the others
                    return place
        return None


class Workers:
    """A fixed number of named threads, owned by whoever makes it."""

    def __init__(self, name: str, *, n_threads: int) -> None:
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix=f"liveedge-{name}")
        self._turns = _Turns(n_threads)

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread. A cancelled caller leaves at once; started work ends by itself."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def run_in_turn(
        self, work: Callable[[], T], *, owner: str, part: str, max_waiting: int = MAX_WAITING
    ) -> T:
        """`run`, by turns: owners (keys) do not wait for each other's work, and a part of theirs (a
        stream) has one piece at work. Raises QueueFull when `max_waiting` of the part wait."""
        place = self._turns.join(owner, part, max_waiting)
        try:
            await place.turn
        except asyncio.CancelledError:
            self._turns.leave(place)
            raise
        running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        running.add_done_callback(_look_at_error)
        running.add_done_callback(lambda _done: self._turns.end(place))
        return await asyncio.shield(running)

    async def run_until(
        self,
        work: Callable[[], T],
        *,
        deadline_s: float,
        clock: Clock,
        what: str,
        on_end: Callable[[], None] = lambda: None,
    ) -> T:
        """`run`, or DeadlineExceeded, which says `what` was not done in time.

        `on_end` is called in the event loop once the thread is free, however late.
        """
        timers = TaskSet("deadline")
        timer = timers.start(clock.sleep(deadline_s - clock.monotonic_s()), name=what)
        loop = asyncio.get_running_loop()
        job = self._pool.submit(work)
        job.add_done_callback(lambda _: loop.call_soon_threadsafe(on_end))
        running = asyncio.wrap_future(job)
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

"""How long one question waits for another server: until its deadline, through a silence, and before
the first token until its evidence is too old.

Owns    one task that watches the time; it ends with the block.
Never   cancels anything but what is awaited inside `wait`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from liveedge.core.clock import Clock
from liveedge.core.errors import FrameStale, LiveEdgeError, UpstreamTimeout
from liveedge.core.tasks import TaskSet

T = TypeVar("T")

LEAST_S = 0.001  # what is left of a sum of floats is no time
FAIR_S = 10.0  # a shorter deadline than that says nothing about the provider


class Patience:
    """`async with Patience(...) as patience: await patience.wait(...)`."""

    def __init__(
        self,
        *,
        clock: Clock,
        provider: str,
        deadline_s: float,
        silence_s: float,
        fresh_until_s: float | None = None,
    ) -> None:
        self._clock = clock
        self._provider = provider
        self._deadline_s = deadline_s
        self._silence_s = silence_s
        self._fresh_until_s = fresh_until_s  # None once the first token is there
        self._silent_since_s = clock.monotonic_s()
        self._waiting: asyncio.Task[object] | None = None
        self._is_over = False
        self.was_silent = False  # ended by a silence that no provider should need
        self._tasks = TaskSet("patience")

    async def __aenter__(self) -> Patience:
        self._tasks.start(self._watch(), name=self._provider)
        return self

    async def __aexit__(self, kind: object, error: object, at: object) -> None:
        await self._tasks.close()

    def first_token(self) -> None:
        """The evidence was fresh enough. Raises FrameStale where it was not."""
        fresh_until_s, self._fresh_until_s = self._fresh_until_s, None
        if fresh_until_s is not None and self._clock.monotonic_s() > fresh_until_s:
            raise _stale()

    def left_s(self) -> float:
        """Until the deadline, or until the evidence is too old to begin an answer."""
        return self._end_s() - self._clock.monotonic_s()

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives. Raises UpstreamTimeout or FrameStale, and has cancelled it then."""
        if self.left_s() <= 0:
            work.close()
            raise self._error()
        task = asyncio.current_task()
        assert task is not None
        self._silent_since_s = self._clock.monotonic_s()
        self._waiting = task
        try:
            return await work
        except asyncio.CancelledError:
            # As `asyncio.timeout` does it: only our own cancellation becomes another error.
            if self._is_over and task.uncancel() == 0:
                raise self._error() from None
            raise
        finally:
            self._waiting = None

    def _end_s(self) -> float:
        if self._fresh_until_s is None:
            return self._deadline_s
        return min(self._deadline_s, self._fresh_until_s)

    async def _watch(self) -> None:
        while True:
            now_s = self._clock.monotonic_s()
            silent_s = now_s - self._silent_since_s if self._waiting is not None else 0.0
            left_s = min(self._end_s() - now_s, self._silence_s - silent_s)
            if left_s > 0:
                await self._clock.sleep(max(left_s, LEAST_S))
            elif self._waiting is None:  # its reader is elsewhere, and looks when it comes back
                await self._clock.sleep(self._silence_s)
            else:
                self._is_over = True
                self.was_silent = silent_s >= min(self._silence_s, FAIR_S)
                self._waiting.cancel()
                return

    def _error(self) -> LiveEdgeError:
        now_s = self._clock.monotonic_s()
        if self._fresh_until_s is not None and now_s >= self._fresh_until_s:
            return _stale()
        what = (
            "the deadline (timeout_ms) passed while it worked"
            if now_s >= self._deadline_s
            else f"nothing came from it for {self._silence_s:g} s (timeout of the provider)"
        )
        return UpstreamTimeout(
            f"the provider {self._provider} was too slow: {what}",
            upstream={"provider": self._provider, "status": None, "body": "", "rate_limits": {}},
        )


def _stale() -> FrameStale:
    return FrameStale(
        "the newest frame used became older than max_age_ms before the first token;"
        " ask again, or raise max_age_ms"
    )

"""Whether a provider can be reached, and which models it has: asked for at most every few seconds,
and only while somebody wants to know.

Owns    at most one request at a time, in a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from liveedge.core.clock import Clock
from liveedge.core.errors import LiveEdgeError
from liveedge.core.tasks import TaskSet

FRESH_S = 10.0  # how long an answer holds
PATIENCE_S = 1.0  # whoever asks waits no longer; what was known before is told then


class ListedModel(Protocol):
    """A model as its provider lists it."""

    @property
    def id(self) -> str: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def max_model_len(self) -> int | None: ...


class Availability:
    """What is known of one provider."""

    def __init__(
        self,
        fetch: Callable[[], Coroutine[Any, Any, tuple[ListedModel, ...]]],
        *,
        clock: Clock,
    ) -> None:
        self.is_up = False
        self.listed: dict[str, ListedModel] = {}
        self._fetch = fetch
        self._clock = clock
        self._asked_s: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._tasks = TaskSet("availability")

    async def refresh(self) -> None:
        """Ask again if that was long ago, and wait a moment for the answer."""
        now_s = self._clock.monotonic_s()
        is_fresh = self._asked_s is not None and now_s - self._asked_s < FRESH_S
        if self._asking is None or self._asking.done():
            if is_fresh:
                return
            self._asked_s = now_s
            self._asking = self._tasks.start(self._ask(), name="list")
        timers = TaskSet("availability")
        timer = timers.start(self._clock.sleep(PATIENCE_S), name="patience")
        try:
            await asyncio.wait((self._asking, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await timers.close()

    async def close(self) -> None:
        await self._tasks.close()

    async def _ask(self) -> None:
        try:
            listed = await self._fetch()
        except LiveEdgeError:
            self.is_up = False
        else:
            self.is_up = True
            self.listed = {one.id: one for one in listed}

"""Ends the work of a client that has left, in whatever phase it is.

The watcher is the only reader of `receive` while it runs, so the body must have been read before.
"""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from liveedge.core.tasks import TaskSet


class DisconnectGuard:
    """`async with DisconnectGuard(receive):` is left with ClientDisconnect when the client leaves."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._tasks = TaskSet("http")
        self._work: asyncio.Task[object] | None = None
        self._has_left = False
        self._is_over = False

    async def __aenter__(self) -> DisconnectGuard:
        self._work = asyncio.current_task()
        self._tasks.start(self._watch(), name="disconnect")
        return self

    def release(self) -> None:
        """The answer is complete but for its last bytes: whoever leaves now has got everything.

        Servers report the end of an answer as a disconnect too.
        """
        self._is_over = True

    async def __aexit__(self, kind: type[BaseException] | None, error: object, at: object) -> None:
        self._is_over = True
        try:
            await self._tasks.close()
        except asyncio.CancelledError:
            # Ours, asked for in the moment in which the work ended by itself; or the server's.
            if not self._has_left:
                raise
        # As `asyncio.timeout` does it: only our own cancellation becomes another error.
        if self._has_left and self._work is not None:
            nobody_else_cancelled = self._work.uncancel() == 0
            if nobody_else_cancelled and kind is asyncio.CancelledError:
                raise ClientDisconnect

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_over and self._work is not None:
            self._has_left = True
            self._work.cancel()

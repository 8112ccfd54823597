"""Owned concurrency: every task and thread has an owner that ends it and reports its crash."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from liveedge.core.log import detached

log = logging.getLogger("liveedge.tasks")


class TaskSet:
    """Asyncio tasks of one owner: named, counted, cancelled and awaited together."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()
        self.crashed = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run `work` until it ends or the set closes."""
        task = asyncio.create_task(work, name=f"{self._owner}:{name}", context=detached())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.crashed += 1
            log.error("task %s crashed", task.get_name(), exc_info=error)

    async def wait(self) -> None:
        """Wait until everything has ended by itself."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cancel(self) -> None:
        """Ask everything to end, the caller's own task included: what it awaits next ends it."""
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel everything and wait until it is over."""
        tasks = list(self._tasks)
        self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class OwnedThread:
    """A named daemon thread with a stop event, whose crash is logged and kept in `error`."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self.stopping)
        except BaseException as error:  # the outermost frame: nobody else can report it
            self.error = error
            log.exception("thread %s crashed", self.name)

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Ask the work to stop and wait; True if it ended in time."""
        self.stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

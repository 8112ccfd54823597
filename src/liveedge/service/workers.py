"""Threads for work that would block the event loop: decoding pictures, ending cameras.

The executor's own queue has no bound; its users have: a request waits for its one piece of work,
and the number of requests in progress is limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Workers:
    """A fixed number of named threads, owned by whoever makes it."""

    def __init__(self, name: str, *, n_threads: int) -> None:
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix=f"liveedge-{name}")

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread. A cancelled caller leaves at once; started work ends by itself."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Drop what has not started and wait for the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)

"""Pixels to patches on the engine's side, so that the engine thread never waits for either.

Threads  `submit` and `drop` are called by the engine thread, `take` by the link's; the work is done
         by `liveedge-load-N`.
Bound    the scheduler never has more than `Limits.max_loading` groups here.
Invariants
1. Every job that was not dropped in time ends with one `Loaded`.
2. Every pixels that came are answered with one `Freed`, after they were read or where nobody waits
   for them any more.
Never    calls out while it holds its lock: the other half may call back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import InternalError, LiveEdgeError
from liveedge.core.tasks import OwnedThread
from liveedge.engine.decide.plan import LoadJob
from liveedge.engine.process.messages import (
    DropFetch,
    Fetch,
    Fetched,
    Freed,
    Loaded,
    Pixels,
    SharedPixels,
)
from liveedge.engine.process.shared import views

log = logging.getLogger("liveedge.engine")


class Preprocess(Protocol):
    """Pixels of a temporal group to what the encoder reads. Keeps no reference to the pixels."""

    def __call__(self, frames: Sequence[NDArray[np.uint8]], *, size: tuple[int, int]) -> object: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Arrived:
    """Pixels that wait for a worker."""

    ticket: int
    job: LoadJob
    pixels: Pixels


class Intake:
    """See `loop.Workers`. `memory` is what ranges refer to; None where arrays are passed."""

    def __init__(
        self,
        *,
        preprocess: Preprocess,
        n_threads: int,
        send: Callable[[Fetch | DropFetch | Freed], None],
        done: Callable[[Loaded], None],
        memory: NDArray[np.uint8] | None = None,
        first_ticket: int = 1,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """`begin` is called by each worker before its first group."""
        self._preprocess = preprocess
        self._send = send
        self._done = done
        self._memory = memory
        self._next_ticket = first_ticket
        self._begin = begin
        self._lock = threading.Condition()  # over the three below
        self._asked: dict[int, LoadJob] = {}
        self._tickets: dict[LoadJob, int] = {}  # the same, the other way round
        self._arrived: deque[_Arrived] = deque()
        self._threads = [OwnedThread(f"liveedge-load-{n}", self._work) for n in range(n_threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, jobs: Iterable[LoadJob]) -> None:
        """Ask for the pixels of these groups."""
        fetches: list[Fetch] = []
        with self._lock:
            for job in jobs:
                ticket = self._next_ticket
                self._next_ticket += 1
                self._asked[ticket] = job
                self._tickets[job] = ticket
                fetches.append(Fetch(ticket, job.source_key, job.is_salted))
        for fetch in fetches:
            self._send(fetch)

    def drop(self, jobs: Sequence[LoadJob]) -> None:
        """Nobody waits for these: what no worker has begun is forgotten."""
        if not jobs:
            return
        with self._lock:
            tickets = [self._tickets.pop(job) for job in jobs if job in self._tickets]
            for ticket in tickets:
                del self._asked[ticket]
            unread = [item for item in self._arrived if item.job in jobs]
            self._arrived = deque(item for item in self._arrived if item.job not in jobs)
        if tickets:
            self._send(DropFetch(tuple(tickets)))
        for item in unread:
            self._send(Freed(item.ticket))

    def take(self, message: Fetched) -> None:
        """The answer to a fetch, which may have been dropped meanwhile."""
        ticket, outcome = message.ticket, message.outcome
        with self._lock:
            job = self._asked.pop(ticket, None)
            if job is not None:
                del self._tickets[job]
                if not isinstance(outcome, LiveEdgeError):
                    self._arrived.append(_Arrived(ticket, job, outcome))
                    self._lock.notify()
        if job is None and not isinstance(outcome, LiveEdgeError):
            self._send(Freed(ticket))
        elif job is not None and isinstance(outcome, LiveEdgeError):
            self._done(Loaded(job, outcome))

    def close(self) -> None:
        """Let every worker end after its present group."""
        with self._lock:
            self._arrived.clear()
            for thread in self._threads:
                thread.stopping.set()
            self._lock.notify_all()
        for thread in self._threads:
            thread.stop()

    def _work(self, stopping: threading.Event) -> None:
        self._begin()
        while (item := self._next(stopping)) is not None:
            outcome = self._try(item)
            # Freed first: who sees the end of a request sees its memory given back.
            self._send(Freed(item.ticket))
            self._done(Loaded(item.job, outcome))

    def _next(self, stopping: threading.Event) -> _Arrived | None:
        with self._lock:
            self._lock.wait_for(lambda: self._arrived or stopping.is_set())
            return None if stopping.is_set() else self._arrived.popleft()

    def _try(self, item: _Arrived) -> object | LiveEdgeError:
        group = item.job.group
        try:
            return self._preprocess(self._frames(item.pixels), size=(group.height, group.width))
        except LiveEdgeError as error:
            return error
        except Exception:  # a picture's trouble is told to its own request alone
            log.exception("a frame could not be preprocessed")
            return InternalError("a frame could not be preprocessed")

    def _frames(self, pixels: Pixels) -> Sequence[NDArray[np.uint8]]:
        if not isinstance(pixels, SharedPixels):
            return pixels
        assert self._memory is not None, "a range was sent to an engine without shared memory"
        return views(self._memory, pixels)

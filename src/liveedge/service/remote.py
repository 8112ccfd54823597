"""Remote media of questions: who may fetch how much at once.

A fetch holds its place until its thread has ended, also when the client has left: whoever leaves
and comes back gains nothing. Its bytes come out of the same memory as those of request bodies.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from liveedge.core.clock import Clock
from liveedge.core.errors import DeadlineExceeded, MediaInvalid, MediaTooLarge, QueueFull
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.remote import RemoteLimits, check_remote_url, fetch
from liveedge.service.limits import Budget
from liveedge.service.workers import Workers


class RemoteMedia:
    """Fetches, within bounds. `workers` has a thread for each of `max_at_once`."""

    def __init__(
        self,
        *,
        policy: PullPolicy,
        limits: RemoteLimits,
        max_of_question_bytes: int,
        max_at_once: int,
        held: Budget,
        workers: Workers,
        clock: Clock,
    ) -> None:
        self.at_once = Budget(max_at_once, what="fetches of remote media")
        self._policy = policy
        self._limits = limits
        self._max_of_question_bytes = max_of_question_bytes
        self._held = held
        self._workers = workers
        self._clock = clock
        self._of_owner: Counter[str] = Counter()

    def check(self, url: str, where: str) -> None:
        """Raise MediaInvalid for a URL that is not fetched, whatever its server would say."""
        check_remote_url(url, policy=self._policy, what=where)

    def give_back(self, n_bytes: int) -> None:
        self._held.give_back(n_bytes)

    async def fetch(self, url: str, *, where: str, of: Fetches) -> bytes:
        """The bytes, which stay counted. Raises MediaInvalid, MediaTooLarge, QueueFull or
        DeadlineExceeded."""
        left = self._max_of_question_bytes - of.n_bytes
        if left <= 0:
            raise MediaTooLarge(
                f"with {where} the remote media of this question have more than"
                f" {self._max_of_question_bytes} bytes (max_body_mb); send fewer or smaller ones"
            )
        limits = RemoteLimits(
            max_bytes=min(left, self._limits.max_bytes), whole_s=self._limits.whole_s
        )
        # All of it beforehand: the size is not known before it is there.
        with self._held.growing() as reserved:
            reserved.add(limits.max_bytes)
            data = await self._work(url, where=where, of=of, limits=limits)
        self._held.take(len(data))
        return data

    async def _work(self, url: str, *, where: str, of: Fetches, limits: RemoteLimits) -> bytes:
        stopping = threading.Event()
        work = partial(
            fetch,
            url,
            policy=self._policy,
            limits=limits,
            what=where,
            clock=self._clock,
            stopping=stopping,
        )
        until_s = min(of.deadline_s, self._clock.monotonic_s() + limits.whole_s)
        self._take_place(of.owner)
        try:
            return await self._workers.run_until(
                work,
                deadline_s=until_s,
                clock=self._clock,
                what="the fetching of remote media",
                on_end=partial(self._leave_place, of.owner),
            )
        except DeadlineExceeded as error:
            if until_s == of.deadline_s:
                raise
            raise MediaInvalid(
                f"{where} could not be fetched: it was not there within {limits.whole_s:g} s"
            ) from error
        finally:
            stopping.set()

    def _take_place(self, owner: str) -> None:
        most = max(1, self.at_once.capacity // 2)
        if self._of_owner[owner] >= most:
            self.at_once.refused += 1
            raise QueueFull(
                f"{most} fetches of remote media of one key run already; retry in a moment"
            )
        self.at_once.take(1)
        self._of_owner[owner] += 1

    def _leave_place(self, owner: str) -> None:
        self.at_once.give_back(1)
        self._of_owner[owner] -= 1
        if not self._of_owner[owner]:
            del self._of_owner[owner]


@contextmanager
def fetching(remote: RemoteMedia | None, owner: str, deadline_s: float) -> Iterator[Fetches]:
    """Fetch for one question, where that is allowed; the memory is held until the block ends."""
    fetches = Fetches(remote, owner, deadline_s)
    try:
        yield fetches
    finally:
        fetches.give_back()


class Fetches:
    """Those of one question, one after the other."""

    def __init__(self, remote: RemoteMedia | None, owner: str, deadline_s: float) -> None:
        self.owner = owner
        self.deadline_s = deadline_s
        self.n_bytes = 0
        self.data: dict[str, bytes] = {}  # by the part's place
        self._remote = remote

    async def fetch(self, url: str, *, where: str) -> None:
        """Raises MediaInvalid, MediaTooLarge, QueueFull or DeadlineExceeded."""
        assert self._remote is not None, "else the URL was refused before"
        data = await self._remote.fetch(url, where=where, of=self)
        self.n_bytes += len(data)
        self.data[where] = data

    def give_back(self) -> None:
        """The memory; again does nothing."""
        if self._remote is not None:
            self._remote.give_back(self.n_bytes)
        self.n_bytes = 0
        self.data.clear()

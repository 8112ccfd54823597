"""What may be in progress at once. At a bound a newcomer is refused and counted, never queued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from liveedge.core.errors import QueueFull


class Bounded(Protocol):
    """What has a bound and counts whom it refuses."""

    @property
    def used(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def refused(self) -> int: ...


class Holding:
    """A part of a budget that grows."""

    def __init__(self, budget: Budget) -> None:
        self.amount = 0
        self._budget = budget

    def add(self, amount: int) -> None:
        """Take more, or raise QueueFull."""
        self._budget.take(amount)
        self.amount += amount


class Budget:
    """So many units of one thing at once, whatever a unit is: requests, bytes."""

    def __init__(self, capacity: int, *, what: str) -> None:
        self.capacity = capacity
        self.used = 0
        self.refused = 0
        self._what = what

    @contextmanager
    def growing(self) -> Iterator[Holding]:
        """Hold what the block adds bit by bit, until its end."""
        holding = Holding(self)
        try:
            yield holding
        finally:
            self.give_back(holding.amount)

    @contextmanager
    def hold(self, amount: int = 1) -> Iterator[None]:
        """Hold `amount` units for the time of the block, or raise QueueFull."""
        self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)

    def take(self, amount: int) -> None:
        """Take units until `give_back`, or raise QueueFull."""
        if self.used + amount > self.capacity:
            self.refused += 1
            raise QueueFull(
                f"the server holds {self.used} of {self.capacity} {self._what} already;"
                " retry in a moment"
            )
        self.used += amount

    def give_back(self, amount: int) -> None:
        self.used -= amount


class Shares:
    """The same bound for each owner apart: what one of them takes is not missing for the others."""

    def __init__(self, capacity: int, *, what: str) -> None:
        self._capacity = capacity
        self._what = what
        self._budgets: dict[str, Budget] = {}  # of owners that hold something
        self._n_holders: Counter[str] = Counter()

    @contextmanager
    def growing(self, owner: str) -> Iterator[Holding]:
        """Hold what the block adds to the owner's part bit by bit, until its end."""
        budget = self._budgets.setdefault(owner, Budget(self._capacity, what=self._what))
        self._n_holders[owner] += 1
        try:
            with budget.growing() as holding:
                yield holding
        finally:
            self._n_holders[owner] -= 1
            if not self._n_holders[owner]:
                del self._n_holders[owner], self._budgets[owner]


def most_json_values(data: bytes) -> int:
    """How many values this JSON has at most, without parsing it: three bytes of it can become a
    hundred in memory, and a microsecond of the event loop. Marks inside texts count too."""
    return sum(map(data.count, (b",", b"[", b"{")))

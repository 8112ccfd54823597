"""What may be in progress at once. At a bound a newcomer is refused and counted, never queued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from liveedge.core.errors import QueueFull


class Budget:
    """So many units of one thing at once, whatever a unit is: requests, bytes."""

    def __init__(self, capacity: int, *, what: str) -> None:
        self.capacity = capacity
        self.used = 0
        self.refused = 0
        self._what = what

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

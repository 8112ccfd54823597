"""Bounded hand-over between threads: every queue of the project is one of these.

Each has a bound, a rule at the bound and a counter. All methods may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A bounded queue for requests: at the bound a new item is refused and counted."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"mailbox capacity is {capacity}, needs at least 1")
        self.capacity = capacity
        self.refused = 0
        self._items: deque[T] = deque()
        self._ready = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, item: T) -> bool:
        """Append and return True, or count a refusal and return False when full."""
        with self._ready:
            if len(self._items) >= self.capacity:
                self.refused += 1
                return False
            self._items.append(item)
            self._ready.notify()
            return True

    def drain(self) -> list[T]:
        """Everything waiting, oldest first; never blocks."""
        with self._ready:
            items = list(self._items)
            self._items.clear()
            return items

    def wait(self, timeout_s: float) -> bool:
        """Block until something waits (True) or the time is over (False); takes nothing."""
        with self._ready:
            return self._ready.wait_for(lambda: bool(self._items), timeout_s)


class DropOldest(Generic[T]):
    """A bounded queue for live data: at the bound the oldest makes room and is counted."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"queue capacity is {capacity}, needs at least 1")
        self.capacity = capacity
        self.dropped = 0
        self._items: deque[T] = deque()
        self._ready = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Never blocks."""
        with self._ready:
            if len(self._items) >= self.capacity:
                self._items.popleft()
                self.dropped += 1
            self._items.append(item)
            self._ready.notify()

    def take(self, timeout_s: float) -> T | None:
        """The oldest item, or None when nothing came in time."""
        with self._ready:
            if not self._ready.wait_for(lambda: bool(self._items), timeout_s):
                return None
            return self._items.popleft()

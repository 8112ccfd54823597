"""The newest events of one watch, encoded, with increasing ids: what a listener resumes from.

Pure. Listeners have no queues of their own: each reads on from the id it has. At the bound the oldest
event goes and is counted, and whoever had not read it yet is told how many it missed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Logged:
    """One event as it is sent."""

    id: int  # from 1, never reused
    kind: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Resumed:
    """What comes after an id, and what came after it and is not kept any more."""

    missed: int
    events: tuple[Logged, ...]


class WatchLog:
    """Bounded in events and in bytes. The newest event is kept whatever its size."""

    def __init__(self, *, max_events: int, max_bytes: int) -> None:
        if max_events < 1:
            raise ValueError(f"max_events is {max_events}, needs at least 1")
        self.dropped = 0
        self.n_bytes = 0
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[Logged] = deque()
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def last_id(self) -> int:
        """Of the newest event; 0 before the first."""
        return self._last_id

    @property
    def first_id(self) -> int:
        """Of the oldest event that is kept, or that will come next."""
        return self._last_id - len(self._events) + 1

    def append(self, kind: str, data: bytes) -> Logged:
        """Keep one more."""
        self._last_id += 1
        event = Logged(self._last_id, kind, data)
        self._events.append(event)
        self.n_bytes += len(data)
        while len(self._events) > 1 and self._is_too_much():
            self.n_bytes -= len(self._events.popleft().data)
            self.dropped += 1
        return event

    def after(self, last_id: int, *, at_most: int | None = None) -> Resumed:
        """The events behind `last_id` (0: all), oldest first."""
        n_missed = max(0, self.first_id - 1 - last_id)
        skip = max(0, last_id - self.first_id + 1)
        stop = len(self._events) if at_most is None else min(len(self._events), skip + at_most)
        return Resumed(n_missed, tuple(self._events[i] for i in range(skip, stop)))

    def _is_too_much(self) -> bool:
        return len(self._events) > self._max_events or self.n_bytes > self._max_bytes

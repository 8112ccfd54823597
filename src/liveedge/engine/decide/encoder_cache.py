"""Which temporal group's features lie in which rows of the feature memory.

Bookkeeping only, torch-free; the rows are the runner's. The memory is a fixed number of rows, one
per visual token, so any group fits into any free rows and nothing fragments. Least recently used
groups make room, unless a request holds them.

Groups of warm windows are *kept*: they make room only after all others, the least recently used
first. So a window that is always used never encodes a group twice, and yet no request waits for
memory because of a window.

Invariants
1. Every row belongs to exactly one group or is free.
2. A group that a request holds is never evicted.
3. A request gets all its groups or none (`hold`), so two requests cannot wait for each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class _Entry:
    rows: NDArray[np.int64]
    holders: int = 0
    ready: bool = False  # the features are in the rows


class EncoderCache:
    """Rows by content key, least recently used first out. Used by the engine thread only."""

    def __init__(self, *, n_rows: int) -> None:
        if n_rows < 1:
            raise ValueError(f"feature memory of {n_rows} rows: needs at least 1")
        self.n_rows = n_rows
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # oldest use first
        self._free = np.arange(n_rows, dtype=np.int64)[::-1].copy()
        self._n_free = n_rows
        self._kept: dict[str, frozenset[str]] = {}  # by window
        self.held_rows = 0  # of groups that a request holds

    @property
    def used_rows(self) -> int:
        return self.n_rows - self._n_free

    def __contains__(self, key: str) -> bool:
        """The group has rows, ready or not."""
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        """Groups that have rows, the one used longest ago first."""
        return iter(tuple(self._entries))

    def is_ready(self, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.ready

    def rows(self, key: str) -> NDArray[np.int64]:
        """The rows of a group that somebody holds."""
        return self._entries[key].rows

    def hold(self, sizes: Mapping[str, int]) -> bool:
        """Hold every group (key: number of tokens), or change nothing and return False.

        Groups that are not here get rows that are not ready yet.
        """
        missing = {key: n for key, n in sizes.items() if key not in self._entries}
        if not self._make_room(sum(missing.values()), keep=sizes):
            return False
        for key, n in missing.items():
            self._n_free -= n
            rows = self._free[self._n_free : self._n_free + n][::-1].copy()
            self._entries[key] = _Entry(rows)
        for key in sizes:
            entry = self._entries[key]
            self.held_rows += 0 if entry.holders else len(entry.rows)
            entry.holders += 1
            self._entries.move_to_end(key)
        return True

    def _make_room(self, n: int, *, keep: Mapping[str, int]) -> bool:
        victims: list[str] = []
        room = self._n_free
        for key in self._idle() if room < n else ():
            if room >= n:
                break
            if key not in keep:
                victims.append(key)
                room += len(self._entries[key].rows)
        if room < n:
            return False
        for key in victims:
            self._drop(key)
        return True

    def _idle(self) -> list[str]:
        """Groups that nobody holds, in the order in which they make room."""
        idle = [key for key, entry in self._entries.items() if entry.holders == 0]
        kept = frozenset[str]().union(*self._kept.values())
        return sorted(idle, key=kept.__contains__)

    def keep(self, window_id: str, keys: Iterable[str]) -> None:
        """What a window shows now, in place of what it showed before."""
        self._kept[window_id] = frozenset(keys)

    def keep_no_more(self, window_id: str) -> None:
        """The window is gone. Unknown ids are ignored."""
        self._kept.pop(window_id, None)

    def forget(self, key: str) -> None:
        """Nobody will ask for this group again: it leaves if nobody holds it."""
        entry = self._entries.get(key)
        if entry is not None and entry.holders == 0:
            self._drop(key)

    def mark_ready(self, key: str) -> None:
        self._entries[key].ready = True

    def release(self, key: str) -> None:
        """One holder less. Ready features stay for reuse; unfinished ones leave with the last."""
        entry = self._entries[key]
        if entry.holders < 1:
            raise ValueError(f"group {key} is released more often than held")
        entry.holders -= 1
        self.held_rows -= 0 if entry.holders else len(entry.rows)
        if entry.holders == 0 and not entry.ready:
            self._drop(key)

    def _drop(self, key: str) -> None:
        rows = self._entries.pop(key).rows
        self._free[self._n_free : self._n_free + len(rows)] = rows[::-1]
        self._n_free += len(rows)

"""KV slots: which sequence owns which slot, and what every slot's memory holds.

Bookkeeping only, torch-free; the tensors are the runner's. A slot is a contiguous piece of KV
memory for one sequence of up to `max_len` tokens. A slot that its sequence left keeps its content
(it is *resident*) until another sequence takes it.

The first `n_slots` belong to answers. Behind them lie one slot for every warm window and a spare:
background work fills the spare, and `adopt` makes it the window's, whose old slot is the next spare.

Invariants
1. A slot has at most one owner.
2. `content(slot)` describes exactly the tokens whose keys and values are valid in the slot: it
   grows only by `append` after the runner wrote them, and shrinks at once when they may be lost.
3. A match for an answer never covers its whole prompt: the last token is always computed again.
4. The slot of a window is never written: it changes only by `adopt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from liveedge.engine.decide.prefix import common_prefix


@dataclass(frozen=True, slots=True)
class Match:
    """`n_tokens` leading tokens are valid in `slot`."""

    slot: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy keys and values of the first `n_tokens` tokens from one slot to another."""

    source: int
    target: int
    n_tokens: int


def total_slots(*, n_slots: int, n_windows: int) -> int:
    """Slots in memory for so many answers and windows: one more is the spare."""
    return n_slots + n_windows + 1


class SlotTable:
    """Owners and contents of all slots. Used by the engine thread only."""

    def __init__(self, *, n_slots: int, max_len: int, n_windows: int = 0) -> None:
        if n_slots < 1 or n_windows < 0 or max_len < 2:
            raise ValueError(
                f"{n_slots} slots and {n_windows} windows of {max_len} tokens: needs at least 1 "
                "slot of 2"
            )
        total = total_slots(n_slots=n_slots, n_windows=n_windows)
        self.n_slots = n_slots  # of answers
        self.n_windows = n_windows  # that may be warm at once
        self.max_len = max_len
        self.spare = total - 1
        self._windows: dict[str, int] = {}
        self._vacant = list(range(n_slots, total - 1))  # windows' slots without a window
        self._identity = np.zeros((total, max_len), dtype=np.int64)
        self._length = [0] * total
        self._owner: list[str | None] = [None] * total
        self._last_used = [0] * total
        self._tick = 0

    @property
    def n_total(self) -> int:
        return len(self._owner)

    @property
    def n_used(self) -> int:
        """Slots of answers that have an owner."""
        return self.n_slots - self.n_free

    @property
    def n_free(self) -> int:
        return self._owner[: self.n_slots].count(None)

    @property
    def resident_tokens(self) -> int:
        return sum(self._length)

    def owner(self, slot: int) -> str | None:
        return self._owner[slot]

    def content(self, slot: int) -> NDArray[np.int64]:
        """Identities of the tokens valid in the slot; a view, read it before the next change."""
        return self._identity[slot, : self._length[slot]]

    def match(self, identity: NDArray[np.int64], *, whole: bool = False) -> Match:
        """The longest resident prefix of a prompt; the newest slot of equals; 0 tokens is none.

        `whole`: nothing is sampled behind it, so that it may be covered to its end.
        """
        usable = identity if whole else identity[:-1]
        best = Match(0, 0)
        for slot in sorted(range(self.n_total), key=self._last_used.__getitem__, reverse=True):
            n = best.n_tokens  # a longer match has the next token too: most slots are out at once
            if n < min(self._length[slot], len(usable)) and self._identity[slot, n] == usable[n]:
                n_tokens = common_prefix(self.content(slot), usable)
                if n_tokens > n:
                    best = Match(slot, n_tokens)
        return best

    # answers

    def acquire(self, owner: str, identity: NDArray[np.int64]) -> tuple[int, Copy | None]:
        """A free slot for a prompt, holding its longest resident prefix after the returned copy.

        Taken in place where the match is free and loses no more than it keeps; else the prefix is
        copied into the free slot that was used longest ago. Needs `n_free > 0`.
        """
        best = self.match(identity)
        slot = self._choose(best)
        if common_prefix(self.content(slot), identity[:-1]) == best.n_tokens:
            best = Match(slot, best.n_tokens)  # what is overwritten holds as much itself: no copy
        self._owner[slot] = owner
        return slot, self._hold(slot, best)

    def _choose(self, best: Match) -> int:
        free = [slot for slot in range(self.n_slots) if self._owner[slot] is None]
        if not free:
            raise ValueError("no free slot: check n_free before acquire")
        in_place = best.n_tokens > 0 and best.slot in free
        if in_place and 2 * best.n_tokens >= self._length[best.slot]:
            return best.slot
        others = [slot for slot in free if not (in_place and slot == best.slot)]
        return min(others or free, key=self._age_key)

    def _age_key(self, slot: int) -> tuple[bool, int]:
        return (self._length[slot] > 0, self._last_used[slot])  # empty slots first

    def _hold(self, slot: int, best: Match) -> Copy | None:
        """Let the slot hold what was matched; the copy that brings it there, if it is elsewhere."""
        copy = None
        if slot != best.slot:
            source = self._identity[best.slot, : best.n_tokens]
            self._identity[slot, : best.n_tokens] = source
            copy = Copy(best.slot, slot, best.n_tokens) if best.n_tokens else None
        self._length[slot] = best.n_tokens
        if best.n_tokens:
            self._touch(best.slot)
        self._touch(slot)
        return copy

    def improve(self, slot: int, identity: NDArray[np.int64], *, by_at_least: int) -> Copy | None:
        """Take over a longer resident prefix that appeared since the slot was given, if there is
        one."""
        best = self.match(identity, whole=slot == self.spare)
        if best.slot == slot or best.n_tokens < self._length[slot] + by_at_least:
            return None
        return self._hold(slot, best)

    # the spare, and windows

    def fill_spare(self, owner: str, identity: NDArray[np.int64]) -> Copy | None:
        """Give the spare to background work, holding the longest resident prefix of the whole prompt
        after the returned copy. It must be free: `owner(spare)`."""
        if self._owner[self.spare] is not None:
            raise ValueError(f"the spare slot belongs to {self._owner[self.spare]}")
        self._owner[self.spare] = owner
        best = self.match(identity, whole=True)
        if common_prefix(self.content(self.spare), identity) == best.n_tokens:
            best = Match(self.spare, best.n_tokens)
        return self._hold(self.spare, best)

    @property
    def windows(self) -> Mapping[str, int]:
        """The slot of every warm window."""
        return MappingProxyType(self._windows)

    def covers(self, window_id: str, identity: NDArray[np.int64]) -> bool:
        """The window holds this prefix already."""
        slot = self._windows.get(window_id)
        return slot is not None and common_prefix(self.content(slot), identity) == len(identity)

    def adopt(self, window_id: str) -> None:
        """The spare is complete: it becomes the window's slot, and the window's slot the spare."""
        old = self._windows.get(window_id)
        if old is None:
            if not self._vacant:
                raise ValueError(f"{self.n_windows} windows are warm: drop one before {window_id}")
            old = self._vacant.pop()
        self._owner[self.spare] = None
        self._windows[window_id] = self.spare
        self._touch(self.spare)
        self.spare = old

    def drop_window(self, window_id: str) -> None:
        """Its content stays resident until the slot is needed. Unknown ids are ignored."""
        slot = self._windows.pop(window_id, None)
        if slot is not None:
            self._vacant.append(slot)

    # contents

    def append(self, slot: int, identity: NDArray[np.int64]) -> None:
        """Record tokens whose keys and values the runner has written behind the content."""
        start = self._length[slot]
        stop = start + len(identity)
        if stop > self.max_len:
            raise ValueError(f"slot {slot} holds {self.max_len} tokens, not {stop}")
        self._identity[slot, start:stop] = identity
        self._length[slot] = stop
        self._touch(slot)

    def _touch(self, slot: int) -> None:
        self._tick += 1
        self._last_used[slot] = self._tick

    def release(self, slot: int) -> None:
        """The owner is done; the content stays resident."""
        self._owner[slot] = None

    def invalidate(self, slot: int) -> None:
        """The memory may hold anything now: nothing of it is ever reused."""
        self._length[slot] = 0

"""KV slots: which sequence owns which slot, and what every slot's memory holds.

Bookkeeping only, torch-free; the tensors are the runner's. A slot is a contiguous piece of KV
memory for one sequence of up to `max_len` tokens. A slot that its sequence left keeps its content
(it is *resident*) until another sequence takes it.

Invariants
1. A slot has at most one owner.
2. `content(slot)` describes exactly the tokens whose keys and values are valid in the slot: it
   grows only by `append` after the runner wrote them, and shrinks at once when they may be lost.
3. A match never covers the whole prompt: the last token is always computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liveedge.engine.prefix import common_prefix


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


class SlotTable:
    """Owners and contents of all slots. Used by the engine thread only."""

    def __init__(self, *, n_slots: int, max_len: int) -> None:
        if n_slots < 1 or max_len < 2:
            raise ValueError(f"{n_slots} slots of {max_len} tokens: needs at least 1 of 2")
        self.n_slots = n_slots
        self.max_len = max_len
        self._identity = np.zeros((n_slots, max_len), dtype=np.int64)
        self._length = [0] * n_slots
        self._owner: list[str | None] = [None] * n_slots
        self._last_used = [0] * n_slots
        self._tick = 0

    @property
    def n_used(self) -> int:
        return sum(owner is not None for owner in self._owner)

    @property
    def n_free(self) -> int:
        return self.n_slots - self.n_used

    @property
    def resident_tokens(self) -> int:
        return sum(self._length)

    def owner(self, slot: int) -> str | None:
        return self._owner[slot]

    def content(self, slot: int) -> NDArray[np.int64]:
        """Identities of the tokens valid in the slot; a view, read it before the next change."""
        return self._identity[slot, : self._length[slot]]

    def match(self, identity: NDArray[np.int64]) -> Match:
        """The longest resident prefix of a prompt; the newest slot of equals; 0 tokens is none."""
        usable = identity[:-1]
        best = Match(0, 0)
        for slot in sorted(range(self.n_slots), key=self._last_used.__getitem__, reverse=True):
            n_tokens = common_prefix(self.content(slot), usable)
            if n_tokens > best.n_tokens:
                best = Match(slot, n_tokens)
        return best

    def acquire(self, owner: str, identity: NDArray[np.int64]) -> tuple[int, Copy | None]:
        """A free slot for a prompt, holding its longest resident prefix after the returned copy.

        Taken in place where the match is free and loses no more than it keeps; else the prefix is
        copied into the free slot that was used longest ago. Needs `n_free > 0`.
        """
        best = self.match(identity)
        slot = self._choose(best)
        copy = None
        if best.n_tokens and slot != best.slot:
            copy = Copy(best.slot, slot, best.n_tokens)
        self._take(slot, owner, best)
        return slot, copy

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

    def _take(self, slot: int, owner: str, best: Match) -> None:
        self._owner[slot] = owner
        self._hold(slot, best)

    def _hold(self, slot: int, best: Match) -> None:
        if slot != best.slot:
            source = self._identity[best.slot, : best.n_tokens]
            self._identity[slot, : best.n_tokens] = source
        self._length[slot] = best.n_tokens
        if best.n_tokens:
            self._touch(best.slot)
        self._touch(slot)

    def improve(self, slot: int, identity: NDArray[np.int64], *, by_at_least: int) -> Copy | None:
        """Take over a longer resident prefix that appeared since `acquire`, if there is one."""
        best = self.match(identity)
        if best.slot == slot or best.n_tokens < self._length[slot] + by_at_least:
            return None
        self._hold(slot, best)
        return Copy(best.slot, slot, best.n_tokens)

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

"""Whose work the next slice does. Pure; decided with integers.

Interactive requests before batch requests before background work, except that whoever waits is
never left out: of four slices one is for batch requests that can go on, of eight one for background
work that can. Slots go to tenants by turns.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Final


class Rank(IntEnum):
    """Classes of work, the most urgent first."""

    INTERACTIVE = 0
    BATCH = 1
    WARM = 2


# At least one slice in so many, where the class has something to do.
GUARANTEED: Final = {Rank.WARM: 8, Rank.BATCH: 4}
MAX_TENANTS: Final = 1024  # whose turns are remembered


class Turns:
    """Counts for how many slices each class has been passed over."""

    def __init__(self) -> None:
        self._passed_over = dict.fromkeys(GUARANTEED, 0)

    def due(self) -> tuple[Rank, ...]:
        """Classes that were passed over as often as they may be."""
        return tuple(r for r, one_in in GUARANTEED.items() if self._passed_over[r] >= one_in - 1)

    def order(self) -> tuple[Rank, ...]:
        """Classes in the order in which they are offered the next slice."""
        due = self.due()
        return (*due, *(rank for rank in Rank if rank not in due))

    def took(self, taken: Rank, *, waiting: Collection[Rank]) -> None:
        """A slice was given to one class while others waited too."""
        for rank in self._passed_over:
            passed = rank != taken and rank in waiting
            self._passed_over[rank] = self._passed_over[rank] + 1 if passed else 0


class TenantTurns:
    """Which tenant gets the next slot: one that holds the fewest, and of these the one whose last turn
    is longest ago. So nobody is left out, whoever comes and however often."""

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}  # the last of each tenant, the oldest first
        self._n_turns = 0

    def place(self, tenant: int, *, n_held: int) -> tuple[int, int]:
        """The least of these is next."""
        return n_held, self._turns.get(tenant, 0)

    def took(self, tenant: int) -> None:
        """A slot was given."""
        self._n_turns += 1
        self._turns.pop(tenant, None)
        self._turns[tenant] = self._n_turns
        if len(self._turns) > MAX_TENANTS:  # the oldest is first among those that are not known
            del self._turns[next(iter(self._turns))]

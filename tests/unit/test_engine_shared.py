"""Ranges of the shared memory: whatever the order of calls, none overlap and none are lost."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from liveedge.core.errors import MediaTooLarge
from liveedge.engine.process.messages import Range
from liveedge.engine.process.shared import ALIGNMENT, Ranges

CAPACITY = 1000


class RangesMachine(RuleBasedStateMachine):
    """Against a list of who asked for what, in order."""

    owners = Bundle("owners")

    def __init__(self) -> None:
        super().__init__()
        self.ranges = Ranges(CAPACITY)
        self.asked: dict[int, int] = {}  # alive, in the order of asking
        self.n_owners = 0

    @rule(target=owners, n_bytes=st.integers(1, CAPACITY))
    def ask(self, n_bytes: int) -> int:
        self.n_owners += 1
        self.asked[self.n_owners] = n_bytes
        self.ranges.ask(self.n_owners, n_bytes)
        return self.n_owners

    @rule(owner=consumes(owners))
    def give_back(self, owner: int) -> None:
        del self.asked[owner]
        self.ranges.give_back(owner)

    @rule()
    def give_back_what_nobody_has(self) -> None:
        self.ranges.give_back("nobody")

    @invariant()
    def ranges_lie_apart_within_the_memory(self) -> None:
        stop = 0
        for place in sorted(self.held().values(), key=lambda place: place.start):
            assert place.start >= stop
            assert place.start % ALIGNMENT == 0
            stop = place.start + place.n_bytes
        assert stop <= CAPACITY

    @invariant()
    def everybody_holds_what_they_asked_or_waits(self) -> None:
        held = self.held()
        assert {o: place.n_bytes for o, place in held.items()} == {
            o: n for o, n in self.asked.items() if o in held
        }
        assert self.ranges.n_waiting == len(self.asked) - len(held)
        assert self.ranges.used_bytes == sum(place.n_bytes for place in held.values())

    @invariant()
    def nobody_waits_while_all_is_free(self) -> None:
        assert self.held() or not self.asked

    @invariant()
    def nobody_is_overtaken(self) -> None:
        held = self.held()
        waiting = [owner for owner in self.asked if owner not in held]
        if waiting:  # owners are numbered in the order of asking
            assert self.gap() < self.asked[waiting[0]]

    def held(self) -> dict[int, Range]:
        found = {owner: self.ranges.held(owner) for owner in self.asked}
        return {owner: place for owner, place in found.items() if place is not None}

    def gap(self) -> int:
        """The longest free run that a range may begin in."""
        longest, start = 0, 0
        for place in sorted(self.held().values(), key=lambda place: place.start):
            longest = max(longest, place.start - start)
            start = -(-(place.start + place.n_bytes) // ALIGNMENT) * ALIGNMENT
        return max(longest, CAPACITY - start)


TestRanges = RangesMachine.TestCase


def test_a_picture_larger_than_the_memory_is_refused_by_the_name_of_the_setting() -> None:
    with pytest.raises(MediaTooLarge, match=r"has 100: .* raise shared_frame_bytes"):
        Ranges(100).ask("a", 101)


def test_a_large_picture_is_not_overtaken_by_small_ones() -> None:
    ranges = Ranges(100)
    ranges.ask("first", 60)
    ranges.ask("large", 100)
    ranges.ask("small", 10)  # would fit beside the first
    assert ranges.held("small") is None
    ranges.give_back("first")
    assert ranges.held("large") == Range(0, 100)
    ranges.give_back("large")
    assert ranges.held("small") == Range(0, 10)


def test_the_first_place_that_fits_is_taken() -> None:
    ranges = Ranges(64 * 5)
    for owner in "abc":
        ranges.ask(owner, 64)
    ranges.give_back("b")
    ranges.ask("d", 100)
    ranges.ask("e", 64)
    assert ranges.held("d") == Range(192, 100)
    assert ranges.held("e") == Range(64, 64)


def test_who_gives_up_waiting_lets_the_next_one_in() -> None:
    ranges = Ranges(100)
    ranges.ask("first", 60)
    ranges.ask("large", 100)
    ranges.ask("small", 10)
    ranges.give_back("large")
    assert ranges.held("small") == Range(64, 10)
    assert not ranges.knows("large")

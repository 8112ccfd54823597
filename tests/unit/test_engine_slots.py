"""The slot table: owners, contents and reuse, in any order of calls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from liveedge.engine.decide.slots import Copy, SlotTable

N_SLOTS, N_WINDOWS, MAX_LEN = 3, 2, 10
PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=MAX_LEN)
WINDOW = st.sampled_from(["one", "two", "three"])


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class SlotMachine(RuleBasedStateMachine):
    """Compares the table with a memory that really is copied and written."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(n_slots=N_SLOTS, n_windows=N_WINDOWS, max_len=MAX_LEN)
        self.memory: list[list[int]] = [[] for _ in range(self.table.n_total)]
        self.prompts: dict[int, list[int]] = {}  # of answers
        self.background: list[int] | None = None  # what the spare is filled with
        self.shown: dict[str, list[int]] = {}  # what each window was given
        self.n_owners = 0

    @precondition(lambda self: self.table.n_free > 0)
    @rule(prompt=PROMPT)
    def acquire(self, prompt: list[int]) -> None:
        longest = max(self.shared(content, prompt[:-1]) for content in self.memory)
        self.n_owners += 1
        slot, copy = self.table.acquire(f"request-{self.n_owners}", ids(*prompt))
        assert slot not in self.prompts
        assert slot < N_SLOTS  # the slots behind are never an answer's
        self.prompts[slot] = prompt
        self.apply(slot, copy)
        assert len(self.table.content(slot)) == longest < len(prompt)

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), gain=st.integers(1, 3))
    def improve(self, data: st.DataObject, gain: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.prompts)))
        prompt = self.prompts[slot]
        if prompt[: len(self.table.content(slot))] != self.table.content(slot).tolist():
            return  # the owner went beyond its prompt
        before = len(self.table.content(slot))
        copy = self.table.improve(slot, ids(*prompt), by_at_least=gain)
        self.apply(slot, copy)
        assert copy is None or len(self.table.content(slot)) >= before + gain

    @staticmethod
    def shared(content: list[int], prompt: list[int]) -> int:
        n = 0
        while n < min(len(content), len(prompt)) and content[n] == prompt[n]:
            n += 1
        return n

    def apply(self, slot: int, copy: Copy | None) -> None:
        if copy is not None:
            assert copy.target == slot != copy.source
            self.memory[slot] = self.memory[copy.source][: copy.n_tokens]
        self.memory[slot] = self.memory[slot][: len(self.table.content(slot))]

    @precondition(lambda self: self.background is None)
    @rule(prompt=PROMPT)
    def fill_spare(self, prompt: list[int]) -> None:
        longest = max(self.shared(content, prompt) for content in self.memory)
        copy = self.table.fill_spare("background", ids(*prompt))
        self.background = prompt
        self.apply(self.table.spare, copy)
        assert len(self.table.content(self.table.spare)) == longest  # to its end, if it is there

    @precondition(lambda self: self.background is not None)
    @rule(window=WINDOW)
    def complete(self, window: str) -> None:
        assert self.background is not None
        spare = self.table.spare
        rest = self.background[len(self.memory[spare]) :]
        if rest:
            self.table.append(spare, ids(*rest))
            self.memory[spare] += rest
        if window not in self.shown and len(self.shown) == N_WINDOWS:
            with pytest.raises(ValueError, match="2 windows are warm"):
                self.table.adopt(window)
            return
        self.table.adopt(window)
        self.shown[window] = self.background
        self.background = None
        assert self.table.windows[window] == spare != self.table.spare
        assert self.table.covers(window, ids(*self.shown[window]))

    @precondition(lambda self: self.background is not None)
    @rule()
    def give_up(self) -> None:
        self.table.release(self.table.spare)
        self.background = None

    @rule(window=WINDOW)
    def drop_window(self, window: str) -> None:
        self.table.drop_window(window)
        self.shown.pop(window, None)

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        slot = data.draw(st.sampled_from(sorted(self.prompts)))
        if len(self.memory[slot]) + len(tokens) <= MAX_LEN:
            self.table.append(slot, ids(*tokens))
            self.memory[slot] += tokens

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), lost=st.booleans())
    def release(self, data: st.DataObject, lost: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.prompts)))
        del self.prompts[slot]
        if lost:
            self.table.invalidate(slot)
            self.memory[slot] = []
        self.table.release(slot)

    @invariant()
    def contents_are_what_the_memory_holds(self) -> None:
        slots = range(self.table.n_total)
        assert [self.table.content(slot).tolist() for slot in slots] == self.memory

    @invariant()
    def windows_show_what_they_were_given(self) -> None:
        assert set(self.table.windows) == set(self.shown)
        for window, slot in self.table.windows.items():
            assert self.memory[slot] == self.shown[window]

    @invariant()
    def no_slot_is_lost_or_has_two_roles(self) -> None:
        behind = [*self.table.windows.values(), self.table.spare]
        assert len(set(behind)) == len(behind)
        assert all(N_SLOTS <= slot < self.table.n_total for slot in behind)
        assert self.table.n_used == len(self.prompts)
        owned = {s for s in range(self.table.n_total) if self.table.owner(s)}
        assert owned == {*self.prompts, *([self.table.spare] if self.background else [])}


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_next_turn_continues_in_the_slot_of_the_turn_before() -> None:
    table = SlotTable(n_slots=2, max_len=20)
    slot, _ = table.acquire("first", ids(1, 2, 3))
    table.append(slot, ids(1, 2, 3, 4))
    table.release(slot)
    again, copy = table.acquire("second", ids(1, 2, 3, 4, 5, 6))
    assert (again, copy, len(table.content(again))) == (slot, None, 4)


def test_a_short_prefix_of_a_long_resident_is_copied_and_the_resident_stays() -> None:
    table = SlotTable(n_slots=2, max_len=20)
    slot, _ = table.acquire("long", ids(*range(12)))
    table.append(slot, ids(*range(12)))
    table.release(slot)
    other, copy = table.acquire("short", ids(0, 1, 2, 9, 9))
    assert copy == Copy(slot, other, 3)
    assert len(table.content(slot)) == 12


def test_a_prefix_of_a_running_request_can_be_copied() -> None:
    table = SlotTable(n_slots=2, max_len=20)
    slot, _ = table.acquire("running", ids(1, 2, 3, 4))
    table.append(slot, ids(1, 2, 3, 4))
    other, copy = table.acquire("next", ids(1, 2, 3, 9))
    assert copy == Copy(slot, other, 3)


def test_the_last_token_of_an_equal_prompt_is_always_computed() -> None:
    table = SlotTable(n_slots=1, max_len=20)
    slot, _ = table.acquire("first", ids(1, 2, 3))
    table.append(slot, ids(1, 2, 3))
    table.release(slot)
    again, _ = table.acquire("second", ids(1, 2, 3))
    assert len(table.content(again)) == 2


def test_writing_beyond_the_slot_is_refused() -> None:
    table = SlotTable(n_slots=1, max_len=4)
    slot, _ = table.acquire("request", ids(1))
    with pytest.raises(ValueError, match="slot 0 holds 4 tokens, not 5"):
        table.append(slot, ids(1, 2, 3, 4, 5))


def test_without_a_free_slot_nothing_is_acquired() -> None:
    table = SlotTable(n_slots=1, max_len=4)
    table.acquire("request", ids(1))
    with pytest.raises(ValueError, match="no free slot"):
        table.acquire("other", ids(1))

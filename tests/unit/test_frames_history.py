"""The arena: a ring of bytes that gives back what was put in, and never more than it holds."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from liveedge.frames.history import PREFAULT_STEP_BYTES, Arena


def put(arena: Arena, index: int, data: bytes) -> tuple[int, int]:
    while arena.offset_for(len(data)) is None:
        arena.pop_oldest()
    return arena.write(index, data), len(data)


@given(st.integers(1, 64), st.lists(st.integers(1, 70), max_size=80), st.data())
def test_what_was_written_and_not_popped_reads_back(capacity, sizes, data):
    arena = Arena(capacity)
    live: list[tuple[int, tuple[int, int], bytes]] = []
    for index, size in enumerate(sizes):
        if not arena.fits(size):
            assert size > capacity
            continue
        payload = bytes([index % 251 + 1]) * size
        place = put(arena, index, payload)
        live = [*live, (index, place, payload)][-len(arena) :]
        if live and data.draw(st.integers(0, 3)) == 0:
            assert arena.pop_oldest() == live.pop(0)[0]
        assert [arena.read(place) for _, place, _ in live] == [payload for _, _, payload in live]
        assert arena.used_bytes == sum(len(payload) for _, _, payload in live) <= capacity
        assert arena.oldest == (live[0][0] if live else None)


@given(st.integers(1, 100), st.integers(20, 100))
def test_equal_entries_waste_less_than_one_entry(size, n_entries):
    arena = Arena(size * n_entries + size - 1)
    for index in range(5 * n_entries):
        put(arena, index, bytes(size))
    assert len(arena) == n_entries


def test_an_entry_as_large_as_the_ring_fits_alone():
    arena = Arena(10)
    put(arena, 0, b"a" * 10)
    assert arena.read(put(arena, 1, b"b" * 10)) == b"b" * 10
    assert len(arena) == 1
    assert not arena.fits(11)


def test_touching_the_memory_takes_it_all_in_steps():
    step = PREFAULT_STEP_BYTES
    arena = Arena(2 * step + 5)
    touched = [arena.touched_bytes]
    while arena.prefault_step():
        touched.append(arena.touched_bytes)
    assert touched == [0, step, 2 * step]
    assert arena.touched_bytes == 2 * step + 5
    assert not arena.prefault_step()


def test_touching_the_memory_leaves_entries_alone():
    arena = Arena(3 * PREFAULT_STEP_BYTES)
    first = put(arena, 0, b"a" * 10)
    assert arena.prefault_step()
    second = put(arena, 1, b"b" * 2 * PREFAULT_STEP_BYTES)  # beyond what is touched
    while arena.prefault_step():
        pass
    assert arena.touched_bytes == arena.capacity_bytes
    assert arena.read(first) == b"a" * 10
    assert arena.read(second) == b"b" * 2 * PREFAULT_STEP_BYTES


def test_untouched_memory_counts_as_it_fills():
    arena = Arena(100)
    for index, expected in enumerate([40, 80, 80, 80]):
        put(arena, index, bytes(40))
        assert arena.touched_bytes == expected


def test_a_closed_arena_holds_nothing():
    arena = Arena(100)
    put(arena, 0, b"x")
    arena.close()
    arena.close()
    assert (len(arena), arena.used_bytes, arena.touched_bytes) == (0, 0, 0)
    assert not arena.prefault_step()


def test_a_negative_capacity_is_refused():
    with pytest.raises(ValueError, match="-1 bytes"):
        Arena(-1)

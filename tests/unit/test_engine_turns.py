"""Whose work the next slice does."""

from __future__ import annotations

from hypothesis import given, strategies as st

from liveedge.engine.decide.turns import GUARANTEED, Rank, Turns

RANKS = st.sets(st.sampled_from(list(Rank)), min_size=1)


def next_slice(turns: Turns, able: set[Rank]) -> Rank:
    taken = next(rank for rank in turns.order() if rank in able)
    turns.took(taken, waiting=able)
    return taken


def test_interactive_requests_come_first_and_background_work_last():
    assert Turns().order() == (Rank.INTERACTIVE, Rank.BATCH, Rank.WARM)


def test_of_eight_slices_one_is_for_windows_and_of_four_one_for_batch_requests():
    turns = Turns()
    taken = [next_slice(turns, set(Rank)) for _ in range(800)]
    assert taken.count(Rank.WARM) == 100
    assert taken.count(Rank.BATCH) >= 175  # where both are due, one waits for a slice
    assert taken.count(Rank.INTERACTIVE) >= 500


def test_background_work_alone_gets_every_slice():
    turns = Turns()
    assert {next_slice(turns, {Rank.WARM}) for _ in range(20)} == {Rank.WARM}


@given(st.lists(RANKS, min_size=1, max_size=200))
def test_nobody_who_is_able_to_work_is_passed_over_for_longer_than_promised(able):
    turns = Turns()
    passed = dict.fromkeys(Rank, 0)
    for ranks in able:
        taken = next_slice(turns, ranks)
        for rank in GUARANTEED:
            passed[rank] = passed[rank] + 1 if rank in ranks and rank != taken else 0
            # One more where the other class is due in the same slice.
            assert passed[rank] <= GUARANTEED[rank]


def test_who_does_not_wait_saves_up_nothing():
    turns = Turns()
    for _ in range(50):
        next_slice(turns, {Rank.INTERACTIVE})
    assert next_slice(turns, set(Rank)) is Rank.INTERACTIVE

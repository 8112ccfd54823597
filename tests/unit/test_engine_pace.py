"""How much other work stands between two tokens."""

from __future__ import annotations

import pytest

from liveedge.engine.decide.limits import Limits
from liveedge.engine.decide.pace import REST_STEPS, SLICE_STEPS, WORK_PER_DECODE, Budget, Pace
from liveedge.engine.decide.rates import Rates
from liveedge.engine.decide.turns import Rank

LIMITS = Limits(
    prefill_chunk=512,
    encode_pixels=400_000,
    patch_bytes=1 << 20,
    max_loading=2,
    min_piece=64,
    warm_chunk=128,
)


def measured(*, decode_s: float, token_s: float = 0.0, pixel_s: float = 0.0) -> Rates:
    rates = Rates()
    for _ in range(2):  # the first observation does not count
        rates.decode.add(decode_s, 1)
        rates.prefill.add(token_s * 1000, 1000)
        rates.encode.add(pixel_s * 1000, 1000)
    return rates


def test_without_answers_a_slice_is_as_large_as_the_limits_allow():
    pace = Pace(LIMITS, Rates())
    pace.record(decode_s=0.0, slice_s=9.0)
    assert pace.budget(Rank.INTERACTIVE, decoding=False) == Budget(512, 400_000)
    assert pace.budget(Rank.BATCH, decoding=False) == Budget(512, 400_000)


def test_background_work_is_cut_small_even_when_nothing_else_is_done():
    pace = Pace(LIMITS, Rates())
    assert pace.budget(Rank.WARM, decoding=False) == Budget(128, 1)


def test_beside_answers_a_slice_takes_as_long_as_some_steps_do():
    pace = Pace(LIMITS, measured(decode_s=0.010, token_s=0.0002, pixel_s=1e-7))
    budget = pace.budget(Rank.INTERACTIVE, decoding=True)
    assert budget is not None
    assert budget.tokens == pytest.approx(SLICE_STEPS * 0.010 / 0.0002, abs=1)
    assert budget.pixels == pytest.approx(SLICE_STEPS * 0.010 / 1e-7, abs=1)


def test_a_slice_is_never_smaller_than_what_is_worth_a_pass():
    pace = Pace(LIMITS, measured(decode_s=0.001, token_s=0.01, pixel_s=1.0))
    assert pace.budget(Rank.INTERACTIVE, decoding=True) == Budget(64, 0)  # one group at least


def test_before_anything_was_measured_the_first_slice_beside_answers_is_small():
    assert Pace(LIMITS, Rates()).budget(Rank.INTERACTIVE, decoding=True) == Budget(64, 1)


def steps_of(rank: Rank, *, slice_s: float, decode_s: float, n: int = 400) -> list[bool]:
    """Which of so many steps have a slice, when there is always work."""
    pace = Pace(LIMITS, measured(decode_s=decode_s))
    found = []
    for _ in range(n):
        works = pace.budget(rank, decoding=True) is not None
        found.append(works)
        pace.record(decode_s=decode_s, slice_s=slice_s if works else 0.0)
    return found


@pytest.mark.parametrize("rank", list(Rank))
@pytest.mark.parametrize("slice_s", [0.001, 0.004, 0.050])
def test_most_tokens_come_without_a_slice_before_them(rank: Rank, slice_s: float):
    """So the median time between tokens is that of an idle engine."""
    steps = steps_of(rank, slice_s=slice_s, decode_s=0.002)
    assert sum(steps) <= len(steps) / (REST_STEPS + 1) + 1


@pytest.mark.parametrize("rank", list(Rank))
@pytest.mark.parametrize("slice_s", [0.008, 0.050, 0.300])
def test_decoding_keeps_its_share_of_the_time(rank: Rank, slice_s: float):
    decode_s = 0.002
    steps = steps_of(rank, slice_s=slice_s, decode_s=decode_s, n=3000)
    work_s, decoding_s = sum(steps) * slice_s, len(steps) * decode_s
    assert work_s <= WORK_PER_DECODE[rank] * decoding_s + slice_s
    assert work_s >= 0.5 * min(WORK_PER_DECODE[rank] * decoding_s, len(steps) / 3 * slice_s)


def test_a_question_that_arrives_in_a_quiet_moment_begins_at_once():
    pace = Pace(LIMITS, Rates())
    for _ in range(REST_STEPS):
        pace.record(decode_s=0.002, slice_s=0.0)
    assert pace.budget(Rank.INTERACTIVE, decoding=True) is not None


def test_after_a_window_was_worked_on_a_question_waits_less_than_the_next_window_does():
    pace = Pace(LIMITS, Rates())
    pace.record(decode_s=0.002, slice_s=0.020)
    waited = {Rank.INTERACTIVE: 0, Rank.WARM: 0}
    for step in range(100):
        for rank in waited:
            if pace.budget(rank, decoding=True) is None:
                waited[rank] = step + 1
        pace.record(decode_s=0.002, slice_s=0.0)
    assert waited == {Rank.INTERACTIVE: 5, Rank.WARM: 40}


def test_who_would_miss_a_deadline_does_not_wait():
    pace = Pace(LIMITS, Rates())
    pace.record(decode_s=0.002, slice_s=0.020)
    assert pace.budget(Rank.INTERACTIVE, decoding=True) is None
    assert pace.budget(Rank.INTERACTIVE, decoding=True, urgent=True) is not None


def test_who_was_passed_over_long_enough_goes_at_the_pace_of_questions():
    pace = Pace(LIMITS, Rates())
    pace.record(decode_s=0.002, slice_s=0.020)
    for _ in range(5):
        pace.record(decode_s=0.002, slice_s=0.0)
    assert pace.budget(Rank.WARM, decoding=True) is None
    assert pace.budget(Rank.WARM, decoding=True, due=True) is not None

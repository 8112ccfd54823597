"""How long a question would wait for others, and who is refused for that."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import pairwise

import pytest

from liveedge.core.errors import QueueFull
from liveedge.service.queueing import (
    CALM,
    FAIR_QUESTIONS,
    FLOOR_S,
    HORIZON_S,
    SEEN_S,
    Line,
    Place,
    Priority,
    Queueing,
    shape_of,
)
from liveedge.testing.clock import FakeClock

TEXT = shape_of(n_uploads=0, n_frames=0, n_chars=40)
PICTURE = shape_of(n_uploads=1, n_frames=0, n_chars=40)
BURST = 8


def answered(line: Line, shape: tuple[int, int, int], *, at_s: float, takes_s: float) -> None:
    """One question that nobody shares the time with."""
    place = line.enter(shape, "interactive", now_s=at_s)
    line.began(place, now_s=at_s + takes_s)


def learned(*, text_s: float = 1.0, picture_s: float = 1.0, **options: float) -> Line:
    """A line that knows what both take, and at which nothing was offered lately: it is second 0."""
    line = Line(burst=BURST, max_wait_s=options.get("max_wait_s"))
    for n in range(5):
        answered(line, TEXT, at_s=-100_000 + 1000 * n, takes_s=text_s)
        answered(line, PICTURE, at_s=-90_000 + 1000 * n, takes_s=picture_s)
    assert line.wait_s("interactive", now_s=0) == 0
    return line


def enter(line: Line, *, now_s: float, priority: Priority = "interactive") -> Place | None:
    try:
        return line.enter(TEXT, priority, now_s=now_s)
    except QueueFull:
        return None


def overload(line: Line) -> None:
    """So many come at once that the last seconds had more work than time; nobody stays."""
    for _ in range(3 * BURST):
        if (place := enter(line, now_s=0)) is not None:
            line.leave(place, now_s=0)
    assert line.is_overloaded


def test_before_anything_was_learned_nobody_is_refused():
    line = Line(burst=1)
    for _ in range(100):
        line.enter(PICTURE, "batch", now_s=5)
    assert line.n_work == 100
    assert line.refused == 0


def test_the_wait_is_what_all_before_are_still_expected_to_take():
    line = learned(text_s=2, picture_s=6)
    line.enter(PICTURE, "interactive", now_s=0)
    assert line.wait_s("interactive", now_s=0) == pytest.approx(6)
    line.enter(TEXT, "interactive", now_s=1)
    assert line.wait_s("interactive", now_s=1) == pytest.approx(5 + 2)
    # Each has had half of the two seconds since.
    assert line.wait_s("interactive", now_s=3) == pytest.approx(4 + 1)
    # The picture was done before it was expected to be, and the text takes longer than expected.
    line.began(next(iter(line._work.values())), now_s=3)
    assert line.wait_s("interactive", now_s=9) == 0


def test_what_two_take_beside_each_other_is_half_of_the_time_each():
    line = Line(burst=BURST)
    for n in range(3):
        both = [line.enter(TEXT, "interactive", now_s=10 * n) for _ in range(2)]
        for place in both:
            line.began(place, now_s=10 * n + 4)
    line.enter(TEXT, "interactive", now_s=100)
    assert line.wait_s("interactive", now_s=100) == pytest.approx(2)


def test_a_shape_that_was_never_seen_is_expected_to_take_what_all_do():
    line = learned(text_s=1, picture_s=3)
    line.enter(shape_of(n_uploads=0, n_frames=9, n_chars=0), "interactive", now_s=0)
    assert 1 < line.wait_s("interactive", now_s=0) < 3


def test_a_burst_is_taken_up_to_its_bound():
    line = learned()
    taken = [enter(line, now_s=0) for _ in range(2 * BURST)]
    assert sum(place is not None for place in taken) == BURST + 1
    assert line.refused == BURST - 1


def test_under_overload_three_quarters_of_a_question_may_be_before_a_newcomer():
    line = learned()
    overload(line)
    assert line.bound_s == pytest.approx(FAIR_QUESTIONS)
    assert enter(line, now_s=0) is not None
    assert enter(line, now_s=0) is None
    assert enter(line, now_s=0.2) is None  # four fifths of a second are left
    assert enter(line, now_s=0.3) is not None
    assert enter(line, now_s=0.3) is None


def test_whoever_is_refused_counts_as_offered_and_an_overload_is_over_when_less_comes():
    line = learned()
    overload(line)
    for n in range(100):
        enter(line, now_s=n / 2)
    assert line.is_overloaded
    line.wait_s("interactive", now_s=50 + line.seen_s)
    assert not line.is_overloaded


def test_clients_that_wait_for_their_answers_are_no_overload():
    line = learned()
    at_work = [line.enter(TEXT, "interactive", now_s=0) for _ in range(BURST)]
    for second in range(1, 60):
        line.began(at_work.pop(0), now_s=second)
        at_work.append(line.enter(TEXT, "interactive", now_s=second))
    assert not line.is_overloaded
    assert line.refused == 0


def test_a_burst_of_slow_questions_is_no_overload():
    line = learned(text_s=60, picture_s=60)
    for _ in range(BURST):
        enter(line, now_s=0)
    assert line.n_work == BURST
    assert not line.is_overloaded
    assert line.seen_s > SEEN_S


def test_cheap_questions_may_wait_a_tenth_of_a_second_under_overload():
    line = learned(text_s=0.01, picture_s=0.01)
    for _ in range(1000):
        if (place := enter(line, now_s=0)) is not None:
            line.leave(place, now_s=0)
    assert line.is_overloaded
    assert line.bound_s == FLOOR_S
    assert sum(enter(line, now_s=0) is not None for _ in range(100)) == 11


def served(line: Line, *, load: float, seconds: int) -> int:
    """How many are refused where one question takes a second and `load` come in each, evenly."""
    refused, done_s, at_work = line.refused, 0.0, list[Place]()
    for n in range(int(seconds * load)):
        now_s = n / load
        while at_work and done_s + 1 <= now_s:
            done_s += 1
            line.began(at_work.pop(0), now_s=done_s)
        done_s = done_s if at_work else now_s
        if (place := enter(line, now_s=now_s)) is not None:
            at_work.append(place)
    return line.refused - refused


def test_a_little_too_much_for_long_is_an_overload_once_a_burst_is_full():
    line = learned()
    assert served(line, load=1.1, seconds=60) == 0  # the burst fills
    assert not line.is_overloaded
    line = learned()
    assert served(line, load=1.1, seconds=600) > 20
    assert line.is_overloaded
    assert line.n_work <= 2


def test_a_batch_question_that_is_refused_makes_no_overload():
    line = learned()
    for _ in range(12):
        line.leave(line.enter(TEXT, "interactive", now_s=0), now_s=0)
    for _ in range(5):
        line.enter(TEXT, "interactive", now_s=0)
    assert enter(line, now_s=0, priority="batch") is None
    assert line._offered_s > line.seen_s
    assert not line.is_overloaded


def test_what_can_be_answered_is_never_an_overload():
    line = learned()
    assert served(line, load=0.9, seconds=600) == 0
    assert not line.is_overloaded


def test_an_overload_is_over_when_less_is_offered_than_can_be_done():
    line = learned()
    overload(line)
    offered_s = line._offered_s
    after_s = line.seen_s * math.log(offered_s / line.seen_s)
    line.wait_s("interactive", now_s=after_s)
    assert line.is_overloaded  # just as much as can be done
    line.wait_s("interactive", now_s=after_s - line.seen_s * math.log(CALM) + 0.01)
    assert not line.is_overloaded


def test_the_bound_under_overload_can_be_chosen():
    line = learned(max_wait_s=3.5)
    assert line.bound_s == pytest.approx(BURST)
    overload(line)
    assert line.bound_s == 3.5
    assert [enter(line, now_s=0) is None for _ in range(5)] == [False, False, False, False, True]


def test_batch_questions_wait_behind_all_others_and_are_refused_first():
    line = learned()
    overload(line)
    assert enter(line, now_s=0, priority="batch") is not None
    assert enter(line, now_s=0.4, priority="batch") is None  # an interactive one would be taken
    # They are not before interactive ones.
    assert line.wait_s("interactive", now_s=0.4) == 0
    assert enter(line, now_s=0.4) is not None
    assert line.wait_s("batch", now_s=0.4) == pytest.approx(1.6)


def test_an_answer_that_has_begun_or_ended_is_no_work():
    line = learned()
    begun, left = (line.enter(TEXT, "interactive", now_s=0) for _ in range(2))
    line.began(begun, now_s=1)
    line.leave(left, now_s=1)
    assert line.n_work == 0
    line.began(left, now_s=2)  # its client had left already
    line.leave(begun, now_s=3)
    assert line.n_work == 0


def test_who_left_without_an_answer_teaches_nothing():
    line = learned()
    for n in range(20):
        line.leave(line.enter(TEXT, "interactive", now_s=100 * n), now_s=100 * n + 50)
    line.enter(TEXT, "interactive", now_s=3000)
    assert line.wait_s("interactive", now_s=3000) == pytest.approx(1)


def told_s(line: Line, *, now_s: float) -> float:
    with pytest.raises(QueueFull) as refused:
        line.enter(TEXT, "interactive", now_s=now_s)
    assert refused.value.retry_after_s is not None
    return refused.value.retry_after_s


def test_those_who_are_refused_are_told_to_come_back_one_after_the_other():
    line = learned(text_s=0.5, picture_s=0.5)
    overload(line)
    while enter(line, now_s=0) is not None:
        pass
    times = [told_s(line, now_s=0) for _ in range(12)]
    assert [b - a for a, b in pairwise(times)] == pytest.approx([0.5] * 11)
    assert min(times) >= 1
    assert max(times) <= HORIZON_S


def test_who_is_told_to_come_back_is_spread_over_the_horizon_again_when_it_is_full():
    line = learned(text_s=0.5, picture_s=0.5)
    overload(line)
    while enter(line, now_s=0) is not None:
        pass
    times = [told_s(line, now_s=0) for _ in range(200)]
    assert max(times) <= HORIZON_S
    per_second = [sum(int(time) == second for time in times) for second in range(1, int(HORIZON_S))]
    assert max(per_second) <= 3 * min(per_second)


def test_a_refusal_tells_the_numbers_and_the_way_out():
    line = learned()
    overload(line)
    while enter(line, now_s=0) is not None:
        pass
    with pytest.raises(
        QueueFull, match=r"1 questions are before this one.* 1000 ms.*750 ms.*max_queue_ms"
    ):
        line.enter(TEXT, "interactive", now_s=0)


def test_a_server_has_one_line_by_its_clock():
    clock = FakeClock()
    queueing = Queueing(clock=clock, burst=2)
    for _ in range(3):
        with queueing.place(TEXT, "interactive") as began:
            clock.move(0.25)
            began()
            clock.move(100)  # an answer that is being written is no work
    with queueing.place(TEXT, "interactive"):
        assert queueing.used == 250
        assert queueing.capacity == 500
    assert (queueing.used, queueing.refused) == (0, 0)


def test_one_that_overloads_the_server_is_refused_and_another_is_let_in():
    line = learned()
    while not line.refused:
        with suppress(QueueFull):
            line.enter(TEXT, "interactive", now_s=0, tenant="crowd")
    line.enter(TEXT, "interactive", now_s=0, tenant="another")
    for tenant in ("crowd", "another"):
        with pytest.raises(QueueFull):
            line.enter(TEXT, "interactive", now_s=0, tenant=tenant)


def test_shapes_are_few():
    shapes = {
        shape_of(n_uploads=uploads, n_frames=frames, n_chars=chars)
        for uploads in range(33)
        for frames in range(0, 600, 7)
        for chars in (0, 100, 5_000, 30_000)
    }
    assert len(shapes) < 400

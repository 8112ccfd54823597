"""Uploads that would wait past their deadline are refused when they come, not when they are late."""

import pytest

from liveedge.core.errors import QueueFull
from liveedge.service.backlog import Backlog
from liveedge.service.limits import Budget


def measured(n_workers=2, s_per_mb=1.0):
    backlog = Backlog(n_workers=n_workers, counted=Budget(1, what="bytes"))
    for _ in range(60):
        backlog.took(1_000_000, s_per_mb / n_workers)
    return backlog


def test_a_question_alone_is_never_refused():
    with measured().waiting(10**9, left_s=0.1):
        pass


def test_a_refusal_is_counted_with_the_budget():
    budget = Budget(1, what="bytes")
    backlog = Backlog(n_workers=1, counted=budget)
    late = backlog.waiting(1, left_s=0.001)
    with backlog.waiting(10**9, left_s=30), pytest.raises(QueueFull), late:
        pass
    assert (budget.refused, budget.used) == (1, 0)


def test_one_that_could_not_be_decoded_in_a_third_of_its_time_is_told_when_to_come_again():
    backlog = measured()
    with backlog.waiting(20_000_000, left_s=30):
        assert backlog.wait_s == pytest.approx(10, rel=0.01)
        late = backlog.waiting(1, left_s=15)
        with pytest.raises(QueueFull, match="10 s to decode") as caught, late:
            pass
        assert caught.value.retry_after_s == pytest.approx(10, rel=0.01)
        with backlog.waiting(1, left_s=40):
            pass
    assert backlog.wait_s == 0


def test_the_estimate_follows_what_is_measured_and_clips_say_nothing():
    backlog = measured(s_per_mb=0.001)
    backlog.took(0, 60.0)  # a clip announces nothing
    backlog.took(3072, 60.0)  # of a small picture it is not the size that takes the time
    with backlog.waiting(100_000_000, left_s=1):
        assert backlog.wait_s == pytest.approx(0.05, rel=0.01)
    for _ in range(60):
        backlog.took(1_000_000, 0.5)
    with backlog.waiting(100_000_000, left_s=1):
        assert backlog.wait_s == pytest.approx(50, rel=0.01)

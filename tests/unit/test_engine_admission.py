"""What is refused because it would come too late, and what ends because it became too old."""

from __future__ import annotations

import pytest

from liveedge.core.errors import FrameStale, QueueFull
from liveedge.engine.decide.forecast import Backlog
from liveedge.engine.decide.limits import BYTES_PER_PIXEL, Limits
from liveedge.engine.decide.rates import Rates
from liveedge.engine.request import Failed, Finished
from tests.scheduling import LIMITS, Bench, prepare

SLOW = Limits(
    prefill_chunk=6,
    encode_pixels=4,
    patch_bytes=20 * BYTES_PER_PIXEL,
    max_loading=4,
    min_piece=2,
)


def measured(**seconds: float) -> Rates:
    rates = Rates()
    for name, value in seconds.items():
        for _ in range(2):
            getattr(rates, name).add(value, 1)
    return rates


def work(**amounts: int) -> Backlog:
    nothing = dict.fromkeys(
        ("n_requests", "n_tokens", "n_groups", "n_pixels", "n_loads", "n_answer_tokens"), 0
    )
    return Backlog(**(nothing | {"n_slots": 4} | amounts))


def test_the_wait_is_that_of_the_work_before_the_first_token():
    rates = measured(prefill=0.01, encode=0.001, load=0.2, decode=0.05)
    assert work(n_tokens=100).wait_s(rates, LIMITS) == pytest.approx(1.0)
    assert work(n_tokens=100, n_pixels=500).wait_s(rates, LIMITS) == pytest.approx(1.5)
    # Four slots answer at once, two workers load at once; loading goes on beside the rest.
    assert work(n_answer_tokens=40).wait_s(rates, LIMITS) == pytest.approx(0.5)
    assert work(n_loads=20).wait_s(rates, LIMITS) == pytest.approx(2.0)
    assert work(n_loads=20, n_tokens=50).wait_s(rates, LIMITS) == pytest.approx(2.0)


def test_what_was_never_measured_counts_nothing():
    assert (
        work(n_tokens=100, n_pixels=100, n_loads=9, n_answer_tokens=9).wait_s(Rates(), LIMITS) == 0
    )


def busy(*, n_waiting: int) -> Bench:
    """A bench whose steps take 10 ms and that has work for many of them."""
    bench = Bench(limits=SLOW, step_s=0.01)
    for n in range(3):
        bench.submit(prepare(f"first {n}", [30 + n] * 12, max_tokens=2))
        bench.finish()
    for n in range(n_waiting):
        bench.submit(prepare(f"before {n}", [10 + n] * 30, max_tokens=5))
    return bench


def test_a_request_that_cannot_begin_in_time_is_refused_at_once_with_the_numbers():
    bench = busy(n_waiting=6)
    bench.submit(prepare("late", [9] * 30, deadline_s=bench.now_s + 0.05))
    end = bench.end("late")
    assert isinstance(end, Failed)
    assert isinstance(end.error, QueueFull)
    assert end.error.retry_after_s is not None
    assert end.error.retry_after_s >= 1.0
    assert "6 requests before it, 210 prompt tokens" in end.error.message
    assert bench.scheduler.counters.predicted_late == 1
    bench.finish()


def test_the_freshness_of_the_evidence_is_a_deadline_too():
    bench = busy(n_waiting=6)
    bench.submit(prepare("late", [9] * 30, fresh_until_s=bench.now_s + 0.05))
    end = bench.end("late")
    assert isinstance(end, Failed)
    assert isinstance(end.error, QueueFull)
    bench.finish()


def test_a_request_with_time_enough_is_taken():
    bench = busy(n_waiting=6)
    bench.submit(prepare("patient", [9] * 30, deadline_s=bench.now_s + 60))
    bench.finish()
    assert isinstance(bench.end("patient"), Finished)


def test_the_crowd_of_one_tenant_does_not_count_against_another():
    """The first token of a prompt tells whose it is."""
    bench = busy(n_waiting=0)
    for n in range(40):
        bench.submit(prepare(f"crowd {n}", [7, *[10 + n] * 29], max_tokens=1))
    bench.submit(prepare("of the crowd", [7] * 30, deadline_s=bench.now_s + 1.2))
    assert isinstance(bench.end("of the crowd"), Failed)
    bench.submit(prepare("another", [9] * 30, max_tokens=1, deadline_s=bench.now_s + 1.2))
    bench.finish()
    assert isinstance(bench.end("another"), Finished)


def test_what_a_request_can_reuse_does_not_count():
    bench = busy(n_waiting=0)
    bench.submit(prepare("first", [9] * 30, max_tokens=8))
    bench.submit(prepare("twin", [*[9] * 30, 10], max_tokens=1, deadline_s=bench.now_s + 0.06))
    bench.finish()
    assert isinstance(bench.end("twin"), Finished)


def test_an_idle_engine_tries_everything():
    bench = busy(n_waiting=0)
    bench.submit(prepare("hasty", [9] * 30, deadline_s=bench.now_s + 0.001))
    assert not bench.told["hasty"]
    bench.finish()


def test_before_anything_was_measured_nothing_is_refused():
    bench = Bench(limits=SLOW)
    for n in range(10):
        bench.submit(prepare(f"before {n}", [10 + n] * 30))
    bench.submit(prepare("hasty", [9] * 30, deadline_s=bench.now_s + 0.001))
    assert not bench.told["hasty"]
    bench.finish()


def test_batch_requests_do_not_stand_before_interactive_ones():
    bench = busy(n_waiting=0)
    for n in range(6):
        bench.submit(prepare(f"batch {n}", [10 + n] * 30, batch=True))
    bench.submit(prepare("hasty", [9] * 30, deadline_s=bench.now_s + 0.2))
    assert not bench.told["hasty"]
    bench.finish()


def test_evidence_that_is_too_old_on_arrival_is_not_looked_at():
    bench = Bench()
    bench.submit(prepare("old", [10, 11], fresh_until_s=bench.now_s - 0.25))
    end = bench.end("old")
    assert isinstance(end, Failed)
    assert isinstance(end.error, FrameStale)
    assert "older than max_age_ms before the first token" in end.error.message
    assert bench.scheduler.counters.stale == 1
    bench.finish()


@pytest.mark.parametrize("phase", ["waiting", "prefilling"])
def test_evidence_that_became_too_old_before_the_first_token_is_not_answered(phase: str):
    bench = Bench()
    if phase == "waiting":
        for n in range(3):
            bench.submit(prepare(f"running {n}", [10 + n], max_tokens=30))
        bench.step()
    bench.submit(prepare("old", ["a", 11], fresh_until_s=bench.now_s + 5))
    bench.step()
    assert not bench.told["old"]
    bench.now_s += 5
    bench.step()
    end = bench.end("old")
    assert isinstance(end, Failed)
    assert isinstance(end.error, FrameStale)
    assert phase in end.error.message
    assert bench.scheduler.counters.stale == 1
    assert bench.scheduler.counters.failed == 0
    bench.finish()


def test_an_answer_that_has_begun_is_finished_however_old_its_evidence_becomes():
    bench = Bench()
    bench.submit(prepare("q", [10, 11], max_tokens=5, fresh_until_s=bench.now_s + 5))
    bench.step()
    bench.now_s += 50
    bench.finish()
    assert isinstance(bench.end("q"), Finished)


def test_the_engine_wakes_up_for_what_becomes_too_old():
    bench = Bench()
    bench.submit(prepare("a", ["a"], deadline_s=500.0))
    bench.submit(prepare("b", ["a"], deadline_s=600.0, fresh_until_s=300.0))
    assert bench.scheduler.next_deadline_s() == 300.0

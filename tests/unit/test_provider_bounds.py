"""What keeps a provider in trouble from being asked too much: breaker, budget of retries, patience."""

from __future__ import annotations

import asyncio
import random

import pytest

from liveedge.core.errors import FrameStale, SettingsInvalid, UpstreamTimeout
from liveedge.service.providers.breaker import Breaker, BreakerLimits
from liveedge.service.providers.config import ProviderConfig, check_ids, read_key
from liveedge.service.providers.patience import Patience
from liveedge.service.providers.retries import (
    MAX_RETRY_AFTER_S,
    RetryBudget,
    RetryLimits,
    delay_s,
    parse_retry_after,
)
from liveedge.testing.clock import FakeClock

LIMITS = BreakerLimits(failures=3, open_s=5, max_open_s=20)


def opened(at_s: float = 0.0) -> Breaker:
    breaker = Breaker(LIMITS)
    for _ in range(LIMITS.failures):
        assert breaker.enter(at_s)
        breaker.failed(at_s)
    return breaker


def test_a_breaker_opens_after_failures_in_a_row():
    breaker = opened()
    assert breaker.state(0) == "open"
    assert not breaker.enter(4.9)
    assert breaker.retry_after_s(1) == 4


def test_a_success_between_failures_keeps_it_closed():
    breaker = Breaker(LIMITS)
    for _ in range(10):
        breaker.failed(0)
        breaker.failed(0)
        breaker.succeeded()
    assert breaker.state(0) == "closed"


def test_an_open_breaker_lets_one_trial_through_and_closes_with_its_success():
    breaker = opened()
    assert breaker.enter(5)
    assert not breaker.enter(5)
    breaker.succeeded()
    assert breaker.state(5) == "closed"
    assert breaker.enter(5)


def test_a_trial_that_fails_opens_it_for_twice_as_long_up_to_a_bound():
    breaker, now_s = opened(), 0.0
    spans = []
    for _ in range(5):
        span_s = breaker.retry_after_s(now_s)
        spans.append(span_s)
        now_s += span_s
        assert breaker.enter(now_s)
        breaker.failed(now_s)
    assert spans == [5, 10, 20, 20, 20]
    assert breaker.n_opened == 6


def test_a_trial_that_nobody_waited_for_makes_room_for_the_next():
    breaker = opened()
    assert breaker.enter(5)
    breaker.abandoned()
    assert breaker.enter(5)


def test_failures_of_requests_from_before_do_not_open_it_for_longer():
    breaker = opened()
    breaker.failed(1)
    assert breaker.state(5) == "half_open"
    assert breaker.n_opened == 1


def test_retries_are_a_tenth_of_the_requests_and_a_few():
    budget = RetryBudget(now_s=0)
    taken = 0
    for _ in range(1000):
        budget.request_made()
        taken += budget.take(0)
    assert 100 <= taken <= 103
    assert budget.n_taken == taken
    assert budget.n_refused == 1000 - taken


def test_a_quiet_provider_gets_its_few_retries_back_with_time():
    budget = RetryBudget(now_s=0)
    assert [budget.take(0) for _ in range(4)] == [True, True, True, False]
    assert [budget.take(1000) for _ in range(4)] == [True, True, True, False]


def test_saved_retries_are_bounded():
    budget = RetryBudget(now_s=0)
    for _ in range(10_000):
        budget.request_made()
    assert sum(budget.take(0) for _ in range(100)) == RetryLimits().most


def test_waits_are_random_and_grow_and_are_no_shorter_than_asked():
    rng, limits = random.Random(1), RetryLimits()
    first = [delay_s(0, asked_s=None, limits=limits, rng=rng) for _ in range(100)]
    tenth = [delay_s(9, asked_s=None, limits=limits, rng=rng) for _ in range(100)]
    assert max(first) <= limits.first_s < max(tenth) <= limits.longest_s
    assert len(set(first)) > 90
    assert delay_s(0, asked_s=7, limits=limits, rng=rng) >= 7


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("5", 5),
        (" 1.5 ", 1.5),
        ("-3", None),
        ("soon", None),
        ("1e9", None),
        ("Sun, 15 Jun 2025 15:06:50 GMT", 10),
        ("Sun, 15 Jun 2025 15:06:00 GMT", 0),
        ("Sun, 99 Jun 2025 15:06:00 GMT", None),
        ("Sun, 15 Jun 2025 15:06:50 +99999999999999999999", None),
        ("Sun, 15 Jun 99999999999999999999 15:06:50 GMT", None),
        ("9" * 1000, MAX_RETRY_AFTER_S),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float | None):
    assert parse_retry_after(text, wall_ms=1_750_000_000_000) == seconds


def patience(clock: FakeClock, **more: float) -> Patience:
    return Patience(
        clock=clock,
        provider="peer",
        **{"deadline_s": clock.monotonic_s() + 10, "silence_s": 3} | more,
    )


async def test_patience_ends_a_silence_and_starts_anew_with_each_piece():
    clock = FakeClock()
    async with patience(clock) as waiting:
        await waiting.wait(asyncio.sleep(0))
        for _ in range(2):
            task = asyncio.create_task(waiting.wait(clock.sleep(2)))
            await clock.advance(2)
            await task
        silence = asyncio.create_task(waiting.wait(asyncio.Event().wait()))
        await clock.advance(3)
        with pytest.raises(UpstreamTimeout):
            await silence


async def test_patience_ends_at_the_deadline_also_when_its_reader_was_elsewhere():
    clock = FakeClock()
    async with patience(clock) as waiting:
        await clock.advance(11)
        with pytest.raises(UpstreamTimeout, match="timeout_ms"):
            await waiting.wait(asyncio.sleep(0))


async def test_patience_ends_when_the_evidence_is_too_old_unless_the_answer_has_begun():
    clock = FakeClock()
    async with patience(clock, fresh_until_s=clock.monotonic_s() + 1) as waiting:
        task = asyncio.create_task(waiting.wait(asyncio.Event().wait()))
        await clock.advance(1)
        with pytest.raises(FrameStale):
            await task
    async with patience(clock, fresh_until_s=clock.monotonic_s() + 1) as waiting:
        waiting.first_token()
        begun = asyncio.create_task(waiting.wait(clock.sleep(2)))
        await clock.advance(2)
        await begun


async def test_a_cancellation_from_outside_stays_one():
    clock = FakeClock()
    async with patience(clock) as waiting:
        task = asyncio.create_task(waiting.wait(asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def config(name: str, *models: str) -> ProviderConfig:
    return ProviderConfig(name=name, base_url="http://x/v1", models=models)


@pytest.mark.parametrize(
    ("configs", "fallbacks", "named"),
    [
        ([config("a", "m"), config("b", "m")], {}, "m is a model of a already"),
        ([config("a", "own/model")], {}, "own/model is a model of this server already"),
        ([config("a"), config("b")], {}, "a and b list no models"),
        ([config("a", "m")], {"m": ["z"]}, "there is no model z"),
        ([config("a", "m")], {"z": ["m"]}, "there is no model z"),
        ([config("a", "m")], {"m": ["m"]}, "no fallback of itself"),
    ],
)
def test_ids_that_stand_for_two_models_or_none_are_refused_at_the_start(configs, fallbacks, named):
    with pytest.raises(SettingsInvalid, match=named):
        check_ids(configs, fallbacks, ["own/model"])


def test_ids_that_stand_for_one_model_each_are_fine():
    check_ids([config("a", "m", "m"), config("b")], {"own/model": ["m", "any"]}, ["own/model"])


def test_a_key_comes_from_the_variable_that_is_named_and_must_be_there():
    assert read_key("a", None, {}) is None
    assert read_key("a", "KEY", {"KEY": " sk-1\n"}) == "sk-1"
    for environment in ({}, {"KEY": " "}, {"KEY": "a\nb"}):
        with pytest.raises(SettingsInvalid, match="variable KEY"):
            read_key("a", "KEY", environment)
    assert "sk-1" not in repr(ProviderConfig(name="a", base_url="http://x", key="sk-1"))

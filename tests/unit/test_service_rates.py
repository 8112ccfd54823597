"""Rates: how often a key may ask, by a clock that the test moves."""

import pytest

from liveedge.service.caller import Allowance, Caller
from liveedge.service.rates import Rates, too_often
from liveedge.testing.clock import FakeClock


def caller(key_id="a", **allowance):
    return Caller(tenant="t", key_id=key_id, allowance=Allowance(**allowance))


def take(rates, who):
    standing = rates.take(who)
    assert standing is not None
    return standing


def test_a_burst_is_let_in_and_then_as_many_as_the_rate_says():
    clock = FakeClock()
    rates = Rates(per_s=2, burst=4, clock=clock)
    assert [take(rates, caller()).remaining for _ in range(4)] == [3, 2, 1, 0]
    refused = take(rates, caller())
    assert refused.retry_after_s == pytest.approx(0.5)
    assert refused.headers() == {
        "x-ratelimit-limit": "4",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "2",
    }
    clock.move(0.5)
    assert take(rates, caller()).retry_after_s is None
    assert take(rates, caller()).retry_after_s is not None
    assert rates.refused == 2
    clock.move(3600)
    assert take(rates, caller()).remaining == 3


def test_keys_do_not_take_from_each_other_and_may_have_rates_of_their_own():
    rates = Rates(per_s=1, burst=1, clock=FakeClock())
    assert take(rates, caller("a")).retry_after_s is None
    assert take(rates, caller("a")).retry_after_s is not None
    assert take(rates, caller("b")).retry_after_s is None
    own = [take(rates, caller("c", requests_per_second=5)) for _ in range(11)]
    assert [one.retry_after_s is None for one in own] == 10 * [True] + [False]
    slow = caller("d", requests_per_second=0.1)
    assert take(rates, slow).retry_after_s is None
    standing = take(rates, slow)
    error = too_often(standing, slow)
    assert error.retry_after_s == standing.retry_after_s == pytest.approx(10)
    assert "requests_per_second" in error.message


def test_without_a_rate_there_is_nothing_to_tell():
    assert Rates(per_s=None, burst=None, clock=FakeClock()).take(caller()) is None

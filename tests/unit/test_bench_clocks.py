"""The offset of a server's clock: bounded by what each exchange allows."""

import math
import random

import httpx
import pytest

from liveedge.bench.clocks import (
    DATE_RESOLUTION_MS,
    UNKNOWN,
    ClockOffset,
    Exchange,
    combined,
    estimated,
    measure_clock,
)
from liveedge.testing.clock import FakeClock


def exchanges(offset_ms, n=12, resolution_ms=1.0, seed=0, rtt_ms=(5.0, 60.0)):
    """Round trips that are never symmetric, of a server whose clock is `offset_ms` ahead."""
    chance = random.Random(seed)
    now_ms = 1_750_000_000_000.0
    made = []
    for _ in range(n):
        there_ms, back_ms = chance.uniform(*rtt_ms), chance.uniform(*rtt_ms)
        read_ms = now_ms + there_ms + offset_ms
        made.append(
            Exchange(
                sent_ms=now_ms,
                received_ms=now_ms + there_ms + back_ms,
                server_ms=read_ms // resolution_ms * resolution_ms,
                resolution_ms=resolution_ms,
            )
        )
        now_ms += 110 + there_ms + back_ms
    return made


@pytest.mark.parametrize("offset_ms", [-86_400_000.0, -3.0, 0.0, 412.5])
def test_the_offset_is_within_its_uncertainty(offset_ms):
    for seed in range(20):
        found = estimated(exchanges(offset_ms, seed=seed))
        assert abs(found.offset_ms - offset_ms) <= found.uncertainty_ms
        assert found.uncertainty_ms < 30
        assert "now_ms" in found.method


def test_more_exchanges_know_more_than_the_shortest():
    many = exchanges(100.0, n=40)
    shortest = min(many, key=lambda one: one.received_ms - one.sent_ms)
    assert estimated(many).uncertainty_ms < estimated([shortest]).uncertainty_ms


def test_a_date_in_whole_seconds_is_good_to_about_half_a_second():
    for seed in range(20):
        found = estimated(exchanges(250.0, resolution_ms=DATE_RESOLUTION_MS, seed=seed))
        assert abs(found.offset_ms - 250.0) <= found.uncertainty_ms
        assert found.uncertainty_ms < 1100
        assert "Date" in found.method


def test_on_one_machine_it_is_0_where_0_is_possible():
    assert estimated(exchanges(0.4), is_same_machine=True).offset_ms == 0.0
    assert estimated([], is_same_machine=True).uncertainty_ms == 0.0
    set_since = estimated(exchanges(500.0), is_same_machine=True)
    assert set_since.offset_ms == pytest.approx(500, abs=60)  # it anchored its clock before that


def test_contradictions_leave_the_shortest_exchange():
    jumped = [*exchanges(0.0, n=3), *exchanges(5000.0, n=3, rtt_ms=(1.0, 2.0))]
    found = estimated(jumped)
    assert "contradict" in found.method
    assert found.offset_ms == pytest.approx(5000, abs=found.uncertainty_ms)


def test_nothing_is_known_without_exchanges():
    assert estimated([]) == UNKNOWN
    assert ClockOffset.of({}).uncertainty_ms == math.inf


def test_two_looks_hold_the_drift_between_them():
    before = ClockOffset(offset_ms=10, uncertainty_ms=2, rtt_ms=4, method="now_ms")
    after = ClockOffset(offset_ms=20, uncertainty_ms=3, rtt_ms=5, method="now_ms")
    both = combined(before, after)
    assert (both.offset_ms - both.uncertainty_ms, both.offset_ms + both.uncertainty_ms) == (8, 23)
    assert combined(UNKNOWN, after) == after
    assert combined(before, UNKNOWN) == before


def moving(answer):
    """A transport whose every exchange takes 20 ms."""
    clock = FakeClock()

    def handle(request: httpx.Request) -> httpx.Response:
        clock.move(0.012)
        made = answer(clock.wall_ms(), request)
        clock.move(0.008)
        return made

    class Instant(FakeClock):
        """Sleeping moves the clock at once: there is nobody else to wait for."""

        async def sleep(self, seconds: float) -> None:
            clock.move(seconds)

        def wall_ms(self) -> int:
            return clock.wall_ms()

    return httpx.AsyncClient(transport=httpx.MockTransport(handle)), Instant()


async def test_ours_tells_its_clock_in_milliseconds():
    def answer(now_ms, request):
        assert request.url.path == "/v1/version"
        return httpx.Response(200, json={"name": "liveedge", "now_ms": now_ms + 7000})

    http, clock = moving(answer)
    found = await measure_clock(http, "http://camera-box:8000/v1", clock)
    assert found.offset_ms == pytest.approx(7000, abs=found.uncertainty_ms)
    assert found.uncertainty_ms < 12
    assert found.rtt_ms == 20


async def test_others_tell_it_in_the_date_of_any_answer():
    def answer(now_ms, request):
        # 1,750,000,000: a header that is not written anew for a second and a half
        return httpx.Response(404, headers={"date": "Sun, 15 Jun 2025 15:06:40 GMT"})

    http, clock = moving(answer)
    found = await measure_clock(http, "http://vllm:8000/v1", clock)
    assert "Date" in found.method
    assert abs(found.offset_ms) <= found.uncertainty_ms


@pytest.mark.parametrize(
    "answer",
    [
        lambda now_ms, request: httpx.Response(200, text="hello"),
        lambda now_ms, request: httpx.Response(200, json=[1], headers={"date": "yesterday"}),
        lambda now_ms, request: (_ for _ in ()).throw(httpx.ConnectError("refused")),
    ],
    ids=["no date", "nonsense", "nobody"],
)
async def test_a_server_that_does_not_tell_is_unknown(answer):
    http, clock = moving(answer)
    assert await measure_clock(http, "http://vllm:8000/v1", clock, n=2) == UNKNOWN

"""Open and closed loops against a server whose every moment is known, on a clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from liveedge.bench.asking import Asker
from liveedge.bench.generator import Generator, SelfLook, StepRun
from liveedge.bench.record import Record, measured
from liveedge.bench.scenario import Scenario
from liveedge.bench.schedule import steps
from liveedge.bench.stats import percentile
from liveedge.testing.clock import FakeClock
from tests.bench_parts import FixedSource, scenario
from tests.bench_stub import Script, Stub, driven, plain, streamed

SERVICE_S = 0.2
ANSWER = streamed(headers_s=0.0, first_s=0.15, gaps_s=[0.05], words=["re", "d"])


class Cpu:
    """CPU seconds that the clock's time costs."""

    def __init__(self, clock: FakeClock, share: float) -> None:
        self._clock, self._share = clock, share

    def __call__(self) -> float:
        return self._clock.monotonic_s() * self._share


def always(answer: Script, _n: int, _body: Mapping[str, Any]) -> Script:
    return answer


async def run_steps(
    stub: Stub, clock: FakeClock, told: Scenario, *, cpu_share: float = 0.1
) -> tuple[list[StepRun], list[Record]]:
    asker = Asker(
        scenario=told,
        model="m",
        api_key=None,
        dial=stub.dial,
        clock=clock,
        begun_s=clock.monotonic_s(),
    )
    ended: list[Record] = []
    source = FixedSource()
    await source.open()
    generator = Generator(
        scenario=told,
        asker=asker,
        source=source,
        clock=clock,
        on_record=ended.append,
        look=SelfLook(cpu_s=Cpu(clock, cpu_share), every_s=0.5),
    )
    runs = [await driven(clock, generator.run(step)) for step in steps(told.load)]
    await asker.close()
    return runs, ended


def load(**keys: Any) -> Scenario:
    return scenario(load={"warmup_s": 0.0, "timeout_s": 100.0, **keys})


def total_s(record: Record) -> float:
    assert record.ended_s is not None
    return record.ended_s - record.due_s


def p95_s(run: StepRun) -> float:
    found = percentile([total_s(record) for record in measured(run.records)], 95)
    assert found is not None
    return found


async def test_an_open_loop_never_waits_for_answers() -> None:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: plain({}, after_s=30.0, status=503), clock=clock)

    [run], _ = await run_steps(stub, clock, load(kind="constant", rates_per_s=[5], duration_s=4))

    assert [record.sent_s for record in run.records] == pytest.approx([n / 5 for n in range(20)])
    assert run.own["max_in_flight"] == 20
    assert run.own["lateness_ms_max"] == pytest.approx(0, abs=0.01)


async def test_the_same_seed_sends_at_the_same_moments_to_a_fast_and_a_slow_server() -> None:
    sent = []
    for after_s in (0.01, 9.0):
        clock = FakeClock()
        answer = plain({}, after_s=after_s, status=503)
        stub = Stub(partial(always, answer), clock=clock)
        [run], _ = await run_steps(stub, clock, load(rates_per_s=[5], duration_s=4))
        sent.append([record.due_s for record in run.records])

    assert sent[0] == sent[1]


async def test_a_closed_loop_hides_the_overload_that_an_open_loop_shows() -> None:
    """A server of fixed service time answers one at a time: 5 a second. The closed loop of one asks
    no more than it can, however long one looks. The open loop asks 7 a second, as cameras would:
    its requests wait, each longer than the one before."""
    closed_s, open_s = [], []
    for duration_s in (10.0, 20.0):
        clock = FakeClock()
        stub = Stub(lambda _n, _body: ANSWER, clock=clock, capacity=1)
        told = load(kind="closed", concurrency=[1], duration_s=duration_s)
        [closed], _ = await run_steps(stub, clock, told)
        closed_s.append(p95_s(closed))
        clock = FakeClock()
        stub = Stub(lambda _n, _body: ANSWER, clock=clock, capacity=1)
        told = load(kind="constant", rates_per_s=[7], duration_s=duration_s)
        [opened], _ = await run_steps(stub, clock, told)
        open_s.append(p95_s(opened))

    assert closed_s == pytest.approx([SERVICE_S, SERVICE_S], rel=0.02)
    # Request n is due at n/7 and ends at (n + 1)/5: p95 of 70 is the 67th, of 140 the 133rd.
    assert open_s == pytest.approx([67 / 5 - 66 / 7, 133 / 5 - 132 / 7], rel=0.02)


async def test_what_waits_in_the_generator_counts_from_when_it_was_due() -> None:
    """A stalled generator sends late; its records say how late, and totals include it."""
    clock = FakeClock()
    stub = Stub(lambda _n, _body: ANSWER, clock=clock)
    told = load(kind="constant", rates_per_s=[10], duration_s=2)
    source = StallingSource(clock, at=5, seconds=1.0)
    asker = Asker(
        scenario=told, model="m", api_key=None, dial=stub.dial, clock=clock, begun_s=1000.0
    )
    generator = Generator(
        scenario=told, asker=asker, source=source, clock=clock, on_record=lambda _record: None
    )
    await source.open()

    run = await driven(clock, generator.run(next(steps(told.load))))
    await asker.close()

    late = [(record.sent_s or 0.0) - record.due_s for record in run.records]
    assert late[5] == pytest.approx(1.0)
    assert late[6:15] == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], abs=1e-6)
    assert total_s(run.records[5]) == pytest.approx(1.2)
    assert run.own["lateness_ms_max"] == pytest.approx(1000)
    assert run.own["loop_stall_ms_max"] == pytest.approx(1000, abs=15)
    assert run.own["n_loop_stalls"] == 1
    assert run.own["loop_late_ms_p99"] == pytest.approx(1000, abs=15)  # one of fifty looks


class StallingSource(FixedSource):
    """Holds the event loop once, as a slow encoder in it would."""

    def __init__(self, clock: FakeClock, *, at: int, seconds: float) -> None:
        super().__init__()
        self._clock, self._at, self._seconds = clock, at, seconds

    def prepare(self, index: int) -> Any:
        if index == self._at:
            self._clock.move(self._seconds)
        return super().prepare(index)


async def test_beyond_its_limit_the_generator_sends_nothing_and_says_so() -> None:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: ANSWER, clock=clock, capacity=1)
    told = load(kind="constant", rates_per_s=[20], duration_s=2, max_in_flight=4)

    [run], ended = await run_steps(stub, clock, told)

    held = [record for record in run.records if record.outcome == "not_sent"]
    assert len(run.records) == len(ended) == 40
    assert run.own["n_not_sent"] == len(held) > 20
    assert run.own["n_sent"] == len(stub.served) == 40 - len(held)
    assert run.own["max_in_flight"] == run.own["in_flight_limit"] == 4
    assert held[0].code == "max_in_flight"
    assert held[0].sent_s is None


async def test_workers_of_a_closed_loop_ask_again_as_soon_as_they_are_answered() -> None:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: ANSWER, clock=clock)

    told = load(kind="closed", concurrency=[3], duration_s=2)
    [run], _ = await run_steps(stub, clock, told)

    assert len(run.records) == 3 * 10
    assert [total_s(record) for record in run.records] == pytest.approx([SERVICE_S] * 30)
    assert run.own["max_in_flight"] == 3


async def test_a_closed_loop_does_not_spin_on_a_server_that_refuses() -> None:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: plain({}, after_s=0.0, status=429), clock=clock)

    [run], _ = await run_steps(stub, clock, load(kind="closed", concurrency=[1], duration_s=2))

    assert len(run.records) == 20


async def test_warm_up_is_asked_at_the_rate_of_its_step_and_marked() -> None:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: ANSWER, clock=clock)
    told = load(kind="constant", rates_per_s=[5, 10], warmup_s=1, duration_s=2, repeats=2)

    runs, _ = await run_steps(stub, clock, told)

    counted = [(sum(one.warmup for one in run.records), len(run.records)) for run in runs]
    assert counted == [(5, 15), (10, 30), (5, 15), (10, 30)]
    assert [record.index for run in runs for record in run.records] == list(range(90))
    assert [(run.step.repeat, run.step.step) for run in runs] == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_every_request_ends_as_exactly_one_record_whatever_the_server_does() -> None:
    scripts: Mapping[int, Script] = {
        0: ANSWER,
        1: plain({}, after_s=0.1, status=500),
        2: Script(headers_after_s=1e4),
        3: streamed(headers_s=0.1, first_s=0.1, gaps_s=[], end="reset"),
        4: Script(pieces=ANSWER.pieces[:2], end="cut"),
        5: Script(pieces=ANSWER.pieces[:2]),
        6: Script(pieces=ANSWER.pieces, end="silent"),
    }
    clock = FakeClock()
    stub = Stub(lambda n, _body: scripts[n % len(scripts)], clock=clock)
    told = load(rates_per_s=[20], duration_s=5, timeout_s=3, max_in_flight=8)

    [run], ended = await run_steps(stub, clock, told)

    assert sorted(record.index for record in ended) == list(range(len(ended)))
    assert [record.index for record in run.records] == list(range(len(ended)))
    found = {record.outcome for record in ended}
    assert found == {"ok", "refused", "failed", "timeout", "not_sent"}
    assert all(total_s(one) == pytest.approx(3.0) for one in ended if one.outcome == "timeout")


async def test_the_cpu_share_of_the_generator_is_told() -> None:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: ANSWER, clock=clock)
    told = load(kind="constant", rates_per_s=[5], duration_s=2)

    [run], _ = await run_steps(stub, clock, told, cpu_share=0.93)

    assert run.own["cpu_share"] == pytest.approx(0.93)
    assert run.own["kind"] == "generator"


@pytest.mark.parametrize("kind", ["constant", "closed"])
async def test_what_is_open_when_a_run_is_broken_off_ends_as_records(kind: str) -> None:
    clock = FakeClock()
    stub = Stub(partial(always, Script(headers_after_s=1e4)), clock=clock)
    told = load(kind=kind, rates_per_s=[1], concurrency=[4], duration_s=4)
    asker = Asker(
        scenario=told, model="m", api_key=None, dial=stub.dial, clock=clock, begun_s=1000.0
    )
    source, ended = FixedSource(), list[Record]()
    await source.open()
    generator = Generator(
        scenario=told, asker=asker, source=source, clock=clock, on_record=ended.append
    )
    task = asyncio.ensure_future(generator.run(next(steps(told.load))))
    await clock.advance(6.0)  # all are sent, and waited for

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asker.close()

    assert [(record.outcome, record.code) for record in ended] == [("failed", "run_ended")] * 4


@pytest.mark.parametrize("kind", ["constant", "closed"])
async def test_a_camera_that_fails_ends_the_step_with_its_own_error(kind: str) -> None:
    class Failing(FixedSource):
        def prepare(self, index: int) -> Any:
            if index == 3:
                raise LookupError("no frame")
            return super().prepare(index)

    clock = FakeClock()
    stub = Stub(partial(always, ANSWER), clock=clock)
    told = load(kind=kind, rates_per_s=[2], concurrency=[2], duration_s=9)
    asker = Asker(
        scenario=told, model="m", api_key=None, dial=stub.dial, clock=clock, begun_s=1000.0
    )
    source = Failing()
    await source.open()
    generator = Generator(
        scenario=told, asker=asker, source=source, clock=clock, on_record=lambda _record: None
    )

    with pytest.raises(LookupError, match="no frame"):
        await driven(clock, generator.run(next(steps(told.load))))
    await asker.close()

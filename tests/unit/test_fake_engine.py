"""What only the fake engine can do: stop in a named phase, say what it is told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from liveedge.core.errors import (
    DeadlineExceeded,
    FrameStale,
    LiveEdgeError,
    MediaInvalid,
    ModelUnavailable,
)
from liveedge.engine.interface import WindowPrefix
from liveedge.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    FrameInput,
    GenerateRequest,
    ImagePart,
    Message,
    SamplingParams,
    TextPart,
)
from liveedge.testing.clock import FakeClock
from liveedge.testing.engine import PHASES, FakeEngine, Phase

PIXELS = np.zeros((64, 64, 3), np.uint8)
PICTURE = ImagePart(frame=FrameInput(key="a", width=64, height=64, load=lambda: PIXELS))


def ask(*, deadline_s: float | None = None, **sampling: object) -> GenerateRequest:
    return GenerateRequest(
        request_id="q",
        messages=(Message(role="user", content=(PICTURE, TextPart("Is it open?"))),),
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        deadline_s=deadline_s,
    )


async def listen(engine: FakeEngine, request: GenerateRequest) -> list[Event]:
    async with aclosing(engine.generate(engine.prepare(request))) as events:
        return [event async for event in events]


async def settle() -> None:
    """Let everything run that can; loading happens on another thread."""
    for _ in range(50):
        await asyncio.sleep(0.001)


def idle(engine: FakeEngine) -> bool:
    stats = engine.stats()
    return (stats.queue_depth, stats.running, stats.slots_used) == (0, 0, 0)


@pytest.mark.parametrize("phase", PHASES)
async def test_a_request_held_in_a_phase_goes_on_when_released(phase: Phase) -> None:
    engine = FakeEngine(clock=FakeClock(), answer="Yes it is.")
    engine.hold(phase)
    task = asyncio.ensure_future(listen(engine, ask()))
    await settle()
    assert not task.done()
    engine.release(phase)
    events = await task
    assert "".join(e.text for e in events if isinstance(e, Delta)) == "Yes it is."
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize("phase", PHASES)
async def test_a_request_cancelled_in_a_phase_leaves_nothing(phase: Phase) -> None:
    engine = FakeEngine(clock=FakeClock())
    engine.hold(phase)
    task = asyncio.ensure_future(listen(engine, ask()))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert idle(engine)
    assert engine.stats().cancelled == 1


@pytest.mark.parametrize("phase", PHASES)
async def test_a_deadline_is_kept_in_every_phase(phase: Phase) -> None:
    clock = FakeClock()
    engine = FakeEngine(clock=clock)
    engine.hold(phase)
    task = asyncio.ensure_future(listen(engine, ask(deadline_s=clock.monotonic_s() + 5)))
    await settle()
    clock.move(5)
    engine.release(phase)
    events = await task
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, DeadlineExceeded)
    assert idle(engine)


async def test_tokens_take_their_time_on_the_given_clock() -> None:
    clock = FakeClock()
    engine = FakeEngine(clock=clock, answer="one two three", token_s=0.5)
    task = asyncio.ensure_future(listen(engine, ask()))
    for _ in range(4):
        await settle()
        await clock.advance(0.5)
    end = (await task)[-1]
    assert isinstance(end, Finished)
    assert end.timings.decode_ms == pytest.approx(1000)
    assert end.timings.total_ms == pytest.approx(1500)


async def test_an_answer_may_be_a_function_of_the_request_or_an_error() -> None:
    def answer(request: GenerateRequest) -> str:
        if request.sampling.seed == 1:
            raise MediaInvalid("too dark")
        return f"seed {request.sampling.seed}"

    engine = FakeEngine(clock=FakeClock(), answer=answer)
    events = await listen(engine, ask(seed=7))
    assert "".join(e.text for e in events if isinstance(e, Delta)) == "seed 7"
    events = await listen(engine, ask(seed=1))
    assert isinstance(events[-1], Failed)
    assert events[-1].error.message == "too dark"


async def test_stop_strings_and_limits_end_an_answer() -> None:
    engine = FakeEngine(clock=FakeClock(), answer="one two three four")
    events = await listen(engine, ask(stop=("three",)))
    assert "".join(e.text for e in events if isinstance(e, Delta)) == "one two "
    events = await listen(engine, ask(max_tokens=2))
    assert isinstance(events[-1], Finished)
    assert (events[-1].reason, events[-1].usage.completion_tokens) == ("length", 2)


async def test_a_model_that_is_loading_is_unavailable() -> None:
    engine = FakeEngine(clock=FakeClock())
    engine.set_status("loading")
    with pytest.raises(ModelUnavailable):
        await listen(engine, ask())
    with pytest.raises(LiveEdgeError):
        await engine.ready()


def window(engine: FakeEngine, request_id: str = "w1") -> WindowPrefix:
    request = GenerateRequest(
        request_id=request_id, messages=(Message(role="user", content=(PICTURE,)),)
    )
    return WindowPrefix(window_id="w", prepared=engine.prepare_window(request))


@pytest.mark.parametrize("phase", PHASES)
async def test_a_crash_ends_a_request_in_every_phase(phase: Phase) -> None:
    engine = FakeEngine(clock=FakeClock())
    engine.hold(phase)
    task = asyncio.ensure_future(listen(engine, ask()))
    await settle()
    engine.crash()
    events = await task
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, ModelUnavailable)
    assert idle(engine)


async def test_a_restart_is_waited_for_and_forgets_everything() -> None:
    engine = FakeEngine(clock=FakeClock())
    await listen(engine, ask())
    await engine.warm(window(engine))
    engine.crash()
    with pytest.raises(ModelUnavailable):
        await listen(engine, ask())
    with pytest.raises(ModelUnavailable):
        await engine.warm(window(engine))
    ready = asyncio.ensure_future(engine.ready())
    await settle()
    assert not ready.done()
    engine.restart()
    await ready
    assert (engine.n_starts, engine.stats().windows) == (2, 0)
    end = (await listen(engine, ask()))[-1]
    assert isinstance(end, Finished)
    assert (end.usage.cached_tokens, end.usage.media[0].warm) == (0, False)


async def test_an_update_that_is_held_ends_with_the_crash() -> None:
    engine = FakeEngine(clock=FakeClock())
    engine.hold("warm")
    update = asyncio.ensure_future(engine.warm(window(engine)))
    await settle()
    assert not update.done()
    engine.crash()
    with pytest.raises(ModelUnavailable):
        await update
    assert engine.warmed == []


async def test_an_update_takes_its_time_on_the_given_clock() -> None:
    clock = FakeClock()
    engine = FakeEngine(clock=clock)
    engine.warm_s = 0.5
    update = asyncio.ensure_future(engine.warm(window(engine)))
    while clock.n_sleepers == 0:  # its picture is loaded on another thread
        await settle()
    assert not update.done()
    await clock.advance(0.5)
    warmed = await update
    assert (warmed.busy_s, engine.stats().warm_busy_s) == (0.5, 0.5)
    assert [prefix.window_id for prefix in engine.warmed] == ["w"]


async def test_evidence_that_becomes_stale_in_a_phase_before_the_first_token_fails() -> None:
    clock = FakeClock()
    engine = FakeEngine(clock=clock)
    for phase in PHASES[:-1]:
        engine.hold(phase)
        request = replace(ask(), fresh_until_s=clock.monotonic_s() + 1)
        task = asyncio.ensure_future(listen(engine, request))
        await settle()
        clock.move(1.001)
        engine.release(phase)
        events = await task
        assert isinstance(events[-1], Failed)
        assert isinstance(events[-1].error, FrameStale)
    assert engine.stats().stale == len(PHASES) - 1

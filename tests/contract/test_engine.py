"""Every engine keeps the same promises: the real one and the fake that other tests use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from liveedge.core.clock import SystemClock
from liveedge.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    FrameEvicted,
    InternalError,
    LiveEdgeError,
    ModelUnavailable,
    QueueFull,
)
from liveedge.engine.client import load_engine
from liveedge.engine.interface import Engine, EngineSettings, EngineStats
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
    VideoPart,
)
from liveedge.testing.engine import FAKE_MODEL, FakeEngine
from tests.checkpoints import make_checkpoint
from tests.engines import ENDLESS

N_SLOTS, CAPACITY = 2, 3
CLOCK = SystemClock()
WORDS = " ".join(f"word{n}" for n in range(300))


def real(folder: Path) -> Engine:
    settings = EngineSettings(
        device="cpu", n_slots=N_SLOTS, queue_capacity=CAPACITY, max_model_len=512
    )
    return load_engine(folder, settings=replace(settings, encoder_cache_bytes=1 << 20), clock=CLOCK)


def fake(folder: Path) -> Engine:
    return FakeEngine(
        clock=CLOCK,
        answer=WORDS,
        n_slots=N_SLOTS,
        queue_capacity=CAPACITY,
        model=replace(FAKE_MODEL, max_model_len=512),
    )


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=4)


@pytest.fixture(params=[real, fake])
def engine(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[Engine]:
    engine = request.param(checkpoint)
    yield engine
    engine.close()


class Camera:
    """Frames whose pixels can be held back or lost."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        self.error: Exception | None = None
        self.n_loads = 0

    def frame(self, key: str, time_s: float = 0.0) -> FrameInput:
        return FrameInput(key=key, width=96, height=64, load=self._load, time_s=time_s)

    def _load(self) -> NDArray[np.uint8]:
        self.n_loads += 1
        self.asked.set()
        assert self.open.wait(20)
        if self.error is not None:
            raise self.error
        return np.full((64, 96, 3), 100, np.uint8)


def ask(
    request_id: str,
    *parts: TextPart | ImagePart | VideoPart,
    text: str = "What is it?",
    max_tokens: int = 4,
    deadline_s: float | None = None,
    endless: bool = False,
) -> GenerateRequest:
    content = (*parts, TextPart(text))
    return GenerateRequest(
        request_id=request_id,
        messages=(Message(role="user", content=content),),
        sampling=SamplingParams(max_tokens=max_tokens),
        json_schema=ENDLESS if endless else None,
        deadline_s=deadline_s,
    )


async def listen(engine: Engine, request: GenerateRequest) -> list[Event]:
    async with aclosing(engine.generate(engine.prepare(request))) as events:
        return [event async for event in events]


def failure(events: list[Event]) -> LiveEdgeError:
    assert isinstance(events[-1], Failed), events
    return events[-1].error


def finish(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events
    return events[-1]


def gauges(stats: EngineStats) -> dict[str, int]:
    return {
        "queue_depth": stats.queue_depth,
        "running": stats.running,
        "slots_used": stats.slots_used,
        "encoder_pinned_bytes": stats.encoder_pinned_bytes,
        "loads_in_flight": stats.loads_in_flight,
        "patch_bytes": stats.patch_bytes,
    }


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("waited in vain")


async def until_idle(engine: Engine) -> None:
    """Wait until nothing is left of any request."""
    await until(lambda: not any(gauges(engine.stats()).values()))


async def until_asked(camera: Camera) -> None:
    assert await asyncio.to_thread(camera.asked.wait, 20)


async def test_a_request_gets_deltas_and_then_exactly_one_end(engine: Engine) -> None:
    await engine.ready()
    events = await listen(engine, ask("q", endless=True))
    assert [isinstance(event, Delta) for event in events] == [True] * (len(events) - 1) + [False]
    end = finish(events)
    n_tokens = sum(event.n_tokens for event in events if isinstance(event, Delta))
    assert n_tokens == end.usage.completion_tokens == 4
    assert end.reason == "length"
    assert any(gauges(engine.stats()).values()) is False
    assert engine.stats().finished == 1


async def test_times_are_ordered(engine: Engine) -> None:
    await engine.ready()
    times = finish(await listen(engine, ask("q", ImagePart(frame=Camera().frame("a"))))).timings
    assert 0 <= times.queue_ms <= times.first_token_ms <= times.total_ms
    assert times.preprocess_ms > 0
    assert times.decode_ms == pytest.approx(times.total_ms - times.first_token_ms)


async def test_usage_counts_media_and_says_what_was_warm(engine: Engine) -> None:
    await engine.ready()
    camera = Camera()
    clip = VideoPart(frames=(camera.frame("a"), camera.frame("b", 0.5)))
    cold = finish(await listen(engine, ask("cold", clip))).usage
    warm = finish(await listen(engine, ask("warm", clip, text="And now?"))).usage
    assert [(media.key, media.warm) for media in cold.media] == [("a", False), ("b", False)]
    assert [(media.key, media.warm) for media in warm.media] == [("a", True), ("b", True)]
    assert cold.image_tokens == sum(media.n_tokens for media in cold.media) > 0
    assert (cold.cached_tokens, camera.n_loads) == (0, 2)
    assert warm.image_tokens <= warm.cached_tokens < warm.prompt_tokens


async def test_a_doubled_frame_is_loaded_and_listed_once(engine: Engine) -> None:
    await engine.ready()
    camera = Camera()
    lone = camera.frame("lone")
    usage = finish(await listen(engine, ask("q", VideoPart(frames=(lone, lone))))).usage
    assert [media.key for media in usage.media] == ["lone"]
    assert camera.n_loads == 1


async def test_a_frame_that_cannot_be_had_fails_its_request_with_its_reason(
    engine: Engine,
) -> None:
    await engine.ready()
    camera = Camera()
    camera.error = FrameEvicted("frame 7 is gone")
    events = await listen(engine, ask("q", ImagePart(frame=camera.frame("a"))))
    assert failure(events) is camera.error
    finish(await listen(engine, ask("next")))
    await until_idle(engine)
    assert engine.stats().failed == 1


async def test_an_unexpected_error_of_a_source_is_an_internal_error(engine: Engine) -> None:
    await engine.ready()
    camera = Camera()
    camera.error = OSError("disk on fire at /secret/path")
    error = failure(await listen(engine, ask("q", ImagePart(frame=camera.frame("a")))))
    assert isinstance(error, InternalError)
    assert "secret" not in error.message


async def test_leaving_after_the_first_delta_ends_all_work(engine: Engine) -> None:
    await engine.ready()
    async with aclosing(
        engine.generate(engine.prepare(ask("q", max_tokens=300, endless=True)))
    ) as events:
        async for event in events:
            assert isinstance(event, Delta)
            break
    await until_idle(engine)
    stats = engine.stats()
    assert (stats.cancelled, stats.finished, stats.failed) == (1, 0, 0)
    assert stats.generated_tokens < 300


async def test_a_cancelled_task_ends_all_work_while_its_frames_are_loaded(engine: Engine) -> None:
    await engine.ready()
    camera = Camera()
    camera.open.clear()
    task = asyncio.ensure_future(listen(engine, ask("q", ImagePart(frame=camera.frame("a")))))
    await until_asked(camera)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(engine)
    camera.open.set()
    finish(await listen(engine, ask("next", ImagePart(frame=camera.frame("a")))))


async def test_one_request_more_than_may_wait_is_refused_before_its_first_event(
    engine: Engine,
) -> None:
    await engine.ready()
    camera = Camera()
    camera.open.clear()
    picture = ImagePart(frame=camera.frame("a"))
    tasks = [
        asyncio.ensure_future(listen(engine, ask(f"running-{n}", picture))) for n in range(N_SLOTS)
    ]
    await until(lambda: engine.stats().running == N_SLOTS)
    tasks += [asyncio.ensure_future(listen(engine, ask(f"waits-{n}"))) for n in range(CAPACITY)]
    await until(lambda: engine.stats().queue_depth == CAPACITY)
    with pytest.raises(QueueFull) as refusal:
        await listen(engine, ask("one too many"))
    assert refusal.value.retry_after_s is not None
    camera.open.set()
    for events in await asyncio.gather(*tasks):
        finish(events)
    assert engine.stats().refused == 1
    await until_idle(engine)


async def test_a_deadline_before_the_start_fails_the_request(engine: Engine) -> None:
    await engine.ready()
    error = failure(await listen(engine, ask("late", deadline_s=CLOCK.monotonic_s() - 1)))
    assert isinstance(error, DeadlineExceeded)
    await until_idle(engine)


async def test_a_prompt_that_does_not_fit_is_refused_with_its_length(engine: Engine) -> None:
    with pytest.raises(ContextLengthExceeded, match=r"has \d+ tokens .* takes 511"):
        engine.prepare(ask("long", text="door " * 600))


async def test_an_answer_is_cut_where_the_context_ends(engine: Engine) -> None:
    prepared = engine.prepare(ask("q", max_tokens=100_000))
    assert prepared.max_new_tokens == 512 - prepared.n_tokens


async def test_closing_ends_requests_and_refuses_new_ones(engine: Engine) -> None:
    await engine.ready()
    camera = Camera()
    camera.open.clear()
    request = ask("q", ImagePart(frame=camera.frame("a")))
    task = asyncio.ensure_future(listen(engine, request))
    await until_asked(camera)
    closing = asyncio.ensure_future(asyncio.to_thread(engine.close))
    camera.open.set()
    await closing
    events = await task
    assert isinstance(events[-1], Failed | Finished)
    assert engine.status() == "closed"
    with pytest.raises(ModelUnavailable):
        await listen(engine, ask("after"))

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
    FrameStale,
    InternalError,
    LiveEdgeError,
    ModelUnavailable,
    QueueFull,
    WindowLimitReached,
)
from liveedge.engine.client import load_engine
from liveedge.engine.form.forms import JsonForm
from liveedge.engine.interface import (
    Engine,
    EngineSettings,
    EngineStats,
    Warmed,
    WindowPrefix,
)
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

N_SLOTS, N_WINDOWS, CAPACITY = 2, 2, 3
CLOCK = SystemClock()
WORDS = " ".join(f"word{n}" for n in range(300))


def real(folder: Path) -> Engine:
    settings = EngineSettings(
        device="cpu",
        n_slots=N_SLOTS,
        n_windows=N_WINDOWS,
        queue_capacity=CAPACITY,
        max_model_len=512,
    )
    return load_engine(folder, settings=replace(settings, encoder_cache_bytes=1 << 20), clock=CLOCK)


def fake(folder: Path) -> Engine:
    return FakeEngine(
        clock=CLOCK,
        answer=WORDS,
        n_slots=N_SLOTS,
        n_windows=N_WINDOWS,
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
        form=JsonForm(ENDLESS) if endless else None,
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


# ── warm windows ──


def clip(camera: Camera, *keys: str) -> VideoPart:
    return VideoPart(frames=tuple(camera.frame(key, 0.5 * i) for i, key in enumerate(keys)))


def prefix_of(engine: Engine, request_id: str, *parts: ImagePart | VideoPart) -> WindowPrefix:
    """The window `w` of questions that begin with these parts."""
    message = Message(role="user", content=parts)
    request = GenerateRequest(request_id=request_id, messages=(message,), priority="batch")
    return WindowPrefix(window_id="w", prepared=engine.prepare_window(request))


async def test_a_window_is_what_all_its_questions_begin_with(engine: Engine) -> None:
    camera = Camera()
    window = prefix_of(engine, "w1", clip(camera, "a", "b", "c", "d")).prepared
    for text in ("What is it?", "And now, how many of them are there?"):
        question = engine.prepare(ask("q", clip(camera, "a", "b", "c", "d"), text=text))
        assert (question.ids[: window.n_tokens] == window.ids).all()
        assert (question.identity[: window.n_tokens] == window.identity).all()
        assert (question.positions[:, : window.n_tokens] == window.positions).all()
        assert window.n_tokens == question.groups[-1].stop < question.n_tokens
    assert camera.n_loads == 0


async def test_a_tenant_reuses_its_own_prefixes_and_learns_nothing_of_those_of_another(
    engine: Engine,
) -> None:
    await engine.ready()
    used = []
    for n, tenant in enumerate(("us", "us", "them", "them")):
        # Of each tenant its own picture, as keys of frames hold the tenant; the text is the same.
        picture = ImagePart(frame=Camera().frame(f"{tenant}/a"))
        request = replace(ask(f"q{n}", picture), tenant=tenant)
        usage = finish(await listen(engine, request)).usage
        used.append((usage.cached_tokens > 0, usage.media[0].warm))
    assert used == [(False, False), (True, True), (False, False), (True, True)]


async def test_there_is_no_window_without_media(engine: Engine) -> None:
    request = GenerateRequest(
        request_id="w", messages=(Message(role="user", content=(TextPart("Hello"),)),)
    )
    with pytest.raises(ValueError, match="window"):
        engine.prepare_window(request)


async def test_questions_about_a_warm_window_pay_for_their_own_tokens(engine: Engine) -> None:
    await engine.ready()
    camera = Camera()
    window = prefix_of(engine, "w1", clip(camera, "a", "b", "c", "d"))
    warmed = await engine.warm(window)
    assert (warmed.superseded, warmed.n_encoded, camera.n_loads) == (False, 2, 4)
    assert warmed.n_tokens == warmed.n_prefilled == window.prepared.n_tokens
    assert warmed.busy_s >= 0
    for n in range(3):
        request = ask(f"q{n}", clip(camera, "a", "b", "c", "d"), text=f"Question {n}?")
        usage = finish(await listen(engine, request)).usage
        assert usage.cached_tokens >= window.prepared.n_tokens
        assert all(media.warm for media in usage.media)
    assert camera.n_loads == 4
    assert engine.stats().windows == 1


async def test_questions_at_once_share_one_window(engine: Engine) -> None:
    await engine.ready()
    camera = Camera()
    window = prefix_of(engine, "w1", clip(camera, "a", "b"))
    await engine.warm(window)
    texts = [f"Question {n}?" for n in range(CAPACITY)]
    questions = [ask(text, clip(camera, "a", "b"), text=text) for text in texts]
    answers = await asyncio.gather(*(listen(engine, question) for question in questions))
    for events in answers:
        assert finish(events).usage.cached_tokens >= window.prepared.n_tokens
    assert camera.n_loads == 2


async def test_a_window_that_slides_encodes_only_what_is_new(engine: Engine) -> None:
    await engine.ready()
    camera = Camera()
    await engine.warm(prefix_of(engine, "w1", clip(camera, "a", "b", "c", "d")))
    warmed = await engine.warm(prefix_of(engine, "w2", clip(camera, "c", "d", "e", "f")))
    assert (warmed.n_encoded, camera.n_loads) == (1, 6)
    usage = finish(await listen(engine, ask("q", clip(camera, "c", "d", "e", "f")))).usage
    assert usage.cached_tokens >= warmed.n_tokens
    stats = engine.stats()
    assert (stats.windows, stats.warm_updates, stats.warm_encoded) == (1, 2, 3)


async def test_the_newest_prefix_of_a_window_wins(engine: Engine) -> None:
    await engine.ready()
    slow, camera = Camera(), Camera()
    slow.open.clear()
    first = asyncio.ensure_future(engine.warm(prefix_of(engine, "w1", clip(slow, "a", "b"))))
    await until_asked(slow)
    second = asyncio.ensure_future(engine.warm(prefix_of(engine, "w2", clip(camera, "c", "d"))))
    assert (await first).superseded
    slow.open.set()
    assert not (await second).superseded
    usage = finish(await listen(engine, ask("q", clip(camera, "c", "d")))).usage
    assert usage.cached_tokens >= usage.image_tokens
    await until_idle(engine)
    assert engine.stats().warm_superseded == 1


async def test_the_prefix_before_serves_until_the_new_one_is_complete(engine: Engine) -> None:
    await engine.ready()
    slow, camera = Camera(), Camera()
    before = prefix_of(engine, "w1", clip(camera, "a", "b"))
    await engine.warm(before)
    slow.open.clear()
    update = asyncio.ensure_future(engine.warm(prefix_of(engine, "w2", clip(slow, "c", "d"))))
    await until_asked(slow)
    usage = finish(await listen(engine, ask("q", clip(camera, "a", "b")))).usage
    assert usage.cached_tokens >= before.prepared.n_tokens
    slow.open.set()
    assert not (await update).superseded


async def test_a_frame_that_cannot_be_had_fails_the_update_with_its_reason(engine: Engine) -> None:
    await engine.ready()
    camera = Camera()
    camera.error = FrameEvicted("frame 7 is gone")
    with pytest.raises(FrameEvicted, match="frame 7"):
        await engine.warm(prefix_of(engine, "w1", clip(camera, "a", "b")))
    camera.error = None
    assert not (await engine.warm(prefix_of(engine, "w2", clip(camera, "a", "b")))).superseded
    await until_idle(engine)


async def test_an_update_that_is_cancelled_leaves_nothing(engine: Engine) -> None:
    await engine.ready()
    slow, camera = Camera(), Camera()
    slow.open.clear()
    update = asyncio.ensure_future(engine.warm(prefix_of(engine, "w1", clip(slow, "a", "b"))))
    await until_asked(slow)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    slow.open.set()
    await until_idle(engine)
    assert not (await engine.warm(prefix_of(engine, "w2", clip(camera, "a", "b")))).superseded


async def test_a_dropped_window_gives_its_place_to_another(engine: Engine) -> None:
    await engine.ready()
    camera = Camera()
    one = prefix_of(engine, "w1", clip(camera, "a", "b"))
    two = prefix_of(engine, "w2", clip(camera, "a", "b"))
    three = prefix_of(engine, "w3", clip(camera, "a", "b"))
    await engine.warm(replace(one, window_id="one"))
    await engine.warm(replace(two, window_id="two"))
    with pytest.raises(WindowLimitReached):
        await engine.warm(replace(three, window_id="three"))
    engine.drop_window("never heard of")
    engine.drop_window("one")
    four = prefix_of(engine, "w4", clip(camera, "a", "b"))
    assert not (await engine.warm(replace(four, window_id="three"))).superseded
    assert engine.stats().windows == 2
    for window_id in ("two", "three"):
        engine.drop_window(window_id)
    await until(lambda: engine.stats().windows == 0)


async def test_dropping_a_window_ends_its_update(engine: Engine) -> None:
    await engine.ready()
    slow = Camera()
    slow.open.clear()
    update = asyncio.ensure_future(engine.warm(prefix_of(engine, "w1", clip(slow, "a", "b"))))
    await until_asked(slow)
    engine.drop_window("w")
    assert (await update).superseded
    slow.open.set()
    await until_idle(engine)
    await until(lambda: engine.stats().windows == 0)


async def test_closing_the_engine_fails_an_update(engine: Engine) -> None:
    await engine.ready()
    assert engine.n_starts == 1
    slow = Camera()
    slow.open.clear()
    update = asyncio.ensure_future(engine.warm(prefix_of(engine, "w1", clip(slow, "a", "b"))))
    await until_asked(slow)
    closing = asyncio.ensure_future(asyncio.to_thread(engine.close))
    slow.open.set()
    await closing
    outcome = (await asyncio.gather(update, return_exceptions=True))[0]
    assert isinstance(outcome, ModelUnavailable | Warmed)
    with pytest.raises(ModelUnavailable):
        await engine.warm(prefix_of(engine, "w2", clip(slow, "a", "b")))


async def test_evidence_that_is_too_old_gives_no_first_token(engine: Engine) -> None:
    await engine.ready()
    late = replace(ask("late"), fresh_until_s=CLOCK.monotonic_s() - 0.001)
    events = await listen(engine, late)
    assert isinstance(failure(events), FrameStale)
    assert len(events) == 1
    early = replace(ask("early"), fresh_until_s=CLOCK.monotonic_s() + 60)
    finish(await listen(engine, early))
    await until_idle(engine)
    assert engine.stats().stale == 1

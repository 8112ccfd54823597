"""The engine in a process of its own: the same answers, and nothing lost when it dies or hangs."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from liveedge.core.clock import SystemClock
from liveedge.core.errors import (
    CheckpointInvalid,
    FrameEvicted,
    InternalError,
    LiveEdgeError,
    MediaTooLarge,
    ModelUnavailable,
)
from liveedge.engine.client import EngineClient, load_engine
from liveedge.engine.form.forms import JsonForm
from liveedge.engine.interface import EngineSettings, EngineStats
from liveedge.engine.process.spawn import Child, Nursery
from liveedge.engine.process.supervisor import Patience
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
from tests.checkpoints import make_checkpoint
from tests.engines import ENDLESS, question
from tests.reference import clip, still

SETTINGS = EngineSettings(
    device="cpu",
    n_slots=2,
    max_model_len=512,
    encoder_cache_bytes=1 << 20,
    queue_capacity=200,
    prefill_chunk=8,  # so that a prompt takes many steps
    encode_tokens=1,
    threads=1,
    shared_frame_bytes=1 << 20,
)
CLOCK = SystemClock()
ALONE = Patience(standby=False)  # nothing else starts meanwhile
HEIGHT, WIDTH = 64, 96
LIMIT_S = 60.0

pytestmark = pytest.mark.timeout(300)

# Loads an engine, tells its process and waits to be killed.
PARENT = """
import asyncio, sys
from pathlib import Path
from liveedge.core.clock import SystemClock
from liveedge.engine.client import load_engine
from liveedge.engine.interface import EngineSettings
settings = EngineSettings(device="cpu", max_model_len=512, encoder_cache_bytes=1 << 20)
engine = load_engine(Path(sys.argv[1]), settings=settings, clock=SystemClock(), inproc=False)
if sys.argv[2] == "ready":
    asyncio.run(engine.ready())
while engine.pid is None:
    pass
print(engine.pid, flush=True)
input()
"""


# Starts and ends an engine two times, with a standby; tells its open files and threads around that.
TWICE = """
import asyncio, gc, os, sys, threading
from pathlib import Path
from liveedge.core.clock import SystemClock
from liveedge.engine.client import load_engine
from liveedge.engine.interface import EngineSettings
settings = EngineSettings(device="cpu", max_model_len=512, encoder_cache_bytes=1 << 20)
async def live():
    engine = load_engine(Path(sys.argv[1]), settings=settings, clock=SystemClock(), inproc=False)
    await engine.ready()
    while engine.standby_pid is None:
        await asyncio.sleep(0.05)
    engine.close()
def tell():
    gc.collect()  # a mapping closes its copy of the descriptor with the last reference to it
    print(len(os.listdir("/proc/self/fd")), threading.active_count(), flush=True)
asyncio.run(live())  # what is opened once and for all is open now
tell()
asyncio.run(live())
tell()
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=4)


@pytest.fixture(scope="module")
def long_lived(checkpoint: Path) -> Any:
    """One engine for all tests here: each leaves it answering."""
    engine = load_engine(
        checkpoint, settings=SETTINGS, clock=CLOCK, inproc=False, patience=Patience()
    )
    yield engine
    engine.close()


@pytest.fixture
async def engine(long_lived: EngineClient) -> EngineClient:
    await asyncio.wait_for(long_lived.ready(), LIMIT_S)
    return long_lived


async def listen(engine: EngineClient, request: GenerateRequest) -> list[Event]:
    async with aclosing(engine.generate(engine.prepare(request))) as events:
        return [event async for event in events]


def finish(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events
    return events[-1]


def failure(events: list[Event]) -> LiveEdgeError:
    assert isinstance(events[-1], Failed), events
    assert not any(isinstance(event, Finished | Failed) for event in events[:-1])
    return events[-1].error


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():  # noqa: ASYNC110  it happens in another process
            await asyncio.sleep(0.0005)

    await asyncio.wait_for(wait(), LIMIT_S)


def gauges(stats: EngineStats) -> dict[str, int]:
    return {
        "queue_depth": stats.queue_depth,
        "running": stats.running,
        "slots_used": stats.slots_used,
        "encoder_pinned_bytes": stats.encoder_pinned_bytes,
        "loads_in_flight": stats.loads_in_flight,
        "patch_bytes": stats.patch_bytes,
        "shared_frame_bytes": stats.shared_frame_bytes,
    }


async def until_idle(engine: EngineClient) -> None:
    await until(lambda: engine.n_live == 0 and not any(gauges(engine.stats()).values()))


class Camera:
    """Frames whose pixels can be held back or lost."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        self.error: Exception | None = None
        self.n_loads = 0

    def picture(self, key: str, *, width: int = WIDTH) -> ImagePart:
        def load() -> NDArray[np.uint8]:
            self.n_loads += 1
            self.asked.set()
            assert self.open.wait(LIMIT_S)
            if self.error is not None:
                raise self.error
            return np.full((HEIGHT, width, 3), 100, np.uint8)

        return ImagePart(frame=FrameInput(key=key, width=width, height=HEIGHT, load=load))


HELD = JsonForm(ENDLESS)


def ask(request_id: str, *parts: ImagePart, text: str = "?", **options: Any) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=options.pop("max_tokens", 4))
    message = Message(role="user", content=(*parts, TextPart(text)))
    return GenerateRequest(request_id=request_id, messages=(message,), sampling=sampling, **options)


def questions() -> list[GenerateRequest]:
    """Text, a picture, videos that share frames, chance, JSON, logprobs, a stop string."""
    film = ("film", clip(64, 96, (0.0, 0.5, 1.0, 1.5)))
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
    }
    return [
        question("text", ["Tell me."], max_tokens=30),
        question("picture", [("still", still(96, 64)), "What is it?"], max_tokens=20),
        question("film", [film, "What happens?"], max_tokens=20),
        question("again", [film, "And then?"], max_tokens=20, temperature=1.0, seed=3),
        question("json", ["State?"], max_tokens=40, json_schema=schema),
        question("odds", ["Say"], max_tokens=8, logprobs=True, top_logprobs=3),
        question("stop", ["Say"], max_tokens=40, stop=("e", "o")),
    ]


def comparable(events: list[Event]) -> list[object]:
    """Everything but times, and without regard to how text was cut into events."""
    text = "".join(event.text for event in events if isinstance(event, Delta))
    odds = [token for event in events if isinstance(event, Delta) for token in event.logprobs]
    end = finish(events)
    return [text, odds, end.reason, end.usage]


async def test_another_process_says_token_by_token_what_a_thread_says(checkpoint: Path) -> None:
    answers: list[list[list[object]]] = []
    for inproc in (True, False):
        engine = load_engine(
            checkpoint, settings=SETTINGS, clock=CLOCK, inproc=inproc, patience=ALONE
        )
        await asyncio.wait_for(engine.ready(), LIMIT_S)
        answers.append([comparable(await listen(engine, asked)) for asked in questions()])
        await until_idle(engine)
        engine.close()
    assert answers[0] == answers[1]


async def test_a_frame_whose_load_raises_fails_its_request_alone(engine: EngineClient) -> None:
    camera, other = Camera(), Camera()
    camera.error = FrameEvicted("frame 7 is gone")
    bad, good = await asyncio.gather(
        listen(engine, ask("bad", camera.picture("raises"))),
        listen(engine, ask("good", other.picture("fine"))),
    )
    error = failure(bad)
    assert isinstance(error, FrameEvicted)
    assert error.message == "frame 7 is gone"
    finish(good)
    await until_idle(engine)


async def test_a_defect_of_a_source_stays_inside(
    engine: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    camera = Camera()
    camera.error = OSError("disk on fire at /secret/path")
    with caplog.at_level(logging.CRITICAL):
        error = failure(await listen(engine, ask("q", camera.picture("defect"))))
    assert isinstance(error, InternalError)
    assert "secret" not in error.message


async def test_a_slow_load_holds_up_nobody_else(engine: EngineClient) -> None:
    camera = Camera()
    camera.open.clear()
    slow = asyncio.ensure_future(listen(engine, ask("slow", camera.picture("slow"))))
    assert await asyncio.to_thread(camera.asked.wait, LIMIT_S)
    for n in range(5):
        finish(await listen(engine, ask(f"fast-{n}", Camera().picture(f"fast-{n}"))))
    assert not slow.done()
    assert engine.stats().loads_in_flight == 1
    camera.open.set()
    finish(await slow)
    await until_idle(engine)


async def test_a_frame_that_the_engine_has_encoded_is_not_sent_again(
    engine: EngineClient,
) -> None:
    camera = Camera()
    for n in range(3):
        finish(await listen(engine, ask(f"q{n}", camera.picture("known"), text=f"Number {n}?")))
    assert camera.n_loads == 1


async def test_a_picture_beyond_the_shared_memory_is_refused_by_the_name_of_the_setting(
    checkpoint: Path,
) -> None:
    small = replace(SETTINGS, shared_frame_bytes=HEIGHT * WIDTH * 3)
    engine = load_engine(checkpoint, settings=small, clock=CLOCK, inproc=False, patience=ALONE)
    await asyncio.wait_for(engine.ready(), LIMIT_S)
    camera = Camera()
    error = failure(await listen(engine, ask("large", camera.picture("large", width=2 * WIDTH))))
    assert isinstance(error, MediaTooLarge)
    assert "shared_frame_bytes" in error.message
    many = [ask(f"q{n}", camera.picture(f"p{n}")) for n in range(12)]  # one fits at a time
    for events in await asyncio.gather(*(listen(engine, asked) for asked in many)):
        finish(events)
    await until_idle(engine)
    engine.close()


async def test_a_thousand_clients_that_leave_leave_nothing_behind(engine: EngineClient) -> None:
    rng = random.Random(5)
    before = engine.stats()

    async def visit(n: int) -> None:
        part = Camera().picture(f"visit-{n % 60}")
        asked = ask(f"visit-{n}", part, max_tokens=rng.choice([1, 5, 300]), form=HELD)
        try:
            async with asyncio.timeout(rng.uniform(0, 0.3)):
                await listen(engine, asked)
        except TimeoutError:
            pass

    for start in range(0, 1000, 100):
        await asyncio.gather(*(visit(n) for n in range(start, start + 100)))
    finish(await listen(engine, ask("after", max_tokens=3)))
    await until_idle(engine)
    after = engine.stats()
    assert after.cancelled > before.cancelled
    assert after.cancelled + after.finished - before.cancelled - before.finished == 1001
    assert after.failed == before.failed


def hold(n: int) -> tuple[GenerateRequest, ...]:
    """Answers that keep every slot busy."""
    return tuple(
        ask(f"busy-{n}-{slot}", max_tokens=450, form=HELD) for slot in range(SETTINGS.n_slots)
    )


PHASES = ("queue", "load", "encode", "prefill", "decode")


async def into_phase(
    engine: EngineClient, phase: str, camera: Camera
) -> list[asyncio.Task[list[Event]]]:
    """Requests of which at least one is in the phase now."""
    begin = engine.stats()
    many = [camera.picture(f"{phase}-{n}") for n in range(30)]
    asked: dict[str, tuple[GenerateRequest, ...]] = {
        "queue": (*hold(0), ask("queued", form=HELD)),
        "load": (ask("loads", camera.picture("never")),),
        "encode": (ask("encodes", *many),),
        "prefill": (ask("prefills", text="so " * 200),),
        "decode": (ask("decodes", max_tokens=450, form=HELD),),
    }
    reached: dict[str, Callable[[EngineStats], bool]] = {
        "queue": lambda now: now.running == SETTINGS.n_slots and now.queue_depth == 1,
        "load": lambda _now: camera.asked.is_set(),
        "encode": lambda now: now.encoder_cache_bytes > begin.encoder_cache_bytes + 500,
        "prefill": lambda now: now.steps > begin.steps + 3,
        "decode": lambda now: now.generated_tokens > begin.generated_tokens + 5,
    }
    tasks = [asyncio.ensure_future(listen(engine, item)) for item in asked[phase]]
    await until(lambda: reached[phase](engine.stats()) or any(task.done() for task in tasks))
    assert not any(task.done() for task in tasks), f"it went through {phase} unseen"
    return tasks


@pytest.mark.parametrize("phase", PHASES)
async def test_an_engine_that_is_killed_ends_every_request_once_and_comes_back(
    engine: EngineClient, phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    truth = comparable(await listen(engine, question("before", ["Tell me."], max_tokens=20)))[:2]
    camera = Camera()
    if phase == "load":
        camera.open.clear()
    n_starts, failed = engine.n_starts, engine.stats().failed
    tasks = await into_phase(engine, phase, camera)
    assert engine.pid is not None
    with caplog.at_level(logging.CRITICAL):
        os.kill(engine.pid, signal.SIGKILL)
        ends = [failure(await asyncio.wait_for(task, LIMIT_S)) for task in tasks]
        camera.open.set()
        assert engine.status() == "loading"
        with pytest.raises(ModelUnavailable, match="started again") as refusal:
            await listen(engine, ask("meanwhile"))
        assert refusal.value.retry_after_s is not None
        await asyncio.wait_for(engine.ready(), LIMIT_S)
    for error in ends:
        assert isinstance(error, ModelUnavailable)
        assert error.retry_after_s is not None
    assert engine.n_starts == n_starts + 1
    again = await listen(engine, question("after", ["Tell me."], max_tokens=20))
    assert comparable(again)[:2] == truth
    await until_idle(engine)
    assert engine.stats().failed == failed + len(tasks)


async def test_a_hanging_engine_is_replaced(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = load_engine(
        checkpoint,
        settings=SETTINGS,
        clock=CLOCK,
        inproc=False,
        patience=Patience(hang_s=1.0, standby=False),
    )
    await asyncio.wait_for(engine.ready(), LIMIT_S)
    first = engine.pid
    assert first is not None
    task = asyncio.ensure_future(listen(engine, ask("stuck", max_tokens=450, form=HELD)))
    await until(lambda: engine.stats().generated_tokens > 0)
    with caplog.at_level(logging.CRITICAL):
        os.kill(first, signal.SIGSTOP)
        assert isinstance(failure(await asyncio.wait_for(task, LIMIT_S)), ModelUnavailable)
        await asyncio.wait_for(engine.ready(), LIMIT_S)
    assert engine.pid not in (first, None)
    assert not is_alive(first)
    finish(await listen(engine, ask("after")))
    assert engine.stats().n_restarts == 1
    engine.close()


async def test_a_prefix_that_is_being_made_ends_with_the_engine(
    engine: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    camera = Camera()
    camera.open.clear()
    prefix = window(engine, "w", ask("prefix", camera.picture("window")))
    task = asyncio.ensure_future(engine.warm(prefix))
    assert await asyncio.to_thread(camera.asked.wait, LIMIT_S)
    assert engine.pid is not None
    with caplog.at_level(logging.CRITICAL):
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(ModelUnavailable):
            await asyncio.wait_for(task, LIMIT_S)
        camera.open.set()
        await asyncio.wait_for(engine.ready(), LIMIT_S)
    warmed = await engine.warm(window(engine, "w", ask("again", camera.picture("window"))))
    assert not warmed.superseded
    assert warmed.n_encoded == 1
    assert engine.stats().windows == 1
    engine.drop_window("w")
    await until(lambda: engine.stats().windows == 0)


def window(engine: EngineClient, window_id: str, request: GenerateRequest) -> Any:
    from liveedge.engine.interface import WindowPrefix

    return WindowPrefix(window_id=window_id, prepared=engine.prepare_window(request))


@pytest.mark.parametrize("moment", ["ready", "loading"])
def test_the_engine_does_not_outlive_a_killed_parent(checkpoint: Path, moment: str) -> None:
    command = [sys.executable, "-c", PARENT, str(checkpoint), moment]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        parent.wait()
    never = threading.Event()
    limit_s = CLOCK.monotonic_s() + 10
    while is_alive(pid):
        assert CLOCK.monotonic_s() < limit_s, "it still runs"
        CLOCK.wait(never, 0.01)


def is_alive(pid: int) -> bool:
    """Running, not only a name in the table of a parent that did not ask yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_closing_ends_requests_and_the_process(checkpoint: Path) -> None:
    engine = load_engine(checkpoint, settings=SETTINGS, clock=CLOCK, inproc=False, patience=ALONE)
    await asyncio.wait_for(engine.ready(), LIMIT_S)
    pid = engine.pid
    assert pid is not None
    task = asyncio.ensure_future(listen(engine, ask("q", max_tokens=450, form=HELD)))
    await until(lambda: engine.stats().running == 1)
    await asyncio.to_thread(engine.close)
    assert isinstance(failure(await task), ModelUnavailable)
    assert engine.status() == "closed"
    assert not is_alive(pid)
    with pytest.raises(ModelUnavailable):
        await listen(engine, ask("after"))


async def test_weights_that_cannot_be_loaded_are_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.language_model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    engine = load_engine(folder, settings=SETTINGS, clock=CLOCK, inproc=False, patience=ALONE)
    with (
        caplog.at_level(logging.CRITICAL),
        pytest.raises(CheckpointInvalid, match=r"language_model\.norm\.weight"),
    ):
        await asyncio.wait_for(engine.ready(), LIMIT_S)
    assert engine.status() == "failed"
    assert engine.stats().n_restarts == 0
    with pytest.raises(ModelUnavailable, match=r"failed: .*norm\.weight"):
        await listen(engine, ask("q"))
    engine.close()


class StingyNursery(Nursery):
    """Has no memory left for the first process."""

    __slots__ = ("n_asked",)

    def __init__(self) -> None:
        super().__init__()
        self.n_asked = 0

    def take(self) -> Child:
        self.n_asked += 1
        if self.n_asked == 1:
            raise BlockingIOError("no more processes")
        return super().take()


async def test_a_process_that_cannot_be_started_now_is_started_later(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        engine = load_engine(
            checkpoint,
            settings=SETTINGS,
            clock=CLOCK,
            inproc=False,
            patience=ALONE,
            nursery=StingyNursery(),
        )
        await asyncio.wait_for(engine.ready(), LIMIT_S)
    finish(await listen(engine, ask("q")))
    assert engine.stats().n_restarts == 1
    engine.close()


async def test_a_process_that_was_started_early_becomes_the_engine(checkpoint: Path) -> None:
    nursery = Nursery()
    nursery.prepare()
    assert nursery.waiting is not None
    early = nursery.waiting.pid
    engine = load_engine(
        checkpoint, settings=SETTINGS, clock=CLOCK, inproc=False, patience=ALONE, nursery=nursery
    )
    await asyncio.wait_for(engine.ready(), LIMIT_S)
    assert engine.pid == early
    engine.close()
    assert not is_alive(early)


def test_nothing_of_an_engine_stays_open(checkpoint: Path) -> None:
    """In a process of its own: here another engine opens and closes files."""
    command = [sys.executable, "-c", TWICE, str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    assert after == before

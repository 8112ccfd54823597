"""The real engine behind its async face: many clients, many departures, every failure contained."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from liveedge.core.clock import SystemClock
from liveedge.core.errors import (
    CheckpointInvalid,
    ContextLengthExceeded,
    DeadlineExceeded,
    InternalError,
    MediaInvalid,
    MediaTooLarge,
    ModelUnavailable,
    ResponseFormatUnsupported,
    SettingsInvalid,
)
from liveedge.engine.client import EngineClient, load_engine
from liveedge.engine.front import Front
from liveedge.engine.interface import EngineSettings
from liveedge.engine.process.link import Listener
from liveedge.engine.process.start import set_threads
from liveedge.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    ImagePart,
    Message,
    TextPart,
)
from liveedge.testing.clock import FakeClock
from tests.checkpoints import make_checkpoint
from tests.engines import ENDLESS, frame, question
from tests.reference import clip, still

SETTINGS = EngineSettings(
    device="cpu", n_slots=3, max_model_len=512, encoder_cache_bytes=1 << 20, queue_capacity=200
)
CLOCK = SystemClock()
STAGES = ["tokenizer", "imports", "vocabulary", "weights", "memory"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=4)


@pytest.fixture
async def engine(checkpoint: Path) -> AsyncIterator[EngineClient]:
    engine = load_engine(checkpoint, settings=SETTINGS, clock=CLOCK)
    await engine.ready()
    yield engine
    engine.close()


async def listen(engine: EngineClient, request: GenerateRequest) -> list[Event]:
    async with aclosing(engine.generate(engine.prepare(request))) as events:
        return [event async for event in events]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def finish(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events
    return events[-1]


async def test_a_seed_gives_the_same_answer_alone_and_in_a_crowd(engine: EngineClient) -> None:
    media = ("clip", clip(64, 96, (0.0, 0.5)))
    asked = question("one", [media, "Why?"], max_tokens=20, temperature=1.0, seed=7)
    alone = text(await listen(engine, asked))
    crowd = [
        question(f"other-{n}", [media, f"Why {n}?"], max_tokens=20, temperature=1.0)
        for n in range(5)
    ]
    answers = await asyncio.gather(
        listen(engine, replace(asked, request_id="again")), *(listen(engine, q) for q in crowd)
    )
    assert text(answers[0]) == alone
    other = question("other seed", [media, "Why?"], max_tokens=20, temperature=1.0, seed=8)
    assert text(await listen(engine, other)) != alone


async def test_a_stop_string_over_several_tokens_ends_the_answer(engine: EngineClient) -> None:
    asked = question("free", ["Tell me."], max_tokens=40)
    events = await listen(engine, asked)
    whole = text(events)
    places = range(len(whole) // 3, len(whole) - 3)
    first = next(n for n in places if whole.find(whole[n : n + 3]) == n)
    stop = whole[first : first + 3]
    stopped = await listen(engine, question("stopped", ["Tell me."], max_tokens=40, stop=(stop,)))
    assert text(stopped) == whole[:first]
    assert finish(stopped).reason == "stop"


async def test_characters_arrive_whole(engine: EngineClient) -> None:
    """A random model writes random bytes: what is no text arrives as one replacement each."""
    asked = question("noise", ["Say"], max_tokens=200, temperature=1.5, seed=3)
    events = await listen(engine, asked)
    parts = [event.text for event in events if isinstance(event, Delta)]
    assert "".join(parts).encode()  # no lone surrogate
    with_probs = question("bytes", ["Say"], max_tokens=200, temperature=1.5, seed=3, logprobs=True)
    again = await listen(engine, with_probs)
    data = b"".join(
        token.token_bytes for e in again if isinstance(e, Delta) for token in e.logprobs
    )
    assert "".join(parts) == data.decode("utf-8", "replace")


async def test_json_answers_are_json_even_from_a_random_model(engine: EngineClient) -> None:
    schema = {
        "type": "object",
        "properties": {"door": {"enum": ["open", "closed"]}, "lamp": {"type": "boolean"}},
        "required": ["door", "lamp"],
        "additionalProperties": False,
    }
    answers = await asyncio.gather(
        *(
            listen(
                engine,
                question(
                    f"q{n}", ["State?"], max_tokens=100, temperature=1.0, seed=n, json_schema=schema
                ),
            )
            for n in range(4)
        )
    )
    for events in answers:
        assert finish(events).reason == "stop"
        assert json.loads(text(events)).keys() == {"door", "lamp"}


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(engine: EngineClient) -> None:
    """Case 22, through the async face: whatever phase each is in."""
    rng = random.Random(5)

    async def visit(n: int) -> None:
        asked = question(
            f"visit-{n}",
            [(f"picture-{n % 40}", still(64, 96, seed=n % 40)), "Look."],
            max_tokens=rng.choice([1, 5, 30]),
        )
        try:
            async with asyncio.timeout(rng.uniform(0, 0.3)):
                await listen(engine, asked)
        except TimeoutError:
            pass

    for start in range(0, 300, 100):
        await asyncio.gather(*(visit(n) for n in range(start, start + 100)))
    finish(await listen(engine, question("after", ["Still there?"], max_tokens=3)))
    stats = engine.stats()
    assert (stats.running, stats.queue_depth) == (0, 0)
    assert (stats.slots_used, stats.encoder_pinned_bytes, stats.loads_in_flight) == (0, 0, 0)
    assert stats.patch_bytes == 0
    assert stats.cancelled > 0
    assert stats.cancelled + stats.finished == 301


async def test_a_frame_of_another_size_than_announced_fails_its_request(
    engine: EngineClient,
) -> None:
    lies = replace(frame("lies", np.zeros((64, 96, 3), np.uint8)), width=128)
    message = Message(role="user", content=(ImagePart(frame=lies), TextPart("?")))
    events = await listen(engine, GenerateRequest(request_id="q", messages=(message,)))
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, MediaInvalid)


async def test_an_id_in_use_is_a_mistake_of_the_caller(engine: EngineClient) -> None:
    asked = question("same", ["Twice?"], max_tokens=450, json_schema=ENDLESS)
    async with aclosing(engine.generate(engine.prepare(asked))) as events:
        await anext(events)
        with pytest.raises(ValueError, match="same is in use"):
            await listen(engine, asked)


async def test_too_many_frames_are_refused_with_what_would_fit(engine: EngineClient) -> None:
    def asked(times: tuple[float, ...]) -> GenerateRequest:
        return question("q", [("many", clip(64, 96, times)), "Is it there?"])

    times = tuple(n / 4 for n in range(120))
    with pytest.raises(ContextLengthExceeded) as caught:
        engine.prepare(asked(times))
    found = re.search(r"of 120 frames about (\d+) would fit", caught.value.message)
    assert found is not None, caught.value.message
    n_fit = int(found.group(1))
    assert n_fit > 0
    engine.prepare(asked(times[-n_fit:]))  # raises nothing
    with pytest.raises(ContextLengthExceeded):
        engine.prepare(asked(times[-n_fit - 2 :]))


async def test_too_much_text_leaves_room_for_no_frame(engine: EngineClient) -> None:
    asked = question("q", [("one", clip(64, 96, (0.0, 1.0))), "so " * 2000])
    with pytest.raises(ContextLengthExceeded, match="of 2 frames about 0 would fit"):
        engine.prepare(asked)


async def test_media_beyond_the_encoders_memory_are_refused_early(checkpoint: Path) -> None:
    """Case 16."""
    small = replace(SETTINGS, encoder_cache_bytes=20 * 2 * 64 * 4)  # 20 visual tokens
    engine = load_engine(checkpoint, settings=small, clock=CLOCK)
    await engine.ready()
    legal = [
        question(
            f"q{n}", [(f"c{n}", clip(64, 96, (0.0, 1.0, 2.0, 3.0, 4.0), seed=n)), "?"], max_tokens=2
        )
        for n in range(2)
    ]
    for events in await asyncio.gather(*(listen(engine, q) for q in legal)):
        finish(events)
    with pytest.raises(MediaTooLarge, match="24 visual tokens, the encoder's memory holds 20"):
        engine.prepare(question("big", [("c", clip(64, 96, tuple(range(8)))), "?"]))
    engine.close()


async def test_a_schema_that_cannot_be_enforced_is_refused_at_once(engine: EngineClient) -> None:
    with pytest.raises(ResponseFormatUnsupported):
        engine.prepare(question("q", ["?"], json_schema={"not": {}}))


async def test_before_the_weights_are_there_prompts_can_be_counted_and_not_run(
    checkpoint: Path,
) -> None:
    engine = load_engine(checkpoint, settings=SETTINGS, clock=CLOCK)
    prepared = engine.prepare(question("q", ["Hello?"]))
    assert prepared.n_tokens > 3
    if engine.status() == "loading":
        with pytest.raises(ModelUnavailable, match="loading"):
            await anext(engine.generate(prepared))
    await engine.ready()
    assert list(engine.startup_ms()) == STAGES
    engine.close()


class DownLink:
    """Its engine crashed, again and again; the test says how long it stays away."""

    n_restarts = 3
    pid = standby_pid = room = None
    left_s = 16.0

    def retry_after_s(self) -> float:
        return self.left_s

    def start(self, listener: Listener) -> None:
        error = ModelUnavailable("it ended and is started again; retry", retry_after_s=self.left_s)
        listener.down(error, "loading")

    def send(self, message: object) -> None:
        """Lost."""

    def close(self) -> None:
        """Nothing runs."""


async def test_a_refusal_says_how_long_the_engine_stays_away_from_now_on(checkpoint: Path) -> None:
    link = DownLink()
    engine = EngineClient(Front(checkpoint, SETTINGS, CLOCK), link, clock=CLOCK)
    told = []
    for link.left_s in (16.0, 5.0):
        with pytest.raises(ModelUnavailable, match="started again") as refusal:
            await listen(engine, question("q", ["Why?"]))
        told.append(refusal.value.retry_after_s)
    assert told == [16.0, 5.0]
    assert engine.retry_after_s() == 5.0
    engine.close()


async def test_damaged_weights_make_the_engine_fail_and_say_why(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.language_model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    engine = load_engine(folder, settings=SETTINGS, clock=CLOCK)
    with pytest.raises(CheckpointInvalid, match=r"language_model\.norm\.weight"):
        await engine.ready()
    assert engine.status() == "failed"
    with pytest.raises(ModelUnavailable, match=r"failed: .*norm\.weight"):
        await listen(engine, question("q", ["?"]))
    engine.close()


def test_a_folder_that_is_no_checkpoint_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match=r"config\.json"):
        load_engine(tmp_path, settings=SETTINGS, clock=CLOCK)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_model_len": 1_000_000}, "max_model_len is 1000000, the model takes 2 to 4096"),
        ({"encoder_cache_bytes": 10}, "no room for one visual token"),
        ({"patch_bytes": 1000}, "no room for one visual token"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(
    checkpoint: Path, wrong: dict[str, int], message: str
) -> None:
    with pytest.raises(SettingsInvalid, match=message):
        load_engine(checkpoint, settings=replace(SETTINGS, **wrong), clock=CLOCK)  # type: ignore[arg-type]


async def test_a_defect_in_the_engine_thread_ends_every_request(
    engine: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    asked = question("innocent", ["Go on."], max_tokens=450, json_schema=ENDLESS)
    async with aclosing(engine.generate(engine.prepare(asked))) as events:
        await anext(events)
        defect = replace(engine.prepare(question("defect", ["?"])), identity=None)  # type: ignore[arg-type]
        with caplog.at_level(logging.CRITICAL):
            async with aclosing(engine.generate(defect)) as others:
                ends = [[event async for event in others][-1]]
            ends.append([event async for event in events][-1])
    for end in ends:
        assert isinstance(end, Failed)
        assert isinstance(end.error, InternalError)
    assert engine.status() == "failed"
    with pytest.raises(ModelUnavailable):
        await listen(engine, question("after", ["?"]))


async def test_a_deadline_in_the_middle_of_an_answer_ends_it(checkpoint: Path) -> None:
    clock = FakeClock()
    engine = load_engine(checkpoint, settings=SETTINGS, clock=clock)
    await engine.ready()
    deadline_s = clock.monotonic_s() + 5
    asked = question("q", ["Go on."], max_tokens=450, deadline_s=deadline_s, json_schema=ENDLESS)
    async with aclosing(engine.generate(engine.prepare(asked))) as events:
        await anext(events)
        clock.move(5)
        end = [event async for event in events][-1]
    assert isinstance(end, Failed)
    assert isinstance(end.error, DeadlineExceeded)
    assert engine.stats().running == 0
    engine.close()


async def test_the_engine_thread_keeps_its_torch_threads_whatever_workers_set() -> None:
    found: list[int] = []

    def own() -> None:
        set_threads(3)
        other = threading.Thread(target=torch.set_num_threads, args=(1,))
        other.start()
        other.join()
        torch.randn(64, 64) @ torch.randn(64, 64)
        found.append(torch.get_num_threads())

    thread = threading.Thread(target=own)
    thread.start()
    thread.join()
    assert found == [3]


def test_an_event_loop_that_closes_without_a_word_ends_its_requests(checkpoint: Path) -> None:
    engine = load_engine(checkpoint, settings=SETTINGS, clock=CLOCK)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(engine.ready())
    asked = question("q", ["Go on."], max_tokens=450, json_schema=ENDLESS)
    events = engine.generate(engine.prepare(asked))
    loop.run_until_complete(anext(events))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()

    async def after() -> None:
        for n in range(100):
            finish(await listen(engine, question(f"after-{n}", ["?"], max_tokens=1)))
            if engine.stats().running == 0:
                return
        raise AssertionError("the request of the closed loop still runs")

    asyncio.run(after())
    assert engine.stats().cancelled == 1
    engine.close()


async def test_pools_that_do_not_fit_the_machine_are_refused_by_name(checkpoint: Path) -> None:
    huge = replace(SETTINGS, n_slots=10**8)
    engine = load_engine(checkpoint, settings=huge, clock=CLOCK)
    with pytest.raises(SettingsInvalid, match="100000005 slots of 512 tokens"):
        await engine.ready()
    engine.close()

"""The loop: departures in every phase, failures of every part, and only those concerned notice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from liveedge.core.errors import InternalError, MediaInvalid
from liveedge.engine.interface import PreparedRequest
from liveedge.engine.request import (
    Delta,
    FrameInput,
    GenerateRequest,
    ImagePart,
    Message,
    TextPart,
)
from tests.checkpoints import make_checkpoint
from tests.engines import ENDLESS, Content, LocalEngine, question
from tests.reference import Clip, clip, picture, still

N_DEPARTURES = 1000
PIXELS = picture(64, 64)
LONG = "Look at the door and at the lamp and at the belt. " * 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_checkpoint(folder, hidden=32, layers=1, vision_depth=1, vision_hidden=32, seed=4)


@pytest.fixture
def engine(checkpoint: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(checkpoint, n_slots=2, max_model_len=256, prefill_chunk=16)
    yield engine
    engine.close()


def visitor(engine: LocalEngine, n: int) -> PreparedRequest:
    """A request with a picture of its own, so that every phase happens."""
    content: Content = [(f"picture-{n}", Clip((PIXELS,))), LONG]
    return engine.preparer.prepare(question(f"visit-{n}", content, max_tokens=50))


def reach(engine: LocalEngine, request_id: str, phase: str) -> None:
    """Bring a submitted request into a phase, turn by turn."""
    engine.turn()
    assert engine.stats.loads_in_flight == len(engine.loads.jobs) == 1
    if phase == "load":
        return
    engine.loads.load()
    engine.loop.read_inbox()
    if phase == "encode":
        assert engine.stats.patch_bytes > 0
        return
    while request_id not in engine.runner.prefilled:
        engine.turn()
    if phase == "prefill":
        assert not engine.answers[request_id].tokens
        return
    while not engine.answers[request_id].tokens:
        engine.turn()
    assert phase == "decode"


@pytest.mark.parametrize("phase", ["load", "encode", "prefill", "decode"])
def test_a_departure_in_any_phase_ends_all_work_within_one_turn(
    checkpoint: Path, phase: str
) -> None:
    """Case 22: while the frame is loaded, before it is encoded, in the prompt, in the answer."""
    chunk = 16 if phase == "prefill" else 256
    engine = LocalEngine(checkpoint, by_hand=True, max_model_len=256, prefill_chunk=chunk)
    for n in range(N_DEPARTURES):
        asked = visitor(engine, n)
        engine.submit(asked)
        reach(engine, asked.request.request_id, phase)
        engine.abort(asked.request.request_id)
        engine.turn()
        assert_idle(engine)
        assert not engine.loads.jobs
    assert engine.stats.cancelled == N_DEPARTURES
    assert engine.stats.finished == engine.stats.failed == 0
    engine.close()


def test_a_departure_from_the_queue_leaves_the_running_alone(engine: LocalEngine) -> None:
    """Case 22: before a slot was free."""
    running = [f"runs-{n}" for n in range(2)]
    for name in running:
        engine.submit(
            engine.preparer.prepare(question(name, ["Go on."], max_tokens=200, json_schema=ENDLESS))
        )
    while not all(engine.answers[name].tokens for name in running):
        engine.turn()
    before = {name: len(engine.answers[name].tokens) for name in running}
    for n in range(N_DEPARTURES):
        asked = visitor(engine, n)
        engine.submit(asked)
        if n % 100 == 0:
            engine.turn()
            assert engine.stats.queue_depth == 1
        engine.abort(asked.request.request_id)
    engine.turn()
    assert (engine.stats.queue_depth, engine.stats.running) == (0, 2)
    assert engine.stats.loads_in_flight == 0
    assert engine.stats.cancelled == N_DEPARTURES
    for name in running:
        assert len(engine.answers[name].tokens) == before[name] + 11


def assert_idle(engine: LocalEngine) -> None:
    stats = engine.stats
    assert (stats.queue_depth, stats.running, stats.slots_used) == (0, 0, 0)
    assert (stats.encoder_pinned_bytes, stats.loads_in_flight, stats.patch_bytes) == (0, 0, 0)


@pytest.mark.parametrize("part", ["encode", "prefill", "decode"])
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), MediaInvalid("bad picture")])
def test_a_failing_part_fails_its_requests_and_the_next_ones_are_right(
    engine: LocalEngine, part: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    content: Content = [("clip", clip(64, 96, (0.0, 1.0, 2.0, 3.0))), "What moves?"]
    expected = engine.ask(engine.preparer.prepare(question("good", content, max_tokens=8)))
    other: Content = [("other", still(64, 96, seed=9)), "What moves?"]
    engine.runner.broken[part] = error
    with caplog.at_level(logging.CRITICAL):
        failed = engine.ask(engine.preparer.prepare(question("bad", other, max_tokens=8))).failed
    assert isinstance(
        failed.error, InternalError if isinstance(error, RuntimeError) else MediaInvalid
    )
    assert "memory" not in failed.error.message
    engine.runner.broken.clear()
    again = engine.ask(engine.preparer.prepare(question("again", content, max_tokens=8)))
    assert again.tokens == expected.tokens
    assert_idle(engine)


def test_a_failing_copy_fails_the_requests_that_build_on_it(engine: LocalEngine) -> None:
    shared = "Describe what you see on the belt and beside it, " * 3
    first = question("first", [shared + "and then tell me everything else as well " * 4])
    engine.ask(engine.preparer.prepare(first))
    engine.runner.broken["copy"] = MediaInvalid("broken")
    second = engine.preparer.prepare(question("second", [shared + "now."], max_tokens=4))
    assert isinstance(engine.ask(second).failed.error, MediaInvalid)
    engine.runner.broken.clear()
    third = engine.preparer.prepare(question("third", [shared + "now."], max_tokens=4))
    warm = engine.ask(third)
    assert warm.finished.usage.cached_tokens > 20
    assert engine.runner.n_copies == 1


def test_a_failure_in_one_request_leaves_an_answer_in_progress_alone(engine: LocalEngine) -> None:
    long = engine.preparer.prepare(question("long", ["Go on."], max_tokens=40))
    expected = engine.ask(long).tokens

    def lose() -> NDArray[np.uint8]:
        raise OSError("the camera is on fire")

    lost = ImagePart(frame=FrameInput(key="lost", width=96, height=64, load=lose))
    broken = GenerateRequest(
        request_id="broken", messages=(Message(role="user", content=(lost, TextPart("?"))),)
    )
    again = question("again", ["Go on."], max_tokens=40)
    good, bad = engine.run(engine.preparer.prepare(again), engine.preparer.prepare(broken))
    assert good.tokens == expected
    assert isinstance(bad.failed.error, InternalError)


def test_answers_arrive_token_by_token(engine: LocalEngine) -> None:
    seen: list[int] = []

    def look() -> None:
        seen.append(len(engine.answers["q"].events))

    for turn in range(6):
        engine.at_turn(turn, look)
    answer = engine.ask(
        engine.preparer.prepare(question("q", ["Go on."], max_tokens=30, json_schema=ENDLESS))
    )
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    assert all(isinstance(event, Delta) for event in answer.events[:-1])


def test_a_token_that_cannot_be_chosen_fails_its_own_request_in_the_batch(
    engine: LocalEngine,
) -> None:
    asked = [
        engine.preparer.prepare(question(name, ["Go on."], max_tokens=20, json_schema=ENDLESS))
        for name in ("good", "bad")
    ]
    engine.at_turn(6, lambda: engine.runner.spoilt.update(bad=InternalError("the grammar failed")))
    good, bad = engine.run(*asked)
    assert bad.failed.error.message == "the grammar failed"
    assert 0 < len(bad.tokens) < 20
    assert good.finished.usage.completion_tokens == 20
    assert max(engine.runner.batches) == 2

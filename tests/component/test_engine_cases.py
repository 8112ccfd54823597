"""Cases from the field that the engine alone can get wrong: keys, budgets, bounds, empty answers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from liveedge.core.errors import MediaTooLarge
from liveedge.engine.interface import PreparedRequest, WindowPrefix
from liveedge.engine.request import (
    Delta,
    GenerateRequest,
    ImagePart,
    Message,
    SamplingParams,
    TextPart,
)
from tests.checkpoints import make_checkpoint
from tests.engines import ENDLESS, Answer, Content, LocalEngine, frame, question
from tests.reference import Clip, clip, picture, still

ROW_BYTES = 64 * 4 * 2  # of the test checkpoint's features: the embedding and one deepstack layer
PIXELS = picture(64, 96)
LONG = "Look at the door and at the lamp and at the belt. " * 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=4)


@pytest.fixture
def engine(checkpoint: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(checkpoint, n_slots=2, n_windows=1, max_model_len=256)
    yield engine
    engine.close()


@pytest.fixture
def by_hand(checkpoint: Path) -> Iterator[LocalEngine]:
    """As `engine`; frames load when the test says so."""
    engine = LocalEngine(checkpoint, n_slots=2, n_windows=1, max_model_len=256, by_hand=True)
    yield engine
    engine.close()


def ask_about(key: str, pixels, *, max_pixels: int | None = None, name: str) -> GenerateRequest:
    shown = ImagePart(frame=frame(key, pixels), max_pixels=max_pixels)
    return GenerateRequest(
        request_id=name,
        messages=(Message(role="user", content=(shown, TextPart("What is it?"))),),
        sampling=SamplingParams(max_tokens=6, logprobs=True),
    )


def test_one_picture_in_several_sizes_and_of_several_tenants_is_several_pictures(
    checkpoint: Path, engine: LocalEngine
) -> None:
    """Case 9: nothing of one is found for another, and each answer is that of a fresh engine."""
    turned = PIXELS.transpose(1, 0, 2).copy()
    other = picture(64, 96, seed=9)
    asked = [
        ask_about("one/x", PIXELS, name="as it is"),
        ask_about("one/x", PIXELS, max_pixels=64 * 64, name="smaller"),
        ask_about("one/x-turned", turned, name="turned"),
        ask_about("two/x", other, name="of another tenant"),
    ]
    fresh = LocalEngine(checkpoint, max_model_len=256)
    for request in asked:
        answer = engine.ask(engine.preparer.prepare(request))
        fresh.forget()
        expected = fresh.ask(fresh.preparer.prepare(request))
        assert not any(media.warm for media in answer.finished.usage.media)
        assert answer.tokens == expected.tokens
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert len(set(engine.runner.encoded)) == len(asked)
    fresh.close()


def test_a_picture_larger_than_the_feature_memory_is_refused_before_it_is_loaded(
    checkpoint: Path,
) -> None:
    """Case 16."""
    engine = LocalEngine(checkpoint, max_model_len=256, encoder_cache_bytes=20 * ROW_BYTES)
    content: list[str | tuple[str, Clip]] = [
        (f"x{n}", still(96, 96, seed=n)) for n in range(3)
    ]  # 9 tokens each
    with pytest.raises(MediaTooLarge, match="27 visual tokens, the encoder's memory holds 20"):
        engine.preparer.prepare(question("big", [*content, "?"]))
    answers = engine.run(
        *(
            engine.preparer.prepare(
                question(f"q{n}", [(f"{n}-{i}", still(96, 96, seed=n)) for i in range(2)])
            )
            for n in range(4)
        )
    )  # 18 of 20 rows each: one after the other
    assert all(answer.finished for answer in answers)
    engine.close()


def test_an_answer_that_is_stopped_by_its_first_token_disturbs_nobody(engine: LocalEngine) -> None:
    """Case 20."""
    content: Content = [("clip", clip(64, 96, (0.0, 1.0))), "What moves?"]
    prepare = engine.preparer.prepare
    expected = engine.ask(prepare(question("before", content, max_tokens=12)))
    first = next(event.text for event in expected.events if isinstance(event, Delta) and event.text)
    other = prepare(question("other", ["Go on."], max_tokens=30, json_schema=ENDLESS))
    empty = prepare(question("empty", content, max_tokens=12, stop=(first,)))
    running, stopped = engine.run(other, empty)
    assert stopped.text == ""
    assert stopped.finished.reason == "stop"
    again = engine.ask(prepare(question("again", content, max_tokens=12)))
    assert again.tokens == expected.tokens
    assert running.finished.usage.completion_tokens == 30


def prefix(engine: LocalEngine, name: str, media: Clip, text: str = LONG) -> WindowPrefix:
    prepared = engine.preparer.prepare_window(question(name, [text, (name, media)]))
    return WindowPrefix(window_id="window", prepared=prepared)


@pytest.mark.parametrize("phase", ["queue", "load", "encode", "prefill"])
def test_an_update_of_a_window_that_is_given_up_ends_within_one_turn(
    checkpoint: Path, phase: str
) -> None:
    """Case 22 for windows, and each of the three ways to give up."""
    engine = LocalEngine(checkpoint, by_hand=True, max_model_len=256, prefill_chunk=16)
    for n in range(60):
        update = prefix(engine, f"tick-{n}", Clip((PIXELS,)), f"{n}: {LONG}")
        engine.warm(update)
        if phase != "queue":
            reach(engine, f"tick-{n}", phase)
        if n % 2:
            engine.abort(f"tick-{n}")
        else:
            engine.drop_window("window")
        engine.turn()
        engine.turn()
        stats = engine.stats
        assert (stats.loads_in_flight, stats.patch_bytes, stats.encoder_pinned_bytes) == (0, 0, 0)
        assert engine.desk.n_live == 0
        assert not engine.loads.jobs
    assert engine.stats.warm_superseded == 30
    assert engine.stats.warm_updates == engine.stats.windows == 0
    engine.close()


def reach(engine: LocalEngine, request_id: str, phase: str) -> None:
    engine.turn()
    if phase == "load":
        assert engine.loads.jobs
        return
    engine.loads.load()
    engine.loop.read_inbox()
    while phase == "prefill" and request_id not in engine.runner.prefilled:
        engine.turn()


def test_eight_questions_at_once_on_one_window_cost_one_window_and_eight_questions(
    checkpoint: Path,
) -> None:
    """On the device: tokens that were computed, and passes that it took."""
    engine = LocalEngine(checkpoint, n_slots=8, n_windows=1, max_model_len=512)
    media = clip(64, 96, tuple(n / 2 for n in range(8)))
    update = prefix(engine, "now", media)
    warmed = engine.warm_up("window", update.prepared)
    texts = [f"{n} questions about the door, and one about the lamp?" for n in range(8)]
    asked = [
        engine.preparer.prepare(question(f"q{n}", [LONG, ("now", media), text], max_tokens=4))
        for n, text in enumerate(texts)
    ]
    engine.runner.passes.clear()
    answers = engine.run(*asked)
    window = update.prepared.n_tokens
    own = [item.n_tokens - window for item in asked]
    assert warmed.n_prefilled == window
    assert [engine.runner.n_prefilled[f"q{n}"] for n in range(8)] == own
    assert engine.runner.passes[0] == {f"q{n}": own[n] for n in range(8)}
    assert len(engine.runner.encoded) == 4
    alone = LocalEngine(checkpoint, max_model_len=512)
    for item, answer in zip(asked, answers, strict=True):
        alone.forget()
        assert alone.ask(alone.preparer.prepare(item.request)).tokens == answer.tokens
    alone.close()
    engine.close()


def test_a_question_while_its_window_is_being_made_copies_it(by_hand: LocalEngine) -> None:
    engine = by_hand
    engine.loads.at_once = True  # else it comes before the frames on a busy machine
    media = clip(64, 96, (0.0, 1.0, 2.0, 3.0))
    update = prefix(engine, "now", media)
    engine.warm(update)
    asked = engine.preparer.prepare(question("q", [LONG, ("now", media), "?"], max_tokens=4))
    engine.at_turn(4, partial(engine.submit, asked))
    engine.settle()
    computed = engine.runner.n_prefilled
    assert computed["now"] + computed["q"] == asked.n_tokens
    assert len(engine.runner.encoded) == 2
    assert_warm_is_cold(engine, asked)


def assert_warm_is_cold(engine: LocalEngine, asked: PreparedRequest) -> None:
    warm: Answer = engine.answers["q"]
    engine.forget()
    cold = engine.ask(asked)
    assert cold.finished.usage.cached_tokens == 0
    assert cold.tokens[: len(warm.tokens)] == warm.tokens


def test_a_ping_is_answered_between_two_turns(engine: LocalEngine) -> None:
    engine.ping(7)
    engine.turn()
    assert engine.pongs == [7]

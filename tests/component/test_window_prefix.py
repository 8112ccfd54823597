"""The prefix of a window is what every question about it begins with, to the last token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from liveedge.engine.decide.prefix import common_prefix
from liveedge.engine.request import GenerateRequest, ImagePart, Message, Part, TextPart, VideoPart
from tests.checkpoints import make_checkpoint
from tests.engines import LocalEngine, frame
from tests.reference import picture

PIXELS = {size: picture(*size) for size in ((64, 96), (70, 40), (128, 64))}

text = st.text(alphabet="abc <|im_end|>.\n", max_size=12).map(TextPart)


@st.composite
def media(draw: st.DrawFn) -> Part:
    pixels = PIXELS[draw(st.sampled_from(sorted(PIXELS)))]
    name = draw(st.sampled_from("xyz"))
    if draw(st.booleans()):
        return ImagePart(frame=frame(name, pixels), max_pixels=draw(st.sampled_from([None, 2048])))
    times = range(2 * draw(st.integers(1, 3)))
    return VideoPart(frames=tuple(frame(f"{name}{n}", pixels, n / 2) for n in times))


@st.composite
def beginnings(draw: st.DrawFn) -> tuple[Message, ...]:
    """Messages that end with a picture or a video."""
    messages = []
    if draw(st.booleans()):
        messages.append(Message(role="system", content=(draw(text),)))
    parts = draw(st.lists(st.one_of(text, media()), max_size=3))
    return (*messages, Message(role="user", content=(*parts, draw(media()))))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    engine = LocalEngine(make_checkpoint(tmp_path_factory.mktemp("model")), max_model_len=512)
    yield engine
    engine.close()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(begun=beginnings(), rest=st.lists(st.one_of(text, media()), max_size=3))
def test_a_question_that_begins_like_a_window_has_all_of_it_as_its_prefix(
    engine: LocalEngine, begun: tuple[Message, ...], rest: list[Part]
) -> None:
    asked = (*begun[:-1], Message(role="user", content=(*begun[-1].content, *rest)))
    window = engine.preparer.prepare_window(GenerateRequest(request_id="w", messages=begun))
    question = engine.preparer.prepare(GenerateRequest(request_id="q", messages=asked))
    n = window.n_tokens
    assert common_prefix(window.identity, question.identity) == n
    assert np.array_equal(window.positions, question.positions[:, :n])
    assert np.array_equal(window.ids, question.ids[:n])
    assert window.groups == question.groups[: len(window.groups)]
    assert window.groups[-1].stop == n


def test_text_behind_the_last_picture_is_no_part_of_the_window(engine: LocalEngine) -> None:
    shown = ImagePart(frame=frame("x", PIXELS[70, 40]))
    bare, told = (
        engine.preparer.prepare_window(
            GenerateRequest(request_id="w", messages=(Message(role="user", content=parts),))
        )
        for parts in ((shown,), (shown, TextPart("What is it?")))
    )
    assert np.array_equal(bare.identity, told.identity)


def test_a_window_without_anything_to_see_is_refused(engine: LocalEngine) -> None:
    message = Message(role="user", content=(TextPart("Hello"),))
    with pytest.raises(ValueError, match="a picture or a video"):
        engine.preparer.prepare_window(GenerateRequest(request_id="w", messages=(message,)))


def test_the_position_behind_a_window_is_that_of_its_questions(engine: LocalEngine) -> None:
    shown = ImagePart(frame=frame("x", PIXELS[128, 64]))
    message = Message(role="user", content=(shown, TextPart("?")))
    request = GenerateRequest(request_id="w", messages=(message,))
    window = engine.preparer.prepare_window(request)
    question = engine.preparer.prepare(request)
    n = window.n_tokens
    assert n + window.position_delta == question.positions[0, n]

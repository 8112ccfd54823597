"""What is refused before a prompt is built."""

from __future__ import annotations

from typing import cast

import pytest

from liveedge.core.errors import ContextLengthExceeded
from liveedge.engine.form.schema_gate import SchemaGate
from liveedge.engine.prepare import MAX_CHARS_PER_TOKEN, Preparer
from liveedge.engine.request import GenerateRequest, Message, SamplingParams, TextPart
from liveedge.models.qwen3_vl.prompt import PromptBuilder
from liveedge.testing.engine import FAKE_MODEL


class Tokenizing(Exception):
    """The text was handed to the tokenizer."""


class NoBuilder:
    """Counting the tokens of megabytes takes seconds, so nobody may begin."""

    def build(self, messages, media, tools, *, add_generation_prompt):
        raise Tokenizing


def prepare(text: str) -> None:
    preparer = Preparer(
        cast(PromptBuilder, NoBuilder()),
        model=FAKE_MODEL,
        max_media_tokens=100,
        schemas=cast(SchemaGate, None),  # no schema is asked for
    )
    message = Message(role="user", content=(TextPart(text),))
    preparer.prepare(
        GenerateRequest(request_id="q", messages=(message,), sampling=SamplingParams())
    )


def test_a_text_that_cannot_fit_is_refused_before_it_is_counted():
    with pytest.raises(ContextLengthExceeded, match="300000 characters"):
        prepare("a" * 300_000)


def test_a_text_that_may_fit_is_counted_exactly():
    with pytest.raises(Tokenizing):
        prepare("a" * MAX_CHARS_PER_TOKEN * (FAKE_MODEL.max_model_len - 1))

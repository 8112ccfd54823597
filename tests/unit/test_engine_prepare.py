"""What is refused before a prompt is built."""

from __future__ import annotations

from typing import cast

import pytest

from liveedge.core.errors import ContextLengthExceeded
from liveedge.engine.form.schema_gate import SchemaGate
from liveedge.engine.prepare import Preparer
from liveedge.engine.request import GenerateRequest, Message, SamplingParams, TextPart
from liveedge.models.qwen3_vl.prompt import PromptBuilder, TextTooLong
from liveedge.testing.engine import FAKE_MODEL


class Tokenizing(Exception):
    """The text was handed to the tokenizer."""


class Counts:
    """What a vocabulary knows of sizes."""

    def __init__(self, bytes_per_token: int | None) -> None:
        self._bytes_per_token = bytes_per_token

    def most_bytes(self, n_tokens: int) -> int | None:
        return None if self._bytes_per_token is None else n_tokens * self._bytes_per_token


class NoBuilder:
    """Counting the tokens of megabytes takes seconds, so nobody may begin."""

    def __init__(self, error: Exception, bytes_per_token: int | None = 20) -> None:
        self.vocabulary = Counts(bytes_per_token)
        self.max_text_tokens = 0
        self.renders_tools = True
        self._error = error

    def build(self, messages, media, tools, *, add_generation_prompt, max_text_tokens):
        self.max_text_tokens = max_text_tokens
        raise self._error


LIMIT = FAKE_MODEL.max_model_len - 1


def prepare(builder: NoBuilder, *texts: str, tool_calls=()) -> None:
    preparer = Preparer(
        cast(PromptBuilder, builder),
        model=FAKE_MODEL,
        max_media_tokens=100,
        schemas=cast(SchemaGate, None),  # no schema is asked for
    )
    content = tuple(map(TextPart, texts))
    message = Message(role="user", content=content, tool_calls=tool_calls)
    preparer.prepare(
        GenerateRequest(request_id="q", messages=(message,), sampling=SamplingParams())
    )


@pytest.mark.parametrize("letter", ["a", "ä", "\U0001f600"])
def test_a_text_that_cannot_fit_is_refused_before_it_is_counted(letter: str):
    text = letter * (LIMIT * 20 // len(letter.encode()) + 1)
    with pytest.raises(ContextLengthExceeded, match=f"{len(text.encode())} bytes"):
        prepare(NoBuilder(Tokenizing()), text[:100], text[100:])


def test_a_text_in_a_call_counts_like_any_other():
    call = {"function": {"name": "look", "arguments": {"at": "a" * 20 * LIMIT}}}
    with pytest.raises(ContextLengthExceeded, match="bytes"):
        prepare(NoBuilder(Tokenizing()), "b", tool_calls=(call,))


@pytest.mark.parametrize("bytes_per_token", [20, None])
def test_a_text_that_may_fit_is_counted_exactly(bytes_per_token: int | None):
    builder = NoBuilder(Tokenizing(), bytes_per_token)
    with pytest.raises(Tokenizing):
        prepare(builder, "a" * 20 * LIMIT)
    assert builder.max_text_tokens == LIMIT


def test_a_text_that_proves_too_long_while_it_is_counted_is_refused_with_the_limit():
    with pytest.raises(ContextLengthExceeded, match=f"more than {LIMIT} tokens.*shorten it$"):
        prepare(NoBuilder(TextTooLong()), "a" * 2 * LIMIT)

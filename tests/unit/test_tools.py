"""Words and calls as events of an answer: ids from outside, one index per call, no token lost."""

from __future__ import annotations

from itertools import count
from typing import Any

from liveedge.engine.request import SamplingParams, TokenLogprob
from liveedge.service.question import (
    AnswerEvent,
    ChoiceEnd,
    Question,
    Report,
    TextDelta,
    ToolCallDelta,
    Tools,
)
from liveedge.service.tools import CallSplitter

REPORT = Report(
    prompt_tokens=1, completion_tokens=1, cached_tokens=0, image_tokens=0, frames=(),
    evidence_at_ms=None, age_ms=None, timings_ms={}, corrupt_frames=0,
)  # fmt: skip
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def splitter(n: int = 1, **tools: Any) -> CallSplitter:
    numbers = count(1)
    offered = ({"type": "function", "function": {"name": "f"}},)
    question = Question(
        request_id="q", tenant="t", model="m", turns=(), sampling=SamplingParams(), n=n,
        tools=Tools(offered=offered, **tools),
    )  # fmt: skip
    return CallSplitter(question, new_id=lambda: f"call_{next(numbers)}")


def token(text: str) -> TokenLogprob:
    return TokenLogprob(token=text, token_bytes=text.encode(), logprob=-1.0)


def end(choice: int = 0, reason: Any = "stop") -> ChoiceEnd:
    return ChoiceEnd(choice=choice, reason=reason, report=REPORT)


def test_every_text_gives_one_event_of_text_and_keeps_its_tokens() -> None:
    calls = splitter()
    said = ("It", " is", " <tool", "_call>", '{"name": "f", "arguments": {', "}}</tool_call>")
    found: list[AnswerEvent] = []
    for text in said:
        parts = list(calls.split(TextDelta(choice=0, text=text, logprobs=(token(text),))))
        assert isinstance(parts[0], TextDelta)
        assert [one.token for one in parts[0].logprobs] == [text]
        found += parts
    texts = [event.text for event in found if isinstance(event, TextDelta)]
    assert texts == ["It", " is", "", "", "", ""]
    first, *rest = [event for event in found if isinstance(event, ToolCallDelta)]
    assert first == ToolCallDelta(choice=0, index=0, id="call_1", name="f")
    assert [(one.id, one.name, one.arguments) for one in rest] == [
        (None, None, "{"),
        (None, None, "}"),
    ]
    assert list(calls.split(end())) == [end(reason="tool_calls")]


def test_choices_are_read_apart() -> None:
    calls = splitter(n=2)
    half = len(CALL) // 2
    for choice, text in ((0, CALL[:half]), (1, "No."), (0, CALL[half:])):
        events = list(calls.split(TextDelta(choice=choice, text=text)))
        assert {event.choice for event in events} == {choice}
    assert list(calls.split(end(0))) == [end(0, "tool_calls")]
    assert list(calls.split(end(1))) == [end(1)]


def test_without_offered_tools_everything_passes_as_it_is() -> None:
    calls = splitter(choice="none")
    delta = TextDelta(choice=0, text=CALL, logprobs=(token(CALL),))
    assert list(calls.split(delta)) == [delta]
    assert list(calls.split(end())) == [end()]

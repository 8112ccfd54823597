"""What other servers send is checked before it is used, whatever it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from liveedge.engine.request import FrameInput, ImagePart, Message, SamplingParams, TextPart
from liveedge.service.providers.refusal import MAX_BODY_CHARS, Scrub, facts, refused
from liveedge.service.providers.sse import EventParser
from liveedge.service.providers.wire import (
    LEAST_LOGPROB,
    Malformed,
    Reader,
    request_of,
    single,
)
from liveedge.service.question import Question, TextContent, TextDelta, ToolCallDelta, Turn
from tests.provider_stub import answer, chunk, usage

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "index",
                    "content",
                    "tool_calls",
                    "function",
                    "name",
                    "usage",
                    "logprobs",
                    "finish_reason",
                    "message",
                    "bytes",
                    "logprob",
                    "prompt_tokens",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def asking(*turns: Turn, **options: object) -> Question:
    return Question(
        request_id="r",
        tenant="t",
        model="m",
        turns=turns,
        sampling=SamplingParams(max_tokens=9),
        sent=options,
    )


def frame(key: str, time_s: float = 0.0) -> FrameInput:
    return FrameInput(key=key, width=4, height=4, load=lambda: pytest.fail("loaded"), time_s=time_s)


@given(st.binary(max_size=200), st.integers(1, 7))
def test_events_are_the_same_however_their_bytes_are_cut(data: bytes, size: int):
    whole, cut = EventParser(), EventParser()
    at_once = [*whole.feed(data), *whole.finish()]
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    assert [e for p in pieces for e in cut.feed(p)] + cut.finish() == at_once


def test_events_are_read_with_comments_crlf_and_without_a_last_line():
    parser = EventParser()
    found = parser.feed(b": ping\r\n\r\ndata: 1\r\n\r\nevent: x\ndata:2\n\ndata: [DONE]")
    assert [*found, *parser.finish()] == [b"1", b"2", b"[DONE]"]


def test_an_event_and_an_answer_have_a_bound():
    for end, within in ((b"\n", 8), (b"\n\n", 55)):  # one event, and many
        parser = EventParser(max_event_bytes=100, max_bytes=1000)
        for _ in range(within):
            parser.feed(b"data: 1234567890" + end)
        with pytest.raises(Malformed):
            parser.feed(b"data: 1234567890" * 5 + end)


@given(JSON)
def test_whatever_is_read_is_events_or_malformed(piece: object):
    reader = Reader(2)
    try:
        for event in reader.read(piece):
            assert isinstance(event, TextDelta | ToolCallDelta)
            assert event.choice in (0, 1)
    except Malformed:
        pass


def test_an_answer_is_read_to_its_end_and_no_further():
    reader = Reader(1)
    said = [event for piece in answer("a", "b") for event in reader.read(piece)]
    assert [event.text for event in said if isinstance(event, TextDelta)] == ["a", "b"]
    assert reader.reasons == ("stop",)
    assert reader.read(chunk({"content": "more"})) == []
    assert (reader.spent.prompt_tokens, reader.spent.completion_tokens) == (40, 2)


def test_what_a_server_counts_is_a_count_or_nothing():
    reader = Reader(1)
    reader.read(usage(prompt=-1, completion=10**30, cached_tokens=7))
    assert reader.spent.prompt_tokens == reader.spent.completion_tokens == 0
    assert reader.spent.cached_tokens == 7


def test_a_probability_that_is_no_number_is_none_and_a_number_without_end_is_one():
    said = {"content": [{"token": "a", "logprob": lp} for lp in (-0.5, 10**400, "x", None, True)]}
    piece = {"choices": [{"delta": {"content": "a"}, "logprobs": said}]}
    (event,) = Reader(1).read(piece)
    assert isinstance(event, TextDelta)
    least = LEAST_LOGPROB
    assert [one.logprob for one in event.logprobs] == [-0.5, least, least, least, 1.0]


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}] * 1000}},
        {"delta": {"content": "a"}, "logprobs": {"content": [{}] * 100_000}},
        {"logprobs": {"content": [{"top_logprobs": [{}] * 100_000}]}},
    ],
)
def test_a_small_piece_that_would_be_many_events_is_malformed(choice: object):
    with pytest.raises(Malformed, match="more than"):
        Reader(1).read({"choices": [choice]})
    with pytest.raises(Malformed, match="more than"):
        Reader(1).read({"choices": [{"delta": {"content": "a"}}] * 1000})


@pytest.mark.parametrize("said", [5, {"a": "\ud800"}, "x" * 100_000, ""])
def test_an_id_of_a_call_that_no_client_could_send_back_is_replaced(said: object):
    call = {"index": 0, "id": said, "function": {"name": "f", "arguments": "{}"}}
    (event,) = Reader(1).read({"choices": [{"delta": {"tool_calls": [call]}}]})
    assert isinstance(event, ToolCallDelta)
    assert event.id == "call_0_0"


def test_halves_of_characters_do_not_get_through():
    (event,) = Reader(1).read(json.loads(r'{"choices":[{"delta":{"content":"a\ud83d"}}]}'))
    assert isinstance(event, TextDelta)
    assert event.text.encode() == "a\N{REPLACEMENT CHARACTER}".encode()


def test_odd_ends_are_ends_and_an_answer_without_one_is_none():
    reader = Reader(2)
    seen = []
    for piece in (
        chunk({"content": "a"}, reason="eos"),
        chunk({}, reason="content_filter", index=1),
    ):
        reader.read(piece)
        seen.append(reader.reasons)
    assert seen == [None, ("stop", "content_filter")]
    assert not reader.is_blocked


def test_words_alone_are_sent_as_words_and_a_conversation_with_its_calls():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = (
        Turn(role="system", content=(TextContent("be brief"),)),
        Turn(role="assistant", content=(TextContent(""),), tool_calls=(call,)),
        Turn(role="tool", content=(TextContent("7"),), tool_call_id="c"),
    )
    messages = (
        Message(role="system", content=(TextPart("be brief"),)),
        Message(role="assistant", content=(TextPart(""),), tool_calls=(call,)),
        Message(role="tool", content=(TextPart("7"),)),
    )
    tools = [{"type": "function", "function": {"name": "f"}}]
    sent = request_of(
        asking(*turns, tools=tools, tool_choice="required"),
        messages,
        picture=lambda *_: "",
        clip=None,
        extra={"model": "not this", "seed": 1},
    )
    assert sent["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "c"},
    ]
    assert (sent["model"], sent["max_tokens"], sent["seed"]) == ("m", 9, 1)
    assert (sent["tools"], sent["tool_choice"]) == (tools, "required")


def test_the_length_of_an_answer_is_ours_under_the_name_that_was_sent():
    turn = Turn(role="user", content=(TextContent("x"),))
    message = Message(role="user", content=(TextPart("x"),))
    for sent, name in (
        ({"max_completion_tokens": 99, "max_tokens": 5}, "max_completion_tokens"),
        ({"max_tokens": 99}, "max_tokens"),
        ({}, "max_tokens"),
    ):
        question = asking(turn, **sent)
        body = request_of(question, (message,), picture=lambda *_: "", clip=None, extra={})
        assert {k: v for k, v in body.items() if k.startswith("max_")} == {name: 9}


def test_a_picture_is_sent_with_its_bound_on_pixels():
    seen = []
    message = Message(role="user", content=(ImagePart(frame=frame("k"), max_pixels=100),))

    def shown(one: FrameInput, max_pixels: int | None) -> str:
        seen.append((one.key, max_pixels))
        return "data:"

    turn = Turn(role="user", content=(TextContent("x"),))
    request_of(asking(turn), (message,), picture=shown, clip=None, extra={})
    assert seen == [("k", 100)]


def test_frames_that_were_doubled_are_sent_once():
    keys = [one.key for one in single([frame("a"), frame("a"), frame("b"), frame("c"), frame("c")])]
    assert keys == ["a", "b", "c"]


def test_what_a_server_said_is_shown_in_part_and_never_with_the_key():
    scrub = Scrub("sk-secret")
    body = b"x" * (MAX_BODY_CHARS - 4) + b"sk-secret" * 1000
    shown = facts("peer", scrub, status=500, body=body, headers={"X-RateLimit-A": "sk-secret"})
    assert len(shown["body"]) == MAX_BODY_CHARS
    assert "sk-" not in json.dumps(shown)
    many = {f"x-ratelimit-{i}": "v" * 999 for i in range(100)}
    assert len(json.dumps(facts("peer", scrub, headers=many))) < 3000
    said = json.dumps({"error": {"message": "bad key sk-secret"}}).encode()
    error = refused("peer", scrub, status=401, body=said, headers={}, wall_ms=0)
    assert "sk-secret" not in error.message
    assert "bad key" in error.message

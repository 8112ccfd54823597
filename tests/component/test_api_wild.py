"""Request shapes that clients in the wild send: what they mean here, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from liveedge.engine.request import ImagePart, TextPart, VideoPart
from tests.serving import MODEL, Serving, data_url, image, picture, serving, video

TEXT = {"type": "text", "text": "what is there"}
PICTURE = {"type": "image_url", "image_url": {"url": data_url(picture()), "detail": "low"}}
TURN = {"role": "user", "content": "hello"}


async def chat(server: Serving, **fields: Any) -> Any:
    body = {"model": MODEL, "messages": [TURN], **fields}
    return await server.client.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b"", {}),
        (b"", {"Content-Type": "application/json"}),
        (b"{}", {"Content-Type": "application/json"}),
        (b"{}", {}),
        (b' {"source": null} ', {}),
        (b'{"source": {"type": "livekit"}, "name": "x", "metadata": {"a": [1]}}', {}),
    ],
)
async def test_a_stream_needs_no_body(content: bytes, headers: dict[str, str]):
    async with serving() as server:
        answer = await server.client.post("/v1beta/streams", content=content, headers=headers)
        assert answer.status_code == 201, answer.text
        assert answer.json()["source"] == {"type": "livekit"}


@pytest.mark.parametrize("content", [b"null", b"[]", b'"x"', b"{", b'{"source": "rtsp://x"}'])
async def test_a_body_that_is_no_object_makes_no_stream(content: bytes):
    async with serving() as server:
        answer = await server.client.post("/v1beta/streams", content=content)
        assert answer.status_code == (201 if content == b"null" else 422), answer.text


@pytest.mark.parametrize(
    ("content", "kinds"),
    [
        ("words", [TextPart]),
        ([TEXT, PICTURE], [TextPart, ImagePart]),
        ([PICTURE, TEXT], [ImagePart, TextPart]),
        ([TEXT, PICTURE, PICTURE, TEXT], [TextPart, ImagePart, ImagePart, TextPart]),
        ([PICTURE], [ImagePart]),
        ([{**TEXT, "cache_control": {"type": "ephemeral"}}], [TextPart]),
        ([{"type": "text", "text": ""}], [TextPart]),
    ],
)
async def test_parts_stand_in_any_order(content: Any, kinds: list[type]):
    async with serving() as server:
        answer = await chat(server, messages=[{"role": "user", "content": content}])
        assert answer.status_code == 200, answer.text
        (message,) = server.engine.requests[0].messages
        assert [type(part) for part in message.content] == kinds


async def test_several_windows_and_streams_stand_in_one_message():
    async with serving() as server:
        first, second = [await server.filled_stream(5, every_ms=500) for _ in range(2)]
        parts = [
            video(f"ovs://streams/{first}?start_offset_ms=-2000&max_fps=5.0"),
            TEXT,
            video(f"ovs://streams/{first}?start_offset_ms=-1000&end_offset_ms=0&max_fps=1e0"),
            image(f"ovs://streams/{second}?offset_ms=-1"),
            video(f"ovs://streams/{second}?start_frame_index=0&end_frame_index=2&max_fps=5"),
        ]
        answer = await chat(server, messages=[{"role": "user", "content": parts}])
        assert answer.status_code == 200, answer.text
        content = server.engine.requests[0].messages[0].content
        kinds = [type(part) for part in content]
        assert kinds == [VideoPart, TextPart, VideoPart, ImagePart, VideoPart]
        seen = [frame["stream_id"] for frame in answer.json()["liveedge"]["frames"]]
        assert set(seen) == {first, second}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": [TEXT, TEXT]}, TURN],
        [{"role": "developer", "content": "brief", "name": "boss"}, TURN],
        [{**TURN, "name": "ann"}, {"role": "assistant", "content": None, "refusal": None}, TURN],
        [TURN, {"role": "assistant", "content": "so", "audio": None, "tool_calls": None}, TURN],
        [TURN, {"role": "assistant", "content": "so", "reasoning_content": "hm"}, TURN],
        [TURN, {"role": "assistant", "tool_calls": [CALL]},
         {"role": "tool", "content": "3", "tool_call_id": "c", "name": "f"}],
        [TURN, {"role": "assistant", "content": "", "tool_calls": [{**CALL, "index": 0}]},
         {"role": "tool", "content": [TEXT], "tool_call_id": "c"}],
        [{"role": "user", "content": [{**PICTURE, "x": 1}, {**TEXT, "annotations": []}], "y": {}}],
    ],
)  # fmt: skip
async def test_conversations_of_other_clients_are_taken(messages: list[Any]):
    async with serving() as server:
        answer = await chat(server, messages=messages)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 2, "top_p": 1},
        {"stop": []},
        {"stop": None},
        {"stop": ["a", "b", "c", "d"]},
        {"seed": 0},
        {"seed": -(2**70)},
        {"logprobs": True, "top_logprobs": 0},
        {"logprobs": False, "top_logprobs": 0},
        {"top_logprobs": None},
        {"n": 1, "stream": False, "stream_options": None},
        {"max_completion_tokens": 5, "max_tokens": None},
        {"presence_penalty": 0, "frequency_penalty": -0.5},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object", "schema": {}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "n", "description": "d", "strict": None, "schema": {"type": "object"}
                },
            }
        },
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"logit_bias": {}, "modalities": ["text"], "reasoning_effort": "low", "prediction": None},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"model_extra": 1, "extra_body": {"x": [{}]}, "": ""},
    ],
)  # fmt: skip
async def test_options_of_other_clients_are_taken(fields: dict[str, Any]):
    async with serving() as server:
        for stream in (False, True):
            answer = await chat(server, **({"stream": stream} | fields))
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"temperature": "0"}, "temperature"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": "2"}, "n"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"seed": "7"}, "seed"),
        ({"top_p": 0}, "top_p"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}]},
         "image_url"),
        ({"response_format": {"type": "json"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": "json_object"}, "response_format"),
        ({"stream_options": {"include_usage": "yes"}}, "include_usage"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
    ],
)  # fmt: skip
async def test_wrong_types_and_bounds_are_told_where_they_are(fields: dict[str, Any], where: str):
    async with serving() as server:
        answer = await chat(server, **fields)
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"] == "validation_error"
        assert where in str(answer.json()["details"])
        assert server.engine.requests == []

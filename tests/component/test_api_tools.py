"""Tools over HTTP: what is offered, what is held to a grammar, calls whole and in pieces, results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from liveedge.engine.form.forms import ANY_OBJECT, ToolForm
from liveedge.engine.request import TextPart
from liveedge.testing.engine import FakeEngine
from tests.serving import MODEL, data_url, image, picture, serving, sse_events, video

SCHEMA = {"type": "object", "properties": {"to": {"enum": ["left", "right"]}}, "required": ["to"]}
MOVE = {
    "type": "function",
    "function": {"name": "move", "description": "Move it.", "parameters": SCHEMA},
}
STOP = {"type": "function", "function": {"name": "stop"}}
TOOLS = [MOVE, STOP]
CALL = '<tool_call>\n{"name": "move", "arguments": {"to": "left"}}\n</tool_call>'
TWO = f'On it.\n{CALL}\n<tool_call>\n{{"name": "stop", "arguments": {{}}}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "stop"}}


def saying(answer: str) -> Any:
    return serving(engine=lambda clock: FakeEngine(clock=clock, answer=answer))


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


async def test_a_call_is_an_answer_without_content():
    async with saying(CALL) as server:
        said = (await server.ask(tools=TOOLS)).json()["choices"][0]
        (call,) = said["message"]["tool_calls"]
        assert call["id"].startswith("call_")
        assert call["type"] == "function"
        assert call["function"] == {"name": "move", "arguments": '{"to": "left"}'}
        assert said["message"]["content"] is None
        assert said["finish_reason"] == "tool_calls"


async def test_words_and_several_calls_stand_beside_each_other():
    async with saying(TWO) as server:
        said = (await server.ask(tools=TOOLS, n=2, logprobs=True)).json()["choices"]
        for choice in said:
            message = choice["message"]
            assert message["content"] == "On it."
            assert [c["function"]["name"] for c in message["tool_calls"]] == ["move", "stop"]
            assert "".join(t["token"] for t in choice["logprobs"]["content"]) == TWO
        ids = [call["id"] for choice in said for call in choice["message"]["tool_calls"]]
        assert len(set(ids)) == 4


async def test_calls_are_streamed_in_pieces_that_name_their_call():
    async with saying(TWO) as server:
        *chunks, done = sse_events((await server.ask(tools=TOOLS, stream=True)).text)
        assert done == "[DONE]"
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(delta.get("content", "") for delta in deltas) == "On it."
        pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
        first, *rest = [piece for piece in pieces if piece["index"] == 0]
        assert set(first) == {"index", "id", "type", "function"}
        assert first["function"] == {"name": "move", "arguments": ""}
        assert all(set(piece) == {"index", "function"} for piece in rest)
        assert "".join(piece["function"]["arguments"] for piece in rest) == '{"to": "left"}'
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_no_call_of_an_offered_function_is_content(stream):
    said = '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call> <tool_call> not JSON'
    async with saying(said) as server:
        answer = await server.ask(tools=TOOLS, stream=stream)
        if stream:
            *chunks, _ = sse_events(answer.text)
            text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
            reason = chunks[-1]["choices"][0]["finish_reason"]
        else:
            choice = answer.json()["choices"][0]
            text, reason = choice["message"]["content"], choice["finish_reason"]
            assert "tool_calls" not in choice["message"]
        assert (text, reason) == (said, "stop")


async def test_without_tools_marks_are_words():
    async with saying(CALL) as server:
        without: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}]
        for options in without:
            said = (await server.ask(**options)).json()["choices"][0]
            assert (said["message"]["content"], said["finish_reason"]) == (CALL, "stop")
        assert all(request.tools == () for request in server.engine.requests)


async def test_an_answer_that_is_cut_in_a_call_ends_for_its_length():
    async with saying(TWO) as server:
        # Two words; then `<tool_call>`, `{"name":`, `"move",`, `"arguments":`, `{"to":`.
        for n_tokens, arguments in ((4, None), (7, '{"to":'), (8, '{"to": "left"}')):
            said = (await server.ask(tools=TOOLS, max_tokens=n_tokens)).json()["choices"][0]
            assert said["finish_reason"] == "length"
            calls = said["message"].get("tool_calls", [])
            assert [c["function"]["arguments"] for c in calls] == ([arguments] if arguments else [])
            assert said["message"]["content"] == "On it."


async def test_a_stop_string_in_a_call_leaves_no_mark_behind():
    async with saying(TWO) as server:
        said = (await server.ask(tools=TOOLS, stop=['"name"'])).json()["choices"][0]
        assert said["finish_reason"] == "stop"
        assert said["message"] == {"role": "assistant", "content": "On it."}


async def test_the_model_is_told_of_every_function_and_of_nothing_else():
    async with serving() as server:
        await server.ask(tools=[strict(MOVE), STOP], tool_choice=NAMED)
        assert server.engine.requests[0].tools == (MOVE, STOP)


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"tools": TOOLS}, None),
        ({"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True}, None),
        ({"tools": TOOLS, "tool_choice": "none"}, None),
        ({"tools": TOOLS, "tool_choice": "required"}, (["move", "stop"], True, 16)),
        (
            {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
            (["move", "stop"], True, 1),
        ),
        ({"tools": TOOLS, "tool_choice": NAMED}, (["stop"], True, 1)),
        ({"tools": [strict(MOVE), STOP]}, (["move", "stop"], False, 16)),
        ({"tools": TOOLS, "parallel_tool_calls": False}, (["move", "stop"], False, 1)),
    ],
)
async def test_what_has_to_hold_is_held_by_a_grammar(options, form):
    async with serving() as server:
        assert (await server.ask(**options)).status_code == 200
        found = server.engine.requests[0].form
        if form is None:
            assert found is None
            return
        assert isinstance(found, ToolForm)
        assert ([one.name for one in found.functions], found.must, found.most) == form
        assert found.instead is None


async def test_tools_and_a_response_format_go_together():
    async with serving() as server:
        wanted = {"response_format": {"type": "json_object"}, "tools": TOOLS}
        for choice in ("auto", "none", "required"):
            assert (await server.ask(**wanted, tool_choice=choice)).status_code == 200
        auto, none, required = (request.form for request in server.engine.requests)
        assert isinstance(auto, ToolForm)
        assert auto.instead == none == ANY_OBJECT
        assert isinstance(required, ToolForm)
        assert required.must


async def test_calls_and_their_results_reach_the_template_as_it_wants_them():
    def call(number: int, arguments: Any) -> dict[str, Any]:
        function = {"name": "move", "arguments": arguments}
        return {"id": f"call_{number}", "type": "function", "function": function, "index": number}

    deep = '{"x":' * 70 + "1" + "}" * 70
    half = '{"to": "\\ud83d"}'  # of a character
    arguments = ['{"to": "left"}', {"to": "ä"}, "", "no JSON", deep, half, None]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": list(map(call, range(7), arguments))},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "second"}]},
        {"role": "tool", "tool_call_id": "call_0", "content": "first", "name": "move"},
        {"role": "tool", "content": "third"},
    ]
    async with serving() as server:
        body = {"model": MODEL, "messages": messages, "tools": TOOLS}
        answer = await server.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        _, asked, *results = server.engine.requests[0].messages
        assert [c["function"]["arguments"] for c in asked.tool_calls] == [
            {"to": "left"}, {"to": "ä"}, {}, "no JSON", deep, half, {}
        ]  # fmt: skip
        assert [r.content for r in results] == [
            (TextPart("first"),), (TextPart("second"),), (TextPart("third"),)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tool_choice": "required"}, "tools offers none"),
        ({"tool_choice": NAMED}, "tools offers none"),
        ({"tools": [MOVE], "tool_choice": NAMED}, "no such function"),
        ({"tools": [MOVE], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [MOVE], "tool_choice": {"type": "function", "name": "move"}}, "function.name"),
        ({"tools": [MOVE, MOVE]}, "two functions of the name move"),
        ({"tools": [{"type": "function"}]}, "needs the field function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "strict"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "must be of type object",
        ),
        ({"tools": [MOVE] * 129}, "at most 128"),
        ({"tools": MOVE}, "tools"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)  # fmt: skip
async def test_tools_of_a_wrong_shape_are_a_422(options, says):
    async with serving() as server:
        answer = await server.ask(**options)
        assert answer.status_code == 422
        assert says in answer.text
        assert server.engine.requests == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tools": [MOVE, {"type": "web_search"}]}, "tools[1] of type 'web_search'"),
        (
            {"tools": [MOVE], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "tool_choice of type 'allowed_tools'",
        ),
        ({"functions": [{"name": "f"}]}, "functions (send tools)"),
        ({"function_call": {"name": "f"}}, "function_call (send tool_choice)"),
    ],
)
async def test_tools_that_are_not_known_are_refused_by_name(options, says):
    async with serving() as server:
        answer = await server.ask(**options)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "parameter_unsupported"
        assert says in answer.json()["error"]["message"]
        assert server.engine.requests == []


async def test_empty_fields_of_old_clients_ask_for_nothing():
    async with serving() as server:
        options: dict[str, Any] = {"functions": [], "tools": None, "tool_choice": None}
        options["function_call"] = "auto"
        assert (await server.ask(**options)).status_code == 200


@pytest.mark.parametrize(
    "call", [{"id": "1"}, {"function": {}}, {"function": {"name": ""}}, {"type": "custom"}]
)
async def test_a_call_without_a_function_in_the_conversation_is_a_422(call):
    async with serving() as server:
        messages = [{"role": "assistant", "tool_calls": [call]}]
        body = {"model": MODEL, "messages": messages}
        assert (await server.client.post("/chat/completions", json=body)).status_code == 422


async def test_tools_stand_before_the_media_of_a_window_and_belong_to_it():
    async with serving() as server:
        stream_id = await server.filled_stream(6, every_ms=500)
        clip = video(f"ovs://streams/{stream_id}?start_offset_ms=-2000&edge=grid")
        url = f"/v1beta/streams/{stream_id}"

        async def windows() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await server.client.get(url)).json()["windows"]
            return found

        await server.ask(clip, max_age_ms=60_000)
        await server.ask(clip, max_age_ms=60_000, tools=TOOLS)
        await server.ask(clip, max_age_ms=60_000, tools=TOOLS, tool_choice="none")
        bare, with_tools = await windows()
        assert bare["prompt_id"] != with_tools["prompt_id"]
        await server.ask(clip, max_age_ms=60_000, tools=TOOLS, tool_choice="required")
        await server.ask(clip, max_age_ms=60_000, tools=[MOVE])
        _, own, _ = await windows()  # whether a call is a must is no matter of the prefix
        assert own["prompt_id"] == with_tools["prompt_id"]
        assert own["hits"] >= 1


async def test_media_and_tools_go_together():
    async with saying(CALL) as server:
        answer = (await server.ask(image(data_url(picture())), tools=TOOLS)).json()
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        assert len(answer["liveedge"]["frames"]) == 1
        assert json.loads(
            answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        ) == {"to": "left"}

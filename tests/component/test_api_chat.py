"""Chat completions over HTTP: answers, chunks, the evidence block, options."""

import json

import numpy as np
import pytest

from liveedge.core.errors import InternalError
from liveedge.engine.form.forms import ChoiceForm, JsonForm, RegexForm
from liveedge.engine.request import ImagePart, TextPart, VideoPart
from liveedge.testing.engine import FakeEngine
from tests.serving import (
    MODEL,
    Exchange,
    chat_body,
    data_url,
    image,
    picture,
    serving,
    sse_events,
    video,
)


def prompt_of(engine):
    """The parts of the last message of the last request."""
    return engine.requests[-1].messages[-1].content


@pytest.mark.parametrize("prefix", ["/v1beta", "/v1", ""])
async def test_an_answer_has_the_shape_of_openai_and_more(prefix):
    async with serving() as server:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello there"}]}
        answer = await server.client.post(f"{prefix}/chat/completions", json=body)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-overshoot-region"] == "local"
        said = answer.json()
        assert said["object"] == "chat.completion"
        assert said["model"] == MODEL
        assert said["created"] == server.clock.wall_ms() // 1000
        assert said["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "It is a test."},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ]
        usage = said["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "image_tokens": 0}
        assert said["overshoot"]["cache"] == {
            "thread_id": None, "cache_hit": False, "cached_input_tokens": 0
        }  # fmt: skip
        assert said["liveedge"]["frames"] == []
        assert said["liveedge"]["evidence_at_ms"] is said["liveedge"]["age_ms"] is None


async def test_the_evidence_block_tells_exactly_what_the_model_saw():
    async with serving() as server:
        stream_id = await server.filled_stream(6, every_ms=500)
        began_ms = server.clock.wall_ms() - 2500
        server.clock.move(0.2)
        answer = await server.ask(
            image(f"ovs://streams/{stream_id}?frame_index=1"),
            video(f"ovs://streams/{stream_id}?start_offset_ms=-1200"),
            image(data_url(picture(size=(33, 21)))),
        )
        block = answer.json()["liveedge"]
        assert [(f["frame_index"], f["timestamp_ms"]) for f in block["frames"]] == [
            (1, 500),
            (5, 2500),  # the tick of 2 s, replaced by the newest frame
            (None, None),
        ]
        assert [f["stream_id"] for f in block["frames"]] == [stream_id, stream_id, None]
        assert block["frames"][0]["captured_at_ms"] == began_ms + 500
        assert (block["frames"][2]["width"], block["frames"][2]["height"]) == (33, 21)
        assert block["evidence_at_ms"] == began_ms + 2500
        assert block["age_ms"] == 200
        assert set(block["timings_ms"]) == {
            "resolve", "queue", "preprocess", "encode", "prefill", "first_token", "decode", "total"
        }  # fmt: skip
        usage = answer.json()["usage"]
        assert (
            sum(f["tokens"] for f in block["frames"])
            == (usage["prompt_tokens_details"]["image_tokens"])
        )
        assert block["tokens"] == {"prefilled": usage["prompt_tokens"], "reused": 0}


async def test_asking_again_reuses_the_prompt_and_says_so():
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        reference = image(f"ovs://streams/{stream_id}?frame_index=0")
        await server.ask(reference)
        again = (await server.ask(reference, thread_id="t-1")).json()
        cache = again["overshoot"]["cache"]
        assert cache["thread_id"] == "t-1"
        assert cache["cache_hit"]
        assert cache["cached_input_tokens"] == again["liveedge"]["tokens"]["reused"] > 0
        assert again["liveedge"]["frames"][0]["warm"]


async def test_text_and_media_of_several_streams_keep_their_order():
    async with serving() as server:
        first, second = await server.filled_stream(2), await server.filled_stream(2)
        content = [
            {"type": "text", "text": "left"},
            image(f"ovs://streams/{second}?frame_index=-1"),
            {"type": "text", "text": "right"},
            video(f"ovs://streams/{first}?start_frame_index=0&max_fps=10"),
        ]
        call = {
            "id": "1",
            "type": "function",
            "function": {"name": "f", "arguments": '{"x": 1}'},
        }
        messages = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": content},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "42", "tool_call_id": "1"},
        ]
        answer = await server.client.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": messages}
        )
        assert answer.status_code == 200, answer.text
        request = server.engine.requests[0]
        assert [m.role for m in request.messages] == ["system", "user", "assistant", "tool"]
        assert request.messages[2].tool_calls[0]["function"] == {"name": "f", "arguments": {"x": 1}}
        kinds = [type(part) for part in request.messages[1].content]
        assert kinds == [TextPart, ImagePart, TextPart, VideoPart]
        seen = answer.json()["liveedge"]["frames"]
        assert [f["stream_id"] for f in seen] == [second, first, first]


async def test_the_pixels_that_reach_the_model_are_those_of_the_stream():
    async with serving() as server:
        stream_id = await server.new_stream()
        await server.push(stream_id, picture((10, 200, 30), size=(40, 24)))
        await server.ask(image(f"ovs://streams/{stream_id}?frame_index=0&max_pixels=1024"))
        part = prompt_of(server.engine)[0]
        assert part.max_pixels == 1024
        assert np.array_equal(part.frame.load(), np.full((24, 40, 3), (10, 200, 30), np.uint8))


async def test_frame_keys_hold_the_tenant_so_that_no_cache_crosses_it():
    async with serving(api_key=("alpha", "beta")) as server:
        keys = []
        for key in ("alpha", "beta"):
            body = chat_body(image(data_url(picture())))
            headers = {"Authorization": f"Bearer {key}"}
            await server.client.post("/v1/chat/completions", json=body, headers=headers)
            keys.append(prompt_of(server.engine)[0].frame.key)
        assert keys[0] != keys[1]
        assert keys[0].split("/")[1:] == keys[1].split("/")[1:]


async def test_options_reach_the_engine():
    async with serving() as server:
        await server.ask(
            max_tokens=9, max_completion_tokens=7, temperature=0.5, top_p=0.9, top_k=20, min_p=0.1,
            seed=-1, stop="END", presence_penalty=1.0, frequency_penalty=-1.0, logprobs=True,
            top_logprobs=3, priority="batch", timeout_ms=5000, unknown_field={"x": 1},
            parallel_tool_calls=True, user="me", tools=[], tool_choice="none",
        )  # fmt: skip
        request = server.engine.requests[0]
        sampling = request.sampling
        assert sampling.max_tokens == 7
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 20)
        assert (sampling.min_p, sampling.seed) == (0.1, 2**63 - 1)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
        assert (sampling.stop, sampling.logprobs, sampling.top_logprobs) == (("END",), True, 3)
        assert request.priority == "batch"
        assert request.deadline_s == server.clock.monotonic_s() + 5


async def test_left_out_and_null_options_mean_the_defaults():
    async with serving(default_max_tokens=33) as server:
        await server.ask(temperature=None, stop=None, n=None, stream=None, response_format=None)
        request = server.engine.requests[0]
        assert request.sampling.max_tokens == 33
        assert request.sampling.temperature == 0
        assert request.form is None
        assert request.deadline_s == server.clock.monotonic_s() + 30


SCHEMA = {"type": "object", "properties": {"door": {"type": "string"}}}


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {}),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True}}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, {}),
    ],
)
async def test_response_formats_become_the_grammar_of_the_answer(wanted, schema):
    async with serving() as server:
        assert (await server.ask(response_format=wanted)).status_code == 200
        assert server.engine.requests[0].form == (None if schema is None else JsonForm(schema))


@pytest.mark.parametrize(
    ("wanted", "form"),
    [
        ({"choice": ["Yes", " no "]}, ChoiceForm(("Yes", " no "))),
        ({"regex": r"\d+"}, RegexForm(r"\d+")),
        ({"regex": ""}, RegexForm("")),
        ({"json": SCHEMA}, JsonForm(SCHEMA)),
        ({"json": json.dumps(SCHEMA)}, JsonForm(SCHEMA)),
        ({"json": {}}, JsonForm({})),
        ({"json_object": True}, JsonForm({})),
        ({"choice": ["a"], "regex": None, "whatever": 1}, ChoiceForm(("a",))),
        (None, None),
    ],
)
async def test_structured_outputs_become_the_grammar_of_the_answer(wanted, form):
    async with serving() as server:
        plain = {"response_format": {"type": "text"}}
        assert (await server.ask(structured_outputs=wanted, **plain)).status_code == 200
        assert server.engine.requests[0].form == form


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"structured_outputs": {}}, "got none"),
        ({"structured_outputs": {"json_object": False}}, "got none"),
        ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "got choice and regex"),
        ({"structured_outputs": {"json": {}, "grammar": "x"}}, "got json and grammar"),
        ({"structured_outputs": {"choice": []}}, "choice"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "choice"),
        ({"structured_outputs": {"choice": "a"}}, "choice"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "choice"),
        ({"structured_outputs": {"regex": 5}}, "regex"),
        ({"structured_outputs": {"json": "{"}}, "no JSON"),
        ({"structured_outputs": {"json": "[]"}}, "json"),
        ({"structured_outputs": {"json": "[" * 100_000}}, "no JSON"),
        (
            {
                "structured_outputs": {"regex": "a"},
                "response_format": {"type": "json_object"},
            },
            "exclude each other",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_form_that_is_none_or_two_is_a_422(fields, message):
    async with serving() as server:
        answer = await server.ask(**fields)
        assert answer.status_code == 422
        assert message in answer.text
        assert server.engine.requests == []


@pytest.mark.parametrize("name", ["grammar", "structural_tag"])
async def test_forms_of_vllm_that_cannot_be_enforced_are_refused_by_name(name):
    async with serving() as server:
        answer = await server.ask(structured_outputs={name: ""})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "parameter_unsupported"
        assert f"structured_outputs.{name}" in answer.json()["error"]["message"]


async def test_several_choices_are_counted_with_one_prompt_and_seeded_apart():
    async with serving() as server:
        said = (await server.ask(n=3, seed=5)).json()
        assert [c["index"] for c in said["choices"]] == [0, 1, 2]
        assert {c["message"]["content"] for c in said["choices"]} == {"It is a test."}
        assert said["usage"]["completion_tokens"] == 12
        assert {r.sampling.seed for r in server.engine.requests} == {5, 6, 7}
        assert len({r.request_id for r in server.engine.requests}) == 3


async def test_logprobs_have_the_shape_of_openai():
    async with serving(engine=lambda clock: FakeEngine(clock=clock, answer="grün")) as server:
        said = (await server.ask(logprobs=True, top_logprobs=1)).json()
        (token,) = said["choices"][0]["logprobs"]["content"]
        assert token["token"] == "grün"
        assert bytes(token["bytes"]).decode() == "grün"
        assert token["logprob"] == 0.0
        assert token["top_logprobs"][0]["token"] == "grün"


async def test_a_stream_of_chunks_begins_with_the_role_and_ends_with_done():
    async with serving() as server:
        answer = await server.ask(stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-overshoot-region"] == "local"
        *chunks, done = sse_events(answer.text)
        assert done == "[DONE]"
        assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
        assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
        deltas = [c["choices"][0]["delta"] for c in chunks]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(d.get("content", "") for d in deltas) == "It is a test."
        last = chunks[-1]
        assert last["choices"][0]["finish_reason"] == "stop"
        assert last["liveedge"]["tokens"]["reused"] == 0
        assert not any("usage" in c or "overshoot" in c for c in chunks)
        assert not any("liveedge" in c for c in chunks[:-1])


async def test_usage_comes_last_when_it_is_asked_for():
    async with serving() as server:
        options = {"stream": True, "n": 2, "stream_options": {"include_usage": True}}
        *chunks, done = sse_events((await server.ask(**options)).text)
        assert done == "[DONE]"
        last = chunks[-1]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 8
        assert set(last) >= {"usage", "overshoot", "liveedge"}
        ends = [c for c in chunks[:-1] if c["choices"][0]["finish_reason"]]
        assert [c["choices"][0]["index"] for c in ends] == [0, 1]


async def test_characters_are_never_split_over_chunks():
    async with serving(
        engine=lambda clock: FakeEngine(clock=clock, answer="größer 🙂 ü")
    ) as server:
        *chunks, _ = sse_events((await server.ask(stream=True)).text)
        said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
        assert said == "größer 🙂 ü"
        assert "\ufffd" not in said


async def test_a_failure_after_the_start_is_one_error_event_and_the_end():
    async with serving() as server:
        server.engine.hold("decode")
        body = json.dumps(chat_body(stream=True)).encode()
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await exchange.until(lambda e: b"It" in e.received)
            server.engine.close()
            await exchange.ended()
        events = sse_events(exchange.received.decode())
        assert exchange.status == 200
        assert events[-1]["error"]["code"] == "model_unavailable"
        assert "[DONE]" not in events


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_is_plain_http(stream):
    def fail(request):
        raise InternalError("the device is gone")

    async with serving(engine=lambda clock: FakeEngine(clock=clock, answer=fail)) as server:
        answer = await server.ask(stream=stream)
        assert answer.status_code == 500
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["code"] == "internal_error"


async def test_a_crash_is_a_json_500_without_a_trace():
    def crash(request):
        raise RuntimeError("secret detail")

    async with serving(engine=lambda clock: FakeEngine(clock=clock, answer=crash)) as server:
        answer = await server.ask()
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text


async def test_a_zero_token_answer_is_an_answer():
    def engine(clock):
        return FakeEngine(clock=clock, answer="")

    async with serving(engine=engine) as server:
        said = (await server.ask()).json()
        assert said["choices"][0]["message"]["content"] == ""
        assert said["usage"]["completion_tokens"] == 0
        *chunks, done = sse_events((await server.ask(stream=True)).text)
        assert done == "[DONE]"
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_models_and_aliases_are_listed_and_can_be_asked():
    async with serving(aliases={"hosted-vlm": MODEL}, api_key="k") as server:
        listed = (await server.client.get("/v1beta/models")).json()  # no key needed
        assert listed["object"] == "list"
        own, alias = listed["data"]
        assert (own["id"], own["object"], own["status"]) == (MODEL, "model", "ready")
        assert own["max_model_len"] == 4096
        assert own["modalities"] == ["text", "image", "video"]
        assert (alias["id"], alias["alias_of"]) == ("hosted-vlm", MODEL)
        body = chat_body() | {"model": "hosted-vlm"}
        headers = {"Authorization": "Bearer k"}
        answer = await server.client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.json()["model"] == "hosted-vlm"

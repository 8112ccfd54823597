"""Questions that another server answers, over HTTP on both sides: well, badly, and not at all."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from liveedge.media.clip import ClipLimits, decode_clip
from liveedge.media.picture import PictureLimits, decode_picture
from liveedge.service.watch import MAX_TEXT_CHARS
from liveedge.testing.clock import FakeClock
from tests.provider_stub import (
    Mood,
    Stub,
    chunk,
    dropping,
    in_turn,
    refusing,
    saying,
    self_signed,
    sending,
    silent,
    stub,
    texts,
    usage,
)
from tests.serving import (
    MODEL,
    Exchange,
    Serving,
    chat_body,
    data_url,
    image,
    picture,
    serving,
    sse_events,
    until,
    video,
)

THEIRS = "their-model"
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def provided(
    mood: Mood,
    *,
    clock: FakeClock | None = None,
    options: dict[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[tuple[Serving, Stub]]:
    """A server with one provider, which is in this mood."""
    async with stub(mood) as upstream:
        provider = {"base_url": upstream.url, "models": [THEIRS], **(options or {})}
        async with serving(clock=clock, providers={"peer": provider}, **more) as server:
            yield server, upstream


@asynccontextmanager
async def ticking(server: Serving) -> AsyncIterator[None]:
    """Time passes, much faster than it does."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.001)
            server.clock.move(0.05)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()


async def ask(server: Serving, *parts: dict[str, Any], **options: Any) -> Any:
    return await server.ask(*parts, **{"model": THEIRS, **options})


def error_of(reply: Any) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    return error


# ── what is sent and what comes back ──


async def test_a_frame_is_sent_as_a_picture_and_the_answer_tells_its_evidence():
    async with provided(saying("a red ", "box")) as (server, upstream):
        stream = await server.filled_stream(3)
        server.clock.move(0.25)
        reply = await ask(server, image(f"ovs://streams/{stream}?frame_index=-1"), seed=7)
        assert reply.status_code == 200, reply.text
        told = reply.json()
        assert told["model"] == THEIRS
        assert told["choices"][0]["message"]["content"] == "a red box"
        assert told["choices"][0]["finish_reason"] == "stop"
        assert (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]) == (40, 2)
        assert told["overshoot"]["cache"]["cache_hit"] is False
        (frame,) = told["liveedge"]["frames"]
        assert (frame["stream_id"], frame["frame_index"]) == (stream, 2)
        assert told["liveedge"]["evidence_at_ms"] == frame["captured_at_ms"]
        assert told["liveedge"]["age_ms"] == 250
        assert told["liveedge"]["provider"] == "peer"
        assert {"resolve", "first_token", "total"} <= set(told["liveedge"]["timings_ms"])
        (sent,) = upstream.asked
        assert sent.path == "/v1/chat/completions"
        assert texts(sent.body) == ["image_url", "what is there"]
        url = sent.body["messages"][0]["content"][0]["image_url"]["url"]
        kind, _, data = url.partition(";base64,")
        assert kind == "data:image/jpeg"
        rgb = decode_picture(base64.b64decode(data), limits=PictureLimits(), what="it")
        assert rgb.shape == (48, 64, 3)


async def test_a_segment_is_sent_as_pictures_behind_their_times():
    async with provided(saying("yes")) as (server, upstream):
        stream = await server.filled_stream(11)
        url = f"ovs://streams/{stream}?start_offset_ms=-1000&max_fps=2"
        told = (await ask(server, video(url))).json()
        frames = told["liveedge"]["frames"]
        first_ms = frames[0]["timestamp_ms"]
        times = [f"<{(f['timestamp_ms'] - first_ms) / 1000:.1f} seconds>" for f in frames]
        wanted = [text for time in times for text in (time, "image_url")]
        assert texts(upstream.asked[0].body) == [*wanted, "what is there"]


async def test_a_provider_of_videos_is_sent_a_clip_with_the_times_of_the_frames():
    async with provided(saying("yes"), options={"media": "video"}) as (server, upstream):
        stream = await server.filled_stream(11)
        url = f"ovs://streams/{stream}?start_offset_ms=-1000&max_fps=2"
        told = (await ask(server, video(url))).json()
        sent = upstream.asked[0].body["messages"][0]["content"]
        assert [part["type"] for part in sent] == ["video_url", "text"]
        kind, _, data = sent[0]["video_url"]["url"].partition(";base64,")
        assert kind == "data:video/mp4"
        clip = decode_clip(base64.b64decode(data), limits=ClipLimits(), what="it")
        at_ms = [frame["timestamp_ms"] for frame in told["liveedge"]["frames"]]
        times = [round(frame.time_s * 1000) for frame in clip.frames]
        assert times[: len(at_ms)] == [t - at_ms[0] for t in at_ms]


async def test_options_are_passed_on_as_they_were_sent_and_ours_are_not():
    schema = {"name": "it", "strict": False, "schema": {"type": "object"}}
    options = {
        "temperature": 0.7,
        "top_p": 0.9,
        "stop": ["end"],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "max_completion_tokens": 9,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    both = [chunk({"content": "x"}, index=i) for i in (1, 0)]
    ends = [chunk(reason="stop", index=i) for i in (0, 1)]

    async def mood(exchange: Any) -> None:
        await exchange.head()
        await exchange.events(*both, *ends, usage())

    ours = {"thread_id": "t", "timeout_ms": 5000, "max_age_ms": 900, "priority": "batch"}
    async with provided(mood, options={"extra_body": {"think": False}}) as (server, upstream):
        told = (await ask(server, **options, **ours)).json()
        assert [c["message"]["content"] for c in told["choices"]] == ["x", "x"]
        assert told["usage"]["completion_tokens"] == 2
        sent = upstream.asked[0].body
        assert {name: sent.get(name) for name in options} == options
        assert sent["think"] is False
        assert not set(ours) & set(sent)
        assert "max_tokens" not in sent
        assert sent["stream"] is True
    async with provided(saying("x")) as (server, upstream):
        await ask(server)
        assert upstream.asked[0].body["max_tokens"] == 512
        assert "temperature" not in upstream.asked[0].body


async def test_an_answer_is_streamed_with_its_usage_at_the_end():
    async with provided(saying("one ", "two")) as (server, _):
        reply = await ask(server, stream=True, stream_options={"include_usage": True})
        *chunks, closing, done = sse_events(reply.text)
        assert done == "[DONE]"
        words = [c["choices"][0]["delta"].get("content") for c in chunks]
        assert words == ["", "one ", "two", None]
        assert {c["model"] for c in chunks} == {THEIRS}
        assert closing["usage"]["total_tokens"] == 42
        assert closing["liveedge"]["provider"] == "peer"


async def test_tool_calls_and_logprobs_come_through():
    calls = [
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "turn", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"by":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "90}"}}]},
    ]

    async def mood(exchange: Any) -> None:
        await exchange.head()
        spoken = chunk({"content": "Ok"})
        rival = {"token": "No", "bytes": [78, 111], "logprob": -3.0}
        token = {"token": "Ok", "bytes": None, "logprob": -0.1, "top_logprobs": [rival]}
        spoken["choices"][0]["logprobs"] = {"content": [token]}
        await exchange.events(spoken, *map(chunk, calls), chunk(reason="tool_calls"))

    tools = [{"type": "function", "function": {"name": "turn", "parameters": {"type": "object"}}}]
    options = {"logprobs": True, "tools": tools, "tool_choice": "required"}
    async with provided(mood) as (server, upstream):
        (choice,) = (await ask(server, **options)).json()["choices"]
        assert {name: upstream.asked[0].body[name] for name in options} == options
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["id"] == "c1"
        assert call["function"] == {"name": "turn", "arguments": '{"by":90}'}
        (token,) = choice["logprobs"]["content"]
        assert token["bytes"] == [79, 107]
        assert token["top_logprobs"][0]["token"] == "No"


async def test_a_provider_that_does_not_stream_answers_all_the_same():
    message = {"index": 0, "message": {"content": "whole"}, "finish_reason": "stop"}
    spent = {"prompt_tokens": 5, "completion_tokens": 1}
    async with provided(refusing(200, {"choices": [message], "usage": spent})) as (server, _):
        told = (await ask(server)).json()
        assert told["choices"][0]["message"]["content"] == "whole"
        assert told["usage"]["total_tokens"] == 6


async def test_an_uploaded_picture_is_sent_as_a_new_picture():
    async with provided(saying("x")) as (server, upstream):
        await ask(server, image(data_url(picture(size=(640, 480)))))
        url = upstream.asked[0].body["messages"][0]["content"][0]["image_url"]["url"]
        assert url.startswith("data:image/jpeg")


# ── the same checks as for our own model ──


async def test_streams_of_others_frames_and_references_are_checked_as_for_our_own_model():
    async with provided(saying("x"), api_key=("alpha", "beta")) as (server, upstream):
        alpha, beta = ({"authorization": f"Bearer {key}"} for key in ("alpha", "beta"))
        stream = await server.new_stream(**alpha)
        cases = {
            f"ovs://streams/{stream}?frame_index=-1": "stream_unauthorized",
            "ovs://streams/nobody?frame_index=-1": "stream_not_found",
            f"ovs://streams/{stream}?frame_index=x": "query_param_invalid",
            "ovs://elsewhere/x": "stream_url_invalid",
        }
        for model in (THEIRS, MODEL):
            for url, code in cases.items():
                body = chat_body(image(url), model=model)
                reply = await server.client.post(CHAT, json=body, headers=beta)
                assert error_of(reply)["code"] == code, (model, url)
        body = chat_body(image(f"ovs://streams/{stream}?frame_index=-1"), model=THEIRS)
        reply = await server.client.post(CHAT, json=body, headers=alpha)
        assert error_of(reply)["code"] == "frame_not_yet_produced"
        assert upstream.n_asked == 0


async def test_a_question_about_old_frames_is_stale_before_the_provider_is_asked():
    async with provided(saying("x")) as (server, upstream):
        stream = await server.filled_stream(2)
        server.clock.move(2.0)
        await server.push(stream)
        url = f"ovs://streams/{stream}?frame_index=0"
        assert error_of(await ask(server, image(url), max_age_ms=500))["code"] == "frame_stale"
        assert upstream.n_asked == 0


async def test_an_answer_that_begins_too_late_for_its_evidence_is_stale_and_not_asked_again():
    async with provided(silent) as (server, upstream):
        stream = await server.filled_stream(2)
        url = f"ovs://streams/{stream}?frame_index=-1"
        asking = asyncio.create_task(ask(server, image(url), max_age_ms=500))
        await until(lambda: upstream.n_asked == 1)
        await server.clock.advance(0.6)
        assert error_of(await asking)["code"] == "frame_stale"
        await until(lambda: upstream.n_left == 1)
        assert upstream.n_asked == 1


async def test_more_frames_than_a_provider_is_sent_are_refused_with_what_would_fit():
    async with provided(saying("x"), options={"max_frames": 3}) as (server, upstream):
        stream = await server.filled_stream(10)
        url = f"ovs://streams/{stream}?start_offset_ms=-900&max_fps=10"
        error = error_of(await ask(server, video(url)))
        assert error["code"] == "context_length_exceeded"
        assert "at most 3" in error["message"]
        assert upstream.n_asked == 0


async def test_a_provider_with_all_its_connections_busy_refuses_more():
    async with provided(silent, options={"max_connections": 1}) as (server, upstream):
        first = asyncio.create_task(ask(server))
        await until(lambda: upstream.n_asked == 1)
        reply = await ask(server)
        assert reply.status_code == 429
        assert error_of(reply)["code"] == "queue_full"
        assert reply.headers["retry-after"]
        first.cancel()


async def test_slow_providers_leave_room_for_our_own_model():
    async with provided(silent, max_requests=4) as (server, upstream):
        slow = [asyncio.create_task(ask(server)) for _ in range(4)]
        await until(lambda: upstream.n_asked == 2 and sum(one.done() for one in slow) == 2)
        refused = [one.result() for one in slow if one.done()]
        assert {error_of(reply)["code"] for reply in refused} == {"queue_full"}
        assert (await server.ask()).status_code == 200
        assert server.built.questions.queueing.used == 0  # what they take is no work of ours
        text = (await server.client.get("/metrics")).text
        assert 'liveedge_budget_used{of="provider_questions"} 2' in text
        for one in slow:
            one.cancel()


async def test_while_a_provider_thinks_only_what_it_was_sent_is_held():
    async with provided(silent) as (server, upstream):
        size = (2000, 1000)
        asked = asyncio.create_task(ask(server, image(data_url(picture(size=size)))))
        await until(lambda: upstream.n_asked == 1)
        held = server.built.questions.decoded_bytes.used
        assert 0 < held < 200_000  # a JPEG of one colour; 6 MB decoded
        asked.cancel()
        await until(lambda: server.built.questions.decoded_bytes.used == 0)


async def test_first_tokens_of_providers_are_measured_apart_from_ours():
    async with provided(saying("x")) as (server, _):
        await ask(server, image(data_url(picture())))
        text = (await server.client.get("/metrics")).text
        assert 'time_to_first_token_seconds_count{frames="elsewhere"} 1' in text
        assert 'time_to_first_token_seconds_count{frames="cold"} 0' in text


async def test_what_a_provider_answers_counts_among_the_requests_and_answers_of_a_key():
    limits: dict[str, Any] = {
        "requests_per_second": 1.0,
        "request_burst": 3,
        "max_output_tokens": 5,
    }
    async with provided(saying("x"), **limits, max_parts=2) as (server, upstream):
        reply = await ask(server, max_completion_tokens=50)
        assert reply.headers["x-ratelimit-remaining"] == "2"
        assert upstream.asked[0].body["max_completion_tokens"] == 5
        reply = await ask(server, {"type": "text", "text": "a"}, {"type": "text", "text": "b"})
        assert (reply.status_code, "max_parts" in reply.text) == (422, True)
        await ask(server)
        reply = await ask(server)
        assert (reply.status_code, error_of(reply)["code"]) == (429, "rate_limit_exceeded")
        assert reply.headers["x-ratelimit-remaining"] == "0"
        assert upstream.n_asked == 2


async def test_an_unknown_model_is_told_which_there_are():
    async with provided(saying("x")) as (server, _):
        error = error_of(await ask(server, model="nobody-has-this"))
        assert error["code"] == "model_not_found"
        assert THEIRS in error["message"]
        assert MODEL in error["message"]


async def test_a_provider_that_lists_no_models_takes_every_id_without_a_slash():
    async with provided(saying("x"), options={"models": []}) as (server, upstream):
        assert (await ask(server, model="anything")).status_code == 200
        assert upstream.asked[0].body["model"] == "anything"
        assert (await ask(server, model="some/thing")).status_code == 404
        upstream.models = {"data": [{"id": "anything"}, {"id": "with/slash"}]}
        listed = (await server.client.get("/v1/models")).json()["data"]
        assert [m["id"] for m in listed if m["owned_by"] == "peer"] == ["anything"]


async def test_a_watch_may_ask_a_providers_model():
    async with provided(saying("it moved")) as (server, upstream):
        stream = await server.filled_stream(2)
        content = [image(f"ovs://streams/{stream}?frame_index=-1"), {"type": "text", "text": "?"}]
        body = {"model": THEIRS, "messages": [{"role": "user", "content": content}]}
        reply = await server.client.post("/v1/watches", json={**body, "every_ms": 1000})
        assert reply.status_code == 201, reply.text
        await server.clock.advance(1.1)
        await until(lambda: upstream.n_asked >= 1)
        await server.client.delete(f"/v1/watches/{reply.json()['id']}")


async def test_a_watch_keeps_the_beginning_of_an_answer_without_end():
    async with provided(saying(*["x" * 100_000] * 20)) as (server, _):
        stream = await server.filled_stream(2)
        part = image(f"ovs://streams/{stream}?frame_index=-1")
        body = chat_body(part, every_ms=60_000) | {"model": THEIRS}
        reply = await server.client.post("/v1/watches", json=body)
        watch = f"/v1/watches/{reply.json()['id']}"
        await until(lambda: server.built.watches.totals().events["result"] > 0)
        shown = (await server.client.get(watch)).json()
        assert len(shown["last_result"]["text"]) == MAX_TEXT_CHARS
        assert shown["last_result"]["finish_reason"] == "length"


def standing(stream: str, model: str) -> dict[str, Any]:
    """A watch on the newest frame."""
    content = [image(f"ovs://streams/{stream}?frame_index=-1"), {"type": "text", "text": "?"}]
    messages = [{"role": "user", "content": content}]
    return {"model": model, "messages": messages, "every_ms": 1000}


async def test_a_watch_is_answered_by_a_fallback_from_its_beginning_and_says_by_whom():
    async with provided(saying("theirs"), fallbacks={MODEL: [THEIRS]}) as (server, _):
        server.built.models.close()  # away before the watch is made
        body = standing(await server.filled_stream(2), MODEL)
        reply = await server.client.post("/v1/watches", json=body)
        assert reply.status_code == 201, reply.text
        path = f"/v1/watches/{reply.json()['id']}"
        await until(lambda: server.built.watches.totals().events["result"] > 0)
        last = (await server.client.get(path)).json()["last_result"]
        assert (last["model"], last["text"]) == (THEIRS, "theirs")
        assert last["liveedge"]["fallback"] == {"requested": MODEL, "because": "model_unavailable"}
        assert last["liveedge"]["provider"] == "peer"
        await server.client.delete(path)


async def test_a_watch_on_what_neither_a_model_nor_its_fallbacks_can_answer_is_refused():
    async with provided(saying("x"), fallbacks={MODEL: [THEIRS]}) as (server, _):
        server.built.models.close()
        body = standing("nobodys", MODEL)
        reply = await server.client.post("/v1/watches", json=body)
        assert error_of(reply)["code"] == "stream_not_found"
    async with serving() as server:
        server.built.models.close()
        body = standing(await server.filled_stream(1), MODEL)
        reply = await server.client.post("/v1/watches", json=body)
        assert (reply.status_code, error_of(reply)["code"]) == (503, "model_unavailable")


async def test_a_watch_whose_provider_fails_tells_it_and_goes_on():
    moods = in_turn(refusing(500), saying("better"))
    async with provided(moods, options={"retries": 0}) as (server, upstream):
        stream = await server.filled_stream(2)
        reply = await server.client.post("/v1/watches", json=standing(stream, THEIRS))
        path = f"/v1/watches/{reply.json()['id']}"
        await until(lambda: upstream.n_asked == 1)
        async with ticking(server):
            await until(lambda: server.built.watches.totals().events["result"] > 0)
        seen = (await server.client.get(path)).json()
        assert seen["errors"] == {"upstream_http_500": 1}
        assert seen["last_error"]["error"]["type"] == "upstream_error"
        assert seen["last_error"]["error"]["upstream"]["provider"] == "peer"
        await server.client.delete(path)


async def test_windows_of_a_providers_model_are_refused_by_name():
    async with provided(saying("x")) as (server, _):
        stream = await server.filled_stream(2)
        reply = await server.client.put(
            f"/v1beta/streams/{stream}/windows/w", json={"model": THEIRS, "seconds": 5}
        )
        assert reply.status_code == 400
        assert "peer" in error_of(reply)["message"]


# ── what goes wrong ──

UPSTREAM = {
    429: (429, "upstream_http_429"),
    500: (502, "upstream_http_500"),
    503: (502, "upstream_http_503"),
    401: (502, "upstream_http_401"),
    403: (502, "upstream_http_403"),
    404: (400, "upstream_http_404"),
    400: (400, "upstream_http_400"),
    302: (502, "upstream_http_302"),
}


@pytest.mark.parametrize("status", UPSTREAM)
async def test_a_status_that_is_no_answer_is_told_with_what_the_provider_said(status: int):
    said = {"error": {"message": "not today"}}
    mood = refusing(status, said, x_ratelimit_remaining="0", location="http://127.0.0.1:1/")
    async with provided(mood, options={"retries": 0}) as (server, upstream):
        reply = await ask(server)
        assert (reply.status_code, error_of(reply)["code"]) == UPSTREAM[status]
        error = error_of(reply)
        assert error["type"] == "upstream_error"
        assert "not today" in error["message"]
        assert error["upstream"]["provider"] == "peer"
        assert error["upstream"]["status"] == status
        assert json.loads(error["upstream"]["body"]) == said
        assert error["upstream"]["rate_limits"] == {"x-ratelimit-remaining": "0"}
        assert reply.json()["detail"]["error"] == error
        assert upstream.n_asked == 1


BROKEN: dict[str, Mood] = {
    "an end before the first token": sending(b'data: {"choices":[{"index":0,"delta":{"role":'),
    "a role and the end": sending(b'data: {"choices":[{"index":0,"delta":{"role":"x"}}]}\n\n'),
    "no JSON": sending(b"data: {no\n\n"),
    "deep JSON": sending(b"data: " + b"[" * 100_000 + b"\n\n"),
    "no object": sending(b"data: 7\n\n"),
    "an error in the stream": sending(b'data: {"error":{"message":"overloaded"}}\n\n'),
    "HTML": sending(b"<html>welcome</html>", kind="text/html"),
    "a wrong type": sending(b'data: {"choices":[]}\n\n', kind="application/octet-stream"),
    "a huge line": sending(b"data: " + b"x" * (2 << 20)),
    "huge JSON": sending(b"[" + b" " * (9 << 20), kind="application/json"),
    "more values than any answer has": sending(
        b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"x":['
        + b"[]," * 300_000
        + b"[]]}",
        kind="application/json",
    ),
    "a choice of nobody": sending(b'data: {"choices":[{"index":7,"delta":{"content":"x"}}]}\n\n'),
    "a text that is none": sending(b'data: {"choices":[{"index":0,"delta":{"content":[1]}}]}\n\n'),
    "a dropped connection": dropping,
    "a dropped answer": sending(b": hello\n\n", then="drop"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_what_is_no_answer_is_an_upstream_failure(case: str):
    async with provided(BROKEN[case], options={"retries": 0}) as (server, upstream):
        reply = await ask(server, stream=True)
        assert reply.status_code == 502, reply.text
        assert error_of(reply)["code"] == "upstream_request_failed"
        assert reply.headers["content-type"] == "application/json"
        assert len(reply.content) < 8192
        assert upstream.n_asked == 1
        assert server.built.questions.in_progress.used == 0
        assert server.built.questions.decoded_bytes.used == 0


async def test_a_provider_that_is_not_there_is_an_upstream_failure():
    async with stub(silent) as gone:
        url = gone.url
    provider = {"base_url": url, "models": [THEIRS], "retries": 0}
    async with serving(providers={"peer": provider}) as server:
        reply = await ask(server)
        assert (reply.status_code, error_of(reply)["code"]) == (502, "upstream_request_failed")
        assert url not in reply.text


SLOW: dict[str, Mood] = {
    "before its headers": silent,
    "before its first token": sending(b": one moment\n\n", then="silence"),
}


@pytest.mark.parametrize("case", SLOW)
async def test_a_silent_provider_is_a_timeout_and_not_asked_again(case: str):
    async with provided(SLOW[case], options={"timeout": 3}) as (server, upstream):
        asking = asyncio.create_task(ask(server))
        await until(lambda: upstream.n_asked == 1)
        await asyncio.sleep(0.02)
        await server.clock.advance(3.5)
        reply = await asking
        assert (reply.status_code, error_of(reply)["code"]) == (504, "upstream_timeout")
        await until(lambda: upstream.n_left == 1)
        assert upstream.n_asked == 1


async def test_the_deadline_of_the_question_holds_for_a_provider_too():
    async with provided(silent) as (server, upstream):
        asking = asyncio.create_task(ask(server, timeout_ms=700))
        await until(lambda: upstream.n_asked == 1)
        await server.clock.advance(0.8)
        error = error_of(await asking)
        assert error["code"] == "upstream_timeout"
        assert "timeout_ms" in error["message"]


async def test_a_refusal_for_content_is_a_safety_block():
    filtered = {"error": {"message": "no", "code": "content_filter"}}
    for mood in (refusing(400, filtered), saying(reason="content_filter")):
        async with provided(mood) as (server, upstream):
            reply = await ask(server)
            assert (reply.status_code, error_of(reply)["code"]) == (400, "provider_safety_block")
            assert reply.headers["x-should-retry"] == "false"
            assert upstream.n_asked == 1


async def test_a_filter_in_mid_answer_ends_the_answer_with_its_reason():
    async with provided(saying("well, ", reason="content_filter")) as (server, _):
        (choice,) = (await ask(server)).json()["choices"]
        assert choice["finish_reason"] == "content_filter"


async def test_a_failure_behind_the_first_token_is_one_event_and_never_asked_again():
    begun = b'data: {"choices":[{"index":0,"delta":{"content":"it is"}}]}\n\n'
    cases = {
        "upstream_request_failed": sending(begun),
        "upstream_timeout": sending(begun, then="silence"),
    }
    for code, mood in cases.items():
        async with provided(mood, options={"timeout": 3}) as (server, upstream):
            asking = asyncio.create_task(ask(server, stream=True))
            await until(lambda: upstream.n_asked == 1)
            await asyncio.sleep(0.02)
            await server.clock.advance(3.5)
            reply = await asking
            assert reply.status_code == 200
            events = sse_events(reply.text)
            assert events[1]["choices"][0]["delta"]["content"] == "it is"
            assert events[-1]["error"]["code"] == code
            assert events[-1]["error"]["upstream"]["provider"] == "peer"
            assert upstream.n_asked == 1


async def test_the_key_of_a_provider_is_sent_to_it_and_shown_to_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("PEER_KEY", "sk-very-secret")

    async def echo(exchange: Any) -> None:
        await exchange.reply(401, {"error": {"message": exchange.headers["authorization"]}})

    async with provided(echo, options={"api_key_env": "PEER_KEY"}) as (server, upstream):
        reply = await ask(server)
        assert upstream.asked[0].headers["authorization"] == "Bearer sk-very-secret"
        assert error_of(reply)["upstream"]["status"] == 401
        metrics = (await server.client.get("/metrics")).text
        for shown in (reply.text, caplog.text, metrics):
            assert "very-secret" not in shown


async def test_a_provider_whose_certificate_nobody_vouches_for_is_sent_nothing(tmp_path: Path):
    async with stub(saying("x"), tls=self_signed(tmp_path / "tls.pem")) as upstream:
        url = upstream.url.replace("http:", "https:")
        provider = {"base_url": url, "models": [THEIRS], "retries": 0}
        async with serving(providers={"peer": provider}) as server:
            assert error_of(await ask(server))["code"] == "upstream_request_failed"
        assert upstream.n_asked == 0


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with provided(saying("x")) as (server, _):
        assert (await ask(server)).status_code == 200


# ── retries, and their bounds ──


async def test_a_failure_before_the_first_token_is_asked_again():
    moods = (refusing(503), dropping, saying("there"))
    async with provided(in_turn(*moods)) as (server, upstream), ticking(server):
        reply = await ask(server)
        assert reply.json()["choices"][0]["message"]["content"] == "there"
        assert upstream.n_asked == 3


async def test_a_429_waits_as_long_as_it_says_and_not_past_the_deadline():
    async with provided(in_turn(refusing(429, retry_after="7"), saying("x"))) as (server, upstream):
        asking = asyncio.create_task(ask(server))
        await until(lambda: upstream.n_asked == 1)
        await asyncio.sleep(0.02)
        await server.clock.advance(6.9)
        assert upstream.n_asked == 1
        await server.clock.advance(0.5)
        assert (await asking).status_code == 200
    async with provided(refusing(429, retry_after="7")) as (server, upstream):
        reply = await ask(server, timeout_ms=5000)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
        assert error_of(reply)["upstream"]["rate_limits"] == {"retry-after": "7"}
        assert upstream.n_asked == 1
    async with provided(refusing(429)) as (server, _), ticking(server):
        reply = await ask(server)
        assert reply.headers["retry-after"] == "1"


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_what_asking_again_cannot_cure_is_not_asked_again(status: int):
    async with provided(refusing(status)) as (server, upstream), ticking(server):
        await ask(server)
        assert upstream.n_asked == 1


async def test_a_question_whose_evidence_would_be_too_old_is_not_asked_again():
    async with provided(refusing(503, retry_after="2")) as (server, upstream), ticking(server):
        stream = await server.filled_stream(2)
        url = f"ovs://streams/{stream}?frame_index=-1"
        reply = await ask(server, image(url), max_age_ms=1500)
        assert error_of(reply)["code"] in ("upstream_http_503", "frame_stale")
        assert upstream.n_asked <= 1


async def test_a_hundred_questions_to_a_failing_provider_make_few_requests_and_then_none():
    async with provided(refusing(503)) as (server, upstream), ticking(server):
        replies = await asyncio.gather(*(ask(server) for _ in range(30)))
        replies += [await ask(server) for _ in range(70)]
        assert upstream.n_asked <= 1.1 * 100 + 3
        # The breaker opens after five failures: what comes then is refused at once.
        assert upstream.n_asked < 60
        codes = {error_of(reply)["code"] for reply in replies}
        assert codes == {"upstream_http_503", "model_unavailable"}
        last = replies[-1]
        assert last.status_code == 503
        assert int(last.headers["retry-after"]) >= 1
        text = (await server.client.get("/metrics")).text
        assert 'liveedge_provider_breaker_state{provider="peer",state="closed"} 0' in text
        line = f'requests_total{{provider="peer",outcome="http_5xx"}} {upstream.n_asked}'
        assert line in text


async def test_retries_are_bounded_where_the_breaker_does_not_help():
    async with provided(refusing(429)) as (server, upstream), ticking(server):
        for _ in range(60):
            await ask(server)
        assert upstream.n_asked <= 1.1 * 60 + 3 + 20  # and a tenth per second of time that passed
        counted = (await server.client.get("/metrics")).text
        assert "liveedge_provider_retries_refused_total" in counted


async def test_a_provider_that_is_well_again_answers_again():
    moods = [refusing(500)] * 5
    async with provided(in_turn(*moods, saying("back")), options={"retries": 0}) as (server, up):
        for _ in moods:
            assert (await ask(server)).status_code == 502
        assert (await ask(server)).status_code == 503
        assert up.n_asked == 5
        server.clock.move(5.1)
        assert (await ask(server)).status_code == 200
        assert (await ask(server)).status_code == 200


async def test_clients_with_short_deadlines_do_not_have_the_provider_left_alone():
    async with provided(silent) as (server, upstream):
        for i in range(7):
            asking = asyncio.create_task(ask(server, timeout_ms=100))
            await until(lambda i=i: upstream.n_asked == i + 1)  # type: ignore[misc]
            await server.clock.advance(0.2)
            assert (await asking).status_code == 504


# ── leaving ──


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_closes_the_connection_to_the_provider(begun: bool):
    first = b'data: {"choices":[{"index":0,"delta":{"content":"it"}}]}\n\n'
    mood = sending(first, then="silence") if begun else silent
    async with provided(mood) as (server, upstream):
        body = json.dumps(chat_body(model=THEIRS, stream=True)).encode()
        async with Exchange(server.built.app, CHAT, body) as exchange:
            await until(lambda: upstream.n_asked == 1)
            if begun:
                await exchange.until(lambda e: b"it" in e.received)
            exchange.leave()
            async with asyncio.timeout(0.2):
                await until(lambda: upstream.n_left == 1)
        assert upstream.n_open == 0
        assert server.built.questions.in_progress.used == 0


async def test_a_client_that_leaves_between_two_attempts_is_not_asked_for():
    async with provided(refusing(503, retry_after="5")) as (server, upstream):
        body = json.dumps(chat_body(model=THEIRS)).encode()
        async with Exchange(server.built.app, CHAT, body) as exchange:
            await until(lambda: upstream.n_asked == 1 and upstream.n_open == 0)
            exchange.leave()
        await server.clock.advance(10)
        assert upstream.n_asked == 1
        assert server.built.questions.in_progress.used == 0


# ── which models there are ──


async def test_models_of_providers_are_listed_with_their_state():
    async with provided(saying("x"), options={"models": [THEIRS, "other"]}) as (server, upstream):
        upstream.models = {"data": [{"id": "other", "status": "unavailable", "max_model_len": 9}]}
        listed = {m["id"]: m for m in (await server.client.get("/models")).json()["data"]}
        assert listed[MODEL]["owned_by"] == "liveedge"
        assert (listed[THEIRS]["owned_by"], listed[THEIRS]["status"]) == ("peer", "ready")
        assert (listed["other"]["status"], listed["other"]["max_model_len"]) == ("unavailable", 9)
        for _ in range(5):
            await server.client.get("/models")
        assert upstream.n_listed == 1
        server.clock.move(11)
        await server.client.get("/models")
        assert upstream.n_listed == 2


async def test_models_of_a_provider_that_is_away_are_unavailable():
    async with stub(silent) as gone:
        url = gone.url
    async with serving(providers={"peer": {"base_url": url, "models": [THEIRS]}}) as server:
        listed = {m["id"]: m["status"] for m in (await server.client.get("/models")).json()["data"]}
        assert listed == {MODEL: "ready", THEIRS: "unavailable"}


# ── fallbacks ──


async def test_a_fallback_answers_for_a_provider_that_is_not_available():
    fallbacks = {THEIRS: [MODEL]}
    mood, options = refusing(503), {"retries": 0}
    async with provided(mood, options=options, fallbacks=fallbacks) as (server, upstream):
        reply = await ask(server)
        told = reply.json()
        assert told["model"] == MODEL
        because = {"requested": THEIRS, "because": "upstream_http_503"}
        assert told["liveedge"]["fallback"] == because
        assert "provider" not in told["liveedge"]
        events = sse_events((await ask(server, stream=True)).text)
        assert {event["model"] for event in events[:-1]} == {MODEL}
        assert events[-2]["liveedge"]["fallback"] == because
        text = (await server.client.get("/metrics")).text
        assert f'fallbacks_total{{requested="{THEIRS}",answered="{MODEL}"}} 2' in text
        assert upstream.n_asked == 2


async def test_a_provider_answers_for_our_own_model_while_that_is_away():
    async with provided(saying("theirs"), fallbacks={MODEL: [THEIRS]}) as (server, _):
        server.built.models.close()
        told = (await ask(server, model=MODEL)).json()
        assert told["model"] == THEIRS
        assert told["liveedge"]["fallback"]["because"] == "model_unavailable"
        assert told["choices"][0]["message"]["content"] == "theirs"


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
async def test_a_fallback_does_not_hide_a_refusal(status: int):
    async with provided(refusing(status), options={"retries": 0}, fallbacks={THEIRS: [MODEL]}) as (
        server,
        _,
    ):
        assert error_of(await ask(server))["code"] == f"upstream_http_{status}"


async def test_where_no_fallback_is_available_the_model_that_was_asked_is_named():
    async with provided(refusing(503), options={"retries": 0}, fallbacks={THEIRS: [MODEL]}) as (
        server,
        _,
    ):
        server.built.models.close()
        assert error_of(await ask(server))["code"] == "upstream_http_503"

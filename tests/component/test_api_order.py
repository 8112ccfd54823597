"""The order of checks of a question, and the answer of each.

auth 401, body 422, rate 429, model 404/503, URL syntax 400, stream 404/403/409 region, frames 409/410/404/400,
admission 429/503.
"""

import asyncio
import itertools
import json
import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest

from liveedge.testing.engine import FAKE_MODEL, FakeEngine
from tests.serving import (
    MODEL,
    Exchange,
    chat_body,
    data_url,
    image,
    picture,
    serving,
    until,
    video,
)

KEY = {"Authorization": "Bearer alpha"}
BODY_WRONG = {"messages": "none"}
PART_WRONG = {"type": "input_video", "input_video": {}}
URL_WRONG = image("ovs://elsewhere/x")
QUERY_WRONG = image("ovs://streams/x?frame=1")
UNKNOWN = image("ovs://streams/unknown?frame_index=-1")


def names(answer):
    """What the answer says of itself."""
    body = answer.json()
    if body.get("error") == "validation_error":
        return answer.status_code, "validation_error"
    if "error" in body:
        return answer.status_code, body["error"]["code"]
    return answer.status_code, body["detail"]["error"]


@pytest.fixture
async def server():
    """A key, a foreign stream, an empty and a filled one, several regions, room for nothing."""
    async with serving(
        api_key=("alpha", "beta"),
        region="us",
        regions=("us", "eu"),
        max_requests=1,
        requests_per_second=0.001,
        request_burst=20,
    ) as server:
        server.foreign = await server.new_stream(Authorization="Bearer beta")
        server.client.headers.update(KEY)
        server.empty = await server.new_stream()
        server.filled = await server.filled_stream(5)
        yield server


class Steps:
    """A question that fails at every step from `first` on: only the first may be answered."""

    ORDER = ("auth", "body", "rate", "model", "syntax", "stream", "region", "frames", "admission")

    def __init__(self, server, first, *, then=None):
        """`then`: only this one step fails too."""
        self._server = server
        self._fails = self.ORDER[self.ORDER.index(first) :] if then is None else (first, then)

    async def ask(self):
        headers = {"Authorization": "Bearer wrong"} if "auth" in self._fails else dict(KEY)
        if "rate" in self._fails:
            await self._use_up_the_rate()
        if "region" in self._fails:
            headers["X-Overshoot-Region"] = "eu"
        content = [{"type": "text", "text": "?"}]
        if "syntax" in self._fails:
            content.append(URL_WRONG)
        if "stream" in self._fails:
            content.append(UNKNOWN)
        if "frames" in self._fails:
            content.append(image(f"ovs://streams/{self._server.filled}?frame_index=99"))
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        if "model" in self._fails:
            body["model"] = "nobody/knows"
        if "body" in self._fails:
            body["temperature"] = "hot"
        room = self._server.built.questions.in_progress
        with room.hold() if "admission" in self._fails else nullcontext():
            return await self._server.client.post(
                "/v1/chat/completions", json=body, headers=headers
            )

    async def _use_up_the_rate(self):
        answer = await self._server.client.get("/streams", headers=KEY)
        while answer.status_code != 429:
            answer = await self._server.client.get("/streams", headers=KEY)


ANSWERS = {
    "auth": (401, "unauthorized"),
    "body": (422, "validation_error"),
    "rate": (429, "rate_limit_exceeded"),
    "model": (404, "model_not_found"),
    "syntax": (400, "stream_url_invalid"),
    "stream": (404, "stream_not_found"),
    "region": (409, "region_error"),
    "frames": (409, "frame_not_yet_produced"),
    "admission": (429, "queue_full"),
}


@pytest.mark.parametrize(("first", "then"), list(itertools.pairwise(Steps.ORDER)))
async def test_of_two_neighbours_the_earlier_one_is_answered(server, first, then):
    assert names(await Steps(server, first, then=then).ask()) == ANSWERS[first]


@pytest.mark.parametrize(("first", "then"), list(itertools.combinations(Steps.ORDER, 2))[::3])
async def test_of_any_two_faults_the_earlier_one_is_answered(server, first, then):
    assert names(await Steps(server, first, then=then).ask()) == ANSWERS[first]


@pytest.mark.parametrize(
    ("first", "status", "code"), [(first, *answer) for first, answer in ANSWERS.items()]
)
async def test_of_several_faults_the_first_in_order_is_answered(server, first, status, code):
    answer = await Steps(server, first).ask()
    assert names(answer) == (status, code)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-overshoot-region"] == "us"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("part", "status", "code"),
    [
        (PART_WRONG, 400, "media_invalid"),
        ({"type": "image"}, 400, "media_invalid"),
        (URL_WRONG, 400, "stream_url_invalid"),
        (image("ovs://streams/x#f"), 400, "stream_url_invalid"),
        (QUERY_WRONG, 400, "query_param_invalid"),
        (image("ovs://streams/x"), 400, "query_param_invalid"),
        (image("ftp://host/x.jpg"), 400, "stream_url_invalid"),
        (image("http://169.254.169.254/latest"), 400, "media_invalid"),
        (image("aGVsbG8="), 400, "media_invalid"),
        (image("data:image/png;base64,"), 400, "media_invalid"),
        (video("data:video/mp4;base64,aGVsbG8="), 400, "media_invalid"),
        (UNKNOWN, 404, "stream_not_found"),
        (image("ovs://streams/FOREIGN?frame_index=-1"), 403, "stream_unauthorized"),
        (image("ovs://streams/EMPTY?frame_index=0"), 409, "frame_not_yet_produced"),
        (video("ovs://streams/EMPTY?start_offset_ms=-1"), 409, "frame_not_yet_produced"),
        (image("ovs://streams/FILLED?frame_index=5"), 409, "frame_not_yet_produced"),
        (image("ovs://streams/FILLED?frame_index=-6"), 404, "segment_empty"),
        (image("ovs://streams/FILLED?timestamp_ms=9000"), 404, "segment_empty"),
        (video("ovs://streams/FILLED?start_frame_index=5"), 409, "frame_not_yet_produced"),
        (video("ovs://streams/FILLED?start_timestamp_ms=9000"), 404, "segment_empty"),
        (
            video("ovs://streams/FILLED?start_frame_index=2&end_frame_index=2"),
            400,
            "segment_invalid",
        ),
    ],
)
async def test_every_fault_of_a_part_has_its_code_and_names_the_part(server, part, status, code):
    text = json.dumps(part)
    for name in ("foreign", "empty", "filled"):
        text = text.replace(name.upper(), getattr(server, name))
    fine = image(f"ovs://streams/{server.filled}?frame_index=0")
    answer = await server.ask(fine, json.loads(text))
    assert names(answer) == (status, code)
    if status != 404 or code != "stream_not_found":
        assert "content[1]" in answer.json()["error"]["message"] or status == 403
    assert answer.json()["detail"] == {"error": answer.json()["error"]}
    assert server.engine.requests == []


async def test_an_evicted_frame_is_gone_and_says_so():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        for _ in range(3):
            server.clock.move(250)
            await server.client.post(f"/streams/{stream_id}/keepalive")
        await server.push(stream_id)
        answer = await server.ask(image(f"ovs://streams/{stream_id}?frame_index=0"))
        assert names(answer) == (410, "frame_evicted")
        assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "model"]),
        ({"model": MODEL, "messages": []}, ["body", "messages"]),
        (chat_body(temperature=3), ["body", "temperature"]),
        (chat_body(n=9), ["body", "n"]),
        (chat_body(stop=["a", "b", "c", "d", "e"]), ["body", "stop"]),
        (chat_body(top_logprobs=2), ["body"]),
        (chat_body(max_tokens="5"), ["body", "max_tokens"]),
        (chat_body(max_tokens=True), ["body", "max_tokens"]),
        (chat_body(max_tokens=5.0), ["body", "max_tokens"]),
        (chat_body(temperature="0.5"), ["body", "temperature"]),
        (chat_body(temperature=True), ["body", "temperature"]),
        (chat_body(stream=1), ["body", "stream"]),
        (chat_body(n="2"), ["body", "n"]),
        (chat_body(timeout_ms=0), ["body", "timeout_ms"]),
        (chat_body({"type": "image_url"}), ["body", "messages", 0, "content"]),
        (chat_body(response_format={"type": "xml"}), ["body", "response_format", "type"]),
        ({"model": MODEL, "messages": [{"role": "robot", "content": "x"}]}, ["body", "messages", 0, "role"]),
        ({"model": MODEL, "messages": [{"role": "user"}]}, ["body", "messages", 0]),
    ],
)  # fmt: skip
async def test_a_wrong_body_is_answered_with_the_place_of_every_fault(body, loc):
    async with serving() as server:
        answer = await server.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 422
        said = answer.json()
        assert set(said) == {"error", "message", "details"}
        assert said["error"] == "validation_error"
        assert said["message"] == "Request validation failed"
        assert any(d["loc"][: len(loc)] == loc for d in said["details"]), said
        assert all(set(d) == {"loc", "msg", "type"} for d in said["details"])


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'"text"', b"[" * 100_000]
)
async def test_what_is_no_json_object_is_a_422(data):
    async with serving() as server:
        answer = await server.client.post("/v1/chat/completions", content=data)
        assert names(answer) == (422, "validation_error")
        assert len(answer.content) < 2000


async def test_a_body_over_the_limit_is_refused():
    async with serving(max_body_mb=1) as server:
        big = json.dumps(chat_body(image(data_url(b"x" * 1_000_000)))).encode()
        answer = await server.client.post("/v1/chat/completions", content=big)
        assert names(answer) == (413, "request_too_large")
        assert "1048576 bytes (max_body_mb)" in answer.json()["error"]["message"]
        answer = await server.client.post("/v1/streams", content=b"x" * 100_000)
        assert names(answer) == (413, "request_too_large")
        assert "max_body_mb" not in answer.json()["error"]["message"], "another limit"

        async def chunks():
            for _ in range(200):
                yield b"x" * 10_000

        answer = await server.client.post("/v1/chat/completions", content=chunks())
        assert names(answer) == (413, "request_too_large")


async def test_bodies_together_are_limited_and_the_room_comes_back():
    async with serving(max_uploads_mb=1, max_body_mb=4) as server:
        big = json.dumps(chat_body(image(data_url(b"x" * 1_000_000)))).encode()
        answer = await server.client.post("/v1/chat/completions", content=big)
        assert names(answer) == (429, "queue_full")
        assert "retry-after" in answer.headers
        assert (await server.ask()).status_code == 200


async def test_a_full_engine_is_a_429_with_the_time_to_come_back():
    async with serving(engine=lambda clock: FakeEngine(clock=clock, queue_capacity=0)) as server:
        for stream in (False, True):
            answer = await server.ask(stream=stream)
            assert names(answer) == (429, "queue_full")
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers.get("x-should-retry") is None


async def test_a_video_for_a_model_without_video_is_refused_before_it_is_decoded():
    def engine(clock):
        return FakeEngine(clock=clock, model=replace(FAKE_MODEL, supports_video=False))

    async with serving(engine=engine) as server:
        stream_id = await server.filled_stream(2)
        for part in (
            video(f"ovs://streams/{stream_id}?start_offset_ms=-100"),
            video("data:video/mp4;base64,aGVsbG8="),
        ):
            assert names(await server.ask(part)) == (400, "model_video_unsupported")
        assert (await server.ask(image(data_url(picture())))).status_code == 200


async def test_more_media_than_the_context_takes_is_refused_with_the_numbers():
    def engine(clock):
        return FakeEngine(clock=clock, model=replace(FAKE_MODEL, max_model_len=64))

    async with serving(engine=engine) as server:
        answer = await server.ask(image(data_url(picture(size=(640, 480)))))
        assert names(answer) == (400, "context_length_exceeded")


async def test_a_deadline_that_passes_is_a_504():
    async with serving() as server:
        server.engine.hold("queue")

        def end(request):
            raise AssertionError("never answered")

        server.engine.answer = end
        body = json.dumps(chat_body(timeout_ms=1000)).encode()
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: server.engine.stats().queue_depth == 1)
            server.clock.move(1.5)
            server.engine.release("queue")
            await exchange.ended()
        assert exchange.status == 504
        assert json.loads(exchange.received)["error"]["code"] == "deadline_exceeded"


async def test_a_deadline_that_passes_before_the_engine_is_asked_is_a_504_too():
    async with serving() as server:
        release = threading.Event()
        hogs = [
            asyncio.ensure_future(server.built.questions.uploads.run(release.wait))
            for _ in range(2)
        ]
        body = json.dumps(chat_body(image(data_url(picture())), timeout_ms=1000)).encode()
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: server.built.questions.in_progress.used == 1)
            server.clock.move(1)
            release.set()
            await exchange.ended()
        await asyncio.gather(*hogs)
        assert exchange.status == 504
        assert server.engine.requests == []


async def test_unknown_paths_and_methods_are_json_too():
    async with serving() as server:
        for method, path, status in (
            ("GET", "/nowhere", 404),
            ("GET", "/v1/nowhere/", 404),
            ("GET", "/v1/chat/completions", 405),
            ("PUT", "/streams", 405),
            ("POST", "/health", 405),
        ):
            answer = await server.client.request(method, path)
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/json"
            assert set(answer.json()) == {"detail", "error"}

"""`max_age_ms`: an answer is about now, or says that it cannot be."""

import asyncio
import json

import pytest

from liveedge.core.clock import Clock
from liveedge.engine.form.forms import AnswerForm
from liveedge.testing.clock import FakeClock
from liveedge.testing.engine import FakeEngine
from tests.serving import Exchange, chat_body, image, serving, until, video


class SlowToJudge(FakeEngine):
    """A new form takes it two seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.judge_clock = clock

    def check_form(self, form: AnswerForm) -> None:
        assert isinstance(self.judge_clock, FakeClock)
        self.judge_clock.move(2)


def asked(stream_id, query, **options):
    kind = video if "start_" in query else image
    return json.dumps(chat_body(kind(f"ovs://streams/{stream_id}?{query}"), **options)).encode()


@pytest.mark.parametrize(
    "query", ["frame_index=-1&max_age_ms=500", "start_offset_ms=-900&max_age_ms=500"]
)
async def test_a_frame_inside_the_bound_is_used_at_once(query):
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        server.clock.move(0.5)
        body = asked(stream_id, query)
        answer = await server.client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 200
        assert answer.json()["liveedge"]["age_ms"] == 500


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("frame_index=-1&max_age_ms=500", {}),
        ("start_offset_ms=-5000&max_age_ms=500", {}),
        ("frame_index=-1", {"max_age_ms": 500}),
        ("frame_index=-1&max_age_ms=500", {"max_age_ms": 60_000}),
    ],
)
async def test_a_stale_stream_is_waited_for(query, options):
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        server.clock.move(0.501)
        store = server.built.streams.stores("open", [stream_id])[stream_id]
        body = asked(stream_id, query, **options)
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: store.n_waiting == 1)
            assert server.engine.requests == []
            server.clock.move(2)
            await server.push(stream_id)
            await exchange.ended()
        said = json.loads(exchange.received)
        assert exchange.status == 200
        assert said["liveedge"]["frames"][-1]["frame_index"] == 3
        assert said["liveedge"]["age_ms"] == 0
        assert said["liveedge"]["timings_ms"]["resolve"] == 2000


async def test_no_newer_frame_before_the_deadline_is_stale():
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        server.clock.move(1)
        store = server.built.streams.stores("open", [stream_id])[stream_id]
        body = asked(stream_id, "frame_index=-1&max_age_ms=500", timeout_ms=3000)
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: store.n_waiting == 1)
            await server.clock.advance(2.9)
            assert not exchange.has_begun
            await server.clock.advance(0.2)
            await exchange.ended()
        assert exchange.status == 409
        error = json.loads(exchange.received)["error"]
        assert error["code"] == "frame_stale"
        assert "500" in error["message"]
        assert "content[0]" in error["message"]


async def test_a_reference_to_the_past_is_stale_at_once():
    async with serving() as server:
        stream_id = await server.filled_stream(20)
        body = asked(stream_id, "frame_index=3&max_age_ms=500")
        answer = await server.client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 409
        assert "past" in answer.json()["error"]["message"]


async def test_a_stream_that_ends_while_it_is_waited_for_is_not_found():
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        server.clock.move(1)
        store = server.built.streams.stores("open", [stream_id])[stream_id]
        body = asked(stream_id, "frame_index=-1&max_age_ms=500")
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: store.n_waiting == 1)
            await server.client.delete(f"/streams/{stream_id}")
            await exchange.ended()
        assert exchange.status == 404
        assert json.loads(exchange.received)["error"]["code"] == "stream_not_found"


async def test_a_picture_can_be_asked_to_be_fresh():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        server.clock.move(5)
        path = f"/streams/{stream_id}/frame.png?frame_index=-1&max_age_ms=100"
        store = server.built.streams.stores("open", [stream_id])[stream_id]
        waiting = asyncio.ensure_future(server.client.get(path))
        await until(lambda: store.n_waiting == 1)
        await server.push(stream_id)
        assert (await waiting).headers["x-frame-index"] == "1"


async def test_the_check_of_a_new_form_does_not_age_the_frames():
    async with serving(engine=SlowToJudge) as server:
        stream_id = await server.filled_stream(3)
        store = server.built.streams.stores("open", [stream_id])[stream_id]
        body = asked(
            stream_id, "frame_index=-1&max_age_ms=500", response_format={"type": "json_object"}
        )
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: store.n_waiting == 1)  # all frames have grown too old meanwhile
            await server.push(stream_id)
            await exchange.ended()
        assert exchange.status == 200
        said = json.loads(exchange.received)["liveedge"]
        assert (said["frames"][-1]["frame_index"], said["age_ms"]) == (3, 0)

"""Case 22: a client that leaves ends the work at once, in every phase, and nothing stays behind."""

import asyncio
import json
import random
import socket
import threading

import pytest

from liveedge.testing.engine import PHASES, FakeEngine
from tests.serving import Exchange, chat_body, data_url, image, picture, serving, until

# "At once" is counted in turns of the event loop, not in time: tests run on loaded machines. A turn
# takes well under a millisecond, the promise of the wire is 200 ms.
AT_ONCE_TURNS = 100


def is_idle(server):
    stats = server.engine.stats()
    return (
        stats.queue_depth == stats.running == stats.slots_used == 0
        and server.built.questions.in_progress.used == 0
        and server.built.held_bytes.used == 0
        and server.built.questions.decoded_bytes.used == 0
    )


def question(*parts, **options):
    return json.dumps(chat_body(*parts, **options)).encode()


async def leaves_nothing(server, exchange, tasks_before):
    """The client goes; the handler ends, and every gauge and task is back where it was."""
    exchange.leave()
    for _ in range(AT_ONCE_TURNS):
        await asyncio.sleep(0)
    assert exchange.task.done()
    assert is_idle(server)
    assert asyncio.all_tasks() - tasks_before == set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
async def test_leaving_in_any_phase_of_the_engine_stops_the_work(phase, stream):
    async with serving() as server:
        server.engine.hold(phase)
        before = asyncio.all_tasks()
        body = question(image(data_url(picture())), stream=stream)
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: server.engine.requests != [])
            if phase == "decode" and stream:
                await exchange.until(lambda e: b"It" in e.received)
            await leaves_nothing(server, exchange, before)
        assert server.engine.stats().cancelled == 1
        assert b"[DONE]" not in exchange.received
        server.engine.release(phase)
        assert (await server.ask()).status_code == 200


async def test_leaving_while_several_choices_run_stops_all_of_them():
    async with serving() as server:
        server.engine.hold("decode")
        before = asyncio.all_tasks()
        body = question(n=4, stream=True)
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: server.engine.stats().running == 4)
            await leaves_nothing(server, exchange, before)
        assert server.engine.stats().cancelled == 4


async def test_leaving_while_waiting_for_a_fresh_frame_stops_the_waiting():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        server.clock.move(10)
        before = asyncio.all_tasks()
        body = question(image(f"ovs://streams/{stream_id}?frame_index=-1&max_age_ms=100"))
        store = server.built.streams.stores("open", [stream_id])[stream_id]
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: store.n_waiting == 1)
            await leaves_nothing(server, exchange, before)
        assert store.n_waiting == 0
        assert server.engine.requests == []


async def test_leaving_while_an_upload_is_decoded_does_not_wait_for_it():
    async with serving() as server:
        release = threading.Event()
        hogs = [
            asyncio.ensure_future(server.built.questions.uploads.run(release.wait))
            for _ in range(2)
        ]
        before = asyncio.all_tasks()
        body = question(image(data_url(picture())))
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: server.built.questions.in_progress.used == 1)
            await leaves_nothing(server, exchange, before)
        release.set()
        await asyncio.gather(*hogs)
        assert server.engine.requests == []


async def test_leaving_while_a_camera_is_opened_leaves_no_stream():
    async with serving() as server:
        body = json.dumps({"source": {"type": "rtsp", "url": f"rtsp://127.0.0.1:{closed_port()}/"}})
        async with Exchange(server.built.app, "/v1/streams", body.encode()) as exchange:
            await until(lambda: server.built.streams.n_opening == 1)
            exchange.leave()
            await exchange.ended()
        assert server.built.streams.n_opening == server.built.streams.n_active == 0
        assert exchange.status is None


async def test_a_thousand_departures_at_random_moments_leave_nothing():
    chance = random.Random(22)

    def engine(clock):
        return FakeEngine(clock=clock, n_slots=2, queue_capacity=4)

    async with serving(engine=engine) as server:
        stream_id = await server.filled_stream(2)
        body = question(image(f"ovs://streams/{stream_id}?frame_index=0"), stream=True)
        before = asyncio.all_tasks()
        for _ in range(1000):
            async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
                for _ in range(chance.randrange(40)):
                    await asyncio.sleep(0)
                exchange.leave()
        await until(lambda: is_idle(server))
        assert asyncio.all_tasks() - before == set()
        assert (await server.ask()).status_code == 200


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

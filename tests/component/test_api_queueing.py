"""More questions than can be answered: who is taken, who is refused, and what they are told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx

from tests.serving import Serving, image, picture, serving, until
from tests.web_server import Answer, Request, WebServer

SESSIONS = 2
BURST = 2 * SESSIONS
OVERLOAD = 6 * SESSIONS  # questions of a second each, all at once


async def teach(server: Serving) -> None:
    """A question takes a second to its first token."""
    for _ in range(3):
        server.engine.hold("prefill")
        answer = asyncio.ensure_future(server.ask())
        await until(lambda: server.engine.stats().running == 1)
        server.clock.move(1.0)
        server.engine.release("prefill")
        assert (await answer).status_code == 200
    server.clock.move(1000.0)


async def ask_many(
    server: Serving, n: int, **options: Any
) -> tuple[list[asyncio.Future[httpx.Response]], list[httpx.Response]]:
    """(those who are taken, what the others were told). The engine answers nobody meanwhile."""
    asked = [asyncio.ensure_future(server.ask(**options)) for _ in range(n)]
    line = server.built.questions.queueing
    before = line.refused + server.built.questions.in_progress.used

    def all_decided() -> bool:
        now = line.refused + server.built.questions.in_progress.used
        return now - before == n and sum(one.done() for one in asked) == line.refused

    await until(all_decided)
    refused = [one.result() for one in asked if one.done()]
    return [one for one in asked if not one.done()], refused


async def test_a_burst_is_taken_and_whoever_comes_beyond_it_is_told_when_to_come_back():
    async with serving(max_sessions=SESSIONS) as server:
        await teach(server)
        server.engine.hold("prefill")
        taken, refused = await ask_many(server, OVERLOAD)
        assert len(taken) == BURST + 1
        for answer in refused:
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "queue_full"
            assert answer.json()["error"]["type"] == "rate_limit_error"
            assert "x-should-retry" not in answer.headers
        times = [int(answer.headers["retry-after"]) for answer in refused]
        assert times == sorted(set(times))  # one after the other
        assert min(times) >= 1
        server.engine.release("prefill")
        assert [(await one).status_code for one in taken] == [200] * len(taken)
        assert (await server.ask()).status_code == 200


async def test_under_overload_batch_questions_are_refused_first_and_both_are_taken_again_later():
    async with serving(max_sessions=SESSIONS) as server:
        await teach(server)
        server.engine.hold("prefill")
        taken, _ = await ask_many(server, OVERLOAD)
        for one in taken:  # whoever leaves teaches nothing
            one.cancel()
        await until(lambda: server.built.questions.in_progress.used == 0)

        first = asyncio.ensure_future(server.ask())
        await until(lambda: server.engine.stats().running == 1)
        server.clock.move(0.4)  # of the second that it takes
        assert (await server.ask(priority="batch")).status_code == 429
        second = asyncio.ensure_future(server.ask())
        await until(lambda: server.engine.stats().running == 2)
        assert (await server.ask()).status_code == 429  # 1.6 s are before it
        server.engine.release("prefill")
        assert [(await one).status_code for one in (first, second)] == [200, 200]

        server.clock.move(1000.0)
        assert (await server.ask(priority="batch")).status_code == 200


async def test_the_forecast_and_its_bound_are_metrics():
    async with serving(max_sessions=SESSIONS) as server:
        await teach(server)
        server.engine.hold("prefill")
        taken, refused = await ask_many(server, OVERLOAD)
        text = (await server.client.get("/metrics")).text
        assert f'liveedge_budget_refused_total{{of="queueing_ms"}} {len(refused)}' in text
        assert 'liveedge_budget_used{of="queueing_ms"} 5000' in text
        server.engine.release("prefill")
        await asyncio.gather(*taken)
        assert 'budget_used{of="queueing_ms"} 0' in (await server.client.get("/metrics")).text


async def test_a_client_that_leaves_makes_room_in_the_line():
    async with serving(max_sessions=SESSIONS) as server:
        await teach(server)
        server.engine.hold("prefill")
        taken, _ = await ask_many(server, BURST + 1)
        assert server.built.questions.queueing.used == 1000 * len(taken)
        for one in taken:
            one.cancel()
        await until(lambda: server.built.questions.in_progress.used == 0)
        assert server.built.questions.queueing.used == 0
        server.engine.release("prefill")
        assert (await server.ask()).status_code == 200


async def test_what_is_fetched_slowly_is_no_work_that_others_wait_for_and_teaches_nothing():
    arrived = threading.Event()

    def slow(_request: Request) -> Answer:
        arrived.wait(10)
        return Answer(picture())

    web = WebServer(slow)
    allowing: dict[str, Any] = {"allow_remote_media": True, "allow_private_media": True}
    try:
        async with serving(
            max_sessions=SESSIONS, remote_media_ports=[web.port], **allowing
        ) as server:
            await teach(server)
            line = server.built.questions.queueing
            bound_ms = line.capacity
            asked = asyncio.ensure_future(server.ask(image(web.url("/slow.png"))))
            await until(lambda: len(web.requests) == 1)
            server.clock.move(5.0)
            assert line.used == 0
            arrived.set()
            assert (await asked).status_code == 200
            assert line.capacity <= bound_ms  # it was quick, once it was there
            assert server.built.held_bytes.used == 0
    finally:
        arrived.set()
        web.close()


async def test_whoever_would_wait_too_long_is_refused_before_anything_is_fetched():
    web = WebServer(lambda _request: Answer(picture()))
    allowing: dict[str, Any] = {"allow_remote_media": True, "allow_private_media": True}
    try:
        async with serving(
            max_sessions=SESSIONS, remote_media_ports=[web.port], **allowing
        ) as server:
            await teach(server)
            server.engine.hold("prefill")
            taken, _ = await ask_many(server, OVERLOAD)
            answer = await server.ask(image(web.url("/x.png")))
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
            assert web.requests == []
            server.engine.release("prefill")
            assert {(await one).status_code for one in taken} == {200}
    finally:
        web.close()

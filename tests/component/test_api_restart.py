"""What HTTP says while the engine is replaced: cameras go on, questions are told when to come back."""

from __future__ import annotations

import asyncio

from tests.serving import MODEL, image, serving, until


async def test_questions_during_a_restart_are_told_to_retry_and_nothing_else_changes():
    async with serving() as server:
        stream_id = await server.filled_stream(2)
        before = (await server.client.get(f"/streams/{stream_id}")).json()
        server.engine.crash()
        for answer in (await server.ask(), await server.client.get("/ready")):
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert isinstance(answer.json()["detail"], str)  # flat, in chat too
            assert answer.json()["error"]["code"] == "model_unavailable"
            assert "restarting" in answer.json()["detail"]
        listed = (await server.client.get("/models")).json()["data"]
        assert [(m["id"], m["status"]) for m in listed] == [(MODEL, "unavailable")]
        assert (await server.client.get("/health")).status_code == 200
        await server.push(stream_id)
        after = (await server.client.get(f"/streams/{stream_id}")).json()
        assert after["last_frame_index"] == before["last_frame_index"] + 1
        assert after["expires_at_ms"] == before["expires_at_ms"]

        server.engine.restart()
        answer = await server.ask(image(f"ovs://streams/{stream_id}?frame_index=-1"))
        assert answer.status_code == 200
        assert answer.json()["liveedge"]["frames"][0]["frame_index"] == after["last_frame_index"]


async def test_an_engine_in_back_off_says_how_long_that_is():
    async with serving() as server:
        server.engine.crash()
        server.engine.back_off_s = 15.2
        for answer in (await server.ask(), await server.client.get("/ready")):
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "16"
            assert "restarting; retry in 16 s" in answer.json()["detail"]


async def test_an_answer_that_has_not_begun_fails_as_plain_http():
    async with serving() as server:
        server.engine.hold("prefill")
        task = asyncio.ensure_future(server.ask())
        await until(lambda: server.engine.stats().running == 1)
        server.engine.crash()
        answer = await task
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "model_unavailable"

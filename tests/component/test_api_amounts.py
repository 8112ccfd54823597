"""What a client sends decides neither the engine's names nor how long others wait."""

import asyncio

from tests.serving import chat_body, serving


async def test_one_request_id_for_several_questions_at_once_is_nobodys_error():
    async with serving() as server:
        server.engine.hold("decode")
        headers = {"X-Request-Id": "same"}
        body = chat_body({"type": "text", "text": "What?"}, n=2)
        asked = [
            asyncio.ensure_future(
                server.client.post("/v1/chat/completions", json=body, headers=headers)
            )
            for _ in range(3)
        ]
        while len(server.engine.requests) < 6:  # noqa: ASYNC110  the fake engine tells nobody
            await asyncio.sleep(0)
        server.engine.release("decode")
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert {answer.headers["x-request-id"] for answer in answers} == {"same"}
        assert len({request.request_id for request in server.engine.requests}) == 6


async def test_more_messages_or_parts_than_tokens_are_refused_before_the_engine_sees_them():
    part = {"type": "text", "text": "a"}
    async with serving() as server:
        for messages in (
            [{"role": "user", "content": "a"}] * 2000,
            [{"role": "user", "content": [part] * 5000}],
        ):
            answer = await server.ask(messages=messages)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert "messages have" in answer.json()["error"]["message"]

"""What a client sends decides neither the engine's names nor how long others wait."""

import asyncio

import pytest

from tests.serving import MODEL, chat_body, serving


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


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "top_k"])
async def test_a_number_that_no_engine_counts_with_is_refused_by_name(name: str):
    async with serving() as server:
        answer = await server.ask(**{name: 10**30})
        assert answer.status_code == 422
        assert answer.json()["details"][0]["loc"] == ["body", name]
        assert server.engine.requests == []


async def test_pixels_of_a_window_and_the_end_of_a_watch_have_a_bound():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        url = f"ovs://streams/{stream_id}?frame_index=-1"
        picture = {"type": "image_url", "image_url": {"url": url}}
        body = {"model": MODEL, "seconds": 5, "max_pixels": 10**30}
        for answer in (
            await server.client.put(f"/v1/streams/{stream_id}/windows/w", json=body),
            await server.client.post(
                "/v1/watches", json=chat_body(picture, every_ms=1000, until=10**400)
            ),
        ):
            assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(
    "field",
    [
        '"tools":[{"type":"function","function":{"name":"f","parameters":{"x":[%s]}}}]'
        % ("[]," * 200_000 + "[]"),
        '"stop":[%s""]' % ('"",' * 200_000),
        '"unknown":[%s0]' % ("0," * 200_000),
    ],
    ids=["tools", "stop", "unknown"],
)
async def test_a_body_of_a_hundred_thousand_values_is_refused_before_it_is_read(field: str):
    body = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"a"}}],{field}}}'
    async with serving() as server:
        answer = await server.client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 422
        assert "more than 131072 values" in answer.json()["details"][0]["msg"]

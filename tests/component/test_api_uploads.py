"""What uploads may cost is known before any is decoded, and their decoding ends with the deadline."""

import asyncio
import json
import struct
import threading
import zlib

import pytest

from tests.serving import (
    Exchange,
    chat_body,
    data_url,
    image,
    picture,
    serving,
    until,
)


def bomb(width, height):
    """A PNG whose header is right and whose pixels are damaged: decoding it cannot succeed."""

    def chunk(name, data):
        checked = name + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"\0") + chunk(b"IEND", b"")
    )


async def test_pictures_are_added_up_from_their_headers_before_any_is_decoded():
    large = image(data_url(bomb(7000, 7000)))  # 147 MB each, if they could be decoded
    async with serving(max_decoded_mb=1024) as server:
        answer = await server.ask(*[large] * 12)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "media_too_large")
        assert "messages[0].content[7]" in answer.json()["error"]["message"]  # the first too many
        assert server.built.questions.decoded_bytes.used == 0
        alone = await server.ask(large)
        assert alone.json()["error"]["code"] == "media_invalid"  # and so it would have been decoded


async def test_announced_pictures_hold_their_memory_before_they_are_decoded():
    async with serving(max_decoded_mb=20) as server:
        budget = server.built.questions.decoded_bytes
        server.engine.hold("prefill")
        running = asyncio.ensure_future(server.ask(image(data_url(picture(size=(2000, 2000))))))
        await until(lambda: server.engine.stats().running == 1)
        assert budget.used == 2000 * 2000 * 3  # once, not as announced and as decoded
        answer = await server.ask(image(data_url(bomb(2000, 2000))))
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        server.engine.release("prefill")
        assert (await running).status_code == 200
        assert budget.used == 0


async def test_the_deadline_ends_a_question_while_its_uploads_are_decoded():
    async with serving() as server:
        release = threading.Event()
        hogs = [
            asyncio.ensure_future(server.built.questions.uploads.run(release.wait))
            for _ in range(2)
        ]
        body = json.dumps(chat_body(image(data_url(picture())), timeout_ms=5000)).encode()
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: server.built.questions.in_progress.used == 1)
            await server.clock.advance(4.9)
            assert not exchange.has_begun
            await server.clock.advance(0.2)
            await exchange.ended()  # while the workers are as busy as before
        assert exchange.status == 504
        assert json.loads(exchange.received)["error"]["code"] == "deadline_exceeded"
        assert "uploads" in json.loads(exchange.received)["error"]["message"]
        assert server.built.questions.in_progress.used == 0
        release.set()
        await asyncio.gather(*hogs)


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (2, 402)])
async def test_a_picture_that_no_model_takes_names_its_part(size):
    async with serving() as server:
        answer = await server.ask(image(data_url(picture())), image(data_url(picture(size=size))))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "media_invalid")
        assert "messages[0].content[1]" in answer.json()["error"]["message"]
        fits = await server.ask(image(data_url(picture(size=(1, 200)))))
        assert fits.status_code == 200


async def test_a_frame_that_no_model_takes_is_refused_when_it_is_pushed():
    async with serving() as server:
        stream_id = await server.new_stream()
        path = f"/streams/{stream_id}/frames"
        answer = await server.client.post(path, content=picture(size=(1, 5000)))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "media_invalid")
        assert "1x5000" in answer.json()["detail"]
        assert (await server.push(stream_id))["frame_index"] == 0


async def test_a_frame_dated_by_another_clock_is_refused_and_names_the_header():
    day_ms = 24 * 3600 * 1000
    async with serving() as server:
        stream_id = await server.new_stream()
        path = f"/streams/{stream_id}/frames"
        now_ms = server.clock.wall_ms()
        for ms in (0, now_ms // 1000, now_ms - day_ms - 1, now_ms + day_ms + 1):
            headers = {"X-Captured-At-Ms": str(ms)}
            answer = await server.client.post(path, content=picture(), headers=headers)
            assert answer.status_code == 422
            assert "x-captured-at-ms" in answer.json()["detail"]
        for ms in (now_ms - day_ms, now_ms + day_ms):
            await server.push(stream_id, None, **{"X-Captured-At-Ms": str(ms)})


async def test_a_stream_that_ends_under_a_question_is_not_found():
    async with serving() as server:
        stream_id = await server.filled_stream(2)
        server.engine.hold("load")
        asking = asyncio.ensure_future(
            server.ask(image(f"ovs://streams/{stream_id}?frame_index=-1"))
        )
        await until(lambda: server.engine.stats().running == 1)
        await server.client.delete(f"/streams/{stream_id}")
        await until(lambda: server.built.streams.n_closing == 0)
        server.engine.release("load")
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "stream_not_found")
        assert "ended" in answer.json()["error"]["message"]

"""MJPEG previews: paced, never behind, ended with their stream."""

from __future__ import annotations

import io
import re

import pytest
from PIL import Image

from liveedge.service.preview import preview_fps
from tests.serving import Exchange, Serving, picture, serving, until


def preview(server: Serving, stream_id: str, query: str = "", **headers: str) -> Exchange:
    path = f"/v1beta/streams/{stream_id}/preview.mjpeg"
    return Exchange(server.built.app, path, b"", headers, method="GET", query_string=query.encode())


def indices(exchange: Exchange) -> list[int]:
    return [int(n) for n in re.findall(rb"X-Frame-Index: (\d+)", exchange.received)]


async def test_it_shows_the_newest_frame_and_then_every_new_one():
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        async with preview(server, stream_id, "fps=30") as shown:
            await shown.until(lambda e: indices(e) == [2])
            assert shown.headers["content-type"].startswith("multipart/x-mixed-replace; boundary=")
            await server.push(stream_id, picture((0, 0, 255)))
            await server.clock.advance(0.1)
            await shown.until(lambda e: indices(e) == [2, 3])
            boundary = shown.headers["content-type"].partition("boundary=")[2]
            *_, last = shown.received.split(f"--{boundary}\r\n".encode())
            head, _, data = last.partition(b"\r\n\r\n")
            assert b"Content-Type: image/jpeg" in head
            length = int(re.findall(rb"Content-Length: (\d+)", head)[0])
            assert data[length:] == b"\r\n"
            rgb = Image.open(io.BytesIO(data[:length])).getpixel((5, 5))
            assert isinstance(rgb, tuple)
            assert rgb[2] > 200 > 100 > rgb[0]


async def test_the_rate_is_kept_and_frames_in_between_are_skipped():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        async with preview(server, stream_id, "fps=2") as shown:
            await shown.until(lambda e: indices(e) == [0])
            for _ in range(4):
                await server.push(stream_id)
            await server.clock.advance(0.45)
            assert indices(shown) == [0]
            await server.clock.advance(0.1)
            await shown.until(lambda e: indices(e) == [0, 4])


async def test_a_slow_reader_gets_fewer_pictures_and_never_an_old_one():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        exchange = preview(server, stream_id, "fps=30")
        exchange.may_send.clear()  # the client reads nothing
        async with exchange as shown:
            for _ in range(5):
                await server.push(stream_id)
                await server.clock.advance(0.1)
            shown.may_send.set()
            await shown.until(lambda e: len(indices(e)) >= 1)
            first = indices(shown)[0]
            await server.clock.advance(0.1)
            await shown.until(lambda e: len(indices(e)) >= 2)
            assert indices(shown) == [first, 5]


async def test_it_ends_with_the_stream():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        async with preview(server, stream_id) as shown:
            await shown.until(lambda e: indices(e) == [0])
            await server.client.delete(f"/streams/{stream_id}")
            await server.clock.advance(1)
            await shown.ended()
            assert shown.received.endswith(b"--\r\n")
        assert server.built.previews.open.used == 0


async def test_it_waits_for_a_first_frame():
    async with serving() as server:
        stream_id = await server.new_stream()
        async with preview(server, stream_id) as shown:
            await shown.until(lambda e: e.has_begun)
            await server.clock.advance(5)
            await server.push(stream_id)
            await shown.until(lambda e: indices(e) == [0])


async def test_a_viewer_that_leaves_costs_nothing_any_more():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        async with preview(server, stream_id) as shown:
            await shown.until(lambda e: indices(e) == [0])
            assert server.built.previews.open.used == 1
        assert server.built.previews.open.used == 0


async def test_a_server_that_stops_ends_its_previews():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        async with preview(server, stream_id) as shown:
            await shown.until(lambda e: indices(e) == [0])
            server.built.previews.stop()
            await server.clock.advance(1)
            await shown.ended()


async def test_only_so_many_previews_are_open_at_once():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        with server.built.previews.open.hold(server.built.previews.open.capacity):
            answer = await server.client.get(f"/streams/{stream_id}/preview.mjpeg")
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")


@pytest.mark.parametrize("fps", ["0", "-1", "31", "nan", "inf", "fast", ""])
async def test_a_rate_that_is_none_is_refused(fps: str):
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        answer = await server.client.get(f"/streams/{stream_id}/preview.mjpeg?fps={fps}")
        assert answer.status_code == 400
        assert "above 0, at most 30" in answer.json()["detail"]


async def test_a_foreign_or_unknown_stream_is_not_found():
    async with serving(api_key=["a", "b"]) as server:
        mine = {"authorization": "Bearer a"}
        stream_id = await server.new_stream(**mine)
        for path, key in ((stream_id, "b"), ("none", "a")):
            answer = await server.client.get(
                f"/streams/{path}/preview.mjpeg", headers={"authorization": f"Bearer {key}"}
            )
            assert answer.status_code == 404
        assert (await server.client.get(f"/streams/{stream_id}/preview.mjpeg")).status_code == 401


def test_rates_have_a_default_and_a_floor():
    assert preview_fps(None) == 5.0
    assert preview_fps("0.001") == 0.1
    assert preview_fps("12.5") == 12.5


async def test_only_what_was_shown_was_encoded():
    async with serving() as server:
        stream_id = await server.filled_stream(2)
        async with preview(server, stream_id, "fps=30") as one, preview(server, stream_id) as two:
            await one.until(lambda e: indices(e) == [1])
            await two.until(lambda e: indices(e) == [1])
            await until(lambda: server.built.previews.open.used == 2)

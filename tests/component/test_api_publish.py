"""What clients are told about publishing, and what a stream that waits for them looks like."""

from __future__ import annotations

from typing import Any

import jwt
import pytest

from liveedge.testing.source import plain_pixels
from tests.offers import offer
from tests.serving import Serving, image, serving

HOST = {"host": "cameras.lan:8000"}


async def create(server: Serving, kind: str = "livekit", **headers: str) -> dict[str, Any]:
    body = {"source": {"type": kind}}
    answer = await server.client.post("/v1beta/streams", headers=headers, json=body)
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


@pytest.mark.parametrize("content", ["", "{}", "null", '{"source": null}'])
async def test_without_a_source_a_client_publishes_with_a_livekit_sdk(content: str):
    async with serving() as server:
        answer = await server.client.post(
            "/v1beta/streams", content=content, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 201
        created = answer.json()
        assert created["source"] == {"type": "livekit"}
        assert set(created["publish"]) == {"type", "url", "token", "whip_url"}
        assert created["publish"]["type"] == "livekit"


@pytest.mark.parametrize("kind", ["livekit", "whip"])
async def test_addresses_are_those_that_the_client_used(kind: str):
    async with serving() as server:
        created = await create(server, kind, **HOST)
        publish = created["publish"]
        assert publish["url"] == "ws://cameras.lan:8000"
        assert publish["whip_url"] == f"http://cameras.lan:8000/whip/{created['id']}"


async def test_a_configured_address_wins():
    async with serving(public_url="https://cameras.example/live") as server:
        created = await create(server, **HOST)
        assert created["publish"]["url"] == "wss://cameras.example/live"
        assert (
            created["publish"]["whip_url"] == f"https://cameras.example/live/whip/{created['id']}"
        )


async def test_a_host_that_is_no_address_is_not_repeated():
    async with serving() as server:
        created = await create(server, host='evil"/><script>')
        assert "evil" not in str(created)
        assert created["publish"]["url"].startswith("ws://test:")


async def test_the_token_allows_publishing_there_and_nothing_else_for_as_long_as_the_lease():
    async with serving() as server:
        created = await create(server)
        claims = jwt.decode(created["publish"]["token"], options={"verify_signature": False})
        grants = claims["video"]
        assert grants["room"] == created["id"]
        assert (grants["roomJoin"], grants["canPublish"]) == (True, True)
        assert (grants["canSubscribe"], grants["canPublishData"]) == (False, False)
        left_s = claims["exp"] - server.clock.wall_ms() / 1000
        assert 300 <= left_s <= 400


@pytest.mark.parametrize("kind", ["push", "sim"])
async def test_other_streams_have_nothing_to_publish_to(kind: str):
    async with serving() as server:
        created = await create(server, kind)
        assert created["publish"] is None
        kept = (await server.client.post(f"/streams/{created['id']}/keepalive")).json()
        assert kept["publish"] is None


async def test_a_keepalive_gives_a_fresh_token():
    async with serving() as server:
        created = await create(server, **HOST)
        server.clock.move(100)
        answer = await server.client.post(f"/streams/{created['id']}/keepalive", headers=HOST)
        publish = answer.json()["publish"]
        assert publish["token"] != created["publish"]["token"]
        assert publish | {"token": ""} == created["publish"] | {"token": ""}


async def test_a_published_stream_opens_at_once_and_waits():
    async with serving() as server:
        created = await create(server)
        view = (await server.client.get(f"/streams/{created['id']}")).json()
        assert (view["health"], view["health_reason"]) == (
            "waiting_for_publisher", "no publisher is connected"
        )  # fmt: skip
        assert "publish" not in view
        answer = await server.ask(image(f"ovs://streams/{created['id']}?frame_index=-1"))
        assert answer.json()["error"]["code"] == "frame_not_yet_produced"


async def test_what_was_published_is_answered_about():
    async with serving() as server:
        created = await create(server)
        answer = await server.client.post(
            f"/whip/{created['id']}",
            content=offer(),
            headers={
                "authorization": f"Bearer {created['publish']['token']}",
                "content-type": "application/sdp",
            },
        )
        assert answer.status_code == 201
        server.sessions.newest.deliver(plain_pixels(64, 48, grey=90))
        answer = await server.ask(image(f"ovs://streams/{created['id']}?frame_index=-1"))
        assert answer.status_code == 200, answer.text
        (frame,) = answer.json()["liveedge"]["frames"]
        assert (frame["frame_index"], frame["width"], frame["height"]) == (0, 64, 48)
        view = (await server.client.get(f"/streams/{created['id']}")).json()
        assert view["last_pull"] is None  # nothing is pulled


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"type": "whip", "url": "https://x"}, "type whip takes no URL"),
        ({"type": "livekit", "url": "wss://x"}, "type livekit takes no URL"),
        ({"type": "push", "url": "https://x"}, "type push takes no URL"),
        ({"type": "srt"}, "there is no source type 'srt'; use a source of type rtsp, rtmp, hls,"),
        ({"type": "rtsp"}, "type rtsp needs a URL"),
        ({"type": "rtmp"}, "type rtmp needs a URL"),
        ({"type": "hls"}, "type hls needs a URL"),
        ({"type": "file", "url": "file:///x"}, "start the server with allow_local_sources"),
        ({"type": "device", "url": "/dev/video0"}, "start the server with allow_local_sources"),
        ({"type": "rtsp", "url": "https://user:hush@cam"}, "begin with rtsp:// or rtsps://"),
        ({"type": "rtmp", "url": "rtsp://user:hush@cam"}, "begin with rtmp:// or rtmps://"),
        ({"type": "hls", "url": "rtsp://user:hush@cam"}, "begin with http:// or https://"),
        ({"type": "sim", "url": "sim://[hush"}, "sim: the URL of the source is malformed"),
    ],
)  # fmt: skip
async def test_a_wrong_source_is_a_422_that_says_what_is_right(source: dict[str, str], says: str):
    async with serving() as server:
        answer = await server.client.post("/streams", json={"source": source})
        assert answer.status_code == 422, answer.text
        assert says in answer.json()["detail"]
        assert "hush" not in answer.text


async def test_frames_cannot_be_pushed_into_a_published_stream():
    async with serving() as server:
        created = await create(server)
        answer = await server.client.post(f"/streams/{created['id']}/frames", content=b"x")
        assert answer.status_code == 409
        assert "has a source of type livekit" in answer.json()["detail"]

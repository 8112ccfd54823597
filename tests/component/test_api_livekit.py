"""LiveKit's routes as its SDKs call them: refusals before the WebSocket is accepted, and no secrets in logs."""

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
from livekit.protocol import rtc

from tests.livekit_clients import add_track, empty_offer, join_query, offer, offer_sdp
from tests.serving import serving, until

OFFER = rtc.SessionDescription(type="offer", sdp=empty_offer(), id=3)


class Call:
    """One WebSocket, as a server gives it to the application."""

    def __init__(self, app, path, *, query=None, headers=None):
        self.status = None
        self.text = ""
        self.headers = {}
        self.sent = []
        self.closed = None
        self._incoming: list[dict[str, Any]] = [{"type": "websocket.connect"}]
        self._arrived = asyncio.Event()
        self._scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode(query or {}).encode(),
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
            "subprotocols": [],
            "server": ("test", 80),
            "client": ("test", 1),
            "extensions": {"websocket.http.response": {}},
            "state": {},
        }
        self.task = asyncio.create_task(app(self._scope, self._receive, self._send))

    def put(self, message):
        self._incoming.append(
            {"type": "websocket.receive", "bytes": message.SerializeToString()}
            if isinstance(message, rtc.SignalRequest)
            else message
        )
        self._arrived.set()

    def hang_up(self):
        self.put({"type": "websocket.disconnect", "code": 1006})

    async def got(self, kind):
        def found():
            return [m for m in self.sent if m.WhichOneof("message") == kind]

        await until(lambda: bool(found()))
        return found()[0]

    async def refused(self):
        await asyncio.wait_for(self.task, 20)
        assert self.status != 101
        return self.status, self.text

    async def _receive(self):
        while not self._incoming:
            self._arrived.clear()
            await self._arrived.wait()
        return self._incoming.pop(0)

    async def _send(self, message):
        match message["type"]:
            case "websocket.accept":
                self.status = 101
            case "websocket.send":
                self.sent.append(rtc.SignalResponse.FromString(message["bytes"]))
            case "websocket.close":
                self.closed = message["code"]
            case "websocket.http.response.start":
                self.status = message["status"]
                self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            case "websocket.http.response.body":
                self.text += message["body"].decode()
            case _:
                raise AssertionError(message["type"])


class Client:
    """Makes calls about one stream."""

    def __init__(self, server, stream_id, token):
        self.server, self.stream_id, self.token = server, stream_id, token

    def call(self, path="/rtc/v1", *, token=None, query=None, in_url=False):
        token = self.token if token is None else token
        query = dict(join_query(publisher_offer=OFFER) if query is None else query)
        headers = {}
        if in_url:
            query["access_token"] = token
        else:
            headers["authorization"] = f"Bearer {token}"
        return Call(self.server.built.app, path, query=query, headers=headers)

    async def health(self):
        view = (await self.server.client.get(f"/streams/{self.stream_id}")).json()
        return view["health"], view["health_reason"]


@asynccontextmanager
async def client(**settings):
    async with serving(**settings) as server:
        key = {"authorization": "Bearer k"} if "api_key" in settings else {}
        made = (await server.client.post("/streams", headers=key)).json()
        yield Client(server, made["id"], made["publish"]["token"])


@pytest.mark.parametrize("prefix", ["", "/v1", "/v1beta"])
@pytest.mark.parametrize("in_url", [True, False])
async def test_a_client_comes_in_by_every_prefix_and_with_its_token_in_either_place(prefix, in_url):
    async with client() as it:
        call = it.call(f"{prefix}/rtc/v1", in_url=in_url)
        join = (await call.got("join")).join
        assert join.room.name == it.stream_id
        assert (await call.got("answer")).answer.id == 3
        call.hang_up()
        await call.task


async def test_a_publisher_is_live_from_its_first_frame_to_its_leave():
    async with client() as it:
        call = it.call("/rtc", query={"protocol": "17", "sdk": "js"})
        await call.got("join")
        call.put(add_track("cam", codec="vp8"))
        call.put(offer(offer_sdp(("7", "sendonly", "cam"))))
        await call.got("answer")
        it.server.sessions.newest.deliver()
        assert (await it.health())[0] == "live"
        call.put(rtc.SignalRequest(leave=rtc.LeaveRequest()))
        await call.task
        assert call.closed == 1000
        assert await it.health() == ("waiting_for_publisher", "the publisher left")


async def test_the_end_of_the_stream_is_the_end_of_the_socket():
    async with client() as it:
        call = it.call()
        await call.got("join")
        await it.server.client.delete(f"/streams/{it.stream_id}")
        assert (await call.got("leave")).leave.action == rtc.LeaveRequest.DISCONNECT
        await asyncio.wait_for(call.task, 20)


async def test_a_keepalive_gives_the_connected_client_its_new_token():
    async with client() as it:
        call = it.call()
        await call.got("join")
        kept = await it.server.client.post(f"/streams/{it.stream_id}/keepalive")
        assert (await call.got("refresh_token")).refresh_token == kept.json()["publish"]["token"]
        call.hang_up()
        await call.task


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        ({"token": ""}, 401, "no publish token"),
        ({"token": "nonsense"}, 401, "no JSON Web Token of this server"),
        ({"query": {}}, 422, "join_request is missing"),
        ({"query": {"join_request": "!"}}, 422, "is not a join request"),
    ],
)
async def test_a_refusal_is_an_http_answer_with_the_reason(options, status, text):
    async with client() as it:
        refused, said = await it.call(**options).refused()
        assert refused == status
        assert text in said


@pytest.mark.parametrize("path", ["/rtc/v1", "/rtc"])
async def test_an_ended_stream_is_a_room_that_does_not_exist(path):
    async with client() as it:
        await it.server.client.delete(f"/streams/{it.stream_id}")
        status, text = await it.call(path).refused()
        assert status == 404
        # Browser SDKs look for these words: without them they try the older path.
        assert "requested room does not exist" in text


async def test_the_api_key_is_no_publish_token():
    async with client(api_key=("k",)) as it:
        assert (await it.call(token="k").refused())[0] == 401


@pytest.mark.parametrize("path", ["/rtc/validate", "/rtc/v1/validate", "/v1/rtc/v1/validate"])
async def test_browsers_of_any_origin_are_told_why_they_were_refused(path):
    async with client(api_key=("k",)) as it:
        get = it.server.client.get
        origin = {"origin": "https://elsewhere.example"}
        good = await get(path, params={"access_token": it.token}, headers=origin)
        assert (good.status_code, good.text) == (200, "success")
        bad = await get(path, headers=origin | {"authorization": "Bearer nonsense"})
        assert bad.status_code == 401
        assert "publish token" in bad.text
        assert {r.headers["access-control-allow-origin"] for r in (good, bad)} == {"*"}
        await it.server.client.delete(
            f"/streams/{it.stream_id}", headers={"authorization": "Bearer k"}
        )
        gone = await get(path, params={"access_token": it.token})
        assert gone.status_code == 404
        assert gone.text.startswith("requested room does not exist")


async def test_there_is_room_for_the_signalling_of_every_stream_that_may_be():
    async with client(max_streams=200) as it:
        ingest = await it.server.built.publishing.ingest()
        assert ingest.sockets.capacity > 2 * 200


async def test_a_token_in_the_url_reaches_no_log(caplog):
    caplog.set_level(logging.DEBUG)
    async with client() as it:
        call = it.call(in_url=True)
        await call.got("join")
        call.hang_up()
        await call.task
        await it.call(token="nonsense-token", in_url=True).refused()
    assert "WS /rtc/v1 101" in caplog.text
    assert "WS /rtc/v1 401" in caplog.text
    for secret in (it.token, "nonsense-token", "access_token", "join_request"):
        assert secret not in caplog.text

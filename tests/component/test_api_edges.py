"""What never reaches a route, or is no request at all: JSON, ids and codes there too, and no HTML."""

import json
import select
import socket
from contextlib import suppress

import httpx
import pytest

from liveedge.core.clock import SystemClock
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.testing.engine import FakeEngine
from tests.serving import SMALL, chat_body, serving

PREFIXES = ("/v1beta", "/v1", "")
KEY = {"Authorization": "Bearer alpha"}


def check(answer, status, code, *, retry_helps=False):
    """An error that both kinds of client can read."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert body["error"]["code"] == code
    assert set(body["error"]) == {"message", "type", "code"}
    assert body["detail"] == body["error"]["message"]
    if 400 <= status < 500:
        assert answer.headers.get("x-should-retry") == (None if retry_helps else "false")
    assert "<html" not in answer.text.lower()


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_unknown_routes_and_wrong_methods_have_codes_under_every_prefix(prefix):
    async with serving() as server:
        ask = server.client.request
        for path in ("/nowhere", "/streams/", "/chat", "/streams/a/b/c/d", "/models/x/y"):
            check(await ask("GET", prefix + path), 404, "not_found")
        for method, path in (
            ("GET", "/chat/completions"),
            ("PUT", "/streams"),
            ("PATCH", "/streams/x"),
            ("POST", "/models"),
            ("DELETE", "/metrics"),
            ("TRACE", "/streams"),
            ("PROPFIND", "/streams"),
        ):
            answer = await ask(method, prefix + path)
            check(answer, 405, "method_not_allowed")
            assert answer.headers["allow"]


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_errors_are_the_same_under_every_prefix(prefix):
    async with serving(api_key="alpha") as server:
        answer = await server.client.post(f"{prefix}/streams")
        check(answer, 401, "unauthorized")
        answer = await server.client.get(f"{prefix}/streams/x", headers=KEY)
        check(answer, 404, "stream_not_found")
        answer = await server.client.post(f"{prefix}/chat/completions", json={}, headers=KEY)
        assert answer.json()["error"] == "validation_error"


async def test_a_head_that_fails_has_the_headers_of_its_get_and_no_body():
    async with serving() as server:
        for path in ("/nowhere", "/streams/x", "/v1/chat/completions", "/streams/x/frame.jpg"):
            got, head = await server.client.get(path), await server.client.head(path)
            assert head.status_code == got.status_code
            assert head.content == b""
            assert head.headers["content-type"] == "application/json"
            assert head.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "multipart/form-data; boundary=x", "", "@@"]
)
async def test_a_body_is_read_as_json_whatever_it_calls_itself(kind):
    async with serving() as server:
        headers = {"Content-Type": kind}
        data = json.dumps(chat_body()).encode()
        answer = await server.client.post("/v1/chat/completions", content=data, headers=headers)
        assert answer.status_code == 200
        answer = await server.client.post("/v1/chat/completions", content=b"a=1", headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (422, "validation_error")
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "data",
    [b"", b" ", b"{", b"nul", b"\xff\xfe{\x00}\x00", b"\x00", b'{"source": "\xff"}', b"[]", b"1"],
)
async def test_a_stream_body_that_is_no_object_is_a_flat_422_or_none_at_all(data):
    async with serving() as server:
        answer = await server.client.post("/streams", content=data)
        if data.strip():
            check(answer, 422, "validation_error")
        else:
            assert answer.status_code == 201


async def test_a_preflight_of_a_foreign_page_is_no_error_and_allows_nothing():
    async with serving(api_key="alpha") as server:
        for path in ("/v1/chat/completions", "/nowhere", "/streams/x/windows/y"):
            asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
            answer = await server.client.options(path, headers=asks)
            assert (answer.status_code, answer.content) == (204, b"")
            assert "access-control-allow-origin" not in answer.headers


async def test_a_page_may_read_what_routes_tell_in_headers_and_send_what_they_take():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        origin = {"Origin": "http://localhost:3000"}
        got = await server.client.get(f"/streams/{stream_id}/frame.jpg", headers=origin)
        shown = {
            one.strip().lower() for one in got.headers["access-control-expose-headers"].split(",")
        }
        told = {
            "x-frame-index",
            "x-captured-at-ms",
            "x-age-ms",
            "x-request-id",
            "x-overshoot-region",
        }
        assert told <= got.headers.keys() & shown
        asks = origin | {"Access-Control-Request-Method": "POST"}
        preflight = await server.client.options(f"/streams/{stream_id}/frames", headers=asks)
        allowed = preflight.headers["access-control-allow-headers"].lower()
        assert "x-captured-at-ms" in allowed


async def test_a_plain_options_is_a_wrong_method_that_names_the_right_ones():
    async with serving() as server:
        answer = await server.client.options("/streams")
        check(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD, POST"


async def test_a_page_of_another_site_is_told_so_by_an_open_server():
    async with serving() as server:
        answer = await server.client.post("/streams", headers={"Origin": "https://evil.example"})
        check(answer, 403, "origin_not_allowed")


# ── below HTTP ──


@pytest.fixture(scope="module")
def server():
    clock = SystemClock()
    settings = Settings(port=0, api_key="alpha", **SMALL)
    with BackgroundServer(
        settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock)
    ) as running:
        yield running


def raw(server, data):
    """What the bytes are answered, up to the end of the connection."""
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port), timeout=20) as client:
        client.sendall(data)
        with suppress(OSError):  # the server was faster
            client.shutdown(socket.SHUT_WR)
        return answered(client)


def answered(client):
    said = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return httpx.Response(int(status.split(" ")[1]), headers=headers, content=body)


HOST = b"Host: x\r\n"
UPGRADE = {
    "Host": "x",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1 x\r\n" + HOST + b"\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no host
        b"GET / HTTP/1.1\r\n" + HOST + b"A\x00: b\r\n\r\n",
        b"POST /streams HTTP/1.1\r\n" + HOST + b"Content-Length: many\r\n\r\n",
        b"POST /streams HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    ],
)
def test_what_is_no_http_is_a_400_in_json(server, data):
    check(raw(server, data), 400, "http_invalid")


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\n" + HOST + b"X: "])
def test_a_head_without_end_is_told_so_before_it_has_come(server, begin):
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port), timeout=20) as client:
        client.sendall(begin)
        # Piece by piece: what lies unread when a connection is closed takes the answer with it.
        while not select.select([client], [], [], 0.02)[0]:
            client.sendall(b"y" * 8192)
        check(answered(client), 400, "http_invalid")


def test_a_chunked_body_that_is_broken_is_answered_in_json(server):
    head = b"POST /streams HTTP/1.1\r\n" + HOST + b"Authorization: Bearer alpha\r\n"
    answer = raw(server, head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    check(answer, 400, "http_invalid")


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("/nowhere", KEY, 404, "not_found"),
        ("/streams/x/frames", KEY, 404, "stream_not_found"),
        ("/v1/streams/x/frames", {}, 401, "unauthorized"),
        ("/v1beta/chat/completions", KEY, 404, "not_found"),
    ],
)
def test_a_websocket_is_refused_in_json_before_it_opens(server, path, headers, status, code):
    lines = [f"{name}: {value}" for name, value in {**UPGRADE, **headers}.items()]
    head = "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""])
    check(raw(server, head.encode()), status, code)


def test_a_websocket_of_a_foreign_page_is_refused_in_json_by_an_open_server():
    clock = SystemClock()
    settings = Settings(port=0, **SMALL)
    with BackgroundServer(
        settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock)
    ) as running:
        lines = [f"{name}: {value}" for name, value in UPGRADE.items()]
        lines.append("Origin: https://evil.example")
        head = "\r\n".join(["GET /streams/x/frames HTTP/1.1", *lines, "", ""])
        check(raw(running, head.encode()), 403, "origin_not_allowed")

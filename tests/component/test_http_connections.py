"""Connections of clients that are slow, silent or many: they end, are told why, and free what they held."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import pytest
import uvicorn
from fastapi import FastAPI, Request, WebSocket
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from liveedge.api.connection import ConnectionLimits
from liveedge.core.tasks import OwnedThread
from liveedge.server import http_config

LIMITS = ConnectionLimits(head_s=0.5, step_s=0.5, step_bytes=1000, max_connections=4)
PATIENCE_S = 10.0  # of the test: a missing end fails here
LONG = 8_000_000  # bytes: more than the system buffers between two processes
POST = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


class Echo:
    """An application that reads bodies, and counts who left before theirs was complete."""

    def __init__(self) -> None:
        self.n_reading = 0
        self.n_cut_off = 0
        self.ended: Counter[str] = Counter()
        self.app = FastAPI()
        self.app.add_api_route("/", self.read, methods=["POST"])
        self.app.add_api_route("/endless", self.pour, methods=["GET"])
        self.app.add_api_websocket_route("/ws", self.talk)

    async def read(self, request: Request) -> int:
        self.n_reading += 1
        try:
            return len(await request.body())
        except ClientDisconnect:
            self.n_cut_off += 1
            return 0
        finally:
            self.n_reading -= 1

    async def pour(self) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            self.n_reading += 1
            try:
                while True:
                    yield b"x" * 100_000
                    await asyncio.sleep(0)
            finally:
                self.n_reading -= 1

        return StreamingResponse(pieces())

    def reads(self, n: int) -> bool:
        return self.n_reading == n

    async def talk(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())


class Served:
    """A server that listens."""

    def __init__(self, address: tuple[str, int], echo: Echo) -> None:
        self.address = address
        self.echo = echo

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=PATIENCE_S)

    def says(self, *pieces: bytes) -> bytes:
        """Everything that is answered to these bytes, until the end of the connection."""
        with self.connect() as client:
            for piece in pieces:
                client.sendall(piece)
            return rest(client)


def rest(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


def answers_within(client: socket.socket, seconds: float) -> bool:
    return bool(select.select([client], [], [], seconds)[0])


def told(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    found = json.loads(body)
    assert found["detail"] == found["error"]["message"]
    return int(head.split()[1]), found["error"]["code"]


def poll(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it did not happen")


@contextmanager
def served(limits: ConnectionLimits = LIMITS) -> Iterator[Served]:
    echo = Echo()
    server = uvicorn.Server(http_config(echo.app, limits=limits, ended=echo.ended))
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = OwnedThread("http", lambda _stopping: server.run(sockets=[listener]))
        thread.start()
        try:
            yield Served(listener.getsockname()[:2], echo)
        finally:
            server.should_exit = True
            assert thread.stop(PATIENCE_S)


def test_who_sends_nothing_is_disconnected_without_a_word() -> None:
    with served() as server:
        assert server.says() == b""
        assert server.echo.ended == {"silent": 1}


@pytest.mark.parametrize(
    "head",
    [
        b"GET",
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nokPOST / HTT",
    ],
    ids=["request", "handshake", "pipelined"],
)
def test_half_a_head_is_answered_with_408(head: bytes) -> None:
    with served() as server:
        answers = server.says(head).rpartition(b"HTTP/1.1 ")
        assert told(b"".join(answers[1:])) == (408, "request_timeout")
        assert server.echo.ended == {"slow_head": 1}


def test_a_body_that_stops_is_answered_with_408_and_its_reader_is_freed() -> None:
    with served() as server:
        assert told(server.says(POST % 1000 + b"x" * 999)) == (408, "request_timeout")
        poll(lambda: server.echo.n_cut_off == 1)
        assert server.echo.ended == {"slow_body": 1}


def test_a_body_that_trickles_does_not_last() -> None:
    with served() as server, server.connect() as client:
        client.sendall(POST % 100_000)
        for _ in range(200):
            client.sendall(b"x")
            if answers_within(client, 0.05):
                break
        assert told(rest(client)) == (408, "request_timeout")


def test_a_body_that_comes_steadily_may_take_its_time() -> None:
    with served() as server, server.connect() as client:
        client.sendall(POST % 20_000)
        for _ in range(20):  # 1.2 s in all
            assert not answers_within(client, 0.06)
            client.sendall(b"x" * 1000)
        assert rest(client).endswith(b"20000")


def test_what_is_no_http_is_told_in_json() -> None:
    with served() as server:
        assert told(server.says(b"\x16\x03\x01 hello\r\n\r\n")) == (400, "http_invalid")


def test_a_websocket_whose_line_is_too_long_is_told_in_json() -> None:
    line = b"GET /ws?join_request=" + b"x" * 9000 + b" HTTP/1.1\r\n"
    with served() as server:
        answer = server.says(line + b"Host: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    assert told(answer) == (414, "uri_too_long")


def test_an_open_websocket_has_no_such_limit() -> None:
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    head = b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    with served() as server, server.connect() as client:
        client.sendall(head + key + b"\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 101")
        client.settimeout(3 * LIMITS.head_s)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(PATIENCE_S)
        client.sendall(b"\x81\x82\x00\x00\x00\x00hi")
        assert b"hi" in client.recv(100)


def test_who_takes_nothing_of_its_answer_is_cut_off_and_what_waits_for_it_is_freed() -> None:
    with served(ConnectionLimits(reader_s=0.3)) as server, server.connect() as client:
        client.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        poll(lambda: server.echo.reads(1))
        poll(lambda: server.echo.reads(0))
        assert server.echo.ended == {"slow_reader": 1}


def test_who_reads_slowly_but_steadily_is_not() -> None:
    with served(ConnectionLimits(reader_s=0.5)) as server, server.connect() as client:
        client.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(20):  # 1 s in all
            threading.Event().wait(0.05)
            n_bytes = 0
            while n_bytes < 10_000_000 and answers_within(client, 0):
                n_bytes += len(client.recv(1 << 20))
        assert server.echo.ended == {}


def test_whoever_has_no_request_for_a_while_makes_room_for_a_newcomer() -> None:
    patient = ConnectionLimits(head_s=60, max_connections=4, free_s=0.3)
    with served(patient) as server, ExitStack() as stack:
        silent = [stack.enter_context(server.connect()) for _ in range(4)]
        poll(lambda: server.says(POST % 2 + b"ok").endswith(b"2"))  # told 503 until then
        assert silent[0].recv(1) == b""
        assert not answers_within(silent[3], 0)
        assert server.echo.ended["made_room"] == 1


def test_of_many_that_come_at_once_each_is_answered() -> None:
    """Their requests wait in the system while the newest is taken: none is free to make room."""
    with served(ConnectionLimits(free_s=60, max_connections=4)) as server, ExitStack() as stack:
        crowd = [stack.enter_context(server.connect()) for _ in range(200)]
        for client in crowd:
            client.sendall(POST % 2 + b"ok")
        answers = [rest(client) for client in crowd]
        refused = [answer for answer in answers if not answer.endswith(b"2")]
        assert all(told(answer) == (503, "too_many_connections") for answer in refused)
        assert server.echo.ended == {"no_room": len(refused)}


@pytest.mark.parametrize("refusal", [(503, "too_many_connections"), (400, "http_invalid")])
def test_who_is_refused_while_it_sends_is_told_when_it_has_sent_all(
    refusal: tuple[int, str],
) -> None:
    """A connection that is closed with bytes unread is reset, and what was said is lost."""
    with served(ConnectionLimits(max_connections=0 if refusal[0] == 503 else 4)) as server:
        head = b"nonsense\r\n\r\n" if refusal[0] == 400 else POST % LONG
        assert told(server.says(head, bytes(LONG))) == refusal


@pytest.mark.parametrize("ends", [b"Connection: close\r\n", b""])
def test_who_is_answered_before_its_body_was_read_reads_the_answer(ends: bytes) -> None:
    head = b"PUT /nowhere HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (ends, LONG)
    with served() as server, server.connect() as client:
        client.sendall(head + bytes(LONG))
        assert client.recv(65536).startswith(b"HTTP/1.1 404")


def test_who_sends_too_slowly_is_told_although_it_goes_on() -> None:
    with served() as server, server.connect() as client:
        client.sendall(POST % LONG)
        assert answers_within(client, PATIENCE_S)
        client.sendall(bytes(LONG))
        assert told(rest(client)) == (408, "request_timeout")


def test_who_is_told_and_never_ends_is_cut_off() -> None:
    limits = ConnectionLimits(head_s=0.2, leave_s=0.2)
    with served(limits) as server, server.connect() as client:
        client.sendall(b"GET")
        assert told(rest(client)) == (408, "request_timeout")
        poll(lambda: is_reset(client))


def is_reset(client: socket.socket) -> bool:
    try:
        client.sendall(b"x")
    except ConnectionError:
        return True
    return False


def test_a_body_that_nobody_wants_keeps_no_newcomer_out() -> None:
    patient = ConnectionLimits(step_s=60, max_connections=4, free_s=0)
    with served(patient) as server, ExitStack() as stack:
        for _ in range(12):
            unwanted = stack.enter_context(server.connect())
            unwanted.sendall(b"PUT /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
            assert unwanted.recv(65536).startswith(b"HTTP/1.1 404")
        assert server.says(POST % 2 + b"ok").endswith(b"2")


def test_where_everybody_has_a_request_a_newcomer_is_told() -> None:
    patient = ConnectionLimits(step_s=60, max_connections=4)
    with served(patient) as server, ExitStack() as stack:
        for n_reading in range(1, 5):
            busy = stack.enter_context(server.connect())
            busy.sendall(POST % 2 + b"o")
            poll(partial(server.echo.reads, n_reading))
        assert told(server.says()) == (503, "too_many_connections")
        assert server.echo.ended["no_room"] == 1

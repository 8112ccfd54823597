"""A server whose every moment is scripted, and which logs when it did what: on sockets or without.

On sockets (`listening`) it runs on the machine's clock; without (`Stub.dial`) client and server share
one event loop and a clock that a test moves, so that moments are exact.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from liveedge.core.clock import Clock
from liveedge.core.tasks import TaskSet
from liveedge.testing.clock import FakeClock

T = TypeVar("T")
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
STREAM = (("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
CRUMB_S = 1e-5  # between two crumbs, so that they do not reach the client as one
END_OF_CHUNKS = b"0\r\n\r\n"


def event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def chunk(finish_reason: str | None = None, **delta: Any) -> bytes:
    return event(
        {
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        }
    )


ROLE = chunk(role="assistant", content="")
STOP = chunk("stop")


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a body and the seconds that pass before they are written."""

    after_s: float
    data: bytes
    label: str = ""  # the log names it so


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One answer."""

    headers_after_s: float = 0.0
    status: int = 200
    headers: Sequence[tuple[str, str]] = STREAM
    pieces: Sequence[Piece] = ()
    end: Literal["whole", "cut", "reset", "silent"] = "whole"
    bytes_at_once: int = 0  # a body is written in crumbs of this size; 0: each piece at once


def streamed(
    *,
    headers_s: float,
    first_s: float,
    gaps_s: Sequence[float],
    words: Sequence[str] = (),
    end_s: float = 0.0,
    **script: Any,
) -> Script:
    """A role-only chunk with the headers, the first content `first_s` after them, then the rest."""
    texts = words or [f"word{n} " for n in range(len(gaps_s) + 1)]
    pieces = [Piece(0.0, ROLE, "role")]
    for after_s, text in zip((first_s, *gaps_s), texts, strict=True):
        pieces.append(Piece(after_s, chunk(content=text), "content"))
    pieces += [Piece(end_s, STOP, "stop"), Piece(0.0, DONE, "done")]
    return Script(headers_after_s=headers_s, pieces=pieces, **script)


def plain(
    document: Mapping[str, Any] | bytes, *, after_s: float, status: int = 200, **headers: str
) -> Script:
    """A whole JSON answer, or an error; `Retry_After="3"` is a header."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    length = ("Content-Length", str(len(body)))
    return Script(
        headers_after_s=after_s,
        status=status,
        headers=[("Content-Type", "application/json"), length, *named],
        pieces=[Piece(0.0, body, "body")],
    )


@dataclass(slots=True)
class Served:
    """What the stub did for one request: (what, monotonic seconds) in the order of its doing."""

    body: dict[str, Any]
    headers: dict[str, str]
    arrived_s: float
    log: list[tuple[str, float]] = field(default_factory=list)
    left_s: float | None = None  # when the client went away before the end

    def at_s(self, label: str) -> list[float]:
        return [moment_s for name, moment_s in self.log if name == label]


class Stub:
    """Answers every request by `script(n, body)`; `capacity` of them at a time, first come first
    served, where it is given."""

    def __init__(
        self,
        script: Callable[[int, Mapping[str, Any]], Script],
        *,
        clock: Clock,
        capacity: int | None = None,
        connect_s: float = 0.0,
    ) -> None:
        self.served: list[Served] = []
        self.n_connections = 0
        self.clock = clock
        self.refuses = False  # connections
        self.script = script
        self.connect_s = connect_s
        self.places = asyncio.Semaphore(capacity) if capacity else None

    async def dial(self, factory: Callable[[], asyncio.Protocol]) -> object:
        """A connection without sockets (`bench.connections.Dial`)."""
        await self.clock.sleep(self.connect_s)
        if self.refuses:
            raise ConnectionRefusedError(111, "Connection refused")
        client, server = factory(), StubConnection(self)
        left, right = _Pipe(server), _Pipe(client)
        left.other, right.other = right, left
        server.connection_made(right)
        client.connection_made(left)
        return client

    async def answer(self, served: Served, transport: asyncio.Transport) -> None:
        script = self.script(len(self.served) - 1, served.body)
        async with self.places or contextlib.nullcontext():
            await self.clock.sleep(script.headers_after_s)
            lines = [f"HTTP/1.1 {script.status} Scripted"]
            lines += [f"{name}: {value}" for name, value in script.headers]
            self._write(served, transport, "headers", "\r\n".join([*lines, "", ""]).encode())
            for piece in script.pieces:
                await self.clock.sleep(piece.after_s)
                await self._piece(served, transport, script, piece)
        await self._end(served, transport, script)

    async def _piece(
        self, served: Served, transport: asyncio.Transport, script: Script, piece: Piece
    ) -> None:
        size = script.bytes_at_once or len(piece.data) or 1
        for start in range(0, len(piece.data), size):
            part = piece.data[start : start + size]
            if script.headers == STREAM:
                part = b"%x\r\n%b\r\n" % (len(part), part)
            last = start + size >= len(piece.data)
            self._write(served, transport, piece.label if last else "crumb", part)
            if script.bytes_at_once:
                await self.clock.sleep(CRUMB_S)

    async def _end(self, served: Served, transport: asyncio.Transport, script: Script) -> None:
        if script.end == "whole" and script.headers == STREAM:
            self._write(served, transport, "end", END_OF_CHUNKS)
        elif script.end == "cut":
            transport.close()
        elif script.end == "reset":
            transport.abort()
        elif script.end == "silent":
            await self.clock.sleep(1e6)

    def _write(self, served: Served, transport: asyncio.Transport, label: str, data: bytes) -> None:
        if not transport.is_closing():
            transport.write(data)
            served.log.append((label, self.clock.monotonic_s()))


class StubConnection(asyncio.Protocol):
    """One connection: reads requests with a Content-Length and lets the stub answer."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._rest = b""
        self._tasks = TaskSet("stub")
        self._serving: Served | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._stub.n_connections += 1

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found:
            return
        lines = [line.partition(": ") for line in head.decode("latin-1").split("\r\n")[1:]]
        headers = {name.lower(): value for name, _, value in lines}
        if len(body) < int(headers["content-length"]):
            return
        self._rest = b""
        served = Served(json.loads(body), headers, self._stub.clock.monotonic_s())
        self._stub.served.append(served)
        self._serving = served
        self._tasks.start(self._answer(served), name="answer")

    async def _answer(self, served: Served) -> None:
        await self._stub.answer(served, self._transport)
        self._serving = None

    def connection_lost(self, error: Exception | None) -> None:
        if self._serving is not None:
            self._serving.left_s = self._stub.clock.monotonic_s()
        self._tasks.cancel()


class _Pipe(asyncio.Transport):
    """One side of a connection in memory: what is written is received by `peer`, in order."""

    def __init__(self, peer: asyncio.Protocol) -> None:
        super().__init__()
        self.other: _Pipe | None = None
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._closed, "written after the end"
        self._loop.call_soon(self._deliver, bytes(data))

    def _deliver(self, data: bytes) -> None:
        assert self.other is not None
        if not self.other._closed:
            self._peer.data_received(data)

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(ConnectionResetError(104, "Connection reset by peer"))

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        assert self.other is not None
        self._closed = True
        self._loop.call_soon(self._tell, error)
        self._loop.call_soon(self.other._peer.connection_lost, None)

    def _tell(self, error: Exception | None) -> None:
        assert self.other is not None
        if self.other._closed:
            return
        if error is None:
            self._peer.eof_received()
        self.other._closed = True
        self._peer.connection_lost(error)


@contextlib.asynccontextmanager
async def listening(stub: Stub, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The stub on a socket; its base URL."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: StubConnection(stub), "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}/v1"
    finally:
        server.close()


async def driven(clock: FakeClock, work: Awaitable[T], *, limit_s: float = 600.0) -> T:
    """Move time until `work` has ended."""
    task = asyncio.ensure_future(work)
    end_s = clock.monotonic_s() + limit_s
    while not task.done() and clock.monotonic_s() < end_s:
        await clock.advance(0.5)
    assert task.done(), f"still working after {limit_s} s of the clock"
    return task.result()

"""Connections to the measured server: made when they are needed, used again, each byte stamped.

Owns    every connection, idle or busy, until `close`.
Thread  the event loop's. Bytes are stamped in the callback that the loop makes for them, before any
        task runs: no waiting task can make an answer look later than it was.
Never   asks twice: a connection that is lost is what the request ends with, so that a server that
        drops connections shows. Only connections that have been idle for long are not trusted.

asyncio's own transports without httpx: the CPU of the generator is the server's where they share a
machine. A streamed answer of 34 pieces takes 3 to 5 ms of it here and 10 to 11 with httpx; a protocol that
reads nothing takes 3 (two cores under load, 20 requests per second).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias
from urllib.parse import SplitResult, urlsplit

from liveedge.bench.http1 import AnswerReader, Head, HttpMalformed
from liveedge.core.clock import Clock

IDLE_LIMIT_S = 4.0  # servers built on uvicorn or cpp-httplib end a connection after five seconds
MAX_DRAINING = 64  # connections whose answer is read and whose HTTP has not ended

Dial: TypeAlias = Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]


class Exchange(Protocol):
    """Who hears of one answer. `at_s` is the clock's moment of the bytes. After `completed` or
    `lost`, which come once, nothing comes."""

    def headed(self, at_s: float, head: Head) -> None: ...

    def received(self, at_s: float, body: bytes) -> None: ...

    def completed(self, at_s: float) -> None: ...

    def lost(self, at_s: float, reason: str) -> None: ...


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None  # None: idle
        self._exchange: Exchange | None = None
        self._is_over = False
        self.idle_since_s = 0.0

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Send a request; the exchange hears of its answer."""
        assert self._transport is not None
        self._reader, self._exchange = AnswerReader(), exchange
        self._transport.write(request)

    def leave(self) -> None:
        """Nobody listens any more: what is left of the answer is read, and then it is idle."""
        self._exchange = None
        if self._reader is not None:
            self._pool.drains(self)

    def abort(self) -> None:
        """End it at once, as a client that goes away does."""
        self._exchange, self._is_over = None, True
        self._pool.ended(self)
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        at_s = self._clock.monotonic_s()
        if self._reader is None:  # idle: nobody asked for it
            self.abort()
            return
        try:
            self._read(at_s, self._reader, data)
        except HttpMalformed as error:
            self._lose(at_s, str(error))
            self.abort()

    def eof_received(self) -> bool:
        at_s = self._clock.monotonic_s()
        self._pool.ended(self)
        if self._reader is not None:
            try:
                self._reader.end()
            except HttpMalformed as error:
                self._lose(at_s, str(error))
            else:
                self._complete(at_s)
        return False  # the transport closes itself

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(self._clock.monotonic_s(), str(error or "the connection ended"))
        self._pool.ended(self)

    def _read(self, at_s: float, reader: AnswerReader, data: bytes) -> None:
        known = reader.head
        body = reader.feed(data)
        if self._exchange is not None and reader.head is not None and known is None:
            self._exchange.headed(at_s, reader.head)
        if self._exchange is not None and body:
            self._exchange.received(at_s, body)
        if reader.complete:
            self._complete(at_s)

    def _complete(self, at_s: float) -> None:
        exchange, reader = self._exchange, self._reader
        self._exchange = self._reader = None
        if exchange is not None:
            exchange.completed(at_s)
        if self._is_over:  # aborted by who heard of the answer: nobody may use it again
            return
        if reader is not None and reader.reusable:
            self.idle_since_s = at_s
            self._pool.idles(self)
        else:
            self.abort()

    def _lose(self, at_s: float, reason: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lost(at_s, reason)


class Pool:
    """All connections to one server. `n_made` and `n_dropped` (drained for too long) count."""

    def __init__(self, dial: Dial, clock: Clock) -> None:
        self.n_made = 0
        self.n_dropped = 0
        self._dial = dial
        self._clock = clock
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []  # the one used last is used next
        self._draining: dict[Connection, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._all)

    def take(self) -> Connection | None:
        """An idle connection, or None where one has to be made."""
        limit_s = self._clock.monotonic_s() - IDLE_LIMIT_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since_s >= limit_s:
                return connection
            connection.abort()
        return None

    async def make(self) -> Connection:
        """A new connection, TLS and all. Raises OSError."""
        made: list[Connection] = []

        def factory() -> Connection:
            made.append(Connection(self, self._clock))
            return made[-1]

        await self._dial(factory)
        self.n_made += 1
        self._all.add(made[-1])
        return made[-1]

    def idles(self, connection: Connection) -> None:
        self._draining.pop(connection, None)
        self._idle.append(connection)

    def drains(self, connection: Connection) -> None:
        self._draining[connection] = None
        if len(self._draining) > MAX_DRAINING:
            self.n_dropped += 1
            next(iter(self._draining)).abort()

    def ended(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._draining.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        for connection in list(self._all):
            connection.abort()


def dial_to(base_url: str, tls: ssl.SSLContext | None) -> Dial:
    """Connections to the host of `base_url`; `tls` for `https:`. Proxies are not used: what they add
    is no property of the server. Raises ValueError for an address that is none."""
    url = urlsplit(base_url)
    host, port = address(url)

    async def dial(factory: Callable[[], asyncio.Protocol]) -> object:
        loop = asyncio.get_running_loop()
        secured = tls if url.scheme == "https" else None
        return await loop.create_connection(factory, host, port, ssl=secured)

    return dial


def address(url: SplitResult) -> tuple[str, int]:
    """Host and port. Raises ValueError."""
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"{url.geturl()!r} is no http:// or https:// address")
    return url.hostname, url.port or (443 if url.scheme == "https" else 80)

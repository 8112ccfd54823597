"""WebSockets over real sockets whose client does not read: what the server keeps for it is bounded."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from liveedge.api.websocket import WebSocketProtocol
from tests.serving import until

HELLO = (
    b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
FEW_BYTES = 4096  # that the two kernels hold
PING = struct.pack("!BB4x125x", 0x89, 0x80 | 125)  # masked with zeros


class Served:
    """A listening application, and a client that has said hello and reads nothing."""

    def __init__(self, state: ServerState, protocols: list[WebSocketProtocol], client: Any) -> None:
        self.state = state
        self.protocols = protocols
        self.client: socket.socket = client

    @property
    def waiting_bytes(self) -> int:
        return self.protocols[0].transport.get_write_buffer_size()


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[Served]:
    loop = asyncio.get_running_loop()
    config = Config(app, ws=WebSocketProtocol, log_config=None)
    config.load()
    state, protocols = ServerState(), []

    def made() -> WebSocketProtocol:
        protocol = WebSocketProtocol(config, state, {})
        protocol.close_timeout = 0.2
        protocols.append(protocol)
        return protocol

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, FEW_BYTES)
    server = await loop.create_server(made, sock=listener)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, FEW_BYTES)
    client.setblocking(False)
    try:
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, HELLO)
        await until(lambda: bool(protocols))
        yield Served(state, protocols, client)
    finally:
        client.close()
        server.close()
        await until(lambda: not state.connections)


async def leaves_much_unread(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "bytes": bytes(4 << 20)})


async def closes_with_much_unread(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "bytes": bytes(60_000)})
    await send({"type": "websocket.close", "code": 1008})


async def listens(_scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def test_a_socket_that_is_over_is_not_held_by_what_its_client_does_not_read():
    async with served(leaves_much_unread) as it:
        await until(lambda: it.waiting_bytes > 0)
        await until(lambda: not it.state.connections)


async def test_a_goodbye_that_is_not_read_does_not_hold_the_socket():
    async with served(closes_with_much_unread) as it:
        await until(lambda: it.waiting_bytes > 0)
        await until(lambda: not it.state.connections)


async def test_answers_to_pings_that_nobody_reads_are_not_kept():
    loop = asyncio.get_running_loop()
    async with served(listens) as it:
        for _ in range(100):
            await asyncio.wait_for(loop.sock_sendall(it.client, PING * 200), 20)
        assert it.state.connections
        assert it.waiting_bytes < 1 << 20

"""An RTSP server that takes one publisher per path (ANNOUNCE, RECORD) and passes its packets on to
players (DESCRIBE, PLAY), over TCP only: what a media server does, small enough for a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

INTERLEAVED = b"$"


@dataclass
class Place:
    """One path."""

    description: bytes = b""
    players: list[asyncio.StreamWriter] = field(default_factory=list)


class Relay:
    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()

    def end(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._over.set)

    async def serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await self._over.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while first := await reader.read(1):
                if first == INTERLEAVED:
                    await self._packet(reader, writer)
                else:
                    await self._request(first, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for place in self.places.values():
                place.players = [one for one in place.players if one is not writer]
            writer.close()

    async def _packet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(3)
        data = await reader.readexactly(int.from_bytes(head[1:], "big"))
        for place in self.places.values():
            if getattr(writer, "publishes", None) is place:
                for player in place.players:
                    player.write(INTERLEAVED + head + data)

    async def _request(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.strip().split("\r\n")
        method, url, _ = line.split(" ")
        headers = {k.lower(): v for k, v in (one.split(": ", 1) for one in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        place = self.places.setdefault("/" + url.split("/", 4)[3], Place())
        said = {"CSeq": headers["cseq"], "Session": "1"}
        if method == "ANNOUNCE":
            place.description = body
            writer.publishes = place  # type: ignore[attr-defined]
        if method == "SETUP":
            said["Transport"] = headers["transport"]
        if method == "OPTIONS":
            said["Public"] = "OPTIONS, ANNOUNCE, DESCRIBE, SETUP, PLAY, RECORD, TEARDOWN"
        content = place.description if method == "DESCRIBE" else b""
        if content:
            said |= {"Content-Type": "application/sdp", "Content-Base": f"{url}/"}
        said["Content-Length"] = str(len(content))
        answer = "".join(f"{key}: {value}\r\n" for key, value in said.items())
        writer.write(f"RTSP/1.0 200 OK\r\n{answer}\r\n".encode() + content)
        if method == "PLAY":
            place.players.append(writer)


@contextmanager
def rtsp_relay() -> Iterator[Relay]:
    """Runs in a thread of its own."""
    relay, ready = Relay(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(relay.serve(ready)))
    thread.start()
    assert ready.wait(20)
    try:
        yield relay
    finally:
        relay.end()
        thread.join()

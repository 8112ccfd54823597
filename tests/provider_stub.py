"""A server that speaks HTTP on loopback as a test tells it to: an OpenAI-compatible one in any mood.

It counts connections and requests, keeps what it was sent, and knows whether its client has left.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Mood: TypeAlias = "Callable[[Exchange], Awaitable[None]]"


@dataclass
class Exchange:
    """One request, and the way to answer it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(
        self, status: int = 200, kind: str = "text/event-stream", **headers: str
    ) -> None:
        """A body until the connection ends."""
        lines = [f"HTTP/1.1 {status} Mood", f"content-type: {kind}", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def reply(
        self, status: int, body: Any, *, kind: str = "application/json", **headers: str
    ) -> None:
        await self.head(status, kind, **headers)
        await self.send(body if isinstance(body, bytes) else json.dumps(body).encode())

    async def events(self, *chunks: Any, done: bool = True) -> None:
        for one in chunks:
            await self.send(b"data: " + json.dumps(one).encode() + b"\n\n")
        if done:
            await self.send(b"data: [DONE]\n\n")


@dataclass
class Stub:
    """The running server."""

    mood: Mood
    port: int = 0
    asked: list[Exchange] = field(default_factory=list)  # chat completions alone
    n_listed: int = 0
    n_left: int = 0  # requests whose client went away before their answer was complete
    models: Any = None  # the body of GET /models; None: 404
    _n_open: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def n_asked(self) -> int:
        return len(self.asked)

    @property
    def n_open(self) -> int:
        """Connections now."""
        return self._n_open

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._n_open += 1
        try:
            exchange = await _request(reader, writer)
            if exchange is None:
                return
            if exchange.method == "GET":
                self.n_listed += 1
                await exchange.reply(404 if self.models is None else 200, self.models or {})
                return
            self.asked.append(exchange)
            await self._in_mood(exchange, reader)
        except ConnectionError:
            self.n_left += 1
        finally:
            self._n_open -= 1
            writer.close()

    async def _in_mood(self, exchange: Exchange, reader: asyncio.StreamReader) -> None:
        work = asyncio.ensure_future(self.mood(exchange))
        gone = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            self.n_left += 1
            work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


@asynccontextmanager
async def stub(mood: Mood, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Stub]:
    """Serve, in this mood, until the end of the block."""
    served = Stub(mood)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0, limit=1 << 26, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        await server.wait_closed()


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
    method, path, _ = first.split(" ")
    length = int(headers.get("content-length", 0))
    body = json.loads(await reader.readexactly(length)) if length else None
    return Exchange(method, path, headers, body, writer)


def self_signed(path: Path) -> ssl.SSLContext:
    """TLS for 127.0.0.1 with a certificate that nobody vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(pem, *plain) + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


# ── pieces of answers ──


def chunk(delta: dict[str, Any] | None = None, *, reason: str | None = None, index: int = 0) -> Any:
    choice = {"index": index, "delta": delta or {}, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}


def usage(prompt: int = 40, completion: int = 2, **details: int) -> Any:
    spent = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"choices": [], "usage": {**spent, "prompt_tokens_details": details}}


def answer(*words: str, reason: str = "stop") -> list[Any]:
    """A whole answer in chunks."""
    said = [chunk({"content": word}) for word in words]
    return [chunk({"role": "assistant", "content": ""}), *said, chunk(reason=reason), usage()]


def saying(*words: str, reason: str = "stop") -> Mood:
    async def mood(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.events(*answer(*words, reason=reason))

    return mood


def refusing(status: int, body: Any = None, **headers: str) -> Mood:
    async def mood(exchange: Exchange) -> None:
        await exchange.reply(status, body or {"error": {"message": "no"}}, **headers)

    return mood


def in_turn(*moods: Mood) -> Mood:
    """One after the other; the last one stays."""
    left = list(moods)

    async def mood(exchange: Exchange) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(exchange)

    return mood


def sending(*pieces: bytes, then: str = "end", kind: str = "text/event-stream") -> Mood:
    """Raw bytes behind a head; then the end, a dropped connection, or silence."""

    async def mood(exchange: Exchange) -> None:
        await exchange.head(kind=kind)
        for piece in pieces:
            await exchange.send(piece)
        if then == "drop":
            exchange.writer.transport.abort()
        elif then == "silence":
            await asyncio.Event().wait()

    return mood


async def silent(exchange: Exchange) -> None:
    """Reads the request, and nothing more happens."""
    await asyncio.Event().wait()


async def dropping(exchange: Exchange) -> None:
    exchange.writer.transport.abort()


def texts(body: Any) -> Sequence[str]:
    """The texts of the last message that was sent, in order; pictures as their kind."""
    content = body["messages"][-1]["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [p["text"] if p["type"] == "text" else p["type"] for p in parts]

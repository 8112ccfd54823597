"""The least HTTP client that can time a streamed answer: one kept connection, raw bytes.

A comfortable client takes milliseconds of its own on these machines, and eight of them at once take
them one after the other: that would be told as the server's time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

FIRST_WORDS = b'"content":"'  # of the first piece that says something, in the server's writing
NOTHING_SAID = b'"content":""'


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One streamed answer."""

    status: int
    ttft_ms: float  # sending to the first content, or to the end where there is none
    text: str
    usage: Mapping[str, Any]
    evidence: Mapping[str, Any]  # the `liveedge` block
    error: str = ""

    @property
    def cached_tokens(self) -> int:
        details = self.usage.get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens", 0))


class LeanClient:
    """One connection to a server on this machine; one request at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> LeanClient:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave at once, in the middle of an answer too."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def chat(self, body: Mapping[str, Any]) -> bytes:
        """The bytes of a chat request, made before the clock runs."""
        asked = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        return self.post("/v1beta/chat/completions", json.dumps({**asked, **body}).encode())

    def get(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n\r\n".encode()

    def post(self, path: str, data: bytes, content_type: str = "application/json") -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    async def hear(self, request: bytes) -> Heard:
        """Send and read to the end."""
        begun = time.perf_counter()
        reader = await self.send(request)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        body, first_ms = bytearray(), 0.0
        async for piece in _pieces(reader, head):
            body += piece
            if not first_ms and FIRST_WORDS in piece.replace(NOTHING_SAID, b""):
                first_ms = (time.perf_counter() - begun) * 1000
        total_ms = (time.perf_counter() - begun) * 1000
        return _heard(status, bytes(body), first_ms or total_ms)

    async def fetch(self, request: bytes) -> bytes:
        """Send and return the body of the answer."""
        reader = await self.send(request)
        head = await reader.readuntil(b"\r\n\r\n")
        body = b"".join([piece async for piece in _pieces(reader, head)])
        if not head.split(b" ", 2)[1].startswith(b"2"):
            raise SystemExit(f"the server answered {head.split(b' ', 2)[1].decode()}: {body!r}")
        return body

    async def send(self, request: bytes) -> asyncio.StreamReader:
        """Send; the answer is the caller's to read."""
        assert self._reader is not None, "use it in an `async with`"
        if self._reader.at_eof():  # the server ends a connection that was idle for long
            self.close()
            await self._open()
        assert self._writer is not None, "it is closed"
        self._writer.write(request)
        await self._writer.drain()
        return self._reader

    async def _open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)


async def _pieces(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    """The body as it comes, whichever way its length is told."""
    lowered = head.lower()
    if b"transfer-encoding: chunked" in lowered:
        while size := int(await reader.readline(), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return
    marker = b"content-length:"
    if marker in lowered:
        yield await reader.readexactly(int(lowered.split(marker, 1)[1].split(b"\r\n", 1)[0]))
        return
    yield await reader.read()


def _heard(status: int, body: bytes, ttft_ms: float) -> Heard:
    if status != 200 or not body.startswith((b"data:", b":")):
        return Heard(
            status=status,
            ttft_ms=ttft_ms,
            text="",
            usage={},
            evidence={},
            error=body[:300].decode(errors="replace"),
        )
    text, last = "", dict[str, Any]()
    for event in _events(body):
        for choice in event.get("choices", ()):
            text += choice.get("delta", {}).get("content") or ""
        last |= {key: event[key] for key in ("usage", "liveedge", "error") if event.get(key)}
    return Heard(
        status=status,
        ttft_ms=ttft_ms,
        text=text,
        usage=last.get("usage", {}),
        evidence=last.get("liveedge", {}),
        error=str(last.get("error", "")),
    )


def _events(body: bytes) -> Sequence[Mapping[str, Any]]:
    lines = (line for line in body.split(b"\n") if line.startswith(b"data:"))
    datas = (line.removeprefix(b"data:").strip() for line in lines)
    return [json.loads(data) for data in datas if data != b"[DONE]"]

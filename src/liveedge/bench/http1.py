"""HTTP/1.1 answers of one connection, read from bytes in pieces of any size. Pure, and within bounds.

Of our own because the generator may share a machine with what it measures: a stream of 34 pieces takes
0.07 ms of CPU, with h11 0.42 ms (measured on one EPYC core; tests hold the two against each other).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 << 10
MAX_LINE_BYTES = 8 << 10  # of a chunk's size and its extensions
MAX_LENGTH_DIGITS = 18  # of a Content-Length
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")
_NO_BODY = frozenset({204, 304})


class HttpMalformed(Exception):
    """What came is no HTTP/1.1 answer, or ends before its end."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers; names in lower case, repeated ones joined by a comma."""

    status: int
    headers: Mapping[str, str]


class AnswerReader:
    """The bytes of one answer."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.complete = False
        self.reusable = False  # the connection, once complete
        self._keeps = False
        self._rest = b""
        self._left: int | None = None  # of the body or the chunk; None: until the connection ends
        self._read: Callable[[bytes], tuple[bytes, bytes]] = self._head_bytes

    def feed(self, piece: bytes) -> bytes:
        """The bytes of the body that it brings. Raises HttpMalformed."""
        body, rest = [], self._rest + piece if self._rest else piece
        while rest and not self.complete:
            before, read = rest, self._read
            part, rest = read(rest)
            if part:
                body.append(part)
            if rest == before and read == self._read:
                break  # needs more
        if rest and self.complete:
            self.reusable = False  # bytes that nobody asked for
            rest = b""
        self._rest = rest
        return body[0] if len(body) == 1 else b"".join(body)

    def end(self) -> None:
        """The connection has ended. Raises HttpMalformed where that cuts the answer."""
        if self.complete:
            return
        if self.head is None:
            raise HttpMalformed("the connection ended before any status")
        if self._read != self._body_bytes or self._left is not None:
            raise HttpMalformed("the connection ended within the answer")
        self.complete = True

    def _head_bytes(self, data: bytes) -> tuple[bytes, bytes]:
        text, found, rest = data.partition(b"\r\n\r\n")
        if not found:
            if len(data) > MAX_HEAD_BYTES:
                raise HttpMalformed(f"its head is longer than {MAX_HEAD_BYTES} bytes")
            return b"", data
        status, *lines = text.split(b"\r\n")
        match = _STATUS_LINE.fullmatch(status)
        if match is None:
            raise HttpMalformed(f"it begins with {status[:40]!r}: no HTTP/1.1 answer")
        head = Head(int(match[2]), _headers(lines))
        if 100 <= head.status < 200:
            return b"", rest  # the real one comes after it
        self.head = head
        said = {token.strip() for token in head.headers.get("connection", "").lower().split(",")}
        self._keeps = "close" not in said and (match[1] == b"1" or "keep-alive" in said)
        self._frame(head)
        return b"", rest

    def _frame(self, head: Head) -> None:
        """How the body ends."""
        length = head.headers.get("content-length")
        if head.status in _NO_BODY:
            self._end()
        elif "chunked" in head.headers.get("transfer-encoding", "").lower():
            self._read = self._size_bytes
        elif length is None:
            self._read, self._keeps = self._body_bytes, False
        elif not length.isdecimal() or len(length) > MAX_LENGTH_DIGITS:
            raise HttpMalformed(f"its Content-Length is {length[:40]!r}")
        else:
            self._read, self._left = self._body_bytes, int(length)
            if not self._left:
                self._end()

    def _body_bytes(self, data: bytes) -> tuple[bytes, bytes]:
        if self._left is None:
            return data, b""
        part, rest = data[: self._left], data[self._left :]
        self._left -= len(part)
        if not self._left:
            self._end()
        return part, rest

    def _size_bytes(self, data: bytes) -> tuple[bytes, bytes]:
        line, rest = _line(data)
        if line is None:
            return b"", data
        match = _SIZE.fullmatch(line)
        if match is None:
            raise HttpMalformed(f"the size of a chunk is {line[:40]!r}")
        self._left = int(match[1], 16)
        self._read = self._chunk_bytes if self._left else self._trailer_bytes
        return b"", rest

    def _chunk_bytes(self, data: bytes) -> tuple[bytes, bytes]:
        assert self._left is not None
        if self._left:
            part, rest = data[: self._left], data[self._left :]
            self._left -= len(part)
            return part, rest
        if len(data) < len(b"\r\n"):
            return b"", data
        if not data.startswith(b"\r\n"):
            raise HttpMalformed("a chunk is longer than its size")
        self._read = self._size_bytes
        return b"", data[2:]

    def _trailer_bytes(self, data: bytes) -> tuple[bytes, bytes]:
        line, rest = _line(data)
        if line is None:
            return b"", data
        if not line:
            self._end()
        return b"", rest

    def _end(self) -> None:
        self.complete = True
        self.reusable = self._keeps


def _line(data: bytes) -> tuple[bytes | None, bytes]:
    line, found, rest = data.partition(b"\r\n")
    if found:
        return line, rest
    if len(data) > MAX_LINE_BYTES:
        raise HttpMalformed(f"a line is longer than {MAX_LINE_BYTES} bytes")
    return None, data


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not name.strip():
            raise HttpMalformed(f"a header of its answer is {line[:40]!r}")
        key, value = name.strip().lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers

"""RTSP as bytes: requests out, and what a camera sends in: answers, and packets between them.

Everything a camera sends stands in one buffer of fixed size. Packets are handed on as places in it,
without a copy; messages are bounded, and what is neither ends the connection.

Pure: no socket, no clock. Hostile bytes raise `NotRtsp` at worst.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

BUFFER_BYTES = 256 << 10  # half a second of a 720p camera; the largest packet has 64 kB
MAX_HEAD_BYTES = 16 << 10  # of one message: status line and headers
MAX_BODY_BYTES = 64 << 10  # descriptions have 1 kB
_MIN_ROOM_BYTES = 32 << 10  # to read into, before the rest is moved to the front
_MAX_LENGTH_DIGITS = 9

_DOLLAR = 0x24  # in front of a packet between messages
_FRAME = struct.Struct("!BBH")
_HEAD_END = re.compile(rb"\n\r?\n")
_STATUS_LINE = re.compile(r"RTSP/\d\.\d ([1-5]\d\d)(?: .*)?")
_REQUEST_LINE = re.compile(r"([A-Z_]+) \S+ RTSP/\d\.\d")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class NotRtsp(Exception):
    """What came is neither a message nor a packet, or larger than any camera's."""


@dataclass(frozen=True, slots=True)
class Message:
    """An answer of the camera, or a request of its own (then `status` is None)."""

    status: int | None
    method: str
    headers: tuple[tuple[str, str], ...]  # names in small letters
    body: bytes = b""

    def header(self, name: str) -> str:
        """The first of this name; empty if there is none."""
        return next((value for key, value in self.headers if key == name), "")

    def all_of(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


class PacketTaker(Protocol):
    """Where the packets of one channel go."""

    @property
    def is_holding(self) -> bool:
        """Whether it still refers to places in the buffer."""
        ...

    def packet(self, view: memoryview, at: int, end: int) -> None:
        """The packet that stands in `view[at:end]`, until `settle` or until nothing is held."""
        ...

    def settle(self) -> None:
        """Copy what is held: the buffer is about to be used again."""
        ...


class Inbox:
    """What a camera has sent and nobody has taken yet. One thread."""

    def __init__(self) -> None:
        self.channel: int | None = None  # whose packets are handed on; the others are skipped
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._at = 0
        self._end = 0

    def room(self) -> memoryview:
        """Where the next bytes go; never empty after `take` gave None."""
        return self._view[self._end :]

    def filled(self, n_bytes: int) -> None:
        """So many bytes were put there."""
        self._end += n_bytes

    def take(self, taker: PacketTaker) -> Message | None:
        """Hand on packets up to the next message. None: more bytes are needed."""
        buffer, view, channel = self._buffer, self._view, self.channel
        at, end = self._at, self._end
        while end - at >= _FRAME.size:
            dollar, its_channel, size = _FRAME.unpack_from(buffer, at)
            if dollar != _DOLLAR:
                self._at = at
                message = self._message()
                if message is not None:
                    return message
                if self._at == at:
                    break
                at = self._at  # only line ends stood there
                continue
            after = at + _FRAME.size + size
            if after > end:
                break
            if its_channel == channel:
                taker.packet(view, at + _FRAME.size, after)
            at = after
        self._at = at
        self._make_room(taker)
        return None

    def _make_room(self, taker: PacketTaker) -> None:
        n_left = self._end - self._at
        if n_left == 0 and not taker.is_holding:
            self._at = self._end = 0
        elif BUFFER_BYTES - self._end < _MIN_ROOM_BYTES:
            taker.settle()
            self._buffer[:n_left] = self._buffer[self._at : self._end]
            self._at, self._end = 0, n_left

    def _message(self) -> Message | None:
        """The message that begins here, once it is whole."""
        buffer, end = self._buffer, self._end
        while self._at < end and buffer[self._at] in b"\r\n":  # some end their messages twice
            self._at += 1
        at = self._at
        if at == end or buffer[at] == _DOLLAR:
            return None
        if not 0x41 <= buffer[at] <= 0x5A:  # every message begins with a capital
            raise NotRtsp
        found = _HEAD_END.search(buffer, at, min(end, at + MAX_HEAD_BYTES))
        if found is None:
            if end - at >= MAX_HEAD_BYTES:
                raise NotRtsp
            return None
        message = read_head(bytes(buffer[at : found.start()]))
        after = found.end() + _body_bytes(message)
        if after > end:
            return None
        self._at = after
        return Message(
            message.status, message.method, message.headers, bytes(buffer[found.end() : after])
        )


def read_head(head: bytes) -> Message:
    """The status line and headers of a message, without the empty line. Raises `NotRtsp`."""
    lines = [line.rstrip("\r") for line in head.decode("latin-1").split("\n")]
    status: int | None = None
    method = ""
    if answer := _STATUS_LINE.fullmatch(lines[0].rstrip()):
        status = int(answer[1])
    elif request := _REQUEST_LINE.fullmatch(lines[0].rstrip()):
        method = request[1]
    else:
        raise NotRtsp
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers.append((name.strip().lower(), _CONTROL.sub("", value).strip()))
    return Message(status, method, tuple(headers))


def _body_bytes(message: Message) -> int:
    text = message.header("content-length")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_LENGTH_DIGITS:
        raise NotRtsp
    size = int(text)
    if size > MAX_BODY_BYTES:
        raise NotRtsp
    return size


def request(method: str, url: str, headers: Sequence[tuple[str, str]]) -> bytes:
    """A request without a body."""
    lines = [f"{method} {url} RTSP/1.0", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace")


def refusal_of(asked: Message) -> bytes:
    """The answer to a request of the camera: nothing that it may ask for is done here."""
    return f"RTSP/1.0 501 Not Implemented\r\nCSeq: {asked.header('cseq')}\r\n\r\n".encode(
        "latin-1", "replace"
    )

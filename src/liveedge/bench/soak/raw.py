"""HTTP by hand, for clients that no library would make: they leave, or read next to nothing."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
CHAT = "/v1beta/chat/completions"
# Keeps a small model talking: no answer ends before its tokens do.
ENDLESS = {
    "type": "json_schema",
    "json_schema": {
        "name": "story",
        "schema": {
            "type": "object",
            "properties": {"story": {"type": "string", "minLength": 20000}},
            "required": ["story"],
        },
    },
}


def connect(url: str, *, receive_bytes: int | None = None) -> socket.socket:
    """A connection; with `receive_bytes` it takes in no more than about so much unread."""
    parts = urlsplit(url)
    made = socket.socket()
    made.settimeout(TIMEOUT_S)
    if receive_bytes is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        made.connect((parts.hostname, parts.port or 80))
    except OSError:
        made.close()
        raise
    return made


def request(url: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
    """A whole request; the server closes when it has answered."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: close\r\n"
    if body is None:
        return head.encode() + b"\r\n"
    data = json.dumps(body).encode()
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def reset_at_close(connection: socket.socket) -> None:
    """Closing it will be a reset, as of a machine that is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    """What came, up to `wanted` or the end."""
    heard = b""
    while wanted not in heard:
        piece = connection.recv(65536)
        if not piece:
            break
        heard += piece
    return heard


def status_of(heard: bytes) -> int:
    """Of an answer; 0 where there is none."""
    words = heard.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

"""Requests that no honest client sends: each must be refused or answered, and cost nothing that stays."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

CHAT = "/v1beta/chat/completions"


@dataclass(frozen=True, slots=True)
class Attack:
    """A name and what is sent."""

    name: str
    body: bytes = field(repr=False)


def attacks(model: str) -> Sequence[Attack]:
    """One of each kind; the same every time."""
    chance = random.Random(0)
    png = _png(64, 48)
    noise = chance.randbytes(20_000)
    pictures = {
        "a header of 30,000 x 30,000": _header_only(30_000, 30_000),
        "4,000 x 4,000 in a few KB": _png(4000, 4000),
        "a picture cut short": png[: len(png) // 2],
        "bytes that are no picture": noise,
        "one pixel": _png(1, 1),
        "one pixel wide": _png(1, 150),
        "longer than any model takes": _png(3, 999),
        "an odd size": _png(333, 17),
    }
    urls = {name: _data_url("image/png", data) for name, data in pictures.items()}
    urls["broken base64"] = "data:image/png;base64,@@@=" + "A" * 999
    chats = {name: _chat(model, _image(url)) for name, url in urls.items()}
    chats["a clip that is none"] = _chat(
        model, {"type": "video_url", "video_url": {"url": _data_url("video/mp4", noise)}}
    )
    chats["two megabytes of text"] = _chat(model, {"type": "text", "text": "door " * 400_000})
    chats["a thousand pictures"] = _chat(model, *[_image(urls["one pixel"])] * 1000)
    bodies = {name: json.dumps(chat).encode() for name, chat in chats.items()}
    bodies["no JSON"] = b"{" * 1000
    bodies["nested without end"] = b'{"messages":' + b"[" * 100_000
    return [Attack(name, body) for name, body in bodies.items()]


def _chat(model: str, *parts: dict[str, Any]) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": "Is the door open?"}]
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_completion_tokens": 4,
    }


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 60)).save(out, "PNG")
    return out.getvalue()


def _header_only(width: int, height: int) -> bytes:
    """A PNG whose pixels would take gigabytes, and that has none of them."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 1000)
    chunks = b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in (header, data, b"IEND")
    )
    return b"\x89PNG\r\n\x1a\n" + chunks

"""Uploads that nobody honest sends: each is to be refused or answered, and to cost nothing that stays."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from PIL import Image

from liveedge.bench.soak.place import Act, Place
from liveedge.bench.soak.raw import CHAT

TIMEOUT_S = 60.0
FILL_TIMEOUT_S = 120.0
FILL_CLIENTS = 6  # more than the server has workers for uploads
JSON_TYPE = {"Content-Type": "application/json"}


def attack_on(place: Place) -> None:
    """One after the other, until the run is over."""
    bodies = attacks(place.model)
    names = list(bodies)
    with httpx.Client(base_url=place.url, trust_env=False, timeout=TIMEOUT_S) as http:
        for number in place.ticks("hostile", place.options.hostile_every_s):
            name = names[number % len(names)]
            act = Act(place, "hostile", number, name=name)
            try:
                status = http.post(CHAT, content=bodies[name], headers=JSON_TYPE).status_code
            except httpx.HTTPError as error:
                act.done(ok=False, status=0, error=repr(error)[:200])
            else:
                act.done(ok=_is_refused_or_answered(status), status=status)


def fill_pools(place: Place) -> None:
    """Every upload once from each of several clients at once: threads start, pools and heaps take the
    size that they keep. It is no part of what is measured, but none of it may fail either."""
    with ThreadPoolExecutor(FILL_CLIENTS, thread_name_prefix="soak-fill") as pool:
        for done in [pool.submit(_attack_once, place, n) for n in range(FILL_CLIENTS)]:
            done.result()


def _attack_once(place: Place, number: int) -> None:
    with httpx.Client(base_url=place.url, trust_env=False, timeout=FILL_TIMEOUT_S) as http:
        for name, body in attacks(place.model).items():
            act = Act(place, "fill", number, name=name)
            try:
                status = http.post(CHAT, content=body, headers=JSON_TYPE).status_code
            except httpx.HTTPError as error:
                act.done(ok=False, status=0, error=repr(error)[:200])
            else:
                act.done(ok=_is_refused_or_answered(status), status=status)


def _is_refused_or_answered(status: int) -> bool:
    """A deadline is one too: some of these keep a busy machine for longer than that."""
    return status < httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.GATEWAY_TIMEOUT


def attacks(model: str) -> Mapping[str, bytes]:
    """The body of each, by name; the same every time."""
    noise = random.Random(0).randbytes(20_000)
    png = _png(64, 48)
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
    clip = {"type": "video_url", "video_url": {"url": _data_url("video/mp4", noise)}}
    chats["a clip that is none"] = _chat(model, clip)
    chats["two megabytes of text"] = _chat(model, {"type": "text", "text": "door " * 400_000})
    chats["a thousand pictures"] = _chat(model, *[_image(urls["one pixel"])] * 1000)
    bodies = {name: json.dumps(chat).encode() for name, chat in chats.items()}
    bodies["no JSON"] = b"{" * 1000
    bodies["nested without end"] = b'{"messages":' + b"[" * 100_000
    return bodies


def _chat(model: str, *parts: dict[str, Any]) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": "Is the door open?"}]
    messages = [{"role": "user", "content": content}]
    return {"model": model, "messages": messages, "max_completion_tokens": 4}


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

"""Pictures and clips as `data:` URLs, in the dialects that servers read.

A clip is a list of JPEGs in one URL, or an AVI of them (Motion JPEG, uncompressed headers written
here), which any FFmpeg reads; its frames are evenly spaced at the rate that was asked for.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any

_KEY_FRAME = 0x10
_HAS_INDEX = 0x10


def image_part(encoded: str, *, quality: int) -> dict[str, Any]:
    kind = "jpeg" if quality else "png"
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{encoded}"}}


def video_part(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def jpegs_url(encoded: Sequence[str]) -> str:
    return f"data:video/jpeg;base64,{','.join(encoded)}"


def avi_url(encoded: Sequence[str], size: tuple[int, int], fps: float) -> str:
    data = avi([base64.b64decode(one) for one in encoded], size, fps)
    return f"data:video/x-msvideo;base64,{base64.b64encode(data).decode()}"


def avi(jpegs: Sequence[bytes], size: tuple[int, int], fps: float) -> bytes:
    """A Motion-JPEG AVI; `size` is (width, height)."""
    frames = [_chunk(b"00dc", jpeg) for jpeg in jpegs]
    index, at = [], 4
    for jpeg, chunk in zip(jpegs, frames, strict=True):
        index.append(struct.pack("<4s3I", b"00dc", _KEY_FRAME, at, len(jpeg)))
        at += len(chunk)
    headers = _list(b"hdrl", _main_header(jpegs, size, fps), _stream(jpegs, size, fps))
    body = headers + _list(b"movi", *frames) + _chunk(b"idx1", b"".join(index))
    return _chunk(b"RIFF", b"AVI " + body)


def _main_header(jpegs: Sequence[bytes], size: tuple[int, int], fps: float) -> bytes:
    largest = max(map(len, jpegs))
    numbers = (round(1e6 / fps), 0, 0, _HAS_INDEX, len(jpegs), 0, 1, largest, *size, 0, 0, 0, 0)
    return _chunk(b"avih", struct.pack("<14I", *numbers))


def _stream(jpegs: Sequence[bytes], size: tuple[int, int], fps: float) -> bytes:
    width, height = size
    largest = max(map(len, jpegs))
    head = struct.pack("<4s4sIHHI", b"vids", b"MJPG", 0, 0, 0, 0)
    head += struct.pack("<6I", 1000, round(fps * 1000), 0, len(jpegs), largest, 0xFFFFFFFF)
    head += struct.pack("<I4H", 0, 0, 0, width, height)
    picture = struct.pack("<IiiHH4sIiiII", 40, width, height, 1, 24, b"MJPG", 3 * width * height, 0, 0, 0, 0)  # fmt: skip
    return _list(b"strl", _chunk(b"strh", head), _chunk(b"strf", picture))


def _list(kind: bytes, *chunks: bytes) -> bytes:
    return _chunk(b"LIST", kind + b"".join(chunks))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data + b"\x00" * (len(data) % 2)

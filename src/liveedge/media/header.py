"""Kind and size of a picture, read from its first bytes: nothing is allocated or decoded.

A library that opens a file may already allocate by what the header claims; this looks first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

PictureKind: TypeAlias = Literal["JPEG", "PNG", "WebP", "GIF", "BMP"]

_SIZELESS_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})  # TEM, RST0..7, SOI: no length follows
_MAX_SEGMENTS = 1024  # of a JPEG that are looked at: more than `structure.py` allows
_SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0..15 without DHT, JPG, DAC


@dataclass(frozen=True, slots=True)
class PictureHeader:
    """What the first bytes say."""

    kind: PictureKind
    width: int  # as stored: an orientation tag may swap the sides
    height: int


def read_header(data: bytes) -> PictureHeader | None:
    """None: not a picture of a known kind, or cut off before its size."""
    for magic, read in _READERS:
        if data.startswith(magic):
            return read(data)
    return None


def _png(data: bytes) -> PictureHeader | None:
    if data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return PictureHeader("PNG", _big(data[16:20]), _big(data[20:24]))


def _gif(data: bytes) -> PictureHeader | None:
    if len(data) < 10:
        return None
    return PictureHeader("GIF", _little(data[6:8]), _little(data[8:10]))


def _bmp(data: bytes) -> PictureHeader | None:
    if len(data) < 26:
        return None
    if _little(data[14:18]) == 12:  # the OS/2 header has 16-bit sides
        return PictureHeader("BMP", _little(data[18:20]), _little(data[20:22]))
    width, height = (int.from_bytes(data[i : i + 4], "little", signed=True) for i in (18, 22))
    return PictureHeader("BMP", abs(width), abs(height))  # a negative height means top-down rows


def _webp(data: bytes) -> PictureHeader | None:
    if data[8:12] != b"WEBP" or len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8X":
            return PictureHeader("WebP", _little(data[24:27]) + 1, _little(data[27:30]) + 1)
        case b"VP8L":
            bits = _little(data[21:25])
            return PictureHeader("WebP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8 ":
            return PictureHeader(
                "WebP", _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF
            )
        case _:
            return None


def _jpeg(data: bytes) -> PictureHeader | None:
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if at + 9 > len(data) or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker in _SIZELESS_MARKERS:
            at += 2
        elif marker in _SIZE_MARKERS:
            return PictureHeader("JPEG", _big(data[at + 7 : at + 9]), _big(data[at + 5 : at + 7]))
        else:
            at += 2 + _big(data[at + 2 : at + 4])
    return None


def _big(field: bytes) -> int:
    return int.from_bytes(field, "big")


def _little(field: bytes) -> int:
    return int.from_bytes(field, "little")


_READERS: tuple[tuple[bytes, Callable[[bytes], PictureHeader | None]], ...] = (
    (b"\xff\xd8\xff", _jpeg),
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"RIFF", _webp),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"BM", _bmp),
)

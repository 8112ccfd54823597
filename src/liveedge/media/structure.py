"""How the file of a picture is built, judged before a library walks through it: pure, a few ms.

A picture of few pixels and few bytes may still keep a decoder busy for minutes: by thousands of
passes over the same pixels, or by millions of empty pieces. No camera and no program writes such.
The bounds here are several times what they write.
"""

from __future__ import annotations

from collections.abc import Callable

from liveedge.media.header import PictureKind

MAX_SEGMENTS = 512  # in front of a JPEG's pixels: colour profiles and depth maps take some dozens
USUAL_SCANS = 24  # of a progressive JPEG: encoders write 10 to 16; a thumbnail in it has its own
MAX_SCANNED_PIXELS = 400_000_000  # beyond those: a second of work
MAX_CHUNKS = 8192  # of a PNG, without its size: an animation has two per frame
LEAST_CHUNK_BYTES = 2048  # on average, beyond those
MAX_EXTENSIONS = 256  # in front of a GIF's first picture
MAX_PREAMBLE_BYTES = 1 << 20  # of those

_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})  # no length follows
_START_OF_SCAN = 0xDA
_RLE = (1, 2)  # compression of a BMP, which Pillow undoes in Python, pixel by pixel


def excess_of(kind: PictureKind, data: bytes, *, n_pixels: int) -> str | None:
    """What the file has too much of; None if it is built like others."""
    judge = _JUDGES.get(kind)
    return None if judge is None else judge(data, n_pixels)


def _jpeg(data: bytes, n_pixels: int) -> str | None:
    at = 2
    for _ in range(MAX_SEGMENTS):
        if at + 4 > len(data) or data[at] != 0xFF or data[at + 1] == _START_OF_SCAN:
            break
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _BARE_MARKERS:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    else:
        return f"more than {MAX_SEGMENTS} segments in front of its pixels"
    n_scans = data.count(b"\xff\xda")
    if n_scans > USUAL_SCANS and n_scans * n_pixels > MAX_SCANNED_PIXELS:
        return f"{n_scans} scans of its pixels; save it with fewer"
    return None


def _png(data: bytes, _n_pixels: int) -> str | None:
    at = 8
    for _ in range(MAX_CHUNKS + len(data) // LEAST_CHUNK_BYTES):
        if at + 8 > len(data) or data[at + 4 : at + 8] == b"IEND":
            return None
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return "many thousand tiny chunks"


def _gif(data: bytes, _n_pixels: int) -> str | None:
    if len(data) < 13:
        return None
    at = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    end = at + MAX_PREAMBLE_BYTES
    n_extensions = 0
    while at < min(len(data), end) and data[at] == 0x21:
        n_extensions += 1
        if n_extensions > MAX_EXTENSIONS:
            return f"more than {MAX_EXTENSIONS} extensions in front of its first picture"
        at += 2
        while at < min(len(data), end) and data[at]:
            at += 1 + data[at]
        at += 1
    if at >= end:
        return f"more than {MAX_PREAMBLE_BYTES} bytes in front of its first picture"
    return None


def _bmp(data: bytes, _n_pixels: int) -> str | None:
    is_long = int.from_bytes(data[14:18], "little") != 12
    if is_long and int.from_bytes(data[30:34], "little") in _RLE:
        return "run-length encoding, which is not read; save it as PNG"
    return None


_JUDGES: dict[PictureKind, Callable[[bytes, int], str | None]] = {
    "JPEG": _jpeg,
    "PNG": _png,
    "GIF": _gif,
    "BMP": _bmp,
}

"""Pictures as no honest client sends them, or as careless ones do: cases 1 to 6, as bytes and URLs."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
TURNS: Mapping[int, Image.Transpose | None] = {  # what undoes each tag's turn
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
TINY = ((1, 1), (2, 2), (26, 28), (27, 257), (332, 27), (305, 30), (31, 31))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def plain(colour: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (64, 48)) -> bytes:
    return encoded(Image.new("RGB", size, colour), "PNG")


def striped(colour: tuple[int, int, int], size: tuple[int, int]) -> bytes:
    """Of one colour with a bar at the left and a narrower one at the top."""
    image = Image.new("RGB", size, colour)
    image.paste("white", (0, 0, size[0] // 5, size[1]))
    image.paste("black", (0, 0, size[0], size[1] // 9))
    return encoded(image, "PNG")


# Case 1


def flagged() -> Image.Image:
    """640x480, red on the left, green at the bottom: no turn or mirror looks the same."""
    image = Image.new("RGB", (640, 480), "white")
    image.paste("red", (0, 0, 80, 480))
    image.paste("green", (0, 420, 640, 480))
    return image


def turned(kind: str) -> dict[int, bytes]:
    """The flagged picture as stored under each of the eight tags."""
    found = {}
    for orientation, turn in TURNS.items():
        tag = Image.Exif()
        tag[0x0112] = orientation
        stored = flagged() if turn is None else flagged().transpose(turn)
        lossless = {"lossless": True} if kind == "WEBP" else {}
        found[orientation] = encoded(stored, kind, exif=tag, **lossless)
    return found


# Case 2


def modes() -> dict[str, bytes]:
    """One picture of each mode that files come in."""
    rgb = Image.fromarray(gradient(96, 64))
    found = {mode: encoded(rgb.convert(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGBA")}
    found["P with transparency"] = encoded(rgb.convert("P"), "PNG", transparency=0)
    found["I;16"] = encoded(Image.fromarray(np.full((64, 96), 30_000, np.uint16)), "PNG")
    found["CMYK"] = encoded(rgb.convert("CMYK"), "JPEG")
    found["YCCK"] = found["CMYK"].replace(
        b"Adobe\x00\x64\x00\x00\x00\x00\x00", b"Adobe\x00\x64\x00\x00\x00\x00\x02"
    )
    found["RGB"] = encoded(rgb, "PNG")
    return found


def gradient(width: int, height: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=2).astype(np.uint8)


# Case 3


def one_colour_png(width: int, height: int, *, n_frames: int = 1) -> bytes:
    """A black PNG of one bit per pixel, or an APNG, made without holding its pixels."""
    coder = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    body = [coder.compress(row * 64) for _ in range(height // 64)]
    data = b"".join([*body, coder.compress(row * (height % 64)), coder.flush()])
    parts = [PNG_MAGIC, _header(width, height)]
    if n_frames > 1:
        parts += [_chunk(b"acTL", struct.pack(">II", n_frames, 0)), _frame(0, width, height)]
    parts.append(_chunk(b"IDAT", data))
    for i in range(1, n_frames):
        parts.append(_frame(2 * i - 1, width, height))
        parts.append(_chunk(b"fdAT", struct.pack(">I", 2 * i) + data))
    return b"".join([*parts, _chunk(b"IEND", b"")])


def header_only(width: int, height: int) -> bytes:
    return PNG_MAGIC + _header(width, height)


def gif(width: int, height: int, *, n_frames: int) -> bytes:
    """A GIF whose every frame fills the screen."""
    still = encoded(Image.new("P", (width, height), 1), "GIF")
    start = 13 + 3 * (2 << (still[10] & 7))
    return still[:start] + still[start:-1] * n_frames + b";"


def busy_files() -> dict[str, bytes]:
    """Few pixels, few bytes, and minutes of work for a decoder that takes them as they are."""
    jpeg = encoded(Image.new("L", (1600, 1200), 128), "JPEG", progressive=True)
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    small, png = encoded(Image.new("RGB", (64, 48)), "JPEG"), plain()
    rows = 7000
    dib = struct.pack("<IiiHHIIiiII", 40, rows, rows, 1, 8, 1, 0, 0, 0, 256, 0)
    body = dib + bytes(1024) + b"\x01\x01\0\0" * rows
    return {
        "JPEG of 100,000 scans": jpeg[:-2] + scan * 100_000 + jpeg[-2:],
        "JPEG of a million segments": small[:2] + b"\xff\xfe\x00\x02" * 1_000_000 + small[2:],
        "PNG of 300,000 chunks": png[:33] + _chunk(b"teSt", b"") * 300_000 + png[33:],
        "BMP of run lengths": b"BM" + struct.pack("<IHHI", 14 + len(body), 0, 0, 1078) + body,
    }


# Case 6


def dialects(data: bytes) -> dict[str, str]:
    """URLs of the same picture as clients write them."""
    text = base64.b64encode(data).decode()
    wrapped = "\r\n".join(text[i : i + 76] for i in range(0, len(text), 76))
    safe = text.replace("+", "-").replace("/", "_")
    percent = "".join(f"%{byte:02x}" for byte in text.encode())
    return {
        "line breaks": f"data:image/png;base64,{wrapped}",
        "upper-case scheme": f"DATA:image/png;base64,{text}",
        "charset": f"data:image/png;charset=x;base64,{text}",
        "no type": f"data:;base64,{text}",
        "no padding": f"data:image/png;base64,{text.rstrip('=')}",
        "URL-safe": f"data:image/png;base64,{safe}",
        "percent-encoded": f"data:image/png;base64,{percent}",
        "another type": f"data:image/jpeg;base64,{text}",
    }


def no_pictures(data: bytes) -> dict[str, str]:
    """URLs that hold none."""
    return {
        "empty": "",
        "no data": "data:image/png;base64,",
        "bare base64": base64.b64encode(data).decode(),
        "garbage": "data:image/png;base64,!!!!",
        "text": "data:text/plain,hello",
        "another scheme": "file:///etc/passwd",
    }


def _header(width: int, height: int) -> bytes:
    return _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))


def _frame(sequence: int, width: int, height: int) -> bytes:
    fields = struct.pack(">IIIIIHHBB", sequence, width, height, 0, 0, 1, 10, 0, 0)
    return _chunk(b"fcTL", fields)


def _chunk(name: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(name + body)
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", checksum)

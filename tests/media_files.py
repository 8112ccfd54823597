"""Pictures and videos made on the spot, with a number in every frame that survives compression."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from liveedge.sim.clockcode import CodeReading, read_code, write_code

Rgb = NDArray[np.uint8]
TIME_BASE = Fraction(1, 90_000)


def numbered(number: int, *, width: int = 320, height: int = 240) -> Rgb:
    """A moving pattern with `number` burned in; `number_of` reads it."""
    x = np.arange(width)[None, :]
    y = np.arange(height)[:, None]
    rgb = np.empty((height, width, 3), dtype=np.uint8)
    rgb[..., 0] = (x + 5 * number) % 256
    rgb[..., 1] = (y * 2) % 256
    rgb[..., 2] = (x // 4 + y // 4 + number) % 256
    write_code(rgb, CodeReading(number, number, number))
    return rgb


def number_of(rgb: Rgb) -> int | None:
    reading = read_code(rgb)
    return None if reading is None else reading.frame_number


def encode_video(
    frames: Iterable[tuple[float, Rgb]],
    *,
    codec: str = "libx264",
    container: str = "mp4",
    gop: int = 250,
    pix_fmt: str = "yuv420p",
    **options: str,
) -> bytes:
    """A video of (time in s, picture). All pictures have the size of the first."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream: Any = None
        for time_s, rgb in frames:
            if stream is None:
                stream = file.add_stream(codec, rate=30, options=_options(codec, gop, options))
                stream.height, stream.width = rgb.shape[:2]
                stream.pix_fmt = pix_fmt
                stream.codec_context.time_base = TIME_BASE
            file.mux(stream.encode(_frame(time_s, rgb)))
        file.mux(stream.encode())
    return out.getvalue()


def encode_numbered(n_frames: int, *, fps: float = 30.0, **options: Any) -> bytes:
    size = {key: options.pop(key) for key in ("width", "height") if key in options}
    return encode_video(((n / fps, numbered(n, **size)) for n in range(n_frames)), **options)


def encode_changing(
    segments: Sequence[tuple[Sequence[Rgb], str]], *, fps: float = 30.0, rotate: Sequence[int] = ()
) -> bytes:
    """An MPEG-TS in which each segment (pictures, pixel format) has its own size and format.

    `rotate[i]` puts a display orientation (degrees counter-clockwise) on segment i, in the bitstream.
    """
    out = io.BytesIO()
    n = 0
    with av.open(out, "w", format="mpegts") as file:
        stream: Any = file.add_stream("libx264", rate=30)
        stream.height, stream.width = segments[0][0][0].shape[:2]
        for i, (pictures, pix_fmt) in enumerate(segments):
            coder: Any = av.CodecContext.create("libx264", "w")
            coder.height, coder.width = pictures[0].shape[:2]
            coder.pix_fmt = pix_fmt
            coder.time_base = TIME_BASE
            coder.framerate = Fraction(30)
            coder.options = _options("libx264", 250, {})
            degrees = rotate[i] if i < len(rotate) else 0
            packets = [
                packet
                for k, rgb in enumerate(pictures)
                for packet in coder.encode(_frame((n + k) / fps, rgb, pix_fmt))
            ]
            packets += coder.encode(None)
            for packet in _oriented(packets, degrees):
                packet.stream = stream
                packet.time_base = TIME_BASE
                file.mux(packet)
            n += len(pictures)
    return out.getvalue()


def _oriented(packets: list[Any], degrees: int) -> list[Any]:
    if not degrees:
        return packets
    how = f"h264_metadata=display_orientation=insert:rotate={degrees}"
    stamper = av.bitstream.BitStreamFilterContext(how, "h264")
    return [done for packet in packets for done in stamper.filter(packet)]


def with_rotation(mp4: bytes, degrees: int) -> bytes:
    """The MP4 with a display matrix: to be shown turned clockwise by `degrees`."""
    a, b, c, d = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}[degrees]
    at = mp4.index(b"tkhd") + 4 + 40  # version 0
    one = 1 << 16
    matrix = struct.pack(">9i", a * one, b * one, 0, c * one, d * one, 0, 0, 0, 1 << 30)
    return mp4[:at] + matrix + mp4[at + 36 :]


def packets_of(video: bytes) -> list[tuple[float, int, int]]:
    """(time in s, offset in the file, size) of every packet, in file order."""
    with av.open(io.BytesIO(video), "r") as file:
        stream = file.streams.video[0]
        return [
            (float(p.pts * p.time_base), int(p.pos or 0), p.size)
            for p in file.demux(stream)
            if p.size and p.pts is not None
        ]


def flip(data: bytes, at: int, n_bytes: int = 200) -> bytes:
    """The data with `n_bytes` inverted from `at`."""
    middle = bytes(byte ^ 0xFF for byte in data[at : at + n_bytes])
    return data[:at] + middle + data[at + n_bytes :]


def png(width: int, height: int, *, n_frames: int = 1) -> bytes:
    """A black PNG (1 bit per pixel), or an APNG, made without holding its pixels."""
    coder = zlib.compressobj(1)
    row = bytes(1 + (width + 7) // 8)
    rows = row * 64
    body = [coder.compress(rows) for _ in range(height // 64)]
    body += [coder.compress(row * (height % 64)), coder.flush()]
    idat = b"".join(body)
    parts = [b"\x89PNG\r\n\x1a\n", png_header(width, height)]
    if n_frames > 1:
        parts.append(chunk(b"acTL", struct.pack(">II", n_frames, 0)))
        parts.append(_frame_control(0, width, height))
    parts.append(chunk(b"IDAT", idat))
    for i in range(1, n_frames):
        parts.append(_frame_control(2 * i - 1, width, height))
        parts.append(chunk(b"fdAT", struct.pack(">I", 2 * i) + idat))
    return b"".join([*parts, chunk(b"IEND", b"")])


def grey_jpeg(width: int, height: int) -> bytes:
    """A real grey JPEG of any size, whose pixels nobody ever held: 6 bits for 64 of them."""
    small = encode_image(Image.new("L", (8, 8), 128), "JPEG")
    head = bytearray(small[: small.index(b"\xff\xda") + 10])
    struct.pack_into(">HH", head, head.index(b"\xff\xc0") + 5, height, width)
    n_blocks = -(-width // 8) * -(-height // 8)
    # In the standard tables: 00 for "as bright as the block before", 1010 for "nothing else".
    four_blocks = 0b001010_001010_001010_001010.to_bytes(3, "big")
    return bytes(head) + four_blocks * (n_blocks // 4 + 1) + b"\xff\xd9"


def jpeg_clip(pictures: Sequence[bytes], *, width: int, height: int) -> bytes:
    """An AVI of JPEGs that claims frames of `width` x `height`."""
    out = io.BytesIO()
    with av.open(out, "w", format="avi") as file:
        track: Any = file.add_stream("mjpeg", rate=30)
        track.width, track.height, track.pix_fmt = width, height, "yuvj420p"
        for n, picture in enumerate(pictures):
            packet = av.Packet(picture)
            packet.stream, packet.pts, packet.dts = track, n, n
            packet.time_base = Fraction(1, 30)
            packet.is_keyframe = True
            file.mux(packet)
    return out.getvalue()


def png_header(width: int, height: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))


def chunk(name: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(name + body)
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", checksum)


def _frame_control(sequence: int, width: int, height: int) -> bytes:
    fields = struct.pack(">IIIIIHHBB", sequence, width, height, 0, 0, 1, 10, 0, 0)
    return chunk(b"fcTL", fields)


def gif(width: int, height: int, *, n_frames: int) -> bytes:
    """A GIF whose every frame fills the screen."""
    out = io.BytesIO()
    Image.new("P", (width, height), 1).save(out, "GIF")
    still = out.getvalue()
    n_colours = 2 << (still[10] & 7)
    start = 13 + 3 * n_colours
    return still[:start] + still[start:-1] * n_frames + b";"


def encode_image(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def _frame(time_s: float, rgb: Rgb, pix_fmt: str | None = None) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
    if pix_fmt is not None:
        frame = frame.reformat(format=pix_fmt)
    frame.pts = round(time_s / TIME_BASE)
    frame.time_base = TIME_BASE
    return frame


def _options(codec: str, gop: int, more: dict[str, str]) -> dict[str, str]:
    speed = {"libx264": {"preset": "ultrafast", "crf": "16", "threads": "1"}}.get(codec, {})
    return {"g": str(gop), **speed, **more}

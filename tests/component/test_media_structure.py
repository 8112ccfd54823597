"""Files of few pixels and few bytes that would keep a decoder busy for minutes are refused at once."""

from __future__ import annotations

import io
import struct
import time
import warnings

import pytest
from PIL import Image

from liveedge.core.errors import MediaInvalid
from liveedge.media.picture import PictureLimits, decode_picture
from tests.media_files import chunk, encode_image, gif, png

SMALL = Image.new("RGB", (64, 48), (200, 30, 30))


def jpeg_of_scans(n_more: int) -> bytes:
    data = encode_image(Image.new("L", (1600, 1200), 128), "JPEG", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + scan * n_more + data[-2:]


def jpeg_with(segment: bytes, n: int) -> bytes:
    data = encode_image(SMALL, "JPEG")
    return data[:2] + segment * n + data[2:]


def png_with(piece: bytes, n: int) -> bytes:
    data = encode_image(SMALL, "PNG")
    return data[:33] + piece * n + data[33:]


def gif_with(extension: bytes) -> bytes:
    data = encode_image(SMALL, "GIF")
    start = 13 + 3 * (2 << (data[10] & 7))
    return data[:start] + extension + data[start:]


def bmp_of_runs(side: int) -> bytes:
    """Every row one end-of-line mark: 30 kB for 7000 x 7000."""
    dib = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, 0, 0, 0, 256, 0)
    body = dib + bytes(1024) + b"\x01\x01\0\0" * side
    return b"BM" + struct.pack("<IHHI", 14 + len(body), 0, 0, 1078) + body


BUSY = {
    "progressive JPEG": jpeg_of_scans(3000),
    "JPEG of empty comments": jpeg_with(b"\xff\xfe\x00\x02", 1_000_000),
    "JPEG of fill bytes": jpeg_with(b"\xff", 4_000_000),
    "JPEG of profiles": jpeg_with(b"\xff\xe2\x00\x14ICC_PROFILE\0\1\1abcd", 100_000),
    "PNG of tiny chunks": png_with(chunk(b"teSt", b""), 200_000),
    "PNG of tiny texts": png_with(chunk(b"tEXt", b"a\0b"), 200_000),
    "PNG of empty data": png_with(chunk(b"IDAT", b""), 200_000),
    "GIF of comments": gif_with(b"!\xfe\x01a\0" * 500_000),
    "GIF of one endless comment": gif_with(b"!\xfe" + (b"\xff" + b"a" * 255) * 20_000 + b"\0"),
    "BMP of run lengths": bmp_of_runs(7000),
}


@pytest.mark.parametrize("name", list(BUSY))
def test_what_would_keep_a_decoder_busy_is_refused_at_once(name: str) -> None:
    begun_s = time.thread_time()
    with pytest.raises(MediaInvalid, match="the picture is"):
        decode_picture(BUSY[name], limits=PictureLimits(), what="the picture")
    assert time.thread_time() - begun_s < 0.5  # some of them took a minute


def ordinary() -> dict[str, bytes]:
    large = Image.effect_noise((800, 600), 60).convert("RGB")
    exif = Image.Exif()
    exif[0x010E] = "a description"
    return {
        "progressive": encode_image(large, "JPEG", progressive=True),
        "with a profile of a megabyte": encode_image(SMALL, "JPEG", icc_profile=bytes(1_000_000)),
        "with exif and comment": encode_image(SMALL, "JPEG", exif=exif, comment=b"c" * 9000),
        "thirty segments": jpeg_with(b"\xff\xfe\x00\x05abc", 30),
        "a few more scans than usual": jpeg_of_scans(20),
        "a large PNG": encode_image(large, "PNG"),
        "an APNG of 2,000 frames": png(64, 48, n_frames=2000),
        "a GIF of 2,000 frames": gif(64, 48, n_frames=2000),
        "a GIF with a comment": gif_with(b"!\xfe\x03abc\0"),
        "a plain BMP": encode_image(SMALL, "BMP"),
        "a BMP of a palette": encode_image(SMALL.convert("P"), "BMP"),
        "WebP": encode_image(SMALL, "WEBP"),
    }


def test_what_cameras_and_programs_write_is_not_refused() -> None:
    for name, data in ordinary().items():
        assert decode_picture(data, limits=PictureLimits(), what=name).size > 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_block_of_tags_whose_values_overlap_is_not_read(kind: str) -> None:
    """Thousands of tags that all point at the same bytes: a library would copy or log each."""
    n_tags, n_value = 3000, 20_000
    tags = b"".join(struct.pack("<HHII", 300 + i, 7, n_value, 8) for i in range(n_tags))
    block = b"II*\0" + struct.pack("<I", 8 + n_value) + bytes(n_value)
    block += struct.pack("<H", n_tags + 1) + struct.pack("<HHII", 0x0112, 3, 1, 6) + tags + bytes(4)
    data = encode_image(SMALL, kind, exif=b"Exif\0\0" + block)
    with warnings.catch_warnings(record=True) as said:
        assert decode_picture(data, limits=PictureLimits(), what="x").shape == (64, 48, 3)
    assert said == []


def test_tags_of_two_megabytes_each_take_no_time() -> None:
    n_tags, n_value = 5000, 2_000_000
    tags = b"".join(struct.pack("<HHII", 100 + i, 7, n_value, 8) for i in range(n_tags))
    block = b"II*\0" + struct.pack("<I", 8 + n_value) + bytes(n_value)
    block += struct.pack("<H", n_tags) + tags + bytes(4)
    out = io.BytesIO()
    SMALL.save(out, "PNG")
    data = out.getvalue()
    data = data[:33] + chunk(b"eXIf", block) + data[33:]
    begun_s = time.thread_time()
    assert decode_picture(data, limits=PictureLimits(), what="x").shape == (48, 64, 3)
    assert time.thread_time() - begun_s < 1.0  # ten gigabytes to copy would take longer


@pytest.mark.parametrize("cut", [2, 5, 9, 14, 20, 40])
def test_a_beginning_alone_is_refused_and_nothing_else(cut: int) -> None:
    for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP"):
        with pytest.raises(MediaInvalid):
            decode_picture(encode_image(SMALL, kind)[:cut], limits=PictureLimits(), what="x")

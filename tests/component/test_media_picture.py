"""Encoded pictures become upright RGB, or one clear error (cases 1, 2, 3, 5 and 6)."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
from PIL import Image, ImageOps

from liveedge.core.errors import MediaInvalid, MediaTooLarge
from liveedge.media.header import read_header
from liveedge.media.picture import STRIP_BYTES, PictureLimits, decode_picture, encode_picture
from tests.media_files import Rgb, encode_image, png_header

LIMITS = PictureLimits()
WHAT = "messages[0].content[1].image_url"


def decode(data: bytes, limits: PictureLimits = LIMITS) -> Rgb:
    return decode_picture(data, limits=limits, what=WHAT)


def flagged() -> Image.Image:
    """640x480, red on the left, green at the bottom: no turn or mirror looks the same."""
    image = Image.new("RGB", (640, 480), "white")
    image.paste("red", (0, 0, 80, 480))
    image.paste("green", (0, 420, 640, 480))
    return image


def almost(left: Rgb, right: Rgb, *, tolerance: float = 6.0) -> bool:
    if left.shape != right.shape:
        return False
    return float(np.abs(left.astype(int) - right.astype(int)).mean()) < tolerance


# Case 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_orientation_tag_is_applied_once(kind: str, orientation: int) -> None:
    tag = Image.Exif()
    tag[0x0112] = orientation
    data = encode_image(flagged(), kind, exif=tag)
    with Image.open(io.BytesIO(data)) as stored:
        expected = np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))
    got = decode(data)
    assert got.shape == ((480, 640, 3) if orientation < 5 else (640, 480, 3))
    np.testing.assert_array_equal(got, expected)
    assert got.flags.c_contiguous


def test_all_eight_tags_of_prerotated_copies_give_the_same_picture() -> None:
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    upright = np.asarray(flagged())
    for orientation, turn in undo.items():
        tag = Image.Exif()
        tag[0x0112] = orientation
        stored = flagged() if turn is None else flagged().transpose(turn)
        np.testing.assert_array_equal(decode(encode_image(stored, "PNG", exif=tag)), upright)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_outside_the_standard_means_as_stored(orientation: int) -> None:
    tag = Image.Exif()
    tag[0x0112] = orientation
    data = encode_image(flagged(), "PNG", exif=tag)
    np.testing.assert_array_equal(decode(data), np.asarray(flagged()))


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_a_damaged_tag_block_does_not_spoil_the_picture() -> None:
    data = encode_image(flagged(), "PNG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff\x00\x00")
    np.testing.assert_array_equal(decode(data), np.asarray(flagged()))


# Case 2


def colours() -> Image.Image:
    image = Image.new("RGB", (64, 32), (200, 30, 40))
    image.paste((20, 40, 220), (32, 0, 64, 32))
    return image


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_colour_modes_keep_their_colours(kind: str, mode: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    image = colours().quantize(8) if mode == "P" else colours().convert(mode)
    data = encode_image(image, kind, **options)
    assert almost(decode(data), np.asarray(colours()), tolerance=1.0)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "I;16"])
def test_grey_modes_keep_their_brightness(mode: str) -> None:
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :], 16, axis=0)
    if mode == "I;16":
        image = Image.fromarray(ramp.astype(np.uint16) * 257)
    elif mode == "1":
        ramp = np.where(ramp < 128, 0, 255).astype(np.uint8)
        image = Image.fromarray(ramp).convert("1", dither=Image.Dither.NONE)
    else:
        image = Image.fromarray(ramp).convert(mode)
    assert image.mode == mode
    expected = np.repeat(ramp[:, :, None], 3, axis=2)
    np.testing.assert_array_equal(decode(encode_image(image, "PNG")), expected)


def test_cmyk_and_ycck_jpegs_keep_their_colours() -> None:
    data = encode_image(colours().convert("CMYK"), "JPEG", quality=95)
    assert almost(decode(data), np.asarray(colours()))


def test_half_transparent_pixels_are_composited_on_white() -> None:
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 128))
    assert abs(int(decode(encode_image(image, "PNG"))[0, 0, 0]) - 127) <= 1


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_palette_entry_becomes_white(kind: str) -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.paste(1, (4, 0, 8, 8))
    got = decode(encode_image(image, kind, transparency=0))
    assert tuple(got[0, 0]) == (255, 255, 255)
    assert tuple(got[0, 7]) == (255, 0, 0)


def test_a_transparent_grey_value_of_16_bits_becomes_white() -> None:
    values = np.full((4, 4), 1000, dtype=np.uint16)
    values[0, 0] = 40_000
    got = decode(encode_image(Image.fromarray(values), "PNG", transparency=1000))
    assert tuple(got[3, 3]) == (255, 255, 255)
    assert tuple(got[0, 0]) == (40_000 >> 8,) * 3


def test_one_bad_picture_among_good_ones_is_one_error() -> None:
    good = [encode_image(colours().convert(mode), "PNG") for mode in ("L", "RGBA", "P")]
    with pytest.raises(MediaInvalid):
        decode(good[0][:60])
    assert all(decode(data).shape == (32, 64, 3) for data in good)


# Case 3

BOMBS = textwrap.dedent(
    """
    import time
    from liveedge.core.errors import MediaTooLarge
    from liveedge.media.picture import PictureLimits, decode_picture
    from tests import media_files as make

    def peak_kb():
        with open("/proc/self/status") as status:
            return next(int(l.split()[1]) for l in status if l.startswith("VmHWM"))

    bombs = [make.png(16000, 16000), make.png(40000, 40000)]
    bombs.append(b"\\x89PNG\\r\\n\\x1a\\n" + make.png_header(60000, 60000))
    animations = [make.gif(1024, 768, n_frames=2000), make.png(1024, 768, n_frames=2000)]
    assert max(len(data) for data in bombs) < 5_000_000, [len(data) for data in bombs]
    limits = PictureLimits()
    decode_picture(make.png(1024, 768), limits=limits, what="the first")
    before = peak_kb()
    started = time.process_time()
    for data in bombs:
        try:
            decode_picture(data, limits=limits, what="a bomb")
        except MediaTooLarge:
            continue
        raise SystemExit("a bomb was accepted")
    refused_ms = (time.process_time() - started) * 1000
    for data in animations:
        assert decode_picture(data, limits=limits, what="x").shape == (768, 1024, 3)
    print(peak_kb() - before, refused_ms)
    """
)


def test_bombs_are_refused_from_the_header_and_memory_stays_flat() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOMBS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    grown_kb, refused_ms = (float(word) for word in done.stdout.split())
    # One decoded frame has 2.4 MB; the smallest bomb would have 256 MB, the animations 4.7 GB.
    assert grown_kb < 16_000
    assert refused_ms < 100


def test_an_animation_gives_its_first_frame() -> None:
    first, second = (Image.new("RGB", (32, 32), colour) for colour in ("red", "blue"))
    for kind, options in (("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True})):
        data = encode_image(first, kind, save_all=True, append_images=[second], **options)
        assert tuple(decode(data)[16, 16]) == (255, 0, 0), kind


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (PictureLimits(max_pixels=64 * 32 - 1), "2048 pixels"),
        (PictureLimits(max_side_px=63), "longest side"),
        (PictureLimits(max_bytes=50), "bytes"),
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_each_limit_holds_for_each_kind(kind: str, limits: PictureLimits, why: str) -> None:
    with pytest.raises(MediaTooLarge, match=why):
        decode(encode_image(colours(), kind), limits)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_the_header_tells_kind_and_size_before_any_library_looks(kind: str) -> None:
    header = read_header(encode_image(Image.new("RGB", (123, 45)), kind))
    assert header is not None
    assert (header.kind.upper(), header.width, header.height) == (kind, 123, 45)


@pytest.mark.parametrize(
    "options", [{"lossless": True}, {"lossless": False}, {"exif": b"Exif\0\0"}]
)
def test_the_header_of_every_webp_layout_is_read(options: dict[str, object]) -> None:
    header = read_header(encode_image(Image.new("RGB", (123, 45)), "WEBP", **options))
    assert header is not None
    assert (header.width, header.height) == (123, 45)


def test_a_gif_frame_larger_than_its_screen_is_held_to_the_limits() -> None:
    data = bytearray(encode_image(Image.new("P", (300, 300)), "GIF"))
    data[6:10] = bytes([1, 0, 1, 0])  # the screen claims 1x1
    with pytest.raises(MediaTooLarge):
        decode(bytes(data), PictureLimits(max_pixels=10_000))


# Case 5


@pytest.mark.parametrize(
    ("width", "height"), [(1, 1), (2, 2), (26, 28), (27, 257), (332, 27), (305, 30), (31, 31)]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_tiny_and_odd_sizes_are_pictures_like_any_other(kind: str, width: int, height: int) -> None:
    data = encode_image(Image.new("RGB", (width, height), (10, 200, 30)), kind)
    got = decode(data)
    assert got.shape == (height, width, 3)
    assert almost(got[:1, :1], np.array([[[10, 200, 30]]], dtype=np.uint8))


def test_a_picture_without_pixels_is_invalid() -> None:
    with pytest.raises(MediaInvalid, match="no pixels"):
        decode(b"\x89PNG\r\n\x1a\n" + png_header(0, 0))


# Case 6 and damage


def test_bytes_decide_and_not_the_name_of_a_type() -> None:
    with pytest.raises(MediaInvalid, match="send a JPEG, PNG, WebP, GIF or BMP"):
        decode(b"%PDF-1.7" + bytes(100))
    with pytest.raises(MediaInvalid, match="is empty"):
        decode(b"")


def test_a_picture_cut_short_is_invalid_and_named() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        data = encode_image(Image.fromarray(noise), kind)
        for keep in (len(data) // 2, 40, 12, 3):
            with pytest.raises(MediaInvalid, match=r"messages\[0\]\.content\[1\]\.image_url"):
                decode(data[:keep])


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_damaged_pictures_give_a_picture_or_a_clear_error_and_nothing_else(kind: str) -> None:
    rng = np.random.default_rng(7)
    tag = Image.Exif()
    tag[0x0112] = 6
    options = {"exif": tag} if kind in ("JPEG", "PNG", "WEBP") else {}
    whole = encode_image(flagged().resize((80, 60)), kind, **options)
    outcomes = set()
    for _ in range(150):
        data = bytearray(whole)
        reach = len(data) if rng.random() < 0.5 else 64  # half of them hit the header
        for at in rng.integers(0, reach, size=int(rng.integers(1, 9))):
            data[at] = rng.integers(256)
        try:
            assert decode(bytes(data)).dtype == np.uint8
            outcomes.add("decoded")
        except (MediaInvalid, MediaTooLarge) as error:
            outcomes.add("refused" if len(error.message) < 300 else "told too much")
    assert outcomes == {"decoded", "refused"}


# Encoding


@pytest.mark.parametrize("fmt", ["jpeg", "png"])
def test_an_encoded_picture_decodes_to_itself(fmt: str) -> None:
    rgb = np.asarray(flagged())
    got = decode(encode_picture(rgb, fmt))  # type: ignore[arg-type]
    assert almost(got, rgb, tolerance=0.5 if fmt == "png" else 6.0)


def test_a_large_picture_takes_its_pixels_and_little_more_of_the_heap() -> None:
    file = io.BytesIO()
    Image.new("RGB", (3000, 2000), (3, 140, 250)).save(file, "PNG")
    data = file.getvalue()
    tracemalloc.start()
    try:
        pixels = decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (pixels == (3, 140, 250)).all()
    assert peak < pixels.nbytes + 6 * STRIP_BYTES

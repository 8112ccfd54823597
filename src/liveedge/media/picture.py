"""Encoded pictures to upright RGB and back, safe against what strangers send.

Every picture becomes 8-bit RGB here, once: orientation tag applied, alpha and transparent palette
entries composited on white, 16-bit grey reduced to its high byte, CMYK converted. An animation
gives its first frame; the others are never decoded. The declared type is ignored, bytes decide.
Limits are checked on the header, before anything of the picture's size is allocated, and files that
are built to keep a decoder busy are refused (`structure.py`).
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from liveedge.core.errors import MediaInvalid, MediaTooLarge
from liveedge.media.header import PictureHeader, PictureKind, read_header
from liveedge.media.orientation import orientation_of
from liveedge.media.structure import excess_of

PictureFormat: TypeAlias = Literal["jpeg", "png"]
STRIP_BYTES = 2**20  # of a picture that are copied at once: a frame of most cameras is one strip


class _Jpeg(JpegImageFile):
    def _read_dpi_from_exif(self) -> None:
        """Nothing: it would read every tag of a block that a stranger wrote."""


# The plugins are called directly: `Image.open` compares with a process-wide pixel limit of its own.
_OPEN: dict[PictureKind, Callable[[io.BytesIO], ImageFile]] = {
    "JPEG": _Jpeg,
    "PNG": PngImageFile,
    "WebP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
}
# What Pillow raises on damaged files: SyntaxError for structure, the rest from its parsers.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
)
_UPRIGHT: dict[int, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLimits:
    """What one picture may cost. The decoded picture takes about 3 to 7 bytes per pixel."""

    max_bytes: int = 32 * 2**20  # encoded
    max_pixels: int = 50_000_000
    max_side_px: int = 16_384
    max_aspect_ratio: int = 200  # no model takes more


def check_picture(data: bytes, *, limits: PictureLimits, what: str) -> PictureHeader:
    """What the header says, refused where it is too much; `what` names the picture in errors."""
    if not data:
        raise MediaInvalid(f"{what} is empty")
    if len(data) > limits.max_bytes:
        raise MediaTooLarge(
            f"{what} has {len(data)} bytes, the limit is {limits.max_bytes}; send a smaller one"
        )
    header = read_header(data)
    if header is None:
        raise MediaInvalid(f"{what} is not a readable picture; send a JPEG, PNG, WebP, GIF or BMP")
    _check_size(header.width, header.height, limits=limits, what=what)
    excess = excess_of(header.kind, data, n_pixels=header.width * header.height)
    if excess is not None:
        raise MediaInvalid(f"{what} is a {header.kind} with {excess}")
    return header


def decode_picture(data: bytes, *, limits: PictureLimits, what: str) -> NDArray[np.uint8]:
    """RGB [height, width, 3] of a JPEG, PNG, WebP, GIF or BMP; `what` names it in errors."""
    header = check_picture(data, limits=limits, what=what)
    try:
        with _OPEN[header.kind](io.BytesIO(data)) as image:
            # A frame of a GIF may exceed the screen its header announces.
            _check_size(*image.size, limits=limits, what=what)
            image.load()
            upright = _upright(image)
            return _rgb(upright)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise MediaTooLarge(f"{what} holds a frame that is larger than its header says") from error
    except _DAMAGE as error:
        raise MediaInvalid(f"{what} is a damaged {header.kind} ({_brief(error)})") from error


def encode_picture(rgb: NDArray[np.uint8], fmt: PictureFormat, *, quality: int = 90) -> bytes:
    """A JPEG or PNG of [height, width, 3] RGB. `quality` is JPEG's."""
    out = io.BytesIO()
    image = Image.fromarray(rgb)
    if fmt == "jpeg":
        image.save(out, "JPEG", quality=quality)
    else:
        image.save(out, "PNG", compress_level=3)  # 2-3 times faster than the default, few % larger
    return out.getvalue()


def _check_size(width: int, height: int, *, limits: PictureLimits, what: str) -> None:
    if width < 1 or height < 1:
        raise MediaInvalid(f"{what} has no pixels ({width}x{height})")
    if max(width, height) > limits.max_side_px:
        raise MediaTooLarge(
            f"{what} is {width}x{height}, the longest side allowed is {limits.max_side_px};"
            " send a smaller one"
        )
    if width * height > limits.max_pixels:
        raise MediaTooLarge(
            f"{what} is {width}x{height} = {width * height} pixels, the limit is"
            f" {limits.max_pixels}; send a smaller one"
        )
    if max(width, height) > limits.max_aspect_ratio * min(width, height):
        raise MediaInvalid(
            f"{what} is {width}x{height}: one side is more than {limits.max_aspect_ratio} times the"
            " other; crop it"
        )


def _upright(image: Image.Image) -> Image.Image:
    turn = _UPRIGHT.get(orientation_of(image.info))
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode.startswith("I"):
        return _rgb_from_16_bit(image)
    if image.has_transparency_data:
        image = _on_white(image.convert("RGBA"))
    elif image.mode != "RGB":
        image = image.convert("RGB")
    return _as_array(image)


def _as_array(image: Image.Image) -> NDArray[np.uint8]:
    """Its pixels, a strip at a time.

    Pillow hands a whole picture over in pieces of 64 KB: those of a large one take as much of the
    heap as the picture, all at once, and what is allocated above them keeps the heap from shrinking.
    """
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, STRIP_BYTES // (3 * image.width))
    if rows >= image.height:
        pixels[:] = np.asarray(image)
        return pixels
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        pixels[top : top + rows] = np.asarray(strip)
    return pixels


def _on_white(rgba: Image.Image) -> Image.Image:
    white = Image.new("RGB", rgba.size, (255, 255, 255))
    white.paste(rgba, mask=rgba.getchannel("A"))
    return white


def _rgb_from_16_bit(image: Image.Image) -> NDArray[np.uint8]:
    """Pillow's own conversion clips at 255 and turns nearly every 16-bit picture white."""
    values = np.asarray(image)
    grey = (values.clip(0, 65535).astype(np.uint16) >> 8).astype(np.uint8)
    if isinstance(transparent := image.info.get("transparency"), int):
        grey[values == transparent] = 255
    return np.repeat(grey[:, :, None], 3, axis=2)


def _brief(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:120] or type(error).__name__

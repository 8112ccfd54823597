"""What a camera of a bench shows: a loop of numbered pictures, encoded once, and the truth about each.

Every picture pans over a texture and carries its number (`sim.clockcode`), so that a reader knows
which picture it should be, when it was sent, and whether it is smeared: the truth of any number can
be drawn again. Cameras send picture `number_at(t)` at time t, whoever watches since when.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.codeccontext import VideoCodecContext
from numpy.typing import NDArray

from liveedge.sim.clockcode import CodeReading, read_code, strip_height_px, write_code

Rgb = NDArray[np.uint8]

PAN_PX = (7, 3)  # per picture: a smear of the picture before is far from the truth
MARGIN_PX = 128
LOOK_EVERY_PX = 2  # of the truth, in each direction: enough to find a damaged macroblock
BLOCKS = 12  # per side: the worst block decides
SMEAR_DB = 4.0  # this much below the worst block of the undamaged loop
LIVE_DB = 22.0  # where a publisher encodes at a rate of its own choice: its worst is above 26
VARIANT_STEP = 1_000_000  # numbers of one variant; two publishers show different variants
_ENCODERS = {"h264": "libx264", "hevc": "libx265", "vp8": "libvpx", "mjpeg": "mjpeg"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Everything that makes one loop."""

    width: int = 640
    height: int = 360
    fps: int = 30
    n_frames: int = 300
    gop: int = 30
    codec: str = "h264"
    crf: int = 23
    noise: int = 0  # in the pictures that are key frames: makes those huge
    variant: int = 0
    live: bool = False  # the publisher encodes it on the way

    def __post_init__(self) -> None:
        if self.n_frames % self.gop:
            raise ValueError(
                f"{self.n_frames} pictures are no whole number of groups of {self.gop}"
            )

    @property
    def name(self) -> str:
        return "-".join(map(str, asdict(self).values()))


class Footages:
    """Loops in one folder, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[Shape, Footage] = {}

    def __call__(self, shape: Shape) -> Footage:
        if shape not in self._made:
            self._made[shape] = Footage(self._folder, shape)
        return self._made[shape]


class Footage:
    """One loop: the encoded pictures on disk, the truth on demand. One thread."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.shape = shape
        self.path = folder / f"{shape.name}.es"  # the packets one after the other
        self._truths: dict[int, NDArray[np.int16]] = {}
        about_path = self.path.with_suffix(".json")  # what `rtsp_server` reads
        if not about_path.exists():
            self._encode(about_path)
        about = json.loads(about_path.read_text())
        self.sizes: Sequence[int] = about["sizes"]
        self._lowest_db = LIVE_DB if shape.live else about["clean_db"] - SMEAR_DB

    @property
    def period_ms(self) -> float:
        return 1000 / self.shape.fps

    def number_at(self, wall_ms: float) -> int:
        """Of the picture that a camera sends at this moment."""
        return int(wall_ms / self.period_ms) % self.shape.n_frames

    def age_ms(self, number: int, wall_ms: float) -> float:
        """Since picture `number` was sent; it is less than a loop ago."""
        loop_ms = self.shape.n_frames * self.period_ms
        return (wall_ms - number * self.period_ms) % loop_ms

    def next_key_ms(self, wall_ms: float) -> float:
        """When a camera that goes on at this moment sends its first picture: a key frame."""
        group_ms = self.shape.gop * self.period_ms
        return math.ceil(wall_ms / group_ms) * group_ms

    def packets(self) -> list[bytes]:
        """The encoded pictures in order; the first is a key frame."""
        data, at = self.path.read_bytes(), 0
        found = []
        for size in self.sizes:
            found.append(data[at : at + size])
            at += size
        return found

    def number_of(self, rgb: Rgb) -> int | None:
        """What the picture says it is: None where that cannot be read, or is of another variant.

        Brightness alone, [height, width, 1], will do.
        """
        variant, number = self.read(rgb) or (-1, -1)
        return number if variant == self.shape.variant else None

    def read(self, rgb: Rgb) -> tuple[int, int] | None:
        """Variant and number that stand in the picture."""
        reading = read_code(rgb)
        if reading is None:
            return None
        variant, number = divmod(reading.frame_number, VARIANT_STEP)
        return (variant, number) if number < self.shape.n_frames else None

    def is_smeared(self, rgb: Rgb) -> bool:
        """Whether any part of the picture is not what its number promises.

        Of another size than the loop's only the number is judged: publishers scale down.
        """
        number = self.number_of(rgb)
        if number is None or rgb.shape != (self.shape.height, self.shape.width, 3):
            return number is None
        return self.worst_db(rgb, number) < self._lowest_db

    def worst_db(self, rgb: Rgb, number: int) -> float:
        """Signal to noise of the worst part of the picture."""
        if number not in self._truths:
            self._truths[number] = self._looked_at(self.picture(number))
        error = (self._looked_at(rgb) - self._truths[number]).astype(np.float32) ** 2
        rows, columns = (side // BLOCKS for side in error.shape)
        blocks = error[: rows * BLOCKS, : columns * BLOCKS]
        means = blocks.reshape(BLOCKS, rows, BLOCKS, columns).mean(axis=(1, 3))
        return 10 * math.log10(255**2 / max(float(means.max()), 1e-3))

    def picture(self, number: int) -> Rgb:
        """The truth, as RGB."""
        shape = self.shape
        x, y = ((step * number) % MARGIN_PX for step in PAN_PX)
        rgb = self._texture[y : y + shape.height, x : x + shape.width].copy()
        if shape.noise and number % shape.gop == 0:
            grain = np.random.default_rng(number).integers(
                0, shape.noise, size=rgb.shape, dtype=np.uint8
            )
            rgb = np.minimum(rgb, 255 - shape.noise) + grain
        stamp = shape.variant * VARIANT_STEP + number
        write_code(rgb, CodeReading(stamp, round(number * self.period_ms), 0))
        return rgb

    @cached_property
    def _texture(self) -> Rgb:
        """Soft shapes of a few sizes, without a repetition that a smear could hide in."""
        shape = self.shape
        chance = np.random.default_rng(shape.variant)
        height, width = shape.height + MARGIN_PX, shape.width + MARGIN_PX
        total = np.zeros((height, width, 3), np.float32)
        for cell_px, strength in ((64, 60.0), (16, 40.0)):
            cells = (height // cell_px + 2, width // cell_px + 2, 3)
            coarse = chance.uniform(-strength, strength, cells).astype(np.float32)
            total += _stretched(coarse, height, width, cell_px)
        return np.clip(total + 128, 0, 255).astype(np.uint8)

    def _looked_at(self, rgb: Rgb) -> NDArray[np.int16]:
        """Green, thinned out, without the code."""
        rows = self.shape.height - strip_height_px(self.shape.height)
        return rgb[:rows:LOOK_EVERY_PX, ::LOOK_EVERY_PX, 1].astype(np.int16)

    def _encode(self, about_path: Path) -> None:
        packets = list(self._encoded())
        self.path.write_bytes(b"".join(packets))
        about = {
            "codec": self.shape.codec,
            "fps": self.shape.fps,
            "gop": self.shape.gop,
            "width": self.shape.width,
            "height": self.shape.height,
            "sizes": list(map(len, packets)),
            "clean_db": self._worst_of(packets),
        }
        part = about_path.with_suffix(".part")
        part.write_text(json.dumps(about))
        part.replace(about_path)

    def _encoded(self) -> Iterator[bytes]:
        shape = self.shape
        context: Any = av.CodecContext.create(_ENCODERS[shape.codec], "w")
        context.width, context.height = shape.width, shape.height
        context.framerate = Fraction(shape.fps)
        context.time_base = Fraction(1, shape.fps)
        context.pix_fmt = "yuvj420p" if shape.codec == "mjpeg" else "yuv420p"
        context.gop_size = shape.gop
        context.thread_count = 1
        context.options = _encoder_options(shape)
        for number in range(shape.n_frames):
            frame = av.VideoFrame.from_ndarray(self.picture(number), format="rgb24")
            frame.pts = number
            yield from map(bytes, context.encode(frame))
        yield from map(bytes, context.encode(None))

    def _worst_of(self, packets: Sequence[bytes]) -> float:
        """Of the loop as a decoder sees it where nothing is lost."""
        decoder = av.CodecContext.create(self.shape.codec, "r")
        assert isinstance(decoder, VideoCodecContext)
        decoder.thread_count = 1
        pictures: list[Rgb] = [
            np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
            for data in [*packets, None]
            for frame in decoder.decode(av.Packet(data) if data else None)
        ]
        assert len(pictures) == len(packets), (len(pictures), len(packets))
        return min(self.worst_db(rgb, number) for number, rgb in enumerate(pictures))


def _encoder_options(shape: Shape) -> dict[str, str]:
    """What cameras do: no reordered frames, a key frame exactly every `gop`."""
    keys = f"keyint={shape.gop}:min-keyint={shape.gop}:scenecut=0"
    match shape.codec:
        case "h264":
            x264 = f"{keys}:aud=1:repeat-headers=1"
            return {
                "preset": "veryfast",
                "tune": "zerolatency",
                "crf": str(shape.crf),
                "x264-params": x264,
            }
        case "hevc":
            x265 = f"{keys}:repeat-headers=1:bframes=0:log-level=none:pools=none"
            return {"preset": "ultrafast", "crf": str(shape.crf), "x265-params": x265}
        case "vp8":
            return {"deadline": "realtime", "cpu-used": "8", "crf": "10", "b": "3M"}
        case _:
            return {"qmin": "3", "qmax": "3", "huffman": "default"}  # RTP carries no other


def _stretched(coarse: NDArray[np.float32], height: int, width: int, cell_px: int) -> NDArray[Any]:
    """Bilinear, so that encoders find nothing to spend bits on but the movement."""
    y, x = np.arange(height) / cell_px, np.arange(width) / cell_px
    y0, x0 = y.astype(int), x.astype(int)
    fy, fx = (y - y0)[:, None, None], (x - x0)[None, :, None]
    top = coarse[y0][:, x0] * (1 - fx) + coarse[y0][:, x0 + 1] * fx
    bottom = coarse[y0 + 1][:, x0] * (1 - fx) + coarse[y0 + 1][:, x0 + 1] * fx
    return np.asarray(top * (1 - fy) + bottom * fy)

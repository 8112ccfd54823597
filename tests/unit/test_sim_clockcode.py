"""The burned-in clock: readable after what cameras and networks do to a picture."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from liveedge.sim.clockcode import N_COLUMNS, CodeReading, read_code, strip_height_px, write_code
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell

READINGS = st.builds(
    CodeReading,
    frame_number=st.integers(0, 2**32 - 1),
    t_ms=st.integers(0, 2**32 - 1),
    wall_ms=st.integers(0, 2**48 - 1),
)
EXAMPLES = [
    CodeReading(0, 0, 0),
    CodeReading(18_000, 600_000, 1_796_000_000_123),
    CodeReading(2**32 - 1, 2**32 - 1, 2**48 - 1),
    CodeReading(0x5555_5555, 0xAAAA_AAAA, 0x5555_AAAA_5555),
]


def marked(reading: CodeReading, *, width=854, height=480, grey=120) -> np.ndarray:
    rgb = np.full((height, width, 3), grey, np.uint8)
    write_code(rgb, reading)
    return rgb


def as_jpeg(rgb: np.ndarray, *, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer).convert("RGB"))


def scaled(rgb: np.ndarray, size: tuple[int, int], filter_: Image.Resampling) -> np.ndarray:
    return np.asarray(Image.fromarray(rgb).resize(size, filter_))


@given(reading=READINGS, width=st.integers(64, 400), height=st.integers(8, 300))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_at_any_size(reading, width, height) -> None:
    assert read_code(marked(reading, width=width, height=height)) == reading


@pytest.mark.parametrize("reading", EXAMPLES)
@pytest.mark.parametrize("size", [(854, 480), (640, 360), (426, 240)])
@pytest.mark.parametrize("filter_", [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC])
def test_it_survives_scaling_and_jpeg_quality_70(reading, size, filter_) -> None:
    seen = as_jpeg(scaled(marked(reading), size, filter_), quality=70)
    assert read_code(seen) == reading
    assert read_code(scaled(as_jpeg(marked(reading), quality=70), size, filter_)) == reading


@pytest.mark.parametrize("difficulty", ["easy", "normal", "hard"])
def test_it_survives_in_a_real_picture(difficulty) -> None:
    rgb = Renderer(Workcell(21), difficulty=difficulty).render(450, 15.0, 1_796_000_000_123)
    small = as_jpeg(scaled(rgb, (426, 240), Image.Resampling.BICUBIC), quality=70)
    assert read_code(small) == CodeReading(450, 15_000, 1_796_000_000_123)


@given(value=st.integers(0, 255))
def test_a_flat_picture_carries_no_code(value: int) -> None:
    assert read_code(np.full((48, 128, 3), value, np.uint8)) is None


def test_a_picture_without_the_code_gives_none() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (200, 240, 320, 3), np.uint8)
    assert all(read_code(picture) is None for picture in noise)
    rgb = Renderer(Workcell(21)).render(450, 15.0, 0)
    assert read_code(rgb[: -strip_height_px(480)]) is None


def test_one_wrong_cell_is_noticed() -> None:
    rgb = marked(EXAMPLES[1], width=N_COLUMNS * 4, height=200)
    strip = strip_height_px(200)
    for row in range(2):
        for column in range(N_COLUMNS):
            spoilt = rgb.copy()
            rows = slice(200 - strip + row * strip // 2, 200 - strip + (row + 1) * strip // 2)
            spoilt[rows, column * 4 : column * 4 + 4] ^= 255
            assert read_code(spoilt) is None


@pytest.mark.parametrize(("width", "height"), [(63, 480), (64, 3), (1, 1)])
def test_a_picture_too_small_for_the_cells_gives_none(width: int, height: int) -> None:
    assert read_code(np.zeros((height, width, 3), np.uint8)) is None


def test_numbers_beyond_their_bits_wrap_around() -> None:
    wrapped = read_code(marked(CodeReading(2**32 + 5, 2**32 + 7, 2**48 + 9)))
    assert wrapped == CodeReading(5, 7, 9)

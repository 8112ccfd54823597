"""Sizes after resizing: any picture fits, and the budget holds."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from liveedge.core.errors import MediaInvalid
from liveedge.models.qwen3_vl.geometry import fit, fit_frame

FACTOR = 32
BUDGET = {"min_pixels": 64 * 64, "max_pixels": 512 * 512, "factor": FACTOR}
SIDES = st.integers(1, 4000)


def is_long(height: int, width: int) -> bool:
    return max(height, width) > 200 * min(height, width)


@pytest.mark.parametrize("resize", [fit, fit_frame])
@given(height=SIDES, width=SIDES)
def test_every_size_becomes_whole_tokens_inside_the_budget(resize, height, width):
    if is_long(height, width):
        with pytest.raises(MediaInvalid, match="200 times longer"):
            resize(height, width, **BUDGET)
        return
    fitted = resize(height, width, **BUDGET)
    assert all(side >= FACTOR and side % FACTOR == 0 for side in fitted)
    assert fitted[0] * fitted[1] >= BUDGET["min_pixels"]
    # A side is never less than one token, so only a long strip may exceed the ceiling.
    assert fitted[0] * fitted[1] <= BUDGET["max_pixels"] or FACTOR in fitted


@pytest.mark.parametrize("resize", [fit, fit_frame])
@pytest.mark.parametrize(
    "size", [(1, 1), (2, 2), (26, 28), (27, 257), (332, 27), (305, 30), (31, 31)]
)
def test_tiny_and_odd_pictures_are_enlarged(resize, size):  # case 5
    fitted = resize(*size, **BUDGET)
    assert min(fitted) >= FACTOR
    assert fitted[0] * fitted[1] >= BUDGET["min_pixels"]


@pytest.mark.parametrize("resize", [fit, fit_frame])
def test_a_size_that_fits_stays(resize):
    assert resize(288, 384, **BUDGET) == (288, 384)


@pytest.mark.parametrize("resize", [fit, fit_frame])
@pytest.mark.parametrize("size", [(0, 10), (10, 0)])
def test_a_picture_without_content_is_refused(resize, size):
    with pytest.raises(MediaInvalid, match="has no content"):
        resize(*size, **BUDGET)


@given(height=st.integers(32, 2000), width=st.integers(32, 2000))
def test_images_and_frames_of_a_token_or_more_get_the_same_size(height, width):
    if not is_long(height, width):
        assert fit(height, width, **BUDGET) == fit_frame(height, width, **BUDGET)

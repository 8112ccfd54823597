"""The size a picture gets before it becomes patches. Pure integers, equal to the reference.

Sizes are (height, width). Images and video frames differ only below one token's side: the
reference enlarges a tiny video frame before it rounds, and a tiny image while it rounds.
"""

from __future__ import annotations

import math
from typing import Final

from liveedge.core.errors import MediaInvalid

MAX_ASPECT_RATIO: Final = 200


def fit(
    height: int, width: int, *, min_pixels: int, max_pixels: int, factor: int
) -> tuple[int, int]:
    """The size of an image after resizing: both sides multiples of `factor`, area in the budget.

    Works for every size from 1x1; only an aspect ratio above 200 is `MediaInvalid`.
    """
    _check_aspect(height, width)
    fitted_height = round(height / factor) * factor
    fitted_width = round(width / factor) * factor
    if fitted_height * fitted_width > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        fitted_height = max(factor, math.floor(height / shrink / factor) * factor)
        fitted_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif fitted_height * fitted_width < max(min_pixels, 1):
        grow = math.sqrt(max(min_pixels, 1) / (height * width))
        fitted_height = math.ceil(height * grow / factor) * factor
        fitted_width = math.ceil(width * grow / factor) * factor
    return fitted_height, fitted_width


def fit_frame(
    height: int, width: int, *, min_pixels: int, max_pixels: int, factor: int
) -> tuple[int, int]:
    """The size of a video frame after resizing, with a budget for this one frame.

    Equals the reference video processor for T frames whose clip budget is T times ours.
    """
    _check_aspect(height, width)
    if height < factor or width < factor:
        enlarge = max(factor / height, factor / width)
        height, width = int(height * enlarge), int(width * enlarge)
    return fit(height, width, min_pixels=min_pixels, max_pixels=max_pixels, factor=factor)


def _check_aspect(height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise MediaInvalid(f"a picture of {width}x{height} pixels has no content")
    if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
        raise MediaInvalid(
            f"a picture of {width}x{height} pixels is more than {MAX_ASPECT_RATIO} times longer "
            "than wide; crop it"
        )

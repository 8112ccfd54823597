"""A picture made smaller, for those who are to see less of it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def shrink(rgb: NDArray[np.uint8], max_pixels: int | None) -> NDArray[np.uint8]:
    """RGB [height, width, 3] with at most so many pixels and the same shape, roughly; as it is where
    it is small enough."""
    height, width = rgb.shape[:2]
    if max_pixels is None or height * width <= max_pixels:
        return rgb
    scale = math.sqrt(max_pixels / (height * width))
    size = (max(1, int(width * scale)), max(1, int(height * scale)))
    return np.asarray(Image.fromarray(rgb).resize(size, Image.Resampling.BICUBIC))

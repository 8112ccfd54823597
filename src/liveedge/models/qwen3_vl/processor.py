"""Pixels to patches, bit-identical to the reference image and video processors.

Resize uint8 with torch's antialiased bicubic kernel, then normalise in float32 in the order of
the patches. One temporal group at a time: nothing here depends on the rest of a clip.
Thread    any; no state but constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from liveedge.models.qwen3_vl.config import PixelConfig, VisionConfig


class Preprocessor:
    """Turns one temporal group into the rows that the vision tower reads."""

    def __init__(self, vision: VisionConfig, pixels: PixelConfig) -> None:
        self._vision = vision
        # The reference folds the rescaling into mean and std, in float32 and in this order.
        scale = 1.0 / pixels.rescale
        self._mean = (torch.tensor(pixels.mean) * scale).view(1, -1, 1, 1, 1)
        self._std = (torch.tensor(pixels.std) * scale).view(1, -1, 1, 1, 1)

    def preprocess(self, frames: Sequence[NDArray[np.uint8]], *, size: tuple[int, int]) -> Tensor:
        """Patches [n_patches, patch_dim] float32 of one group.

        `frames` are one picture (an image, doubled in time) or the two frames of a pair, each
        [height, width, 3] RGB; `size` is the (height, width) that `geometry` gave.
        """
        vision = self._vision
        depth, patch, merge = vision.temporal_patch_size, vision.patch_size, vision.merge_size
        if len(frames) not in {1, depth}:
            raise ValueError(f"a temporal group has 1 or {depth} frames, got {len(frames)}")
        rows, columns = size[0] // vision.factor, size[1] // vision.factor
        out = torch.empty(rows, columns, merge, merge, 3, depth, patch, patch)
        for index, frame in enumerate(frames):
            small = resize(frame, size=size).view(3, rows, merge, patch, columns, merge, patch)
            out[:, :, :, :, :, index] = small.permute(1, 4, 2, 5, 0, 3, 6)
        for index in range(len(frames), depth):
            out[:, :, :, :, :, index] = out[:, :, :, :, :, 0]
        flat = out.view(-1, 3, depth, patch, patch)
        flat.sub_(self._mean).div_(self._std)
        return flat.view(-1, vision.patch_dim)


def resize(frame: NDArray[np.uint8], *, size: tuple[int, int]) -> Tensor:
    """[3, height, width] uint8, contiguous; the same kernel and rounding as the reference."""
    # Channels last as it lies in memory: the kernel packs less, and the values are the same.
    image = torch.from_numpy(np.require(frame, requirements=["C", "W"])).permute(2, 0, 1)
    if image.shape[1:] != size:
        image = functional.interpolate(
            image[None], size=size, mode="bicubic", align_corners=False, antialias=True
        )[0]
    return image.contiguous()

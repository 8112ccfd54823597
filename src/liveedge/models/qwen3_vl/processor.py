"""Pixels to patches, bit-identical to the reference image and video processors.

Resize uint8 with torch's antialiased bicubic arithmetic, then normalise in float32 in the order of
the patches. One temporal group at a time: nothing here depends on the rest of a clip. In C where
the library of kernels is there, else by torch; both give the same bits.
Thread    any; no state but constants, remembered weights, and memory that is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liveedge.models.buffers import BufferPool
from liveedge.models.qwen3_vl.config import PixelConfig, VisionConfig
from liveedge.models.qwen3_vl.resample import axis_weights, interpolate
from liveedge.native.pixels import FramePlan, PixelKernels, pixel_kernels

MEMORY_BYTES = 128 << 20  # patches that wait for the encoder, and memory kept for the next ones
Size = tuple[int, int]  # (height, width)


class Preprocessor:
    """Turns one temporal group into the rows that the vision tower reads."""

    def __init__(
        self,
        vision: VisionConfig,
        pixels: PixelConfig,
        *,
        memory_bytes: int = MEMORY_BYTES,
        pinned: bool = False,
        kernels: Callable[[], PixelKernels | None] = pixel_kernels,
    ) -> None:
        self._vision = vision
        # The reference folds the rescaling into mean and std, in float32 and in this order.
        scale = 1.0 / pixels.rescale
        self._mean = (torch.tensor(pixels.mean) * scale).view(1, -1, 1, 1, 1)
        self._std = (torch.tensor(pixels.std) * scale).view(1, -1, 1, 1, 1)
        self._kernels = kernels()
        self._plan = lru_cache(maxsize=32)(self._make_plan)
        self._memory = BufferPool(max_bytes=memory_bytes, pinned=pinned)

    def preprocess(self, frames: Sequence[NDArray[np.uint8]], *, size: Size) -> Tensor:
        """Patches [n_patches, patch_dim] float32 of one group.

        `frames` are one picture (an image, doubled in time) or the two frames of a pair, each
        [height, width, 3] RGB; `size` is the (height, width) that `geometry` gave.
        """
        depth = self._vision.temporal_patch_size
        if len(frames) not in {1, depth}:
            raise ValueError(f"a temporal group has 1 or {depth} frames, got {len(frames)}")
        n_patches = size[0] * size[1] // self._vision.patch_size**2
        out = self._memory.take(n_patches, self._vision.patch_dim)
        if self._kernels is None:
            self._by_torch(frames, size, out)
        else:
            self._by_kernels(self._kernels, frames, size, out)
        return out

    def _by_kernels(
        self,
        kernels: PixelKernels,
        frames: Sequence[NDArray[np.uint8]],
        size: Size,
        out: Tensor,
    ) -> None:
        for time in range(self._vision.temporal_patch_size):
            frame = _whole_rows(frames[min(time, len(frames) - 1)])
            plan = self._plan((frame.shape[0], frame.shape[1]), size)
            scratch = self._memory.take(kernels.scratch_bytes(plan), dtype=torch.uint8)
            kernels.preprocess(plan, frame, time=time, out=out.numpy(), scratch=scratch.numpy())

    def _make_plan(self, given: Size, size: Size) -> FramePlan:
        vision = self._vision
        return FramePlan(
            in_height=given[0],
            in_width=given[1],
            height=size[0],
            width=size[1],
            down=axis_weights(given[0], size[0]),
            across=axis_weights(given[1], size[1]),
            patch=vision.patch_size,
            merge=vision.merge_size,
            depth=vision.temporal_patch_size,
            mean=self._mean.flatten().numpy(),
            std=self._std.flatten().numpy(),
        )

    def _by_torch(self, frames: Sequence[NDArray[np.uint8]], size: Size, out: Tensor) -> None:
        vision = self._vision
        depth, patch, merge = vision.temporal_patch_size, vision.patch_size, vision.merge_size
        rows, columns = size[0] // vision.factor, size[1] // vision.factor
        places = out.view(rows, columns, merge, merge, 3, depth, patch, patch)
        for time, frame in enumerate(frames):
            small = resize(frame, size=size).view(3, rows, merge, patch, columns, merge, patch)
            places[:, :, :, :, :, time] = small.permute(1, 4, 2, 5, 0, 3, 6)
        for time in range(len(frames), depth):
            places[:, :, :, :, :, time] = places[:, :, :, :, :, 0]
        out.view(-1, 3, depth, patch, patch).sub_(self._mean).div_(self._std)


def resize(frame: NDArray[np.uint8], *, size: Size) -> Tensor:
    """[3, height, width] uint8, contiguous; the same kernel and rounding as the reference."""
    # Channels last as it lies in memory: the kernel packs less, and the values are the same.
    image = torch.from_numpy(np.require(frame, requirements=["C", "W"])).permute(2, 0, 1)
    if image.shape[1:] != size:
        image = interpolate(image[None], size)[0]
    return image.contiguous()


def _whole_rows(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The frame itself if the pixels of each row lie side by side, else a copy."""
    row_bytes = frame.shape[1] * frame.shape[2]
    if frame.strides[1:] == (frame.shape[2], 1) and frame.strides[0] >= row_bytes:
        return frame
    return frame.copy(order="C")

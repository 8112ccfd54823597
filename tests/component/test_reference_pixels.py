"""Patches are bit-identical to the image and video processors of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from liveedge.models.qwen3_vl.config import PixelConfig, load_config, load_pixel_config
from liveedge.models.qwen3_vl.geometry import fit, fit_frame
from liveedge.models.qwen3_vl.processor import Preprocessor
from tests.checkpoints import make_checkpoint
from tests.reference import Reference, picture

SIZES = (  # (height, width): larger, smaller, equal, tiny, long
    *[(480, 640), (333, 501), (64, 96), (96, 64), (720, 404), (100, 1000)],
    *[(1, 1), (2, 2), (26, 28), (27, 257), (332, 27), (31, 31)],
)
CLIP_SIZES = ((480, 640), (333, 501), (64, 96), (26, 28), (27, 257))


class Setup:
    """One checkpoint's pixels, ours and theirs."""

    def __init__(self, folder):
        self.processor = Reference(folder).processor
        self.vision = load_config(folder).vision
        self.pixels: PixelConfig = load_pixel_config(folder, self.vision)
        self.ours = Preprocessor(self.vision, self.pixels)

    def budget(self, max_px: int) -> dict[str, int]:
        return {"min_pixels": 1024, "max_pixels": max_px, "factor": self.vision.factor}


@pytest.fixture(scope="module")
def setup(tmp_path_factory) -> Setup:
    return Setup(make_checkpoint(tmp_path_factory.mktemp("model"), layers=1, vision_depth=1))


@pytest.mark.parametrize("max_px", [32 * 32 * 12, 32 * 32 * 400])
@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
def test_image_patches_are_bit_identical(setup, size, max_px):
    frame = picture(*size)
    theirs = setup.processor.image_processor(
        images=[frame],
        size={"shortest_edge": 1024, "longest_edge": max_px},
        input_data_format="channels_last",
        return_tensors="pt",
    )
    target = fit(*size, **setup.budget(max_px))
    assert (target[0] // 16, target[1] // 16) == tuple(theirs["image_grid_thw"][0, 1:].tolist())
    assert torch.equal(setup.ours.preprocess([frame], size=target), theirs["pixel_values"])


@pytest.mark.parametrize("n_frames", [2, 6])
@pytest.mark.parametrize("size", CLIP_SIZES, ids="{0[0]}x{0[1]}".format)
def test_video_patches_are_bit_identical(setup, size, n_frames):
    max_px = 32 * 32 * 20
    frames = [picture(size[0], size[1], n) for n in range(n_frames)]
    theirs = setup.processor.video_processor(
        videos=[np.stack(frames)],
        size={"shortest_edge": 1024 * n_frames, "longest_edge": max_px * n_frames},
        cap_pixels_per_frame=False,
        do_sample_frames=False,
        input_data_format="channels_last",
        return_tensors="pt",
    )
    target = fit_frame(*size, **setup.budget(max_px))
    assert theirs["video_grid_thw"].tolist() == [[n_frames // 2, target[0] // 16, target[1] // 16]]
    groups = [setup.ours.preprocess(frames[n : n + 2], size=target) for n in range(0, n_frames, 2)]
    assert torch.equal(torch.cat(groups), theirs["pixel_values_videos"])


def test_a_doubled_frame_is_the_pair_of_it_with_itself(setup):
    frame = picture(100, 150)
    once = setup.ours.preprocess([frame], size=(96, 160))
    assert torch.equal(once, setup.ours.preprocess([frame, frame], size=(96, 160)))


def test_a_frame_that_is_not_contiguous_gives_the_same_patches(setup):
    wide = picture(100, 300)
    half = wide[:, ::2]
    expected = setup.ours.preprocess([np.ascontiguousarray(half)], size=(96, 160))
    assert torch.equal(setup.ours.preprocess([half], size=(96, 160)), expected)


def test_a_read_only_frame_is_accepted(setup):
    frame = picture(64, 64)
    frame.flags.writeable = False
    assert setup.ours.preprocess([frame], size=(64, 64)).shape == (16, setup.vision.patch_dim)


def test_a_group_of_three_frames_is_refused(setup):
    with pytest.raises(ValueError, match="1 or 2 frames, got 3"):
        setup.ours.preprocess([picture(64, 64)] * 3, size=(64, 64))

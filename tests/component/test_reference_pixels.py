"""Patches are bit-identical to the image and video processors of transformers, whoever makes them:
the C kernels with this processor's vector instructions, the same in plain C, or torch."""

from __future__ import annotations

import concurrent.futures
import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from liveedge.models.qwen3_vl.config import (
    PixelBudget,
    PixelConfig,
    VisionConfig,
    load_config,
    load_pixel_config,
)
from liveedge.models.qwen3_vl.geometry import fit, fit_frame
from liveedge.models.qwen3_vl.processor import Preprocessor
from liveedge.native.pixels import PixelKernels
from tests.checkpoints import make_checkpoint
from tests.compiler import built_library, needs_compiler
from tests.reference import Reference, picture

SIZES = (  # (height, width): larger, smaller, equal, tiny, long
    *[(480, 640), (333, 501), (64, 96), (96, 64), (720, 404), (100, 1000)],
    *[(1, 1), (2, 2), (26, 28), (27, 257), (332, 27), (31, 31)],
)
CLIP_SIZES = ((480, 640), (333, 501), (64, 96), (26, 28), (27, 257))


MAKERS = [
    pytest.param("fast", marks=needs_compiler),
    pytest.param("plain", marks=needs_compiler),
    "torch",
]


def kernels(maker: str) -> PixelKernels | None:
    return None if maker == "torch" else PixelKernels(built_library(), plain=maker == "plain")


class Setup:
    """One checkpoint's pixels, ours and theirs."""

    def __init__(self, folder, processor, maker):
        self.processor = processor
        self.vision = load_config(folder).vision
        self.pixels: PixelConfig = load_pixel_config(folder, self.vision)
        self.ours = Preprocessor(self.vision, self.pixels, kernels=lambda: kernels(maker))

    def budget(self, max_px: int) -> dict[str, int]:
        return {"min_pixels": 1024, "max_pixels": max_px, "factor": self.vision.factor}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = make_checkpoint(tmp_path_factory.mktemp("model"), layers=1, vision_depth=1)
    return folder, Reference(folder).processor


@pytest.fixture(scope="module", params=MAKERS)
def setup(reference, request) -> Setup:
    folder, processor = reference
    return Setup(folder, processor, request.param)


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


def test_a_cut_out_of_a_larger_picture_gives_the_same_patches(setup):
    wide = picture(200, 300)
    cut = wide[20:120, 50:200]
    expected = setup.ours.preprocess([np.ascontiguousarray(cut)], size=(96, 160))
    assert torch.equal(setup.ours.preprocess([cut], size=(96, 160)), expected)


def test_a_picture_upside_down_gives_the_patches_of_its_copy(setup):
    turned = picture(100, 150)[::-1]
    expected = setup.ours.preprocess([np.ascontiguousarray(turned)], size=(96, 160))
    assert torch.equal(setup.ours.preprocess([turned], size=(96, 160)), expected)


def test_two_frames_of_unequal_size_make_one_group(setup):
    small, large = picture(50, 60), picture(120, 130, 1)
    both = setup.ours.preprocess([small, large], size=(64, 64)).view(-1, 3, 2, 256)
    for time, frame in enumerate((small, large)):
        alone = setup.ours.preprocess([frame], size=(64, 64)).view(-1, 3, 2, 256)
        assert torch.equal(both[:, :, time], alone[:, :, time])


def test_patches_that_are_held_are_not_written_again(setup):
    frame = picture(64, 64)
    kept = setup.ours.preprocess([frame], size=(64, 64))
    before = kept.clone()
    view = kept.view(-1, 3, 2, 16, 16)[:, :1]
    del kept
    for seed in range(3):
        setup.ours.preprocess([picture(64, 64, seed + 1)], size=(64, 64))
    assert torch.equal(view, before.view(-1, 3, 2, 16, 16)[:, :1])


def test_several_threads_share_one_preprocessor(setup):
    pictures = [picture(90 + n, 150 - n, n) for n in range(8)]
    alone = [setup.ours.preprocess([p], size=(96, 160)).clone() for p in pictures]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            found = pool.map(lambda p: setup.ours.preprocess([p], size=(96, 160)), pictures)
            assert all(torch.equal(a, b) for a, b in zip(alone, found, strict=True))


sides = st.integers(1, 12).map(lambda n: 32 * n)
lengths = st.one_of(st.integers(1, 64), st.integers(65, 700), sides)


@needs_compiler
@given(
    height=lengths,
    width=lengths,
    size=st.tuples(sides, sides),
    hard=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=120)
def test_every_size_gives_the_bits_of_torch(height, width, size, hard, seed):
    frame = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    if hard:  # edges between black and white: sums beyond both ends, which are clamped
        frame = (frame > 127).astype(np.uint8) * np.uint8(255)
    vision = VisionConfig(
        depth=1, hidden_size=8, intermediate_size=8, n_heads=1, out_hidden_size=8, n_positions=4
    )
    budget = PixelBudget(1, 1 << 30)
    pixels = PixelConfig(
        image=budget, video=budget, mean=(0.481, 0.458, 0.408), std=(0.269, 0.261, 0.276)
    )
    made = {
        maker: Preprocessor(vision, pixels, kernels=functools.partial(kernels, maker))
        for maker in ("fast", "plain", "torch")
    }
    expected = made["torch"].preprocess([frame], size=size)
    for maker in ("fast", "plain"):
        assert torch.equal(made[maker].preprocess([frame], size=size), expected), maker

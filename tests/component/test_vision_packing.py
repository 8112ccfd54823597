"""Groups of different sizes in one pass of the vision tower: each gets what it gets alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from liveedge.models.qwen3_vl.config import VisionConfig
from liveedge.models.qwen3_vl.vision import VisionFeatures, VisionTower

CONFIG = VisionConfig(
    depth=3,
    hidden_size=32,
    intermediate_size=64,
    n_heads=2,
    out_hidden_size=24,
    n_positions=16,
    deepstack_layers=(0, 2),
    init_std=0.3,
)
Group = tuple[Tensor, tuple[int, int]]


@pytest.fixture(scope="module")
def tower() -> VisionTower:
    torch.manual_seed(5)
    return VisionTower(CONFIG)


def group(rows: int, columns: int, seed: int = 0) -> Group:
    generator = torch.Generator().manual_seed(1000 * seed + 10 * rows + columns)
    return torch.randn(rows * columns, CONFIG.patch_dim, generator=generator), (rows, columns)


def parts(features: VisionFeatures) -> list[Tensor]:
    return [features.tokens, *features.deepstack]


def assert_each_is_as_alone(tower: VisionTower, groups: list[Group]) -> None:
    with torch.inference_mode():
        packed = tower.forward_packed(groups)
        assert len(packed) == len(groups)
        for (patches, grid_hw), found in zip(groups, packed, strict=True):
            alone = tower(patches[None], grid_hw)
            for ours, theirs in zip(parts(found), parts(alone), strict=True):
                assert ours.shape == theirs.shape
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


grids = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda hw: (2 * hw[0], 2 * hw[1]))


@given(sizes=st.lists(grids, min_size=1, max_size=6))
@settings(max_examples=40)
def test_any_sizes_in_any_order_are_as_alone(sizes):
    torch.manual_seed(5)
    tower = VisionTower(CONFIG)
    assert_each_is_as_alone(tower, [group(hw[0], hw[1], seed) for seed, hw in enumerate(sizes)])


def test_equal_sizes_that_are_not_neighbours_are_as_alone(tower):
    assert_each_is_as_alone(tower, [group(4, 6), group(2, 2), group(4, 6, seed=1), group(6, 4)])


def test_a_group_does_not_see_its_neighbour(tower):
    one, other, changed = group(4, 4), group(2, 6), group(2, 6, seed=9)
    with torch.inference_mode():
        before = tower.forward_packed([one, other])
        after = tower.forward_packed([one, changed])
    assert torch.equal(before[0].tokens, after[0].tokens)
    assert not torch.equal(before[1].tokens, after[1].tokens)


def test_packed_groups_equal_a_stacked_batch(tower):
    groups = [group(4, 6, seed) for seed in range(3)]
    with torch.inference_mode():
        packed = tower.forward_packed(groups)
        batch = tower(torch.stack([patches for patches, _ in groups]), (4, 6))
    for number, found in enumerate(packed):
        for ours, theirs in zip(parts(found), parts(batch), strict=True):
            torch.testing.assert_close(ours[0], theirs[number], rtol=1e-5, atol=1e-5)


def test_gradients_reach_every_weight_from_a_pack(tower):
    found = tower.forward_packed([group(4, 6), group(2, 2)])
    generator = torch.Generator().manual_seed(3)
    total = sum(
        (part * torch.randn(part.shape, generator=generator)).sum()
        for features in found
        for part in parts(features)
    )
    assert isinstance(total, Tensor)
    total.backward()
    for name, weight in tower.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name
    tower.zero_grad()

"""The GELU kernel: as near to the true value as torch's own, wherever a value stands."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from liveedge.models.qwen3_vl.config import VisionConfig
from liveedge.models.qwen3_vl.vision import VisionTower
from liveedge.native.activations import GeluKernel, open_gelu
from tests.compiler import built_library, needs_compiler

pytestmark = needs_compiler


@pytest.fixture
def gelu() -> GeluKernel:
    kernel = open_gelu(built_library())
    if kernel is None:
        pytest.skip("needs a processor with AVX2 and FMA")
    return kernel


def exact(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x.double(), approximate="tanh")


def test_it_is_within_one_millionth_of_the_true_value(gelu):
    x = torch.cat([torch.linspace(-12, 12, 200_001), torch.tensor([0.0, 1e-30, -1e-30, 1e4, -1e4])])
    found = x.clone()
    gelu(found.data_ptr(), found.numel())
    assert ((found - exact(x)).abs() <= 1e-6 * x.abs().clamp(min=1)).all()


def test_far_from_zero_it_is_the_value_itself_or_nothing(gelu):
    found = torch.tensor([1e30, 100.0, -100.0, -1e30])
    gelu(found.data_ptr(), found.numel())
    assert found[0] == 1e30
    assert found[1] == 100.0
    assert (found[2:].abs() < 1e-6).all()


def test_a_value_gives_the_same_in_every_place(gelu):
    for n in range(1, 40):
        for value in (-3.3, -0.7, 0.1, 2.9):
            found = torch.full((n,), value)
            gelu(found.data_ptr(), n)
            assert len(set(found.tolist())) == 1


def test_nothing_behind_the_last_value_changes(gelu):
    found = torch.ones(16)
    gelu(found.data_ptr(), 11)
    assert (found[11:] == 1).all()
    assert (found[:11] != 1).all()


def test_no_values_are_no_harm(gelu):
    gelu(torch.ones(1).data_ptr(), 0)


@pytest.mark.parametrize("name", ["gelu_pytorch_tanh", "gelu", "silu"])
def test_the_tower_gives_the_same_with_and_without_gradients(name):
    torch.manual_seed(1)
    config = VisionConfig(
        depth=2,
        hidden_size=32,
        intermediate_size=64,
        n_heads=2,
        out_hidden_size=16,
        n_positions=16,
        activation=name,
        init_std=0.3,
    )
    tower = VisionTower(config)
    patches = torch.randn(2, 16, config.patch_dim)
    trained = tower(patches, (4, 4)).tokens
    assert trained.requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(tower(patches, (4, 4)).tokens, trained, rtol=1e-5, atol=1e-5)

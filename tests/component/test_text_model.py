"""The torch text model: asking for some rows gives exactly those rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from liveedge.models.qwen3_vl.config import TextConfig
from liveedge.models.qwen3_vl.text import Deepstack, TextModel, causal, rotary, rotary_table

CONFIG = TextConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=48,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    rope_theta=10_000.0,
    mrope_section=(4, 2, 2),
    max_position=64,
)
N_TOKENS = 9


class Keeping:
    """Causal attention that remembers the keys and values it was given."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.kept[layer] = (k, v)
        return causal(layer, q, k, v)


@pytest.mark.parametrize("n_levels", [0, 1, 3])
@pytest.mark.parametrize("asked", [[], [8], [0, 4, 5], list(range(N_TOKENS))])
@torch.inference_mode()
def test_asked_rows_are_the_rows_of_the_whole_and_all_keys_are_kept(
    asked: list[int], n_levels: int
) -> None:
    torch.manual_seed(0)
    model = TextModel(CONFIG).eval()
    embeds = torch.randn(1, N_TOKENS, 32)
    positions = torch.arange(N_TOKENS).expand(3, 1, -1)
    features = [torch.randn(3, 32) for _ in range(n_levels)]
    deepstack = Deepstack(torch.tensor([1, 4, 8]), features) if n_levels else None
    whole, part = Keeping(), Keeping()
    expected = model(embeds, positions, whole, deepstack)
    found = model(embeds, positions, part, deepstack, asked=torch.tensor(asked, dtype=torch.long))
    torch.testing.assert_close(found, expected[:, asked])
    for layer, kept in whole.kept.items():
        torch.testing.assert_close(part.kept[layer], kept)


def test_the_rotary_table_holds_what_rotary_computes() -> None:
    table = rotary_table(CONFIG, 40)
    positions = torch.stack([torch.arange(20), torch.arange(20) + 3, torch.arange(20) * 2])
    cos, sin = rotary(positions[:, None], CONFIG, torch.float32)
    place = positions[table.axis].T  # [T, d / 2]
    columns = torch.arange(8)
    assert torch.equal(cos[0, 0, :, 8:], table.cos[place, columns])
    assert torch.equal(sin[0, 0, :, 8:], table.sin[place, columns])

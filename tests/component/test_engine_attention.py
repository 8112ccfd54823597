"""Attention behind a prefix sees what attention over the whole sequence sees, with and without a mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from liveedge.engine.compute.attention import attend_behind

WIDTH = 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_heads", [2, 4])
@pytest.mark.parametrize(("start", "n_tokens"), [(0, 5), (1, 1), (3, 4), (30, 2)])
def test_the_last_tokens_of_a_sequence_get_what_they_get_in_the_whole(
    start: int, n_tokens: int, n_heads: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(start)
    stop = start + n_tokens
    q = torch.randn(1, n_heads, stop, WIDTH, generator=generator).to(dtype)
    k, v = (torch.randn(1, 2, stop, WIDTH, generator=generator).to(dtype) for _ in range(2))
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=n_heads != 2)
    mask = torch.ones(n_tokens, stop, dtype=torch.bool).tril(start) if start else None
    found = attend_behind(q[:, :, start:], k, v, mask)
    torch.testing.assert_close(found, expected[:, :, start:])

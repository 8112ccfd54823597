"""Causal attention of a piece of a prompt behind what its slot holds, without a mask where it can.

A mask sends CUDA to the slowest kernel: no fast one takes both a mask and grouped heads. The flash
kernel needs none, because its causal mode aligns the last query with the last key. torch offers that
as `nn.attention.bias.causal_lower_right`, whose import takes as long as torch's own; what is called
here is what it calls.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.functional import scaled_dot_product_attention

HEAD_ALIGNMENT = 8  # of the flash kernel, in values


def attend_behind(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q [1, Hq, T, d], k and v [1, Hkv, S, d] -> [1, Hq, T, d]: query i sees keys 0..S-T+i.

    `mask` [T, S] says the same, for devices that need it; None where T = S.
    """
    is_grouped = q.shape[1] != k.shape[1]
    if mask is not None and _flash_fits(q, k, v, is_grouped=is_grouped):
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal=True)[0]
    return scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=is_grouped
    )


def _flash_fits(q: Tensor, k: Tensor, v: Tensor, *, is_grouped: bool) -> bool:
    if q.device.type != "cuda" or q.shape[-1] % HEAD_ALIGNMENT:
        return False
    return can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, is_grouped))

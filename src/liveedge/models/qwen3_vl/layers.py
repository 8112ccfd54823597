"""Small pieces that the vision tower and the text model share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [..., T, d] with angles given twice over the width."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function behind a configuration's `hidden_act`."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    }
    return known[name]


def init_weights(module: nn.Module, *, std: float) -> None:
    """Random weights for training: normal matrices, zero biases; norms stay at one."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)

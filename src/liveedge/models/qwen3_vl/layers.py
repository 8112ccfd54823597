"""Small pieces that the vision tower and the text model share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [..., T, d] by what `rotation` gave."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def rotation(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine [..., d] of angles [..., d / 2]; the first half of the sine is negative."""
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


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

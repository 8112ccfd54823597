"""The text model: embeddings to hidden states to logits, with attention given by the caller.

Where keys and values live (a training batch, a slot, many slots) is not decided here: every layer
hands its rotated q and k to `attend`. Rotary cosines are computed once per call. Differentiable:
nothing is written in place.
Shapes    B sequences, T tokens, D hidden size, Hq / Hkv query / key heads, d head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from liveedge.models.qwen3_vl.config import TextConfig
from liveedge.models.qwen3_vl.layers import activation, init_weights, rotate, rotation


class Attend(Protocol):
    """Scaled dot-product attention of one layer, over whatever keys the caller keeps."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, Hq, T, d], k and v [B, Hkv, T, d] of the new tokens -> [B, Hq, T, d]."""
        ...


@dataclass(frozen=True, slots=True)
class Deepstack:
    """Visual features that enter after the first layers: one tensor per layer, in order."""

    index: Tensor  # [n] int64, places in the flattened [B * T] tokens
    features: Sequence[Tensor]  # each [n, D]


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # noqa: ARG001  an `Attend`
    """Attention of a whole sequence from its start, nothing kept: training and references."""
    return functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
    )


class TextModel(nn.Module):
    """Embedding table, layers and head; made from a configuration alone, weights random."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.n_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_eps)
        self.lm_head = (
            None if config.tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        init_weights(self, std=config.init_std)

    def forward(
        self,
        embeds: Tensor,
        positions: Tensor,
        attend: Attend,
        deepstack: Deepstack | None = None,
        asked: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [B, T, D] of embeddings [B, T, D] at positions [3, B, T] int64.

        With `asked`, [n] int64 places in T, only those: [B, n, D], and the last layer does no more
        for the others than their keys and values.
        """
        cos, sin = rotary(positions, self.config, embeds.dtype)
        x = embeds
        levels = () if deepstack is None else deepstack.features
        for number, layer in enumerate(self.layers):
            is_last = number == len(self.layers) - 1 and number >= len(levels)
            x = layer(x, cos, sin, attend, asked if is_last else None)
            if deepstack is not None and number < len(levels):
                x = _add_at(x, deepstack.index, levels[number])
        if asked is not None and len(levels) == len(self.layers):
            x = x[:, asked]
        return self.norm(x)

    def embed(self, ids: Tensor) -> Tensor:
        """[...] int64 -> [..., D]."""
        return self.embed_tokens(ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., vocab]."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return functional.linear(hidden, head.weight)


class Layer(nn.Module):
    """Pre-norm attention (normalised q and k, rotary) and a gated MLP."""

    def __init__(self, config: TextConfig, number: int) -> None:
        super().__init__()
        dim, width = config.hidden_size, config.head_dim
        self.number = number
        self.head_dim = width
        self.n_heads = (config.n_heads, config.n_kv_heads, config.n_kv_heads)
        self.attn_norm = RMSNorm(dim, eps=config.rms_eps)
        self.qkv = nn.Linear(dim, sum(self.n_heads) * width, bias=config.attention_bias)
        self.q_norm = RMSNorm(width, eps=config.rms_eps)
        self.k_norm = RMSNorm(width, eps=config.rms_eps)
        self.o_proj = nn.Linear(config.n_heads * width, dim, bias=config.attention_bias)
        self.mlp_norm = RMSNorm(dim, eps=config.rms_eps)
        self.gate_up = nn.Linear(dim, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, dim, bias=False)
        self.act = activation(config.activation)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, asked: Tensor | None = None
    ) -> Tensor:
        mixed = self._attention(self.attn_norm(x), cos, sin, attend)
        if asked is not None:
            x, mixed = x[:, asked], mixed[:, asked]
        x = x + self.o_proj(mixed)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(self.act(gate) * up)

    def _attention(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        n_sequences, n_tokens, _ = x.shape
        heads = self.qkv(x).view(n_sequences, n_tokens, -1, self.head_dim)
        q, k, v = heads.split(self.n_heads, dim=2)
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(k).transpose(1, 2), cos, sin)
        out = attend(self.number, q, k, v.transpose(1, 2))
        return out.transpose(1, 2).reshape(n_sequences, n_tokens, -1)


class RMSNorm(nn.Module):
    """Root mean square norm; in float32 the same numbers as the reference, in one kernel."""

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """Cosine and sine [n, d / 2] of the first n positions, and [d / 2] which of (time, height,
    width) turns each frequency."""

    cos: Tensor
    sin: Tensor
    axis: Tensor


def rotary_table(config: TextConfig, n_positions: int) -> RotaryTable:
    """What `rotary` computes for each position, on the CPU in float32."""
    frequency, axis = rotary_plan(config, torch.device("cpu"))
    angles = torch.arange(n_positions).float()[:, None] * frequency
    return RotaryTable(angles.cos(), angles.sin(), axis)


def rotary(positions: Tensor, config: TextConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [B, 1, T, d] for positions [3, B, T]: interleaved M-RoPE."""
    frequency, axis = rotary_plan(config, positions.device)
    chosen = positions.float()[axis].permute(1, 2, 0)  # [B, T, d / 2]
    cos, sin = rotation(chosen * frequency)
    return cos.to(dtype)[:, None], sin.to(dtype)[:, None]


@lru_cache(maxsize=8)
def rotary_plan(config: TextConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """Frequencies [d / 2], and which of (time, height, width) turns each of them."""
    with torch.inference_mode(mode=False):  # a remembered tensor must also serve training
        width = config.head_dim
        steps = torch.arange(0, width, 2, dtype=torch.float) / width
        frequency = 1.0 / (config.rope_theta**steps)
        axis = torch.zeros(width // 2, dtype=torch.long)
        for number, count in enumerate(config.mrope_section[1:], start=1):
            axis[number : 3 * count : 3] = number
        return frequency.to(device), axis.to(device)


def _add_at(x: Tensor, index: Tensor, features: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    return flat.index_add(0, index, features.to(x.dtype)).view_as(x)

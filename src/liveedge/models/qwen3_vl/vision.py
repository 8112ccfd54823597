"""The vision tower: patches of temporal groups to visual tokens.

Attention never leaves a temporal group, so a group's features do not depend on its neighbours and
groups of equal size run as one batch. Differentiable: nothing is written in place.
Shapes    G groups, N patches, H heads, d head width, D hidden size, M = N / merge_size^2 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from liveedge.models.qwen3_vl.config import VisionConfig
from liveedge.models.qwen3_vl.layers import activation, init_weights, rotate, rotation

NORM_EPS = 1e-6  # fixed in this family


@dataclass(frozen=True, slots=True)
class VisionFeatures:
    """What the text model gets of G groups."""

    tokens: Tensor  # [G, M, out_hidden]
    deepstack: tuple[Tensor, ...]  # per deepstack layer [G, M, out_hidden]


class VisionTower(nn.Module):
    """Patch embedding, blocks and mergers; made from a configuration alone, weights random."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        merged_dim = config.hidden_size * config.merge_size**2
        self.patch_embed = nn.Linear(config.patch_dim, config.hidden_size)
        self.pos_embed = nn.Embedding(config.n_positions, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.merger = Merger(config, norm_dim=config.hidden_size)
        self.deepstack_mergers = nn.ModuleList(
            Merger(config, norm_dim=merged_dim) for _ in config.deepstack_layers
        )
        init_weights(self, std=config.init_std)

    def forward(self, patches: Tensor, grid_hw: tuple[int, int]) -> VisionFeatures:
        """Features of groups [G, N, patch_dim] that share one grid (rows, columns of patches)."""
        weight = self.patch_embed.weight
        x = self.patch_embed(patches.to(weight.dtype))
        layout = grid_layout(grid_hw, self.config, weight.device)
        x = x + self._positions(layout).to(x.dtype)
        deepstack: list[Tensor] = []
        for number, block in enumerate(self.blocks):
            x = block(x, layout.cos, layout.sin)
            if number in self.config.deepstack_layers:
                deepstack.append(self.deepstack_mergers[len(deepstack)](x))
        return VisionFeatures(self.merger(x), tuple(deepstack))

    def _positions(self, layout: GridLayout) -> Tensor:
        """[N, D]: the learned square table, interpolated to the grid."""
        return (self.pos_embed(layout.indices) * layout.weights[:, :, None]).sum(1)


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        dim = config.hidden_size
        self.n_heads = config.n_heads
        self.norm1 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.fc1 = nn.Linear(dim, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, dim)
        self.act = activation(config.activation)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._attention(self.norm1(x), cos, sin)
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))

    def _attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n_groups, n_patches, dim = x.shape
        qkv = self.qkv(x).view(n_groups, n_patches, 3, self.n_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [G, H, N, d]
        # The reference rotates in float32 whatever the weights are.
        q, k = (rotate(t.float(), cos, sin).to(v.dtype) for t in (q, k))
        out = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(n_groups, n_patches, dim))


class Merger(nn.Module):
    """Merges the patches of one token's square into the text model's width.

    The last merger normalises each patch, the deepstack mergers normalise the joined square.
    """

    def __init__(self, config: VisionConfig, *, norm_dim: int) -> None:
        super().__init__()
        self.joined_dim = config.hidden_size * config.merge_size**2
        self.norm = nn.LayerNorm(norm_dim, eps=NORM_EPS)
        self.fc1 = nn.Linear(self.joined_dim, self.joined_dim)
        self.fc2 = nn.Linear(self.joined_dim, config.out_hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.reshape(x.shape[0], -1, self.norm.normalized_shape[0]))
        x = x.reshape(x.shape[0], -1, self.joined_dim)
        return self.fc2(functional.gelu(self.fc1(x)))


@dataclass(frozen=True, slots=True)
class GridLayout:
    """What depends on the grid alone; patches in merge-block order."""

    indices: Tensor  # [N, 4] rows of the position table
    weights: Tensor  # [N, 4] their bilinear weights
    cos: Tensor  # [N, d]
    sin: Tensor


@lru_cache(maxsize=32)
def grid_layout(grid_hw: tuple[int, int], config: VisionConfig, device: torch.device) -> GridLayout:
    """Positions of a grid; remembered, because a stream has one or two sizes."""
    with torch.inference_mode(mode=False):  # a remembered tensor must also serve training
        row, column = _block_order(grid_hw, config.merge_size)
        indices, weights = _interpolation(row, column, grid_hw, config)
        cos, sin = _rotation(row, column, config)
        return GridLayout(*(t.to(device) for t in (indices, weights, cos, sin)))


def _block_order(grid_hw: tuple[int, int], merge: int) -> tuple[Tensor, Tensor]:
    """Row and column [N] of every patch, the patches of one token side by side."""
    rows, columns = grid_hw
    numbers = torch.arange(rows * columns).view(rows // merge, merge, columns // merge, merge)
    order = numbers.transpose(1, 2).flatten()
    return order // columns, order % columns


def _interpolation(
    row: Tensor, column: Tensor, grid_hw: tuple[int, int], config: VisionConfig
) -> tuple[Tensor, Tensor]:
    side = int(config.n_positions**0.5)
    row_taps, row_weights = _axis_taps(row, grid_hw[0], side)
    column_taps, column_weights = _axis_taps(column, grid_hw[1], side)
    indices = row_taps[:, :, None] * side + column_taps[:, None, :]
    weights = row_weights[:, :, None] * column_weights[:, None, :]
    return indices.flatten(1), weights.flatten(1)


def _axis_taps(index: Tensor, length: int, side: int) -> tuple[Tensor, Tensor]:
    """The two neighbours [N, 2] of each position in a table of `side`, corners aligned."""
    source = index.float() * (side - 1) / max(length - 1, 1)
    floor = source.floor()
    offsets = torch.arange(2)
    taps = (floor.long()[:, None] + offsets).clamp(0, side - 1)
    distance = (source[:, None] - floor[:, None] - offsets).abs()
    return taps, (1 - distance).clamp(min=0)


def _rotation(row: Tensor, column: Tensor, config: VisionConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine [N, d]: half of the pairs turn by row, half by column."""
    axis_dim = config.hidden_size // config.n_heads // 2
    steps = torch.arange(0, axis_dim, 2, dtype=torch.float) / axis_dim
    frequency = 1.0 / (config.rope_theta**steps)
    places = torch.stack([row, column], 1).float()
    return rotation((places[:, :, None] * frequency).flatten(1))

"""The vision tower: patches of temporal groups to visual tokens.

Attention never leaves a temporal group, so a group's features do not depend on its neighbours.
All groups go through the layers as the rows of one matrix; only attention looks at a run of equal
groups at a time. Differentiable: nothing is written in place that a gradient would need.
Shapes    G groups, N patches, R rows (patches of all groups), H heads, d head width, D hidden size,
M = N / merge_size^2 tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from liveedge.models.qwen3_vl.config import VisionConfig
from liveedge.models.qwen3_vl.layers import activation, init_weights, rotate, rotation
from liveedge.native.activations import gelu_kernel

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
        return self._features(patches.flatten(0, 1), [Run(patches.shape[0], grid_hw)])[0]

    def forward_packed(
        self, groups: Sequence[tuple[Tensor, tuple[int, int]]]
    ) -> list[VisionFeatures]:
        """Features of single groups (patches [N, patch_dim], grid) of any grids, in one pass.

        Each result is what `forward` gives for the group alone, with G = 1. Neighbours of equal
        grids share their attention: sorted groups are the fastest.
        """
        runs = [
            Run(len(list(same)), grid_hw)
            for grid_hw, same in itertools.groupby(grid_hw for _, grid_hw in groups)
        ]
        found = self._features(torch.cat([patches for patches, _ in groups]), runs)
        return [one for features in found for one in _single(features)]

    def _features(self, rows: Tensor, runs: Sequence[Run]) -> list[VisionFeatures]:
        """Of each run, from the patches [R, patch_dim] of all."""
        weight = self.patch_embed.weight
        layouts = [grid_layout(run.grid_hw, self.config, weight.device) for run in runs]
        table = torch.cat(
            [
                self._positions(layout).repeat(run.n_groups, 1)
                for run, layout in zip(runs, layouts, strict=True)
            ]
        )
        cos, sin = _rotations(runs, layouts)
        x = self.patch_embed(rows.to(weight.dtype)) + table.to(weight.dtype)
        deepstack: list[list[Tensor]] = []
        for number, block in enumerate(self.blocks):
            x = block(x, cos, sin, runs)
            if number in self.config.deepstack_layers:
                deepstack.append(self._by_run(self.deepstack_mergers[len(deepstack)](x), runs))
        tokens = self._by_run(self.merger(x), runs)
        return [
            VisionFeatures(one, tuple(more)) for one, *more in zip(tokens, *deepstack, strict=True)
        ]

    def _by_run(self, tokens: Tensor, runs: Sequence[Run]) -> list[Tensor]:
        """[G, M, out_hidden] of each run."""
        area = self.config.merge_size**2
        parts = tokens.split_with_sizes([run.n_rows // area for run in runs])
        return [
            part.view(run.n_groups, -1, part.shape[-1])
            for part, run in zip(parts, runs, strict=True)
        ]

    def _positions(self, layout: GridLayout) -> Tensor:
        """[N, D]: the learned square table, interpolated to the grid."""
        return (self.pos_embed(layout.indices) * layout.weights[:, :, None]).sum(1)


@dataclass(frozen=True, slots=True)
class Run:
    """Groups of one grid that follow each other."""

    n_groups: int
    grid_hw: tuple[int, int]

    @property
    def n_rows(self) -> int:
        return self.n_groups * self.grid_hw[0] * self.grid_hw[1]


def _single(features: VisionFeatures) -> Iterator[VisionFeatures]:
    """The groups one by one."""
    for number in range(len(features.tokens)):
        one = slice(number, number + 1)
        yield VisionFeatures(features.tokens[one], tuple(part[one] for part in features.deepstack))


class Block(nn.Module):
    """Pre-norm attention and MLP over rows [R, D]."""

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
        self.is_gelu_tanh = config.activation == "gelu_pytorch_tanh"

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, runs: Sequence[Run]) -> Tensor:
        x = x + self._attention(self.norm1(x), cos, sin, runs)
        return x + self.fc2(self._activate(self.fc1(self.norm2(x))))

    def _activate(self, x: Tensor) -> Tensor:
        """Of a tensor that nobody else holds: the kernel writes over it."""
        kernel = gelu_kernel() if self.is_gelu_tanh else None
        fits = x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous()
        if kernel is None or not fits or x.requires_grad:
            return self.act(x)
        kernel(x.data_ptr(), x.numel())
        return x

    def _attention(self, x: Tensor, cos: Tensor, sin: Tensor, runs: Sequence[Run]) -> Tensor:
        qkv = self.qkv(x).view(len(x), 3, self.n_heads, -1)
        # The reference rotates in float32 whatever the weights are.
        qk = rotate(qkv[:, :2].float(), cos, sin).to(x.dtype)
        sizes = [run.n_rows for run in runs]
        parts = [
            self._attend(run, *qk_part.unbind(1), v)
            for run, qk_part, v in zip(
                runs, qk.split_with_sizes(sizes), qkv[:, 2].split_with_sizes(sizes), strict=True
            )
        ]
        return self.proj(torch.cat(parts) if len(parts) > 1 else parts[0])

    @staticmethod
    def _attend(run: Run, *qkv: Tensor) -> Tensor:
        """Rows [G x N, D] of one run, from queries, keys and values [G x N, H, d]."""
        q, k, v = (t.view(run.n_groups, -1, *t.shape[1:]).transpose(1, 2) for t in qkv)
        out = functional.scaled_dot_product_attention(q, k, v)  # [G, H, N, d]
        return out.transpose(1, 2).flatten(2).flatten(0, 1)


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
        x = self.norm(x.reshape(-1, self.norm.normalized_shape[0]))
        x = x.reshape(-1, self.joined_dim)
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


def _rotations(runs: Sequence[Run], layouts: Sequence[GridLayout]) -> tuple[Tensor, Tensor]:
    """Cosine and sine [R, 1, 1, d] of every row: queries, keys and heads turn alike."""
    pairs = list(zip(runs, layouts, strict=True))
    cos = torch.cat([layout.cos.repeat(run.n_groups, 1) for run, layout in pairs])
    sin = torch.cat([layout.sin.repeat(run.n_groups, 1) for run, layout in pairs])
    return cos[:, None, None], sin[:, None, None]


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

"""Muon for the matrices inside the blocks, AdamW for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from workcell_model import Model


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix updates are orthogonalised; scaled so that AdamW's rates fit."""

    def __init__(self, params: list[dict[str, Any]], *, momentum: float = 0.95) -> None:
        super().__init__(
            params, {"lr": 0.0, "weight_decay": 0.0, "parts": (), "momentum": momentum}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["buffer"] = torch.zeros_like(p)
                buffer = state["buffer"].lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buffer, group["momentum"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                rows = group["parts"] or (p.shape[0],)
                for part, piece in zip(p.split(rows), update.split(rows), strict=True):
                    scale = 0.2 * math.sqrt(max(piece.shape))
                    part.sub_(_orthogonal(piece), alpha=group["lr"] * scale)


def _orthogonal(matrix: Tensor) -> Tensor:
    """Newton-Schulz iteration towards the nearest matrix with singular values near one."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


@dataclass(slots=True)
class Optimisers:
    """Muon for the matrices inside the blocks, AdamW for the rest."""

    all: list[torch.optim.Optimizer] = field(default_factory=list)

    @classmethod
    def of(cls, model: Model) -> Optimisers:
        muon: list[dict[str, Any]] = []
        rest: dict[str, list[nn.Parameter]] = {"vision": [], "text": []}
        for name, p in model.named_parameters():
            tower = "vision" if name.startswith(("vision", "heads")) else "text"
            inside = ".blocks." in name or ".layers." in name
            if p.ndim == 2 and inside:
                parts = _parts(name, p, model)
                muon.append({"params": [p], "parts": parts, "weight_decay": 0.05, "tower": tower})
            else:
                rest[tower].append(p)
        adam = [{"params": v, "tower": k, "weight_decay": 0.0} for k, v in rest.items()]
        return cls([Muon(muon), torch.optim.AdamW(adam, lr=0.0, betas=(0.9, 0.97))])

    def step(self, rates: dict[str, float]) -> None:
        for optimiser in self.all:
            for group in optimiser.param_groups:
                group["lr"] = rates[group["tower"]]
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)


def _parts(name: str, p: nn.Parameter, model: Model) -> tuple[int, ...]:
    """Rows of matrices that are stored as one but act apart."""
    if "text" in name and "qkv" in name:
        width = model.text.config.head_dim
        counts = (model.text.config.n_heads, model.text.config.n_kv_heads)
        return (counts[0] * width, counts[1] * width, counts[1] * width)
    if "qkv" in name:
        return (p.shape[0] // 3,) * 3
    return (p.shape[0] // 2,) * 2 if "gate_up" in name else ()

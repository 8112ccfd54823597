"""Train the shipped model, `liveedge/workcell-tiny`, from nothing on the simulator.

    python tools/train_workcell.py --out build/workcell --ranks 2

Four stages, see `Plan`: dense labels for the vision tower alone; questions, with the dense labels
as a helper; events first; at last the tower rests and the text model compares readings. Seed, steps
and ranks decide every batch. Progress goes to OUT/curve.jsonl; OUT/checkpoint.pt resumes;
OUT/model is the result, a Hugging Face folder.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from liveedge.sim import questions
from workcell_data import (
    Batch,
    Packer,
    Pattern,
    Shape,
    from_odd,
    make_batch,
    one_by_one,
)
from workcell_model import Model, export, prepare
from workcell_optimiser import Optimisers
from workcell_tokenizer import write as write_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does."""

    out: Path
    steps: int
    dense_steps: int
    rest_step: int  # from here on the vision tower rests, and every other step compares
    event_step: int  # from here on, clips and questions about what happened come first
    batch: int  # samples of one temporal group per step and rank; fewer of longer clips
    ranks: int
    rate: float
    seed: int

    def rates(self, step: int) -> dict[str, float]:
        """Learning rates: warm up, hold, fall to zero over the last 45 %."""
        warm = min(1.0, (step + 1) / 40)
        if step < self.dense_steps:
            return {"vision": self.rate * warm, "text": 0.0}
        if step >= self.rest_step:
            left = min(1.0, (step - self.rest_step + 1) / 10, (self.steps - step) / 70)
            return {"vision": 0.0, "text": 0.75 * self.rate * left}
        into = step - self.dense_steps
        left = (self.rest_step - step) / (0.45 * (self.rest_step - self.dense_steps))
        scale = self.rate * min(1.0, (into + 1) / 60) * min(1.0, left)
        return {"vision": scale * 0.4, "text": scale}

    def shape(self, rng: np.random.Generator, step: int) -> tuple[Shape, int]:
        """What this step trains on, and how many samples of it."""
        size = "native" if rng.random() < 0.85 else str(rng.choice(["360", "240", "160", "160"]))
        if step < self.dense_steps:
            pattern: Pattern = ((0, 1),) if rng.random() < 0.5 else ((0, 0),)
            return Shape(pattern, size), self.batch
        events_first = step >= self.event_step
        roll = rng.random()
        mode = str(rng.choice(["branches", "chain", "text_first"], p=[0.78, 0.07, 0.15]))
        table = EVENT_SHAPES if events_first else FIRST_SHAPES
        pattern, video = next((p, v) for limit, p, v in table if roll < limit)
        n = max(self.batch // len(pattern), 3)
        if step >= self.rest_step and video and step % 2:
            mode = "compare"
        return Shape(pattern, size, mode, video, events_first), n  # type: ignore[arg-type]


# (up to this draw, frames of each temporal group, video or image)
Shapes = tuple[tuple[float, Pattern, bool], ...]
FIRST_SHAPES: Shapes = (
    (0.27, one_by_one(1), False),
    (0.33, one_by_one(1), True),
    (0.40, one_by_one(2), True),
    (0.66, one_by_one(4), True),
    (0.86, from_odd(4), True),
    (0.90, one_by_one(3), True),
    (0.93, from_odd(5), True),
    (0.97, one_by_one(8), True),
    (1.01, from_odd(8), True),
)
EVENT_SHAPES: Shapes = (
    (0.14, one_by_one(1), False),
    (0.16, one_by_one(1), True),
    (0.24, one_by_one(2), True),
    (0.56, one_by_one(4), True),
    (0.84, from_odd(4), True),
    (0.88, one_by_one(3), True),
    (0.92, from_odd(5), True),
    (0.96, one_by_one(8), True),
    (1.01, from_odd(8), True),
)


def train(rank: int, plan: Plan) -> None:
    torch.set_num_threads(1)
    if plan.ranks > 1:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29577")
        dist.init_process_group("gloo", rank=rank, world_size=plan.ranks)
    folder = plan.out / "model"
    if rank == 0:
        prepare(folder)
    if plan.ranks > 1:
        dist.barrier()
    torch.manual_seed(plan.seed)
    model = Model(folder)
    optimisers = Optimisers.of(model)
    start = resume(plan, model, optimisers)
    if rank == 0:
        n = sum(p.numel() for p in model.parameters())
        print(f"{n:,} parameters, from step {start} to {plan.steps}", flush=True)
    log = Log(plan.out / "curve.jsonl") if rank == 0 else None
    packer = Packer(write_tokenizer(plan.out / f"tokenizer-{rank}"))
    for step, batch in batches(plan, packer, rank, start):
        model.vision.requires_grad_(step < plan.rest_step)
        facts = one_step(model, batch, dense_only=step < plan.dense_steps)
        average_gradients(model, plan.ranks)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimisers.step(plan.rates(step))
        if log is not None:
            log.add(step, facts, float(norm))
            if (step + 1) % 100 == 0 or step + 1 == plan.steps:
                save(plan, model, optimisers, step + 1)
                export(folder, model)


def one_step(model: Model, batch: Batch, *, dense_only: bool) -> dict[str, Any]:
    features = model.vision(batch.patches, batch.grid_hw)
    dense, right = model.dense_loss(features.tokens, batch.dense)
    if dense_only:
        dense.backward()  # type: ignore[no-untyped-call]
        return {"dense": dense.item(), "cells": right}
    answers = model.answer_loss(batch, features.tokens, features.deepstack)
    (answers.loss + 0.2 * dense).backward()  # type: ignore[no-untyped-call]
    return {"dense": dense.item(), "loss": answers.loss.item(), "kinds": answers.by_kind}


def batches(plan: Plan, packer: Packer, rank: int, start: int) -> Iterator[tuple[int, Batch]]:
    for step in range(start, plan.steps):
        shape, n = plan.shape(np.random.default_rng((plan.seed, step)), step)
        rng = np.random.default_rng((plan.seed, step, rank))
        yield step, make_batch(rng, packer, shape, n, seeds=questions.TRAIN_SEEDS)


def average_gradients(model: Model, ranks: int) -> None:
    """One all-reduce over everything; a part unused in this step counts as zero."""
    if ranks == 1:
        return
    params = list(model.parameters())
    flat = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params]
    )
    dist.all_reduce(flat)
    flat /= ranks
    for p, piece in zip(params, torch.split(flat, [p.numel() for p in params]), strict=True):
        p.grad = piece.view_as(p)


class Log:
    """Means over 25 steps, to the terminal and to a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._began = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, list[float]] = defaultdict(list)
        self._kinds: dict[str, list[bool]] = defaultdict(list)

    def add(self, step: int, facts: dict[str, Any], norm: float) -> None:
        self._sums["norm"].append(norm)
        for key in ("dense", "loss"):
            if key in facts:
                self._sums[key].append(facts[key])
        for head, value in facts.get("cells", {}).items():
            self._sums[f"cell_{head}"].append(value)
        for kind, hits in facts.get("kinds", {}).items():
            self._kinds[kind] += hits
        if (step + 1) % 25 == 0:
            self._write(step + 1)

    def _write(self, step: int) -> None:
        row: dict[str, Any] = {"step": step, "seconds": round(time.monotonic() - self._began)}
        row |= {key: round(sum(v) / len(v), 4) for key, v in self._sums.items()}
        row |= {kind: round(sum(v) / len(v), 3) for kind, v in sorted(self._kinds.items())}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        print(json.dumps(row), flush=True)
        self._clear()


def save(plan: Plan, model: Model, optimisers: Optimisers, step: int) -> None:
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimisers": [o.state_dict() for o in optimisers.all],
    }
    fresh = plan.out / "checkpoint.new"
    torch.save(state, fresh)
    fresh.replace(plan.out / "checkpoint.pt")


def resume(plan: Plan, model: Model, optimisers: Optimisers) -> int:
    path = plan.out / "checkpoint.pt"
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimiser, saved in zip(optimisers.all, state["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    return int(state["step"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--dense-steps", type=int, default=250)
    parser.add_argument("--rest-step", type=int, default=2000)
    parser.add_argument("--event-step", type=int, default=500)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    plan = Plan(**vars(parser.parse_args()))
    plan.out.mkdir(parents=True, exist_ok=True)
    if plan.ranks == 1:
        train(0, plan)
    else:
        spawn(train, args=(plan,), nprocs=plan.ranks)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

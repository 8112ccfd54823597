"""Random-weight Qwen3-VL checkpoints: the real architecture at a chosen size, for measuring.

    python tools/random_checkpoint.py random-267m             prints the folder

The same files for the same name and seed. Read by transformers and by us, float32 on both sides (a
side that had to convert would be measured with its conversion), 1 GB for the larger one. They go
into the user's cache, outside any checkout, and stay there until somebody deletes them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from liveedge.models.qwen3_vl.config import (
    DEFAULT_VIDEO_MAX_TOKENS,
    DEFAULT_VIDEO_MIN_PX,
    PixelBudget,
    PixelConfig,
    Qwen3VLConfig,
    TextConfig,
    VisionConfig,
)
from liveedge.models.qwen3_vl.export import save
from liveedge.models.qwen3_vl.text import TextModel
from liveedge.models.qwen3_vl.vision import VisionTower
from workcell_tokenizer import write as write_tokenizer

FORMAT = 1  # in the folder's name: another recipe is another folder
TOKEN_PX = 32 * 32
SMALL_TOKENS = 112  # per frame: 640x480 becomes 384x288, which is 108
FULL_TOKENS = DEFAULT_VIDEO_MAX_TOKENS  # 640x480 stays as it is: 300
EMBEDDING_STD = 0.02  # far below what a layer adds, or tied embeddings would repeat the last token


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The dimensions of a checkpoint."""

    vision_depth: int
    vision_hidden: int
    vision_heads: int
    deepstack: tuple[int, ...]  # three levels, as the published models have
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int  # with padding, whose rows are zero: no token of it is ever the likeliest
    n_positions: int
    head_dim: int = 64


PRESETS = {
    "random-9m": Preset(
        vision_depth=4,
        vision_hidden=192,
        vision_heads=3,
        deepstack=(0, 1, 2),
        layers=6,
        hidden=256,
        heads=4,
        kv_heads=2,
        intermediate=512,
        vocabulary=1024,
        n_positions=24**2,
    ),
    "random-267m": Preset(
        vision_depth=12,
        vision_hidden=768,
        vision_heads=12,
        deepstack=(2, 5, 8),
        layers=30,
        hidden=576,
        heads=9,
        kv_heads=3,
        intermediate=1536,
        vocabulary=49152,
        n_positions=48**2,
    ),
}


def cached(name: str, *, full_size: bool = False, seed: int = 0) -> Path:
    """The folder of a preset in the user's cache, written now if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    size = "full" if full_size else "small"
    folder = cache / "liveedge" / "checkpoints" / name / f"{size}-seed{seed}-v{FORMAT}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and renamed, so that an interrupted one is never taken for a whole one.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".writing-") as beside:
        whole = Path(beside) / "checkpoint"
        write(whole, PRESETS[name], full_size=full_size, seed=seed)
        whole.rename(folder)
    return folder


def write(folder: Path, preset: Preset, *, full_size: bool = False, seed: int = 0) -> None:
    """A complete checkpoint folder."""
    ids = _write_texts(folder)
    config = make_config(preset, ids)
    vision, text = VisionTower(config.vision), TextModel(config.text)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in (vision, text):
            _randomise(module, generator)
        text.embed_tokens.weight[len(ids) :] = 0.0
    save(folder, config, pixel_config(full_size=full_size), vision, text)


def pixel_config(*, full_size: bool) -> PixelConfig:
    """The budgets of a frame."""
    max_pixels = TOKEN_PX * (FULL_TOKENS if full_size else SMALL_TOKENS)
    budget = PixelBudget(DEFAULT_VIDEO_MIN_PX, max_pixels)
    return PixelConfig(image=budget, video=budget)


def _write_texts(folder: Path) -> dict[str, int]:
    """Tokenizer, template and where an answer ends; returns every token's id."""
    ids = write_tokenizer(folder).get_vocab()
    end, padding = ids["<|im_end|>"], ids["<|endoftext|>"]
    generation = {"eos_token_id": end, "pad_token_id": padding, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    return ids


def make_config(preset: Preset, ids: dict[str, int]) -> Qwen3VLConfig:
    half = preset.head_dim // 2
    return Qwen3VLConfig(
        text=TextConfig(
            vocab_size=preset.vocabulary,
            hidden_size=preset.hidden,
            intermediate_size=preset.intermediate,
            n_layers=preset.layers,
            n_heads=preset.heads,
            n_kv_heads=preset.kv_heads,
            head_dim=preset.head_dim,
            rope_theta=500_000.0,
            mrope_section=(half - 2 * (half // 3), half // 3, half // 3),
            max_position=8192,
            tied=True,
        ),
        vision=VisionConfig(
            depth=preset.vision_depth,
            hidden_size=preset.vision_hidden,
            intermediate_size=4 * preset.vision_hidden,
            n_heads=preset.vision_heads,
            out_hidden_size=preset.hidden,
            n_positions=preset.n_positions,
            deepstack_layers=preset.deepstack,
        ),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def _randomise(module: nn.Module, generator: torch.Generator) -> None:
    """Weights whose outputs are about as large as their inputs, so that deep ones stay finite."""
    for name, parameter in sorted(module.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            parameter.copy_(0.1 * noise + (1.0 if "norm" in name and "weight" in name else 0.0))
        elif "embed_tokens" in name or "pos_embed" in name:
            parameter.copy_(EMBEDDING_STD * noise)
        else:
            parameter.copy_(noise / math.sqrt(parameter.shape[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=sorted(PRESETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full-size", action="store_true", help="640x480 is not made smaller")
    parser.add_argument("--out", type=Path, help="write here instead of into the user's cache")
    options = parser.parse_args()
    if options.out is None:
        print(cached(options.name, full_size=options.full_size, seed=options.seed))
        return
    preset = PRESETS[options.name]
    write(options.out, preset, full_size=options.full_size, seed=options.seed)
    print(options.out)


if __name__ == "__main__":
    main()

"""The shipped model while it is trained: its shape, its files, its losses."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from liveedge.models.qwen3_vl.config import load_config
from liveedge.models.qwen3_vl.export import to_hf
from liveedge.models.qwen3_vl.text import Deepstack, TextModel
from liveedge.models.qwen3_vl.vision import VisionTower
from liveedge.sim import questions
from workcell_data import ALL_KINDS, HEAD_SIZES, IGNORE, Batch
from workcell_tokenizer import write as write_tokenizer

MAX_PIXELS = 66_560  # of one frame: 854x480 becomes 320x192, 60 tokens per pair of frames


def hf_config(vocab_size: int, token_id: dict[str, int]) -> dict[str, Any]:
    """config.json of the model."""
    text = {
        "model_type": "qwen3_vl_text",
        "vocab_size": vocab_size,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.05,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,  # so in this family; vLLM asks, transformers does not
        },
        "bos_token_id": None,
        "eos_token_id": token_id["<|im_end|>"],
        "pad_token_id": token_id["<|endoftext|>"],
    }
    vision = {
        "model_type": "qwen3_vl_vision",
        "depth": 4,
        "hidden_size": 192,
        "intermediate_size": 768,
        "num_heads": 6,
        "out_hidden_size": 192,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [2],
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "initializer_range": 0.05,
    }
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "float32",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": token_id["<|image_pad|>"],
        "video_token_id": token_id["<|video_pad|>"],
        "vision_start_token_id": token_id["<|vision_start|>"],
        "vision_end_token_id": token_id["<|vision_end|>"],
        "tie_word_embeddings": True,
    }


def write_processor(folder: Path) -> None:
    """The image and video processor files."""
    common = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_convert_rgb": True,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "resample": 3,
        "rescale_factor": 1 / 255,
    }
    image = common | {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": 4096, "longest_edge": MAX_PIXELS},
    }
    video = common | {
        "video_processor_type": "Qwen3VLVideoProcessor",
        "processor_class": "Qwen3VLProcessor",
        "do_sample_frames": False,
        # One frame of a clip has the budget of a picture, however long the clip is.
        "cap_pixels_per_frame": True,
        "max_video_tokens": MAX_PIXELS // 1024,
        "size": {"shortest_edge": 8192, "longest_edge": MAX_PIXELS * 1024},
    }
    for name, value in (("preprocessor_config", image), ("video_preprocessor_config", video)):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")


class Model(nn.Module):
    """Vision tower, dense heads (training only) and text model."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        config = load_config(folder)
        self.vision = VisionTower(config.vision)
        self.text = TextModel(config.text)
        self.heads = nn.Linear(config.text.hidden_size, sum(HEAD_SIZES.values()))
        self.n_groups = config.text.n_heads // config.text.n_kv_heads
        for block in self.vision.blocks:
            _shrink(block, "proj", "fc2", by=math.sqrt(2 * config.vision.depth))
        for layer in self.text.layers:
            _shrink(layer, "o_proj", "down", by=math.sqrt(2 * config.text.n_layers))

    def dense_loss(
        self, tokens: Tensor, labels: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """Mean over heads; squares with nothing count as much as all squares with something."""
        scores = self.heads(tokens).split(list(HEAD_SIZES.values()), dim=-1)
        losses, right = [], {}
        for (name, target), score in zip(labels.items(), scores, strict=True):
            flat, goal = score.flatten(0, 1), target.flatten()
            something, nothing = goal > 0, goal == 0
            each = functional.cross_entropy(flat, goal, ignore_index=IGNORE, reduction="none")
            if something.any():
                losses.append(each[something].mean())
                hit = (flat.argmax(-1) == goal)[something]
                right[name] = hit.float().mean().item()
            if nothing.any():
                losses.append(0.5 * each[nothing].mean())
        return torch.stack(losses).mean(), right

    def answer_loss(self, batch: Batch, tokens: Tensor, deepstack: tuple[Tensor, ...]) -> Answers:
        """Cross-entropy of the answer tokens, and which answers are wholly right."""
        embeds = self.text.embed(batch.ids)
        flat = embeds.flatten(0, 1).index_copy(0, batch.visual_at, tokens.flatten(0, 1))
        extra = Deepstack(batch.visual_at, tuple(d.flatten(0, 1) for d in deepstack))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # noqa: ARG001
            k, v = (t.repeat_interleave(self.n_groups, dim=1) for t in (k, v))
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=batch.mask)

        hidden = self.text(flat.view_as(embeds), batch.positions, attend, extra)
        at = batch.targets != IGNORE
        logits, goal = self.text.logits(hidden[at]), batch.targets[at]
        each = functional.cross_entropy(logits, goal, reduction="none")
        weight = _WEIGHTS[batch.kinds[at]]
        loss = (each * weight).sum() / weight.sum()
        return Answers(loss, _whole(batch, at, logits.argmax(-1) == goal))


def _weight(kind: str) -> float:
    """JSON answers are long: a token of theirs weighs a third. Comparing frames is the hardest."""
    if kind == "state":
        return 1 / 3
    if kind in questions.CLIP_KINDS:
        return 3.0
    return 2.0 if kind == "position" else 1.0


_WEIGHTS = torch.tensor([_weight(kind) for kind in ALL_KINDS])


@dataclass(frozen=True, slots=True)
class Answers:
    """Loss over a batch's answers, and per kind which of them are wholly right."""

    loss: Tensor
    by_kind: dict[str, list[bool]]


def _shrink(block: nn.Module, *names: str, by: float) -> None:
    for name in names:
        block.get_parameter(f"{name}.weight").data.div_(by)


def _whole(batch: Batch, at: Tensor, hit: Tensor) -> dict[str, list[bool]]:
    """Per kind, whether each answer is right in all its tokens."""
    names = ALL_KINDS
    place = at.nonzero()
    kinds = batch.kinds[at]
    result: dict[str, list[bool]] = defaultdict(list)
    start = 0
    for i in range(1, len(place) + 1):
        ended = i == len(place) or not (
            place[i, 0] == place[i - 1, 0] and place[i, 1] == place[i - 1, 1] + 1
        )
        if ended:
            result[names[int(kinds[start])]].append(bool(hit[start:i].all()))
            start = i
    return result


def prepare(folder: Path) -> None:
    """Everything of the model folder but the weights."""
    tokenizer = write_tokenizer(folder)
    vocabulary = tokenizer.get_vocab()
    size = -(-len(vocabulary) // 32) * 32
    (folder / "config.json").write_text(json.dumps(hf_config(size, vocabulary), indent=2) + "\n")
    generation = {"eos_token_id": vocabulary["<|im_end|>"], "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    write_processor(folder)


def export(folder: Path, model: Model) -> None:
    """model.safetensors with the reference's names; half the bytes, as float16."""
    tensors = {name: value.half() for name, value in to_hf(model.vision, model.text).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})

"""Our model run in the most obvious way: the baseline that faster ways of running it must equal.

One sequence, keys and values in growing tensors, no slots, no cache of features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from liveedge.models.qwen3_vl.processor import Preprocessor
from liveedge.models.qwen3_vl.prompt import MediaSpan, Prompt
from liveedge.models.qwen3_vl.text import Deepstack
from liveedge.models.qwen3_vl.vision import VisionFeatures
from liveedge.models.qwen3_vl.weights import Qwen3VL

Frames = Sequence[NDArray[np.uint8]]


class GrowingKeys:
    """An `Attend` that keeps everything it has seen of one sequence."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer in self.kept:
            old_k, old_v = self.kept[layer]
            k, v = torch.cat((old_k, k), 2), torch.cat((old_v, v), 2)
        self.kept[layer] = (k, v)
        n_new, n_all = q.shape[2], k.shape[2]
        visible = torch.ones(n_new, n_all, dtype=torch.bool).tril(n_all - n_new)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)


def group_patches(model: Qwen3VL, span: MediaSpan, frames: Frames) -> Tensor:
    """Patches of one group; `frames` are all frames of its media part."""
    used = [frames[index] for index in dict.fromkeys(span.frame_indices)]
    return Preprocessor(model.config.vision, model.pixels).preprocess(used, size=span.size_hw)


def features(model: Qwen3VL, prompt: Prompt, media: Sequence[Frames]) -> list[VisionFeatures]:
    """Of every group, each encoded alone."""
    return [
        model.vision(group_patches(model, span, media[span.media_index])[None], span.grid_hw)
        for span in prompt.spans
    ]


def embed(
    model: Qwen3VL, prompt: Prompt, groups: Sequence[VisionFeatures]
) -> tuple[Tensor, Deepstack | None]:
    """Embeddings [1, n, D] with the visual tokens in place, and the deepstack features."""
    embeds = model.text.embed(torch.from_numpy(prompt.ids)).clone()
    if not prompt.spans:
        return embeds[None], None
    index = torch.cat([torch.arange(s.start, s.start + s.n_tokens) for s in prompt.spans])
    embeds[index] = torch.cat([group.tokens[0] for group in groups])
    n_levels = len(model.config.vision.deepstack_layers)
    levels = [torch.cat([group.deepstack[n][0] for group in groups]) for n in range(n_levels)]
    return embeds[None], Deepstack(index, levels)


def part_of(deepstack: Deepstack | None, start: int, end: int) -> Deepstack | None:
    """The features that fall into tokens start..end of a sequence."""
    if deepstack is None:
        return None
    inside = (deepstack.index >= start) & (deepstack.index < end)
    return Deepstack(
        deepstack.index[inside] - start, [level[inside] for level in deepstack.features]
    )


@torch.inference_mode()
def prefill(
    model: Qwen3VL, prompt: Prompt, media: Sequence[Frames], *, chunk: int | None = None
) -> tuple[Tensor, GrowingKeys]:
    """Logits [n, vocab] of every prompt token, and the keys to go on with."""
    keys = GrowingKeys()
    embeds, deepstack = embed(model, prompt, features(model, prompt, media))
    positions = torch.from_numpy(prompt.positions)[:, None]
    n_tokens = len(prompt.ids)
    rows: list[Tensor] = []
    for start in range(0, n_tokens, chunk or n_tokens):
        end = min(start + (chunk or n_tokens), n_tokens)
        hidden = model.text(
            embeds[:, start:end], positions[..., start:end], keys, part_of(deepstack, start, end)
        )
        rows.append(model.text.logits(hidden)[0])
    return torch.cat(rows), keys


@torch.inference_mode()
def greedy(model: Qwen3VL, prompt: Prompt, media: Sequence[Frames], *, n_tokens: int) -> list[int]:
    """The first `n_tokens` of the answer, one at a time, not stopped by any of them."""
    logits, keys = prefill(model, prompt, media)
    answer = [int(logits[-1].argmax())]
    while len(answer) < n_tokens:
        place = len(prompt.ids) + len(answer) - 1 + prompt.position_delta
        hidden = model.text(
            model.text.embed(torch.tensor([[answer[-1]]])), torch.full((3, 1, 1), place), keys
        )
        answer.append(int(model.text.logits(hidden)[0, -1].argmax()))
    return answer

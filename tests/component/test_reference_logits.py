"""Our Qwen3-VL gives the logits and the greedy tokens of transformers, in several shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional

from liveedge.models.loader import load_model
from liveedge.models.qwen3_vl.prompt import Prompt, PromptBuilder
from liveedge.models.qwen3_vl.text import Deepstack, causal
from liveedge.models.qwen3_vl.weights import Qwen3VL
from tests.checkpoints import make_checkpoint
from tests.plain import embed, features, greedy, group_patches, prefill
from tests.reference import Clip, Reference, clip, still

TOLERANCE = 1e-4

SHAPES: dict[str, dict[str, Any]] = {
    "full attention, no deepstack, tied": {"kv_heads": 4, "deepstack": (), "tied": True},
    "gqa 2, deepstack, untied": {"kv_heads": 2, "deepstack": (0,), "tied": False},
    "gqa 4, two deepstacks, tied": {"kv_heads": 1, "deepstack": (0, 1), "tied": True},
    "three layers, wide heads, untied": {
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 40,
        "layers": 3,
        "vision_depth": 3,
        "deepstack": (0, 2),
        "tied": False,
    },
}

MESSAGES = [
    {"role": "system", "content": "You are helpful."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "First: "},
            {"type": "image"},
            {"type": "text", "text": " then the last seconds"},
            {"type": "video"},
            {"type": "image"},
            {"type": "text", "text": "\nHow many boxes?"},
        ],
    },
]
MEDIA = (still(100, 150), clip(90, 170, (0.0, 0.5, 1.0, 1.7)), still(64, 64, seed=3))


@dataclass(frozen=True)
class Pair:
    """One checkpoint, read by both."""

    ours: Qwen3VL
    prompts: PromptBuilder
    theirs: Reference

    def prompt(self, messages: list[dict[str, Any]], media: tuple[Clip, ...]) -> Prompt:
        return self.prompts.build(messages, [part.spec for part in media])


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory) -> Pair:
    folder = make_checkpoint(tmp_path_factory.mktemp("model"), seed=5, **SHAPES[request.param])
    ours = load_model(folder, device=torch.device("cpu"), dtype=torch.float32)
    return Pair(ours, PromptBuilder(folder), Reference(folder))


def frames_of(media: tuple[Clip, ...]) -> list[Any]:
    return [part.frames for part in media]


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    # The tolerance means something only where logits differ from each other by much more.
    assert theirs.std() > 0.3
    return float((ours - theirs).abs().max())


def test_logits_of_images_video_and_text_equal_the_reference(pair):
    theirs = pair.theirs.logits(pair.theirs.inputs(MESSAGES, MEDIA))
    ours, _ = prefill(pair.ours, pair.prompt(MESSAGES, MEDIA), frames_of(MEDIA))
    assert difference(ours, theirs) <= TOLERANCE


def test_logits_of_text_alone_equal_the_reference(pair):
    messages = [{"role": "user", "content": "Is the door open or closed?"}]
    theirs = pair.theirs.logits(pair.theirs.inputs(messages))
    ours, _ = prefill(pair.ours, pair.prompt(messages, ()), [])
    assert difference(ours, theirs) <= TOLERANCE


@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_prefill_in_chunks_equals_the_reference(pair, chunk):
    theirs = pair.theirs.logits(pair.theirs.inputs(MESSAGES, MEDIA))
    ours, _ = prefill(pair.ours, pair.prompt(MESSAGES, MEDIA), frames_of(MEDIA), chunk=chunk)
    assert difference(ours, theirs) <= TOLERANCE


def test_sequences_in_one_batch_equal_the_reference_alone(pair):
    other = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "Moving?"}]}]
    other_media = (clip(120, 60, (2.0, 3.0)),)
    prompts = [pair.prompt(MESSAGES, MEDIA), pair.prompt(other, other_media)]
    longest = max(len(prompt.ids) for prompt in prompts)
    embeds, positions, index = [], [], []
    levels: list[list[torch.Tensor]] = [[] for _ in pair.ours.config.vision.deepstack_layers]
    with torch.inference_mode():
        for row, (prompt, media) in enumerate(zip(prompts, (MEDIA, other_media), strict=True)):
            groups = features(pair.ours, prompt, frames_of(media))
            one, deepstack = embed(pair.ours, prompt, groups)
            padding = longest - len(prompt.ids)
            embeds.append(functional.pad(one[0], (0, 0, 0, padding)))
            positions.append(functional.pad(torch.from_numpy(prompt.positions), (0, padding)))
            assert deepstack is not None
            index.append(deepstack.index + row * longest)
            for level, part in zip(levels, deepstack.features, strict=True):
                level.append(part)
        hidden = pair.ours.text(
            torch.stack(embeds),
            torch.stack(positions, 1),
            causal,
            Deepstack(torch.cat(index), [torch.cat(level) for level in levels]),
        )
        logits = pair.ours.text.logits(hidden)
    for row, inputs in enumerate(
        (pair.theirs.inputs(MESSAGES, MEDIA), pair.theirs.inputs(other, other_media))
    ):
        ours = logits[row, : len(prompts[row].ids)]
        assert difference(ours, pair.theirs.logits(inputs)) <= TOLERANCE


def test_features_of_a_group_are_the_same_alone_and_in_a_batch(pair):
    prompt = pair.prompt(MESSAGES, MEDIA)
    spans = [span for span in prompt.spans if span.media_index == 1]
    patches = [group_patches(pair.ours, span, MEDIA[1].frames) for span in spans]
    with torch.inference_mode():
        batch = pair.ours.vision(torch.stack(patches), spans[0].grid_hw)
        for number, one in enumerate(patches):
            alone = pair.ours.vision(one[None], spans[0].grid_hw)
            for ours, other in zip(
                (batch.tokens, *batch.deepstack), (alone.tokens, *alone.deepstack), strict=True
            ):
                torch.testing.assert_close(ours[number], other[0], rtol=0, atol=1e-5)


def test_greedy_answers_equal_the_reference_over_64_tokens(pair):
    theirs = pair.theirs.greedy(pair.theirs.inputs(MESSAGES, MEDIA), 64)
    ours = greedy(pair.ours, pair.prompt(MESSAGES, MEDIA), frames_of(MEDIA), n_tokens=64)
    assert ours == theirs
    assert len(set(ours)) > 8  # an answer that repeats one token would prove little


def test_gradients_reach_every_weight_even_after_inference(pair):
    prompt = pair.prompt(MESSAGES, MEDIA)
    prefill(pair.ours, prompt, frames_of(MEDIA))  # what it remembers must serve training too
    modules = (pair.ours.vision, pair.ours.text)
    for module in modules:
        module.requires_grad_(requires_grad=True)
    groups = features(pair.ours, prompt, frames_of(MEDIA))
    embeds, deepstack = embed(pair.ours, prompt, groups)
    positions = torch.from_numpy(prompt.positions)[:, None]
    hidden = pair.ours.text(embeds, positions, causal, deepstack)
    functional.cross_entropy(
        pair.ours.text.logits(hidden)[0, :-1], torch.from_numpy(prompt.ids)[1:]
    ).backward()
    for module in modules:
        for name, weight in module.named_parameters():
            assert weight.grad is not None, name
            assert weight.grad.abs().sum() > 0, name
        module.zero_grad()
        module.requires_grad_(requires_grad=False)

"""transformers, the reference that our outputs must equal, behind the few calls that tests need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers.video_utils import VideoMetadata

from liveedge.models.qwen3_vl.prompt import MediaSpec


@dataclass(frozen=True)
class Clip:
    """A media part with its pixels: one frame is an image unless it says video."""

    frames: tuple[NDArray[np.uint8], ...]
    times_s: tuple[float, ...] | None = None  # None: an image

    @property
    def spec(self) -> MediaSpec:
        height, width = self.frames[0].shape[:2]
        if self.times_s is None:
            return MediaSpec(kind="image", height=height, width=width)
        return MediaSpec(kind="video", height=height, width=width, times_s=self.times_s)


def picture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Noise on a gradient: every resampling error shows."""
    rng = np.random.default_rng(seed + 7919 * height + width)
    noise = rng.integers(0, 160, (height, width, 3))
    ramp = np.linspace(0, 95, width)[None, :, None] + np.zeros((height, 1, 3))
    return (noise + ramp).astype(np.uint8)


def still(height: int, width: int, seed: int = 0) -> Clip:
    return Clip((picture(height, width, seed),))


def clip(height: int, width: int, times_s: Sequence[float], seed: int = 0) -> Clip:
    frames = tuple(picture(height, width, seed + n) for n in range(len(times_s)))
    return Clip(frames, tuple(times_s))


class Reference:
    """Processor and model of one checkpoint folder, as transformers reads them."""

    def __init__(self, folder: Path) -> None:
        self.processor: Any = transformers.AutoProcessor.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.model.generation_config.eos_token_id = None  # `greedy` goes on past every token

    def inputs(
        self,
        messages: Sequence[Mapping[str, Any]],
        media: Sequence[Clip] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> dict[str, Any]:
        """What the reference gives its model for a conversation with these media, in order."""
        text = self.processor.apply_chat_template(
            list(messages),
            tools=list(tools) or None,
            add_generation_prompt=True,
            tokenize=False,
            **options,
        )
        images = [c.frames[0] for c in media if c.times_s is None]
        videos = [c for c in media if c.times_s is not None]
        arguments: dict[str, Any] = {"input_data_format": "channels_last"}  # 1x1 is ambiguous
        if images:
            arguments["images"] = images
        if videos:
            arguments |= {
                "videos": [np.stack(c.frames) for c in videos],
                "video_metadata": [_metadata(c) for c in videos],
                "do_sample_frames": False,
            }
        if options.get("sanitize_control_tokens"):
            arguments["sanitize_control_tokens"] = True
        return dict(self.processor(text=[text], return_tensors="pt", **arguments))

    def logits(self, inputs: Mapping[str, Any]) -> Tensor:
        """[n, vocab] in one pass, nothing cached."""
        self.model.model.rope_deltas = None
        with torch.inference_mode():
            return self.model(**inputs, use_cache=False).logits[0]

    def greedy(self, inputs: Mapping[str, Any], n_tokens: int) -> list[int]:
        """The tokens of an answer, not stopped by any of them."""
        self.model.model.rope_deltas = None
        n_prompt = inputs["input_ids"].shape[1]
        ids = self.model.generate(**inputs, do_sample=False, max_new_tokens=n_tokens)
        return ids[0, n_prompt:].tolist()


def _metadata(media: Clip) -> VideoMetadata:
    # At one frame a second the reference's time of a frame is its index, here any number.
    times: Any = list(media.times_s or ())
    return VideoMetadata(total_num_frames=len(times), fps=1.0, frames_indices=times)

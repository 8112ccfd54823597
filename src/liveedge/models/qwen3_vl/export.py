"""Our modules back into a Hugging Face checkpoint folder that transformers can load too.

For models made here: the trained one that ships, and the small random ones of the tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from liveedge.models.headers import WEIGHTS_FILE
from liveedge.models.qwen3_vl.config import PixelConfig, Qwen3VLConfig, VisionConfig
from liveedge.models.qwen3_vl.text import TextModel
from liveedge.models.qwen3_vl.vision import VisionTower
from liveedge.models.qwen3_vl.weights import text_sources, vision_sources


def save(
    folder: Path, config: Qwen3VLConfig, pixels: PixelConfig, vision: VisionTower, text: TextModel
) -> None:
    """Write configuration, processor files and weights; tokenizer and template are the caller's."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": config_to_hf(config)} | pixel_config_to_hf(pixels, config.vision)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(to_hf(vision, text), folder / WEIGHTS_FILE, metadata={"format": "pt"})


def to_hf(vision: VisionTower, text: TextModel) -> dict[str, Tensor]:
    """The modules' weights under the names and shapes of a Hugging Face checkpoint."""
    tensors: dict[str, Tensor] = {}
    for module, sources in (
        (vision, vision_sources(vision.config)),
        (text, text_sources(text.config)),
    ):
        state = module.state_dict()
        for name, source in sources.items():
            parts = state[name].detach().split(source.rows)
            for hf_name, part in zip(source.names, parts, strict=True):
                shape = (part.shape[0], *source.tail)
                tensors[hf_name] = part.reshape(shape).clone()
    return tensors


def config_to_hf(config: Qwen3VLConfig) -> dict[str, Any]:
    """The content of a `config.json` that says the same, for checkpoints made here."""
    text, vision = config.text, config.vision
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "float32",
        "tie_word_embeddings": text.tied,
        "image_token_id": config.image_token_id,
        "video_token_id": config.video_token_id,
        "vision_start_token_id": config.vision_start_token_id,
        "vision_end_token_id": config.vision_end_token_id,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "vocab_size": text.vocab_size,
            "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size,
            "num_hidden_layers": text.n_layers,
            "num_attention_heads": text.n_heads,
            "num_key_value_heads": text.n_kv_heads,
            "head_dim": text.head_dim,
            "hidden_act": text.activation,
            "rms_norm_eps": text.rms_eps,
            "attention_bias": text.attention_bias,
            "max_position_embeddings": text.max_position,
            "initializer_range": text.init_std,
            "tie_word_embeddings": text.tied,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": text.rope_theta,
                "mrope_section": list(text.mrope_section),
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            "model_type": "qwen3_vl_vision",
            "depth": vision.depth,
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.intermediate_size,
            "num_heads": vision.n_heads,
            "out_hidden_size": vision.out_hidden_size,
            "num_position_embeddings": vision.n_positions,
            "deepstack_visual_indexes": list(vision.deepstack_layers),
            "patch_size": vision.patch_size,
            "spatial_merge_size": vision.merge_size,
            "temporal_patch_size": vision.temporal_patch_size,
            "in_channels": vision.in_channels,
            "hidden_act": vision.activation,
            "initializer_range": vision.init_std,
        },
    }


def pixel_config_to_hf(pixels: PixelConfig, vision: VisionConfig) -> dict[str, dict[str, Any]]:
    """File name -> content of the processor files that say the same, for transformers and us."""
    shared = {
        "patch_size": vision.patch_size,
        "merge_size": vision.merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "image_mean": list(pixels.mean),
        "image_std": list(pixels.std),
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": 3,
        "rescale_factor": pixels.rescale,
    }
    return {
        "preprocessor_config.json": {
            **shared,
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen3VLProcessor",
            "size": _edges(pixels.image.min_pixels, pixels.image.max_pixels),
        },
        "video_preprocessor_config.json": {
            **shared,
            "video_processor_type": "Qwen3VLVideoProcessor",
            "processor_class": "Qwen3VLProcessor",
            # The ceiling of one frame; that of the clip is out of reach.
            "cap_pixels_per_frame": True,
            "max_video_tokens": pixels.video.max_pixels // vision.factor**2,
            "size": _edges(2 * pixels.video.min_pixels, 1024 * pixels.video.max_pixels),
        },
    }


def _edges(low: int, high: int) -> dict[str, int]:
    return {"shortest_edge": low, "longest_edge": high}

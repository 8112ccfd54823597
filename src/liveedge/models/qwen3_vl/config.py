"""What a Qwen3-VL checkpoint folder says about itself, read once and checked. Torch-free.

`config.json` gives the shapes; the processor files give the pixel budgets. Both the transformers 5
layout (`rope_parameters`, `processor_config.json`) and the older one (`rope_scaling`,
`preprocessor_config.json`) are read. Everything wrong is `CheckpointInvalid` naming file and key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from liveedge.core.errors import CheckpointInvalid

ACTIVATIONS: Final = frozenset({"gelu", "gelu_pytorch_tanh", "silu"})
MODEL_TYPE: Final = "qwen3_vl"
CALL_MARKS: Final = ("<tool_call>", "</tool_call>")  # around each call in an answer

# Used where the checkpoint has no processor files; the values published with Qwen3-VL.
DEFAULT_IMAGE_MIN_PX: Final = 256 * 256
DEFAULT_IMAGE_MAX_PX: Final = 4096 * 4096
DEFAULT_VIDEO_MIN_PX: Final = 4096
DEFAULT_VIDEO_MAX_TOKENS: Final = 768
DEFAULT_MEAN: Final = (0.5, 0.5, 0.5)
DEFAULT_STD: Final = (0.5, 0.5, 0.5)
MAX_WHOLE: Final = (1 << 31) - 1  # of any number; no published one has more than nine digits
MAX_LAYERS: Final = 1024  # each is an object before the first weight is looked for
MAX_JSON_BYTES: Final = 128 << 20  # published vocabularies have 11 MB
BICUBIC: Final = 3  # Pillow's number, as the processor files write it


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """Shape of the language model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope_theta: float
    mrope_section: tuple[int, int, int]  # frequencies given to time, height, width
    max_position: int
    rms_eps: float = 1e-6
    activation: str = "silu"
    attention_bias: bool = False
    tied: bool = False  # the output head is the embedding table
    init_std: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Shape of the vision tower."""

    depth: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    out_hidden_size: int
    n_positions: int  # learned positions: a square table
    deepstack_layers: tuple[int, ...] = ()
    patch_size: int = 16
    merge_size: int = 2
    temporal_patch_size: int = 2
    in_channels: int = 3
    activation: str = "gelu_pytorch_tanh"
    rope_theta: float = 10_000.0
    init_std: float = 0.02

    @property
    def factor(self) -> int:
        """Side in pixels of the square behind one visual token."""
        return self.patch_size * self.merge_size

    @property
    def patch_dim(self) -> int:
        """Values of one patch: channels x frames of a group x height x width."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3VLConfig:
    """Everything `config.json` says that the model needs."""

    text: TextConfig
    vision: VisionConfig
    image_token_id: int = 151655
    video_token_id: int = 151656
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653


@dataclass(frozen=True, slots=True)
class PixelBudget:
    """How many pixels one frame may have after resizing."""

    min_pixels: int
    max_pixels: int

    def capped(self, max_pixels: int | None) -> PixelBudget:
        """This budget with a request's own ceiling, which can only lower it."""
        if max_pixels is None or max_pixels >= self.max_pixels:
            return self
        return PixelBudget(min(self.min_pixels, max_pixels), max_pixels)


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelConfig:
    """How pixels become numbers: budgets per frame, and the normalisation."""

    image: PixelBudget
    video: PixelBudget  # per frame, whatever the number of frames
    mean: tuple[float, float, float] = DEFAULT_MEAN
    std: tuple[float, float, float] = DEFAULT_STD
    rescale: float = 1 / 255


class Section:
    """One JSON object with its file and path, so that an error can say where it is."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def whole(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_WHOLE
    ) -> int:
        value = self._get(key, default)
        if isinstance(value, list) and len(set(value)) == 1:  # patch_size: [16, 16]
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, value, f"an integer of at least {least}")
        if value > most:
            raise self.error(key, "too large", f"at most {most}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(key, value, "a positive number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def word(self, key: str, default: str, *, allowed: frozenset[str]) -> str:
        value = self._get(key, default)
        if value not in allowed:
            raise self.error(key, value, f"one of {', '.join(sorted(allowed))}")
        return str(value)

    def wholes(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self._get(key, default)
        if not isinstance(value, list | tuple) or not all(type(v) is int for v in value):
            raise self.error(key, value, "a list of integers")
        return tuple(value)

    def triple(self, key: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
        value = self._get(key, default)
        if not isinstance(value, list | tuple) or len(value) != 3:
            raise self.error(key, value, "a list of three numbers")
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in value):
            raise self.error(key, value, "a list of three numbers")
        return (float(value[0]), float(value[1]), float(value[2]))

    def section(self, key: str, default: Mapping[str, Any] | None = None) -> Section:
        value = self._get(key, default)
        if not isinstance(value, Mapping):
            raise self.error(key, value, "an object")
        return Section(value, f"{self.where}: {key}")

    def error(self, key: str, value: object, expected: str) -> CheckpointInvalid:
        return CheckpointInvalid(f"{self.where}: {key} is {value!r}, needs {expected}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise CheckpointInvalid(f"{self.where}: {key} is missing")
        return default


def read_json(path: Path) -> Section:
    """The object in a JSON file of the checkpoint."""
    try:
        if (n_bytes := path.stat().st_size) > MAX_JSON_BYTES:
            raise CheckpointInvalid(f"{path} has {n_bytes} bytes, at most {MAX_JSON_BYTES}")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointInvalid(
            f"cannot read {path}: {error.strerror}; is this a model folder?"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointInvalid(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointInvalid(f"{path} holds {type(values).__name__}, needs an object")
    return Section(values, str(path))


def load_config(folder: Path) -> Qwen3VLConfig:
    """Read and check `config.json`."""
    root = read_json(folder / "config.json")
    root.word("model_type", "", allowed=frozenset({MODEL_TYPE}))
    if root.has("quantization_config"):
        raise CheckpointInvalid(
            f"{root.where}: quantization_config: quantised weights are not supported; "
            "use the float16, bfloat16 or float32 checkpoint"
        )
    text_section = root.section("text_config")
    text = _text_config(text_section, tied=_tied(root, text_section))
    vision = _vision_config(root.section("vision_config"))
    if vision.out_hidden_size != text.hidden_size:
        raise CheckpointInvalid(
            f"{root.where}: vision_config.out_hidden_size is {vision.out_hidden_size}, "
            f"needs text_config.hidden_size ({text.hidden_size})"
        )
    if len(vision.deepstack_layers) > text.n_layers:
        raise CheckpointInvalid(
            f"{root.where}: vision_config.deepstack_visual_indexes has "
            f"{len(vision.deepstack_layers)} entries, more than the {text.n_layers} text layers"
        )
    return Qwen3VLConfig(
        text=text,
        vision=vision,
        image_token_id=root.whole("image_token_id", 151655, least=0),
        video_token_id=root.whole("video_token_id", 151656, least=0),
        vision_start_token_id=root.whole("vision_start_token_id", 151652, least=0),
        vision_end_token_id=root.whole("vision_end_token_id", 151653, least=0),
    )


def _tied(root: Section, text: Section) -> bool:
    source = root if root.has("tie_word_embeddings") else text
    return source.flag("tie_word_embeddings", default=False)


def _text_config(section: Section, *, tied: bool) -> TextConfig:
    n_heads = section.whole("num_attention_heads")
    n_kv_heads = section.whole("num_key_value_heads", n_heads)
    if n_heads % n_kv_heads:
        raise section.error("num_key_value_heads", n_kv_heads, f"a divisor of {n_heads}")
    head_dim = section.whole("head_dim", 128, least=2)
    rope_theta, mrope_section = _text_rope(section, head_dim)
    return TextConfig(
        vocab_size=section.whole("vocab_size"),
        hidden_size=section.whole("hidden_size"),
        intermediate_size=section.whole("intermediate_size"),
        n_layers=section.whole("num_hidden_layers", most=MAX_LAYERS),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        rope_theta=rope_theta,
        mrope_section=mrope_section,
        max_position=section.whole("max_position_embeddings", 128_000),
        rms_eps=section.real("rms_norm_eps", 1e-6),
        activation=section.word("hidden_act", "silu", allowed=ACTIVATIONS),
        attention_bias=section.flag("attention_bias", default=False),
        tied=tied,
        init_std=section.real("initializer_range", 0.02),
    )


def _text_rope(section: Section, head_dim: int) -> tuple[float, tuple[int, int, int]]:
    key = "rope_parameters" if section.has("rope_parameters") else "rope_scaling"
    rope = section.section(key, {})
    kind_key = "rope_type" if rope.has("rope_type") else "type"
    rope.word(kind_key, "default", allowed=frozenset({"default", "mrope"}))
    parts = rope.wholes("mrope_section", (24, 20, 20))
    if len(parts) != 3 or sum(parts) != head_dim // 2 or min(parts) < 0:
        expected = f"three counts that add up to head_dim / 2 ({head_dim // 2})"
        raise rope.error("mrope_section", list(parts), expected)
    theta = rope if rope.has("rope_theta") else section
    return theta.real("rope_theta", 500_000.0), (parts[0], parts[1], parts[2])


def _vision_config(section: Section) -> VisionConfig:
    depth = section.whole("depth", most=MAX_LAYERS)
    deepstack = section.wholes("deepstack_visual_indexes", (8, 16, 24))
    if any(not 0 <= layer < depth for layer in deepstack) or sorted(set(deepstack)) != list(
        deepstack
    ):
        expected = f"rising layer numbers below depth ({depth})"
        raise section.error("deepstack_visual_indexes", list(deepstack), expected)
    config = VisionConfig(
        depth=depth,
        hidden_size=section.whole("hidden_size"),
        intermediate_size=section.whole("intermediate_size"),
        n_heads=section.whole("num_heads"),
        out_hidden_size=section.whole("out_hidden_size"),
        n_positions=section.whole("num_position_embeddings", 2304),
        deepstack_layers=deepstack,
        patch_size=section.whole("patch_size", 16),
        merge_size=section.whole("spatial_merge_size", 2),
        temporal_patch_size=section.whole("temporal_patch_size", 2),
        in_channels=section.whole("in_channels", 3),
        activation=section.word("hidden_act", "gelu_pytorch_tanh", allowed=ACTIVATIONS),
        rope_theta=_vision_theta(section),
        init_std=section.real("initializer_range", 0.02),
    )
    _check_vision(section, config)
    return config


def _vision_theta(section: Section) -> float:
    rope = section.section("rope_parameters", {})
    rope.word("rope_type", "axial", allowed=frozenset({"axial", "default"}))
    return rope.real("rope_theta", 10_000.0)


def _check_vision(section: Section, config: VisionConfig) -> None:
    if config.hidden_size % (4 * config.n_heads):
        expected = f"a multiple of 4 * num_heads ({4 * config.n_heads})"
        raise section.error("hidden_size", config.hidden_size, expected)
    if math.isqrt(config.n_positions) ** 2 != config.n_positions:
        raise section.error("num_position_embeddings", config.n_positions, "a square number")
    if config.in_channels != 3:
        raise section.error("in_channels", config.in_channels, "3 (RGB)")
    if config.temporal_patch_size != 2:
        raise section.error("temporal_patch_size", config.temporal_patch_size, "2")


def load_pixel_config(folder: Path, vision: VisionConfig) -> PixelConfig:
    """Read the processor files; without them, the values published with Qwen3-VL.

    The video files of this family bound a whole clip. We bound each frame, so that a frame costs
    the same whatever clip it is in: at most `max_video_tokens` tokens (768 where the file is
    silent) and never more than the clip's ceiling; at least half the clip's floor, which is its
    share in the shortest clip, one pair.
    """
    image = _processor_section(folder, "image_processor", "preprocessor_config.json")
    video = _processor_section(folder, "video_processor", "video_preprocessor_config.json")
    for section in (image, video):
        _check_processor(section, vision)
    mean, std = image.triple("image_mean", DEFAULT_MEAN), image.triple("image_std", DEFAULT_STD)
    for key, expected in (("image_mean", mean), ("image_std", std)):
        if video.triple(key, expected) != expected:
            raise video.error(key, video.values[key], f"the images' {list(expected)}")
    return PixelConfig(
        image=_budget(image, vision, min_px=DEFAULT_IMAGE_MIN_PX, max_px=DEFAULT_IMAGE_MAX_PX),
        video=_video_budget(video, vision),
        mean=mean,
        std=std,
        rescale=image.real("rescale_factor", 1 / 255),
    )


def _processor_section(folder: Path, key: str, file_name: str) -> Section:
    joint = folder / "processor_config.json"
    if joint.exists():
        whole = read_json(joint)
        if whole.has(key):
            return whole.section(key)
    own = folder / file_name
    return read_json(own) if own.exists() else Section({}, str(own))


def _check_processor(section: Section, vision: VisionConfig) -> None:
    for key, expected in (
        ("patch_size", vision.patch_size),
        ("merge_size", vision.merge_size),
        ("temporal_patch_size", vision.temporal_patch_size),
        ("resample", BICUBIC),
    ):
        if section.whole(key, expected, least=0) != expected:
            raise section.error(key, section.values[key], str(expected))
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if not section.flag(key, default=True):
            raise section.error(key, False, "true")


def _budget(section: Section, vision: VisionConfig, *, min_px: int, max_px: int) -> PixelBudget:
    size = section.section("size", {})
    smallest = vision.factor**2
    low = section.whole("min_pixels", size.whole("shortest_edge", min_px))
    high = section.whole("max_pixels", size.whole("longest_edge", max_px))
    if high < max(low, smallest):
        raise section.error("size.longest_edge", high, f"at least {max(low, smallest)} pixels")
    return PixelBudget(low, high)


def _video_budget(section: Section, vision: VisionConfig) -> PixelBudget:
    max_frame_px = section.whole("max_video_tokens", DEFAULT_VIDEO_MAX_TOKENS) * vision.factor**2
    clip = _budget(section, vision, min_px=DEFAULT_VIDEO_MIN_PX, max_px=max_frame_px)
    high = min(max_frame_px, clip.max_pixels)
    return PixelBudget(min(max(1, clip.min_pixels // 2), high), high)

"""What was asked of the engine, and the sizes that will run. Torch-free, decided once at start.

Every pool of the engine is allocated from these numbers and never grows. What does not fit a pool
is refused when it is asked. Whether all of it fits the machine is decided in `memory`.
"""

from __future__ import annotations

from dataclasses import dataclass

from liveedge.core.errors import SettingsInvalid
from liveedge.engine.decide.limits import BYTES_PER_PIXEL, Limits
from liveedge.engine.interface import EngineSettings
from liveedge.models.qwen3_vl.config import Qwen3VLConfig

DEFAULT_MODEL_LEN = 4096  # tokens; longer contexts cost KV memory and must be asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the sizes depend on; from config.json."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    feature_dim: int  # values per visual token: the embedding and every deepstack layer
    max_position: int
    token_px: int  # side of the square behind a visual token


def model_shape(config: Qwen3VLConfig) -> ModelShape:
    """What the sizes must know of a model."""
    text, vision = config.text, config.vision
    return ModelShape(
        n_layers=text.n_layers,
        n_kv_heads=text.n_kv_heads,
        head_dim=text.head_dim,
        feature_dim=text.hidden_size * (1 + len(vision.deepstack_layers)),
        max_position=text.max_position,
        token_px=vision.factor,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What will run."""

    max_model_len: int
    n_slots: int  # answers at once
    n_window_slots: int  # warm windows at once
    kv_bytes: int  # of all `n_kv_slots`
    feature_rows: int
    feature_bytes: int
    patch_bytes: int
    max_frame_px: int  # pixels of one frame after the resize
    limits: Limits

    @property
    def n_kv_slots(self) -> int:
        """Pieces of KV memory: one per answer and window, and one in which a window's next prefix
        is made while the one before serves."""
        return self.n_slots + self.n_window_slots + 1


def plan_sizes(asked: EngineSettings, shape: ModelShape, *, value_bytes: int) -> Sizing:
    """The only place where a size depends on the model. `value_bytes`: of one stored number."""
    _check_counts(asked)
    max_len = asked.max_model_len or min(shape.max_position, DEFAULT_MODEL_LEN)
    if not 2 <= max_len <= shape.max_position:
        raise SettingsInvalid(
            f"max_model_len is {max_len}, the model takes 2 to {shape.max_position} tokens"
        )
    token_bytes = 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim * value_bytes
    row_bytes = shape.feature_dim * value_bytes
    feature_rows = asked.encoder_cache_bytes // row_bytes
    token_area = shape.token_px**2
    # A picture may fill half of the context, and its patches must fit the memory for them.
    max_tokens = min(
        max_len // 2, feature_rows, asked.patch_bytes // (token_area * BYTES_PER_PIXEL)
    )
    if max_tokens < 1:
        raise SettingsInvalid(
            f"encoder_cache_bytes ({asked.encoder_cache_bytes}) or patch_bytes "
            f"({asked.patch_bytes}) has no room for one visual token "
            f"({row_bytes} and {token_area * BYTES_PER_PIXEL} bytes)"
        )
    return Sizing(
        max_model_len=max_len,
        n_slots=asked.n_slots,
        n_window_slots=asked.n_windows,
        kv_bytes=token_bytes * max_len * (asked.n_slots + asked.n_windows + 1),
        feature_rows=feature_rows,
        feature_bytes=feature_rows * row_bytes,
        patch_bytes=asked.patch_bytes,
        max_frame_px=max_tokens * token_area,
        limits=Limits(
            prefill_chunk=asked.prefill_chunk,
            encode_pixels=asked.encode_tokens * token_area,
            patch_bytes=asked.patch_bytes,
            max_loading=2 * asked.load_threads,
        ),
    )


def _check_counts(asked: EngineSettings) -> None:
    for name in (
        "n_slots",
        "prefill_chunk",
        "encode_tokens",
        "queue_capacity",
        "load_threads",
        "threads",
    ):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise SettingsInvalid(f"{name} is {value}, needs at least 1")
    if asked.n_windows < 0:
        raise SettingsInvalid(f"n_windows is {asked.n_windows}, needs 0 or more")

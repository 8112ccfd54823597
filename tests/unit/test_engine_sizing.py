"""The memory plan follows the settings and the model, and refuses what cannot work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liveedge.core.errors import SettingsInvalid
from liveedge.engine.interface import EngineSettings
from liveedge.engine.memory.sizing import ModelShape, plan_sizes

SHAPE = ModelShape(
    n_layers=4, n_kv_heads=2, head_dim=64, feature_dim=256, max_position=8192, token_px=32
)
ASKED = EngineSettings(n_slots=3, n_windows=2, max_model_len=1000, encoder_cache_bytes=1_000_000)


def test_every_pool_has_the_size_that_its_settings_give() -> None:
    sizing = plan_sizes(ASKED, SHAPE, value_bytes=4)
    assert sizing.kv_bytes == 2 * 4 * 2 * 64 * 4 * 1000 * (3 + 2 + 1)
    assert sizing.feature_rows == 1_000_000 // 1024
    assert sizing.feature_bytes <= 1_000_000
    assert plan_sizes(ASKED, SHAPE, value_bytes=2).kv_bytes == sizing.kv_bytes // 2


def test_without_a_wish_the_context_is_the_models_own_up_to_a_moderate_length() -> None:
    free = replace(ASKED, max_model_len=None)
    assert plan_sizes(free, SHAPE, value_bytes=4).max_model_len == 4096
    short = replace(SHAPE, max_position=1024)
    assert plan_sizes(free, short, value_bytes=4).max_model_len == 1024


@pytest.mark.parametrize(
    ("change", "max_tokens"),
    [
        ({}, 500),  # half of the context
        ({"encoder_cache_bytes": 100 * 1024}, 100),
        ({"patch_bytes": 50 * 32 * 32 * 24}, 50),
    ],
)
def test_a_picture_may_fill_half_the_context_and_must_fit_every_pool(
    change: dict[str, int], max_tokens: int
) -> None:
    sizing = plan_sizes(replace(ASKED, **change), SHAPE, value_bytes=4)  # type: ignore[arg-type]
    assert sizing.max_frame_px == max_tokens * 32 * 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_model_len": 9000}, "max_model_len is 9000, the model takes 2 to 8192"),
        ({"max_model_len": 1}, "max_model_len is 1"),
        ({"n_slots": 0}, "n_slots is 0"),
        ({"n_windows": -1}, "n_windows is -1, needs 0 or more"),
        ({"prefill_chunk": -1}, "prefill_chunk is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"encoder_cache_bytes": 1000}, "encoder_cache_bytes"),
        ({"patch_bytes": 1000}, "patch_bytes"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(
    change: dict[str, int], message: str
) -> None:
    with pytest.raises(SettingsInvalid, match=message):
        plan_sizes(replace(ASKED, **change), SHAPE, value_bytes=4)  # type: ignore[arg-type]

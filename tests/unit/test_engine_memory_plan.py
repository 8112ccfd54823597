"""The memory plan follows the settings, the checkpoint and the budget, and says how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from liveedge.core.errors import SettingsInvalid
from liveedge.engine.interface import EngineSettings
from liveedge.engine.memory.fitting import check_device_memory
from liveedge.engine.memory.plan import (
    CAMERA,
    MIB,
    Budget,
    MemoryAsked,
    MemoryPlan,
    ModelFacts,
    ServerPools,
    human,
    plan_memory,
)
from liveedge.engine.memory.sizing import model_shape
from liveedge.models.qwen3_vl.config import Qwen3VLConfig, TextConfig, VisionConfig

GIB = 1 << 30
CONFIG = Qwen3VLConfig(
    text=TextConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        n_layers=4,
        n_heads=8,
        n_kv_heads=2,
        head_dim=32,
        rope_theta=1e4,
        mrope_section=(6, 5, 5),
        max_position=8192,
    ),
    vision=VisionConfig(
        depth=2,
        hidden_size=128,
        intermediate_size=256,
        n_heads=4,
        out_hidden_size=256,
        n_positions=64,
        deepstack_layers=(1,),
    ),
)
FACTS = ModelFacts(
    config=CONFIG,
    shape=model_shape(CONFIG),
    n_values=5_000_000,
    largest_values=256_000,
    tokenizer_bytes=100_000,
)
POOLS = ServerPools(
    max_streams=64,
    hot_bytes=64 * MIB,
    history_bytes=512 * MIB,
    streams_bytes=None,
    max_body_bytes=64 * MIB,
    bodies_bytes=None,
    decoded_bytes=None,
)


def asked(
    gib: float = 16, *, pools: Mapping[str, Any] | None = None, device: str = "cpu", **engine: Any
) -> MemoryAsked:
    """A budget and what differs from the defaults."""
    return MemoryAsked(
        engine=EngineSettings(**engine),
        server=replace(POOLS, **(pools or {})),
        budget=Budget(n_bytes=int(gib * GIB), how="--memory", most_bytes=64 * GIB),
        device="cuda" if device == "cuda" else "cpu",
        has_standby=True,
    )


def sizes(plan: MemoryPlan) -> dict[str, int]:
    return {line.name: line.n_bytes for line in plan.lines}


def test_every_line_has_its_own_name_a_reason_and_a_size():
    plan = plan_memory(asked(verify_share=0.1), FACTS)
    names = [line.name for line in plan.lines]
    assert len(set(names)) == len(names)
    assert all(line.how and line.n_bytes > 0 for line in plan.lines)
    assert plan.host_bytes == sum(line.n_bytes for line in plan.lines)
    assert {line.place for line in plan.lines} == {"engine", "server", "shared"}


def test_weights_count_as_they_will_be_held_and_not_as_they_are_stored():
    assert sizes(plan_memory(asked(), FACTS))["weights"] == 5_000_000 * 4
    assert sizes(plan_memory(asked(device="cuda"), FACTS))["weights"] == 5_000_000 * 2


def test_kv_slots_are_sessions_windows_and_one_spare():
    token_bytes = 2 * 4 * 2 * 32 * 4
    plan = plan_memory(asked(n_slots=3, n_windows=2, max_model_len=1000), FACTS)
    assert sizes(plan)["KV slots"] == token_bytes * 1000 * (3 + 2 + 1)
    without = plan_memory(asked(n_slots=3, n_windows=0, max_model_len=1000), FACTS)
    assert sizes(without)["KV slots"] == token_bytes * 1000 * (3 + 1)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"max_model_len": 2048}, "workspace"),  # half a context of pixels is the largest frame
        ({"patch_bytes": 64 * MIB}, "patches"),
        ({"patch_bytes": 8 * MIB, "encode_tokens": 64}, "workspace"),
        ({"n_slots": 4}, "KV slots"),
        ({"n_windows": 1}, "KV slots"),
        ({"encoder_cache_bytes": 64 * MIB}, "encoder cache"),
        ({"prefill_chunk": 128}, "workspace"),
        ({"shared_frame_bytes": 32 * MIB}, "frames"),
    ],
)
def test_the_plan_follows_the_configured_sizes_and_counts(change: dict[str, Any], line: str):
    base: dict[str, Any] = {"encode_tokens": 256}
    usual = sizes(plan_memory(asked(**base), FACTS))
    changed = sizes(plan_memory(asked(**{**base, **change}), FACTS))
    assert changed[line] < usual[line]


def test_the_largest_frame_is_told_and_follows_the_context():
    def told(length: int) -> str:
        plan = plan_memory(asked(max_model_len=length), FACTS)
        return next(line.how for line in plan.lines if line.name == "patches")

    assert told(4096).endswith("up to 2.1 Mpx")
    assert told(1024).endswith("up to 0.52 Mpx")


def test_streams_take_the_rest_of_the_budget_and_never_less_than_one():
    stream = 576 * MIB
    for gib, n_streams in ((2, 1), (5, 3), (64, 7)):
        plan = plan_memory(asked(gib), FACTS)
        assert plan.streams_bytes == n_streams * stream
        assert sizes(plan)["cameras"] == n_streams * CAMERA
    assert plan_memory(asked(5), FACTS).fits_host
    asked_for = plan_memory(asked(5, pools={"streams_bytes": 10 * stream}), FACTS)
    assert asked_for.streams_bytes == 10 * stream
    assert not asked_for.fits_host


def test_uploads_get_a_share_of_a_small_budget_and_no_more_than_they_need_of_a_large_one():
    small, large = plan_memory(asked(4), FACTS), plan_memory(asked(64), FACTS)
    assert (small.bodies_bytes, small.decoded_bytes) == (128 * MIB, 256 * MIB)
    assert (large.bodies_bytes, large.decoded_bytes) == (512 * MIB, 1024 * MIB)
    tiny = plan_memory(asked(1), FACTS)
    assert tiny.bodies_bytes == POOLS.max_body_bytes  # one body of the largest size fits


def test_on_a_gpu_pools_are_the_gpus_and_the_rest_is_not():
    free = replace(asked(device="cuda").budget, device_free_bytes=8 * GIB)
    plan = plan_memory(replace(asked(device="cuda"), budget=free), FACTS)
    on_device = {line.name for line in plan.lines if line.place == "device"}
    assert on_device == {
        *("weights", "KV slots", "encoder cache", "workspace"),
        *("CUDA", "decode graphs"),
    }
    assert plan.host_bytes + plan.device_bytes == sum(line.n_bytes for line in plan.lines)
    assert "of 8 GiB free" in plan.table()


def test_recorded_decode_steps_gather_the_keys_of_one_layer_for_every_answer():
    token_bytes = 2 * 2 * 32 * 2  # keys and values, heads, width, bytes
    few, many = (
        sizes(plan_memory(asked(device="cuda", n_slots=n, max_model_len=1000), FACTS))[
            "decode graphs"
        ]
        for n in (2, 3)
    )
    spare_places = 4 * token_bytes  # one more slot, in every layer
    assert many - few == token_bytes * 1000 + 1000 * 2 + spare_places
    assert "decode graphs" not in sizes(plan_memory(asked(), FACTS))


def test_in_one_process_nothing_is_shared_and_the_server_holds_all():
    plan = plan_memory(replace(asked(), is_separate=False, has_standby=False), FACTS)
    assert {line.place for line in plan.lines} == {"server"}
    apart = plan_memory(replace(asked(), has_standby=False), FACTS)
    frames = EngineSettings().shared_frame_bytes
    assert apart.host_bytes - sizes(apart)["frames"] == plan.host_bytes
    assert frames == sizes(apart)["frames"]


def test_verified_answers_keep_their_logits():
    assert "kept logits" not in sizes(plan_memory(asked(), FACTS))
    plan = plan_memory(asked(verify_share=0.05, n_slots=3), FACTS)
    assert sizes(plan)["kept logits"] == 16 * (3 + 4) * 1000 * 4


def test_the_table_shows_every_line_under_its_process_within_a_terminal():
    plan = plan_memory(asked(verify_share=0.05), FACTS)
    text = plan.table()
    rows = text.splitlines()
    assert rows[0] == f"memory plan: {human(plan.host_bytes)} of 16 GiB (--memory)"
    assert [row.split("  ")[1] for row in rows if row[:3].strip() and row != rows[0]] == [
        "engine process",
        "server process",
        "shared memory",
    ]
    for line in plan.lines:
        assert any(line.name in row and human(line.n_bytes) in row for row in rows)
    assert max(map(len, rows)) <= 100


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (531 * MIB, "531 MiB"),
        (int(6.41 * GIB), "6.41 GiB"),
        (2000 * GIB, "1.95 TiB"),
    ],
)
def test_bytes_are_shown_with_three_digits(n_bytes: int, shown: str):
    assert human(n_bytes) == shown


def test_the_process_with_the_gpu_checks_again_what_is_free_there():
    settings = EngineSettings(n_slots=8, max_model_len=8192)
    check_device_memory(settings, FACTS, free_bytes=4 * GIB)
    with pytest.raises(SettingsInvalid, match=r"of the GPU, 1\.2 GiB are free.*would fit: --max"):
        check_device_memory(settings, FACTS, free_bytes=int(1.2 * GIB))

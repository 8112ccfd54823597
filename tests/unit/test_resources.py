"""From settings to a memory plan: the budget, the likely device, and what each setting becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from liveedge.core.errors import SettingsInvalid
from liveedge.resources import budget, engine_settings, memory_asked
from liveedge.settings import Settings, load, memory_bytes

GIB = 1 << 30
MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("4GiB", 4 * GIB),
        ("4 GiB", 4 * GIB),
        ("4g", 4 * GIB),
        ("1.5GiB", GIB * 3 // 2),
        ("4GB", 4_000_000_000),
        ("512MiB", 512 * MIB),
        ("512m", 512 * MIB),
        ("500 mb", 500_000_000),
        ("2048KiB", 2 * MIB),
        ("1TiB", 1024 * GIB),
        ("1073741824", GIB),
        ("1073741824B", GIB),
        ("50%", 5 * GIB),
        ("12.5 %", GIB * 5 // 4),
        ("100%", 10 * GIB),
    ],
)
def test_memory_is_written_with_units_or_as_a_share(text: str, n_bytes: int):
    assert memory_bytes(text, machine_bytes=10 * GIB) == n_bytes
    assert load(flags={"memory": text}).settings.memory == text


@pytest.mark.parametrize(
    "text", ["", "x", "-1GiB", "4 PiB", "0", "0GiB", "0%", "101%", "1e3", "50 % GiB"]
)
def test_what_is_no_amount_of_memory_is_refused_by_name(text: str):
    with pytest.raises(SettingsInvalid, match=r"^memory \(from flag\): '") as caught:
        load(flags={"memory": text})
    assert "Value error" not in caught.value.message


def test_a_bare_number_in_a_file_is_bytes(tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text("memory: 4294967296\n")
    assert load(config=path).settings.memory == "4294967296"


def test_without_a_wish_most_of_the_machine_is_the_budget():
    found = budget(None, ceiling_bytes=10 * GIB)
    assert (found.n_bytes, found.most_bytes) == (9 * GIB, 10 * GIB)
    assert found.how == "90% of the 10 GiB of this machine"


def test_no_more_can_be_had_than_there_is():
    assert budget("100%", ceiling_bytes=10 * GIB).n_bytes == 10 * GIB
    with pytest.raises(SettingsInvalid, match=r"memory is 11GiB, .* has 10 GiB"):
        budget("11GiB", ceiling_bytes=10 * GIB)


def test_every_setting_that_takes_memory_reaches_the_plan():
    settings = Settings(
        max_sessions=3,
        max_windows=2,
        max_model_len=2048,
        encoder_cache_mb=99,
        shared_frames_mb=77,
        verify_warm=0.25,
        hot_mb=5,
        history_mb=6,
        streams_mb=110,
        max_uploads_mb=21,
        max_decoded_mb=22,
        max_body_mb=4,
        max_streams=9,
        standby=False,
        memory="3GiB",
    )
    asked = memory_asked(settings, engine_settings(settings, "m"), ceiling_bytes=4 * GIB)
    engine, server = asked.engine, asked.server
    assert server is not None
    assert (engine.n_slots, engine.n_windows, engine.max_model_len) == (3, 2, 2048)
    assert (engine.encoder_cache_bytes, engine.shared_frame_bytes) == (99 * MIB, 77 * MIB)
    assert engine.verify_share == 0.25
    assert (server.hot_bytes, server.history_bytes, server.streams_bytes) == (
        5 * MIB,
        6 * MIB,
        110 * MIB,
    )
    assert (server.bodies_bytes, server.decoded_bytes) == (21 * MIB, 22 * MIB)
    assert (server.max_body_bytes, server.max_streams) == (4 * MIB, 9)
    assert (asked.has_standby, asked.is_separate) == (False, True)
    assert asked.budget.n_bytes == 3 * GIB


def test_only_an_engine_process_has_a_standby():
    settings = Settings(engine="inproc")
    asked = memory_asked(settings, engine_settings(settings, "m"), ceiling_bytes=4 * GIB)
    assert (asked.is_separate, asked.has_standby) == (False, False)

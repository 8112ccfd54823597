"""Random checkpoints for the benchmarks: what transformers reads in them, we read too."""

from __future__ import annotations

import sys
from dataclasses import astuple, replace
from pathlib import Path

import pytest
import torch

from liveedge.models.qwen3_vl.config import load_config, load_pixel_config
from liveedge.models.qwen3_vl.geometry import fit_frame
from liveedge.models.qwen3_vl.text import TextModel
from liveedge.models.qwen3_vl.vision import VisionTower
from random_checkpoint import PRESETS, Preset, make_config, pixel_config, write

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from asking import settings
from liveedge.core.clock import SystemClock
from liveedge.engine.form.schema_gate import SchemaGate
from liveedge.engine.front import Front
from liveedge.engine.prepare import Preparer
from tape import Tape, Window, question
from yardsticks import Limit, Stock

SMALL = replace(
    PRESETS["random-9m"],
    vision_depth=3,
    vision_hidden=48,
    vision_heads=4,
    layers=3,
    hidden=64,
    heads=2,
    kv_heads=1,
    intermediate=96,
    head_dim=32,
    n_positions=64,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("random")
    write(made, SMALL)
    return made


def test_the_same_name_and_seed_give_the_same_bytes(folder: Path, tmp_path: Path):
    write(tmp_path, SMALL)
    for file in folder.iterdir():
        assert file.read_bytes() == (tmp_path / file.name).read_bytes(), file.name


def test_another_seed_gives_other_weights(folder: Path, tmp_path: Path):
    write(tmp_path, SMALL, seed=1)
    name = "model.safetensors"
    assert (folder / name).read_bytes() != (tmp_path / name).read_bytes()


@pytest.mark.parametrize(("full_size", "expected"), [(False, (288, 384)), (True, (480, 640))])
def test_a_frame_of_480p_becomes_what_the_budget_says(full_size: bool, expected: tuple[int, int]):
    low, high = astuple(pixel_config(full_size=full_size).video)
    assert fit_frame(480, 640, min_pixels=low, max_pixels=high, factor=32) == expected


def test_the_files_say_what_was_asked(folder: Path):
    vision = load_config(folder).vision
    assert load_pixel_config(folder, vision).video == pixel_config(full_size=False).video
    assert vision.deepstack_layers == SMALL.deepstack


@pytest.mark.parametrize("edge", ["grid", "newest"])
def test_the_reference_and_the_bare_runner_say_the_same(folder: Path, edge: str):
    tape = Tape(n_ticks=5, width=160, height=96)
    window = Window(stream_id="s", tick=4, n_frames=4, edge="grid" if edge == "grid" else "newest")
    request = tape.request("r", window, question(3))
    asked = replace(settings(n_slots=1, n_windows=1), encoder_cache_bytes=8 << 20)
    front = Front(folder, asked, SystemClock())
    prepared = Preparer(
        front.builder,
        model=front.model,
        max_media_tokens=front.sizing.feature_rows,
        schemas=SchemaGate(lambda _grammar: None),
    ).prepare(request)
    limit = Limit(folder, asked)
    limit.prepare(prepared, prepared.groups[-1].start)
    run = limit.question_ms if edge == "grid" else limit.newest_ms
    _, token = run(prepared, prepared.groups[-1].start)
    n_read, expected = Stock(folder).first_token(request)
    assert (n_read, expected) == (prepared.n_tokens, token)


@pytest.mark.parametrize(("name", "millions"), [("random-9m", 9), ("random-267m", 267)])
def test_a_preset_has_the_size_it_is_named_after(name: str, millions: int):
    assert round(n_parameters(PRESETS[name]) / 1e6) == millions


IDS = dict.fromkeys(("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"), 0)


def n_parameters(preset: Preset) -> int:
    """Counted on the modules, which take no memory on this device."""
    config = make_config(preset, IDS)
    with torch.device("meta"):
        modules = (VisionTower(config.vision), TextModel(config.text))
    return sum(one.numel() for module in modules for one in module.parameters())

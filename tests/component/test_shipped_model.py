"""The model that ships: small, true about its simulator, and the same in transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from liveedge.models.qwen3_vl.prompt import PromptBuilder
from liveedge.models.qwen3_vl.weights import load
from liveedge.sim import questions
from liveedge.sim.render import Renderer
from liveedge.sim.scene import State, Workcell
from tests.engines import LocalEngine, question
from tests.plain import prefill
from tests.reference import Clip, Reference

FOLDER = Path(__file__).resolve().parents[2] / "src" / "liveedge" / "assets" / "workcell-tiny"
TIMES_S = (0.0, 0.5, 1.0, 1.5)
MAX_BYTES = 25_000_000
MAX_VISUAL_TOKENS = 400  # of a clip of four frames


def moment(seed: int, start_s: float, times_s: tuple[float, ...]) -> tuple[Clip, list[State]]:
    """What the camera of workcell `seed` saw, and the truth."""
    cell = Workcell(seed)
    renderer = Renderer(cell)
    frames = tuple(
        renderer.render(n, start_s + t, 1_800_000_000_000 + round(t * 1000))
        for n, t in enumerate(times_s)
    )
    return Clip(frames, times_s), [cell.state(start_s + t) for t in times_s]


def message(kind: str, text: str) -> list[dict[str, Any]]:
    content = [{"type": kind}, {"type": "text", "text": text}]
    return [{"role": "user", "content": content}]


def test_its_configuration_says_what_transformers_takes_for_granted():
    """vLLM rotates positions by halves unless it is told, and then misplaces what it sees."""
    text = json.loads((FOLDER / "config.json").read_text())["text_config"]
    assert text["rope_parameters"]["mrope_interleaved"] is True


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(FOLDER)


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    engine = LocalEngine(FOLDER, max_model_len=1024)
    yield engine
    engine.close()


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MAX_BYTES


def test_a_clip_of_four_frames_is_cheap() -> None:
    clip, _ = moment(questions.TEST_SEEDS[0], 10.0, TIMES_S)
    prompt = PromptBuilder(FOLDER).build(message("video", "?"), [clip.spec], ())
    assert 0 < prompt.image_tokens <= MAX_VISUAL_TOKENS


@pytest.mark.parametrize("text", ["naïve café — 漢字 🙂", "\x00\x07 <|im_end|> \u200d", "ß" * 300])
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    vocabulary = PromptBuilder(FOLDER).vocabulary
    ids = vocabulary.encode_plain(text)
    assert b"".join(vocabulary.token_bytes(i) for i in ids).decode() == text
    assert not any(vocabulary.is_special(i) for i in ids)


@pytest.mark.parametrize("kind", ["image", "video"])
def test_transformers_computes_the_same(
    reference: Reference, engine: LocalEngine, kind: str
) -> None:
    clip, _ = moment(questions.TEST_SEEDS[1], 12.0, TIMES_S)
    media = clip if kind == "video" else Clip(clip.frames[-1:])
    text = questions.KINDS["state"].phrasings[0]
    inputs = reference.inputs(message(kind, text), [media])
    prompt = PromptBuilder(FOLDER).build(message(kind, text), [media.spec], ())
    assert prompt.ids.tolist() == inputs["input_ids"][0].tolist()
    model = load(FOLDER, device=torch.device("cpu"), dtype=torch.float32)
    ours, _ = prefill(model, prompt, [media.frames])
    assert torch.allclose(ours, reference.logits(inputs), atol=1e-4, rtol=0)
    answer = engine.ask(engine.preparer.prepare(question("q", [("m", media), text], max_tokens=64)))
    assert reference.greedy(inputs, len(answer.tokens)) == answer.tokens


def test_its_answers_about_unseen_workcells_are_true(engine: LocalEngine) -> None:
    rng = np.random.default_rng(0)
    right: list[bool] = []
    for seed in questions.TEST_SEEDS[100:110]:
        clip, states = moment(seed, float(rng.uniform(2, 40)), TIMES_S)
        for kind in questions.KINDS:
            truth = questions.expected(kind, states)
            if truth is None:
                continue
            text = questions.ask(kind, rng)
            asked = question(f"{seed} {kind}", [(f"clip {seed}", clip), text], max_tokens=64)
            answer = engine.ask(engine.preparer.prepare(asked))
            right.append(questions.score(kind, answer.text, truth))
    assert len(right) > 100
    assert np.mean(right) >= 0.93  # the whole table is in the model card


def test_its_card_shows_what_was_measured() -> None:
    card = (FOLDER / "README.md").read_text()
    block = card.split("<!-- accuracy -->")[1].split("<!-- /accuracy -->")[0]
    for kind in questions.KINDS:
        assert f"| {kind.replace('_', ' ')} |" in block, kind
    assert json.loads((FOLDER / "config.json").read_text())["model_type"] == "qwen3_vl"

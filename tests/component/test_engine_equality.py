"""The whole engine gives the tokens of transformers, however the work is cut, shared or reused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from liveedge.engine.interface import PreparedRequest
from tests.checkpoints import make_checkpoint
from tests.engines import Answer, Content, LocalEngine, question
from tests.reference import Reference, clip, still

N_TOKENS = 64
N_TOP = 20
TOLERANCE = 1e-4

# Seeds whose greedy answers do not end within N_TOKENS: the reference is told to go on, we are not.
SHAPES: dict[str, dict[str, Any]] = {
    "gqa 2, deepstack, tied": {"kv_heads": 2, "deepstack": (0,), "tied": True, "seed": 4},
    "gqa 4, two deepstacks, untied": {
        "kv_heads": 1,
        "deepstack": (0, 1),
        "tied": False,
        "seed": 7,
    },
    "full attention, no deepstack": {"kv_heads": 4, "deepstack": (), "seed": 6},
}

CONTENTS: dict[str, Content] = {
    "text": ["How many boxes are on the belt?"],
    "image": ["Look: ", ("image", still(70, 200)), "What is it?"],
    "video": [("clip", clip(64, 96, (0.0, 0.5, 1.0, 1.5, 2.0))), "Is the belt moving?"],
    "mixed": [
        ("image", still(70, 200)),
        "then",
        ("clip", clip(64, 96, (0.0, 0.4, 1.7))),
        "and",
        ("other", still(96, 64, seed=5)),
        "Compare them.",
    ],
}


@dataclass(frozen=True)
class Expected:
    """What transformers answers."""

    tokens: list[int]
    logprobs: Tensor  # [n_tokens, vocab]


class Setup:
    """A checkpoint as transformers and as our engine see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reference = Reference(folder)
        self.expected = {name: self.answer(content) for name, content in CONTENTS.items()}

    def answer(self, content: Content) -> Expected:
        """The reference's greedy answer, not stopped by any token."""
        model = self.reference.model
        model.model.rope_deltas = None
        inputs = self.inputs(content)
        limits = {"max_new_tokens": N_TOKENS, "min_new_tokens": N_TOKENS}
        options = {"output_logits": True, "return_dict_in_generate": True}
        found = model.generate(**inputs, do_sample=False, **limits, **options)
        tokens = found.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        return Expected(tokens, torch.cat(found.logits).log_softmax(-1))

    def inputs(self, content: Content) -> dict[str, Any]:
        parts = [
            {"type": "text", "text": c}
            if isinstance(c, str)
            else {"type": "image" if c[1].times_s is None else "video"}
            for c in content
        ]
        media = [c[1] for c in content if not isinstance(c, str)]
        return self.reference.inputs([{"role": "user", "content": parts}], media)

    def engine(self, **settings: Any) -> LocalEngine:
        return LocalEngine(self.folder, max_model_len=512, **settings)


@pytest.fixture(scope="module", params=SHAPES)
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(make_checkpoint(tmp_path_factory.mktemp("model"), **SHAPES[request.param]))


@pytest.fixture
def engine(setup: Setup) -> Iterator[LocalEngine]:
    engine = setup.engine(by_hand=True)
    engine.loads.at_once = True  # nothing waits for threads
    yield engine
    engine.close()


def prepare(
    engine: LocalEngine, name: str, request_id: str | None = None, **sampling: Any
) -> PreparedRequest:
    sampling = {"max_tokens": N_TOKENS, "logprobs": True, "top_logprobs": N_TOP} | sampling
    return engine.preparer.prepare(question(request_id or name, CONTENTS[name], **sampling))


def assert_is_reference(answer: Answer, expected: Expected, n_tokens: int = N_TOKENS) -> None:
    """Equal tokens, and at every step the probabilities that decided them."""
    assert answer.tokens == expected.tokens[:n_tokens]
    assert answer.finished.reason == "length"
    assert answer.finished.usage.completion_tokens == n_tokens
    for top, row in zip(answer.top, expected.logprobs, strict=False):
        assert len(top) == N_TOP
        tokens = torch.tensor(list(top))
        found = torch.tensor(list(top.values()))
        assert (found - row[tokens]).abs().max() <= TOLERANCE
        assert found.min() >= row.topk(N_TOP).values.min() - TOLERANCE


@pytest.mark.parametrize("name", CONTENTS)
def test_a_request_alone_gives_the_tokens_of_the_reference(
    setup: Setup, engine: LocalEngine, name: str
) -> None:
    assert_is_reference(engine.ask(prepare(engine, name)), setup.expected[name])


def test_requests_in_one_batch_give_the_tokens_of_the_reference(
    setup: Setup, engine: LocalEngine
) -> None:
    answers = engine.run(*(prepare(engine, name) for name in CONTENTS))
    for name, answer in zip(CONTENTS, answers, strict=True):
        assert_is_reference(answer, setup.expected[name])
    assert max(engine.runner.batches) > 1  # how many at once depends on measured speeds (`pace`)


def test_requests_that_arrive_while_others_decode_change_nothing(setup: Setup) -> None:
    engine = setup.engine(prefill_chunk=8, n_slots=2, by_hand=True)
    engine.loads.at_once = True
    later = {name: turn for name, turn in zip(CONTENTS, (0, 9, 23, 24), strict=True) if turn}
    for name, turn in later.items():
        engine.at_turn(turn, partial(engine.submit, prepare(engine, name)))
    engine.run(prepare(engine, next(iter(CONTENTS))))
    for name in CONTENTS:
        assert_is_reference(engine.answers[name], setup.expected[name])
    assert max(engine.runner.batches) == 2
    engine.close()


@pytest.mark.parametrize("name", ["video", "mixed"])
def test_a_reused_prefix_gives_the_answer_of_a_cold_start(
    setup: Setup, engine: LocalEngine, name: str
) -> None:
    cold = engine.ask(prepare(engine, name, "cold"))
    n_encoded = len(engine.runner.encoded)
    warm = engine.ask(prepare(engine, name, "warm"))
    usage = warm.finished.usage
    assert usage.cached_tokens == usage.prompt_tokens - 1
    assert all(media.warm for media in usage.media)
    assert len(engine.runner.encoded) == n_encoded
    assert_is_reference(cold, setup.expected[name])
    assert_is_reference(warm, setup.expected[name])
    assert warm.logprobs == pytest.approx(cold.logprobs, abs=TOLERANCE)


def test_a_copied_prefix_gives_the_answer_of_a_cold_start(
    setup: Setup, engine: LocalEngine
) -> None:
    media = CONTENTS["video"][0]
    long_tail = "Is the belt moving? " * 6
    first = question("first", [media, long_tail], max_tokens=2)
    engine.ask(engine.preparer.prepare(first))
    warm = engine.ask(prepare(engine, "video"))
    assert engine.runner.n_copies == 1
    assert warm.finished.usage.cached_tokens > warm.finished.usage.image_tokens
    cold_engine = setup.engine()
    cold = cold_engine.ask(prepare(cold_engine, "video"))
    cold_engine.close()
    assert_is_reference(cold, setup.expected["video"])
    assert_is_reference(warm, setup.expected["video"])
    assert warm.logprobs == pytest.approx(cold.logprobs, abs=TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 7, 33])
def test_a_prompt_in_pieces_gives_the_answer_of_one_piece(setup: Setup, chunk: int) -> None:
    engine = setup.engine(prefill_chunk=chunk)
    answer = engine.ask(prepare(engine, "mixed", max_tokens=8))
    engine.close()
    assert_is_reference(answer, setup.expected["mixed"], n_tokens=8)


def test_questions_about_one_clip_asked_together_share_its_work(
    setup: Setup, engine: LocalEngine
) -> None:
    media = ("clip", clip(128, 160, tuple(n / 2 for n in range(8))))
    asked = [
        engine.preparer.prepare(question(f"q{n}", [media, f"Question {n}?"], max_tokens=4))
        for n in range(3)
    ]
    answers = engine.run(*asked)
    assert sorted(engine.runner.encoded) == sorted({g.key for g in asked[0].groups})
    usages = [answer.finished.usage for answer in answers]
    assert usages[0].cached_tokens == 0
    assert all(usage.cached_tokens > usage.image_tokens for usage in usages[1:])
    alone = setup.engine()
    for prepared, answer in zip(asked, answers, strict=True):
        assert alone.ask(prepared).tokens == answer.tokens
    alone.close()


def test_memory_taken_over_from_other_requests_leaves_no_trace(setup: Setup) -> None:
    """Case 21: after eviction of slots and features, a rebuilt answer equals a fresh one."""
    engine = setup.engine(n_slots=2, encoder_cache_bytes=24 * 64 * 4 * 3)
    for turn in range(3):
        for n in range(3):
            other: Content = ["Look", (f"other-{turn}-{n}", still(64, 96, seed=10 * turn + n)), "?"]
            engine.ask(engine.preparer.prepare(question(f"o{turn}{n}", other, max_tokens=3)))
        answer = engine.ask(prepare(engine, "video", f"again-{turn}"))
        assert answer.finished.usage.cached_tokens < 8
        assert_is_reference(answer, setup.expected["video"])
    engine.close()

"""Warm answers are the answers of a cold start: random windows, questions and concurrency.

One engine stays warm over all cases: its windows slide, its slots and features are reused and
evicted. The other one forgets everything before each answer. `LIVEEDGE_WARM_CASES=500` runs more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from liveedge.engine.interface import PreparedRequest, WindowPrefix
from liveedge.engine.request import (
    FrameInput,
    GenerateRequest,
    ImagePart,
    Message,
    Part,
    SamplingParams,
    TextPart,
    VideoPart,
)
from tests.checkpoints import make_checkpoint
from tests.engines import Answer, LocalEngine
from tests.reference import picture

N_CASES = int(os.environ.get("LIVEEDGE_WARM_CASES", "60"))
N_TOKENS = 6
TOLERANCE = 1e-4
SIZES = ((64, 96), (96, 64), (128, 96))  # of cameras: height, width
TEXTS = ("Is the door open?", "How many boxes are on the belt?", "Say what moves, and where to.")
LONG = "Answer in one word, and only about the part of the belt behind the lamp. "


@dataclass(frozen=True)
class Window:
    """A trailing segment of one camera, and the text before it."""

    camera: int
    first: int  # frame
    n_frames: int
    system: str

    def messages(self, text: str = "") -> tuple[Message, ...]:
        numbers = range(self.first, self.first + self.n_frames)
        frames = [frame(self.camera, number) for number in numbers]
        frames += frames[-1:] * (len(frames) % 2)
        parts: tuple[Part, ...] = (VideoPart(frames=tuple(frames)),)
        parts += (TextPart(text),) if text else ()
        user = Message(role="user", content=parts)
        if not self.system:
            return (user,)
        return (Message(role="system", content=(TextPart(self.system),)), user)


@cache
def pixels(camera: int, number: int) -> NDArray[np.uint8]:
    return picture(*SIZES[camera], seed=1000 * camera + number)


def frame(camera: int, number: int) -> FrameInput:
    height, width = SIZES[camera]
    return FrameInput(
        key=f"camera-{camera}/{number}",
        width=width,
        height=height,
        load=partial(pixels, camera, number),
        time_s=number / 2,
    )


def ask(request_id: str, messages: tuple[Message, ...]) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=N_TOKENS, logprobs=True, top_logprobs=20)
    return GenerateRequest(request_id=request_id, messages=messages, sampling=sampling)


class Pair:
    """The two engines, and the cameras' newest frames."""

    def __init__(self, folder: Path, prefill_chunk: int) -> None:
        # Room for the features of about two windows, so that some are evicted and come back.
        features = 64 * 4 * 2 * 90
        settings: dict[str, Any] = {"max_model_len": 384, "encoder_cache_bytes": features}
        self.warm = LocalEngine(
            folder, n_windows=2, verify_share=0.25, prefill_chunk=prefill_chunk, **settings
        )
        self.cold = LocalEngine(folder, **settings)
        self.newest = [0, 0, 0]
        self.n_asked = 0
        self.n_reused = 0

    def window(self, random: Random) -> Window:
        camera = random.randrange(len(SIZES))
        self.newest[camera] += random.choice((0, 1, 1, 2, 5))
        return Window(
            camera=camera,
            first=self.newest[camera],
            n_frames=random.randint(1, 8),
            system=random.choice(("", "You watch a belt.", LONG)),
        )

    def questions(self, window: Window, random: Random) -> list[GenerateRequest]:
        texts = [
            random.choice(("", LONG)) + random.choice(TEXTS) for _ in range(self.count(random))
        ]
        self.n_asked += len(texts)
        return [
            ask(f"question-{self.n_asked - n}", window.messages(text))
            for n, text in enumerate(texts)
        ]

    @staticmethod
    def count(random: Random) -> int:
        return random.choice((1, 1, 2, 3, 6))  # more than there are slots

    def prefix(self, case: int, window: Window) -> WindowPrefix:
        prepared = self.warm.preparer.prepare_window(ask(f"window-{case}", window.messages()))
        return WindowPrefix(window_id=f"camera-{window.camera % 2}", prepared=prepared)

    def run(self, case: int) -> list[tuple[PreparedRequest, Answer]]:
        """Questions before, while and after their window gets warm."""
        random = Random(case)
        window = self.window(random)
        asked = [self.warm.preparer.prepare(q) for q in self.questions(window, random)]
        if random.random() < 0.9:
            self.warm.warm(self.prefix(case, window))
        if random.random() < 0.5:
            self.warm.settle()
        for prepared in asked:
            submit: Callable[[], None] = partial(self.warm.submit, prepared)
            self.warm.at_turn(random.choice((0, 0, 0, 1, 3, 9)), submit)
        self.warm.settle()
        return [(item, self.warm.answers[item.request.request_id]) for item in asked]


@pytest.fixture(scope="module", params=[512, 48], ids=["whole prompts", "pieces"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = make_checkpoint(tmp_path_factory.mktemp("model"), seed=4)
    pair = Pair(folder, request.param)
    yield pair
    pair.warm.close()
    pair.cold.close()


@pytest.mark.timeout(120 + N_CASES)
def test_warm_answers_are_those_of_a_cold_start(pair: Pair) -> None:
    for case in range((N_CASES + 1) // 2):
        for prepared, warm in pair.run(case):
            pair.cold.forget()
            cold = pair.cold.ask(pair.cold.preparer.prepare(prepared.request))
            assert_equal(warm, cold, f"case {case}, {prepared.request.request_id}")
            pair.n_reused += warm.finished.usage.cached_tokens
    stats = pair.warm.stats
    assert pair.n_reused > 20 * pair.n_asked
    assert stats.warm_updates > N_CASES / 4
    # The engine's own comparison of logits, of a share of the answers.
    assert stats.verified > N_CASES / 20
    assert (stats.verify_differences, stats.verify_skipped) == (0, 0)
    for found in pair.warm.runner.compared:
        assert found.max_difference <= TOLERANCE * max(1.0, found.scale)
    assert sorted(pair.warm.released_ids) == sorted(pair.warm.answers)


def test_cached_features_of_frames_that_are_gone_give_the_same_logits(tmp_path: Path) -> None:
    is_hot = True
    shown = [
        ImagePart(frame=replace(frame(camera, 7), is_exact=lambda: is_hot)) for camera in (0, 1)
    ]

    engine = LocalEngine(
        make_checkpoint(tmp_path, seed=4), n_windows=1, verify_share=1.0, max_model_len=384
    )
    try:
        message = Message(role="user", content=(shown[0], TextPart("and"), shown[1]))
        engine.ask(engine.preparer.prepare(ask("first", (message,))))
        is_hot = False
        engine.ask(engine.preparer.prepare(ask("second", (message,))))
        engine.settle()
        stats = engine.stats
        assert (stats.verified, stats.verified_with_cached_features) == (0, 1)
        assert (stats.verify_differences, stats.verify_skipped) == (0, 0)
        compared = engine.runner.compared
        assert sum(found.n_rows for found in compared) == N_TOKENS
        assert all(found.max_difference <= TOLERANCE * found.scale for found in compared)
    finally:
        engine.close()


def assert_equal(warm: Answer, cold: Answer, case: str) -> None:
    usage = cold.finished.usage
    assert usage.cached_tokens == 0, case
    assert not any(media.warm for media in usage.media), case
    assert warm.tokens == cold.tokens, case
    for ours, theirs in zip(warm.top, cold.top, strict=True):
        assert ours == pytest.approx(theirs, abs=TOLERANCE), case

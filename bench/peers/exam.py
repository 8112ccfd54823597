"""Questions with known answers about frames of the simulated workcell, the same for every side.

Kinds and their closed answers come round evenly, so that a side which always says the same is seen
to be wrong. Everything is drawn from a seed: equal arguments are equal pictures, byte for byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from liveedge.sim import questions
from liveedge.sim.render import NATIVE_HEIGHT, NATIVE_WIDTH, Renderer
from liveedge.sim.scene import Workcell
from peers.clips import jpeg

INTERVAL_S = 0.5  # between the frames of a clip, as the shipped model was trained
EARLIEST_S, LATEST_S = 5.0, 60.0  # of the newest frame
LOOKS = 100  # at a workcell, for a moment with the wanted answer, before another is made
CELLS = 10  # after so many any answer will do: in a short clip no door comes to open


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What is shown, what is asked, and what is true."""

    kind: str
    question: str
    truth: str
    jpegs: tuple[bytes, ...]  # oldest first

    def is_right(self, answer: str) -> bool:
        return questions.score(self.kind, answer, self.truth)


def draw(
    n_items: int,
    *,
    n_frames: int,
    width: int = NATIVE_WIDTH,
    height: int = NATIVE_HEIGHT,
    seed: int = 0,
) -> list[Item]:
    """One frame: questions about a state. More: half of them about what happened.

    The size of the pictures changes nothing else.
    """
    rng = np.random.default_rng((seed, n_frames))
    return [
        _item(rng, *wanted, n_frames, width=width, height=height)
        for wanted in itertools.islice(_wanted(n_frames), n_items)
    ]


def _wanted(n_frames: int) -> Iterator[tuple[str, str | None]]:
    """(kind, answer), for ever; an open answer is None. Kinds take turns, in each its answers."""
    groups: list[Sequence[str]] = [questions.FRAME_KINDS]
    if n_frames > 1:
        groups.append(questions.CLIP_KINDS)
    turns = [itertools.cycle([_answers(kind) for kind in group]) for group in groups]
    while True:
        for turn in turns:
            kind, answers = next(turn)
            yield kind, next(answers)


def _answers(kind: str) -> tuple[str, Iterator[str | None]]:
    return kind, itertools.cycle(questions.KINDS[kind].answers or (None,))


def _item(
    rng: np.random.Generator,
    kind: str,
    wanted: str | None,
    n_frames: int,
    *,
    width: int,
    height: int,
) -> Item:
    held_out = questions.TEST_SEEDS
    for number in itertools.count():
        cell = Workcell(int(rng.integers(held_out.start, held_out.stop)))
        for newest_s in np.sort(rng.uniform(EARLIEST_S, LATEST_S, size=LOOKS)):
            times_s = [float(newest_s) - INTERVAL_S * back for back in range(n_frames)][::-1]
            truth = questions.expected(kind, [cell.state(t_s) for t_s in times_s])
            if truth is not None and (wanted in (None, truth) or number >= CELLS):
                return Item(
                    kind=kind,
                    question=questions.ask(kind, rng),
                    truth=truth,
                    jpegs=_render(cell, times_s, width=width, height=height),
                )
    raise AssertionError("unreachable: a count has no end")


def _render(
    cell: Workcell, times_s: Sequence[float], *, width: int, height: int
) -> tuple[bytes, ...]:
    renderer = Renderer(cell, width=width, height=height)
    return tuple(
        jpeg(Image.fromarray(renderer.render(number, t_s, round(t_s * 1000))))
        for number, t_s in enumerate(times_s)
    )

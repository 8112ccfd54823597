"""The held-out test of the shipped model: moments, frames and questions, drawn from a seed.

A moment is the newest frame of a camera that looks at a workcell of `TEST_SEEDS`. Its clip is what
the product would show the model at the live edge: picked and paired by the product's own resolver.
No torch: what is asked and what is true never depends on a model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.frames.pairs import pair_ticks
from liveedge.frames.refs import parse_ref
from liveedge.frames.resolve import Pick, resolve_segment
from liveedge.frames.snapshot import Snapshot
from liveedge.sim import questions
from liveedge.sim.render import Difficulty, Renderer
from liveedge.sim.scene import State, Workcell

MAX_FPS: Final = 2  # of the clip
CAMERA_FPS: Final = (15, 25, 30)
EARLIEST_S, LATEST_S = 5.0, 60.0  # of the newest frame: eight frames fit before it
BOOTED_WALL_MS: Final = 1_796_000_000_000  # burned in like any other wall time
MOMENTS_PER_WORKCELL: Final = 12  # looked at; making a workcell costs more than looking
Z_95: Final = 1.959964

Shares: TypeAlias = Counter[tuple[str, str | None]]  # by kind and closed answer


@dataclass(frozen=True)
class Moment:
    """The newest frame of one camera, and how many frames of its past are shown with it."""

    seed: int
    fps: int
    newest: int  # frame number
    n_frames: int
    cell: Workcell = field(compare=False, repr=False)

    @cached_property
    def picks(self) -> tuple[Pick, ...]:
        """Frames of a segment that ends at the live edge, as the product chooses them."""
        stream_time_ms = np.rint(np.arange(self.newest + 1) * 1000 / self.fps).astype(np.int64)
        tick = int(stream_time_ms[-1]) * MAX_FPS // 1000
        start_ms = (tick - self.n_frames + 1) * 1000 // MAX_FPS
        url = f"ovs://streams/exam?start_timestamp_ms={start_ms}&max_fps={MAX_FPS}"
        snapshot = _snapshot(stream_time_ms)
        picks = resolve_segment(parse_ref(url, kind="video"), snapshot).picks
        assert len(picks) == self.n_frames, (self, len(picks))
        return picks

    @cached_property
    def states(self) -> tuple[State, ...]:
        """The truth of each frame."""
        return tuple(self.cell.state(pick.index / self.fps) for pick in self.picks)

    def pairs(self) -> list[tuple[Pick, Pick]]:
        """Which frames share a temporal group: by the absolute number of their ticks."""
        return pair_ticks(self.picks)

    def time_s(self, pick: Pick) -> float:
        """Seconds from the first frame shown."""
        return (pick.stream_time_ms - self.picks[0].stream_time_ms) / 1000

    def render(
        self, *, width: int, height: int, difficulty: Difficulty = "normal"
    ) -> dict[int, NDArray[np.uint8]]:
        """Pixels by frame number."""
        renderer = Renderer(self.cell, width=width, height=height, difficulty=difficulty)
        return {
            pick.index: renderer.render(
                pick.index, pick.index / self.fps, BOOTED_WALL_MS + pick.stream_time_ms
            )
            for pick in self.picks
        }


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its true answer."""

    kind: str
    text: str
    truth: str


@dataclass(frozen=True, slots=True)
class Exam:
    """One clip and what is asked about it."""

    moment: Moment
    questions: tuple[Question, ...]


def draw_exams(rng: np.random.Generator, *, wanted: Shares, n_frames: int) -> list[Exam]:
    """Moments until every kind, and within it every closed answer, has its share."""
    wanted = wanted.copy()
    kinds = tuple(dict.fromkeys(kind for kind, _ in wanted))
    exams = []
    while wanted.total() > 0:
        cell = draw_workcell(rng)
        for _ in range(MOMENTS_PER_WORKCELL):
            moment = draw_moment(rng, cell, n_frames=n_frames)
            asked = _ask(rng, moment, kinds, wanted)
            if asked:
                exams.append(Exam(moment, asked))
                break  # one clip per workcell: answers do not depend on each other
    return exams


def _ask(
    rng: np.random.Generator, moment: Moment, kinds: Sequence[str], wanted: Shares
) -> tuple[Question, ...]:
    """Every question that is still wanted and has an answer at this moment; no longer wanted."""
    found = []
    for kind in kinds:
        truth = questions.expected(kind, moment.states)
        share = (kind, truth if questions.KINDS[kind].answers else None)
        if truth is not None and wanted[share] > 0:
            wanted[share] -= 1
            found.append(Question(kind, questions.ask(kind, rng), truth))
    return tuple(found)


def shares(kinds: Sequence[str], n_questions: int) -> Shares:
    """At least `n_questions`, the same for each kind and within it for each closed answer."""
    n_per_kind = -(-n_questions // len(kinds))
    wanted: Shares = Counter()
    for kind in kinds:
        answers: tuple[str | None, ...] = questions.KINDS[kind].answers or (None,)
        for answer in answers:
            wanted[kind, answer] = -(-n_per_kind // len(answers))
    return wanted


def draw_workcell(rng: np.random.Generator) -> Workcell:
    """One that no training has seen."""
    held_out = questions.TEST_SEEDS
    return Workcell(int(rng.integers(held_out.start, held_out.stop)))


def draw_moment(rng: np.random.Generator, cell: Workcell, *, n_frames: int) -> Moment:
    """Any moment of a workcell: both ways to pair its ticks are equally likely."""
    fps = int(rng.choice(CAMERA_FPS))
    first, last = math.ceil(EARLIEST_S * fps), math.floor(LATEST_S * fps)
    newest = int(rng.integers(first, last))
    return Moment(seed=cell.seed, fps=fps, newest=newest, n_frames=n_frames, cell=cell)


@dataclass(slots=True)
class Tally:
    """Right answers of how many."""

    right: int = 0
    n: int = 0

    def add(self, *, right: bool) -> None:
        self.right += right
        self.n += 1

    @property
    def rate(self) -> float:
        return self.right / self.n if self.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the rate (Wilson)."""
        if self.n == 0:
            return (0.0, 1.0)
        z2 = Z_95**2 / self.n
        middle = (self.rate + z2 / 2) / (1 + z2)
        half = math.sqrt(self.rate * (1 - self.rate) * z2 + z2 * z2 / 4) / (1 + z2)
        return (max(middle - half, 0.0), min(middle + half, 1.0))

    def to_json(self) -> dict[str, float]:
        low, high = self.interval
        return {"n": self.n, "right": self.right, "rate": self.rate, "low": low, "high": high}


def pooled(tallies: Mapping[str, Tally], kinds: Sequence[str]) -> Tally:
    """Several kinds as one."""
    found = [tallies[kind] for kind in kinds if kind in tallies]
    return Tally(sum(t.right for t in found), sum(t.n for t in found))


def _snapshot(stream_time_ms: NDArray[np.int64]) -> Snapshot:
    n = len(stream_time_ms)
    return Snapshot(
        stream_id="exam",
        taken_at_s=float(stream_time_ms[-1]) / 1000,
        n_produced=n,
        newest_ms=int(stream_time_ms[-1]),
        index=np.arange(n),
        stream_time_ms=stream_time_ms,
        captured_at_ms=stream_time_ms + BOOTED_WALL_MS,
        arrived_s=stream_time_ms / 1000,
        width=np.ones(n, np.int32),
        height=np.ones(n, np.int32),
        corrupt=np.zeros(n, np.bool_),
    )

"""What happens in the workcell: a pure function of seed and time.

Each part (door, lamp, person, boxes, display, gauge, belt) has a timeline of its own, drawn from
its own generator, so that `Workcell(seed).state(t)` is the same in every process and in any order
of calls. Times are seconds from the start of the scene.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

COLOURS = ("red", "yellow", "green", "blue", "purple", "white")
N_SLOTS = 5  # places for boxes over the belt
MAX_BOXES = 4
BELT_SPEED_PX_S = 50.0  # of the native picture; one period of stripes is 128 px
DOOR_MOVE_S = 0.9
BOX_MOVE_S = 0.6
PERSON_SPEED_PX_S = 150.0

Belt = Literal["left", "right", "stopped"]
Count = Literal["up", "down", "steady"]


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody in or entering the picture. `x` is the middle in native pixels."""

    shirt: str
    x: float
    velocity: float  # native px/s, negative: to the left


@dataclass(frozen=True, slots=True)
class Box:
    """A box in a slot; `lift` is 0 on the belt and 1 out of sight above it."""

    slot: int
    colour: str
    lift: float


@dataclass(frozen=True, slots=True)
class State:
    """The truth at one moment: the label of a frame."""

    t_s: float
    door: float  # 0 closed .. 1 open
    lamp: bool
    person: Person | None
    boxes: tuple[Box, ...]  # left to right
    display: int  # 0..99
    display_mode: Count
    gauge: float  # 0..1
    belt: Belt
    belt_phase_px: float

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSONL."""
        return asdict(self)


T = TypeVar("T")
Span = tuple[float, T]  # (duration in s, value)


class _Timeline(Generic[T]):
    """Spans of values on a growing axis, produced on demand, dropped on request."""

    def __init__(self, spans: Iterator[Span[T]]) -> None:
        self._spans = spans
        self._starts: list[float] = []
        self._values: list[T] = []
        self._end = 0.0

    def at(self, t_s: float) -> tuple[float, T, T]:
        """(start of the span, its value, the value before it)."""
        while self._end <= t_s:
            duration, value = next(self._spans)
            self._starts.append(self._end)
            self._values.append(value)
            self._end += duration
        i = bisect.bisect_right(self._starts, t_s) - 1
        if i < 0:
            raise ValueError(f"scene time {t_s:.1f} s has been forgotten; ask a new Workcell")
        return self._starts[i], self._values[i], self._values[max(i - 1, 0)]

    def forget_before(self, t_s: float) -> None:
        keep = max(bisect.bisect_right(self._starts, t_s) - 2, 0)
        del self._starts[:keep]
        del self._values[:keep]


class Workcell:
    """The scene of one seed. Not thread-safe: one owner, or one lock."""

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise ValueError(f"seed is {seed}, needs 0 or more")
        self.seed = seed
        self._door = _Timeline(_toggle(_rng(seed, 1), 3.0, 9.0))
        self._lamp = _Timeline(_toggle(_rng(seed, 2), 4.0, 12.0))
        self._person = _Timeline(_person_spans(_rng(seed, 3)))
        self._boxes = _Timeline(_box_spans(_rng(seed, 4)))
        self._display = _Timeline(_display_spans(_rng(seed, 5)))
        self._gauge = _Timeline(_gauge_spans(_rng(seed, 6)))
        self._belt = _Timeline(_belt_spans(_rng(seed, 7)))

    def state(self, t_s: float) -> State:
        """The truth at `t_s` ≥ 0."""
        lamp = self._lamp.at(t_s)[1]
        display, mode = self._display_at(t_s)
        start, (belt, phase), _ = self._belt.at(t_s)
        return State(
            t_s=t_s,
            door=self._door_at(t_s),
            lamp=lamp,
            person=self._person_at(t_s),
            boxes=self._boxes_at(t_s),
            display=display,
            display_mode=mode,
            gauge=self._gauge_at(t_s),
            belt=belt,
            belt_phase_px=phase + _direction(belt) * BELT_SPEED_PX_S * (t_s - start),
        )

    def forget_before(self, t_s: float) -> None:
        """Drop what is only needed for moments before `t_s`, so that a camera runs for ever."""
        for line in (self._door, self._lamp, self._person, self._boxes):
            line.forget_before(t_s)
        for rest in (self._display, self._gauge, self._belt):
            rest.forget_before(t_s)

    def _door_at(self, t_s: float) -> float:
        start, is_open, was_open = self._door.at(t_s)
        progress = min((t_s - start) / DOOR_MOVE_S, 1.0)
        return float(was_open) + (float(is_open) - float(was_open)) * progress

    def _person_at(self, t_s: float) -> Person | None:
        start, leg, _ = self._person.at(t_s)
        if leg is None:
            return None
        shirt, x_from, velocity = leg
        return Person(shirt=shirt, x=x_from + velocity * (t_s - start), velocity=velocity)

    def _boxes_at(self, t_s: float) -> tuple[Box, ...]:
        start, now, before = self._boxes.at(t_s)
        progress = min((t_s - start) / BOX_MOVE_S, 1.0)
        boxes = [
            Box(slot, colour, 0.0 if slot in before else 1.0 - progress)
            for slot, colour in now.items()
        ]
        if progress < 1.0:
            gone = (slot for slot in before if slot not in now)
            boxes += [Box(slot, before[slot], progress) for slot in gone]
        return tuple(sorted(boxes, key=lambda box: box.slot))

    def _display_at(self, t_s: float) -> tuple[int, Count]:
        start, (value, mode, step_s), _ = self._display.at(t_s)
        n_steps = int((t_s - start) / step_s)
        return value + {"up": 1, "down": -1, "steady": 0}[mode] * n_steps, mode

    def _gauge_at(self, t_s: float) -> float:
        start, (level, rate), _ = self._gauge.at(t_s)
        return level + rate * (t_s - start)


def _rng(seed: int, part: int) -> np.random.Generator:
    return np.random.default_rng((seed, part))


def _direction(belt: Belt) -> int:
    return {"left": -1, "right": 1, "stopped": 0}[belt]


def _toggle(rng: np.random.Generator, low_s: float, high_s: float) -> Iterator[Span[bool]]:
    value = bool(rng.integers(2))
    yield float(rng.uniform(0.5, high_s)), value
    while True:
        value = not value
        yield float(rng.uniform(low_s, high_s)), value


PERSON_OUTSIDE_X = 914.0  # right of the picture: people come and go there
PERSON_RANGE_X = (270.0, 780.0)


def _person_spans(rng: np.random.Generator) -> Iterator[Span[tuple[str, float, float] | None]]:
    """Away, walk in, stand and walk about, walk out."""

    def walk(shirt: str, x: float, x_to: float) -> Span[tuple[str, float, float] | None]:
        velocity = PERSON_SPEED_PX_S if x_to > x else -PERSON_SPEED_PX_S
        return abs(x_to - x) / PERSON_SPEED_PX_S, (shirt, x, velocity)

    if rng.random() < 0.5:
        yield float(rng.uniform(1.0, 6.0)), None
    while True:
        shirt = str(rng.choice(COLOURS))
        x = PERSON_OUTSIDE_X
        for _ in range(int(rng.integers(1, 4))):
            x_to = float(rng.uniform(*PERSON_RANGE_X))
            yield walk(shirt, x, x_to)
            x = x_to
            yield float(rng.uniform(2.0, 7.0)), (shirt, x, 0.0)
        yield walk(shirt, x, PERSON_OUTSIDE_X)
        yield float(rng.uniform(3.0, 9.0)), None


def _box_spans(rng: np.random.Generator) -> Iterator[Span[dict[int, str]]]:
    n_first = int(rng.integers(MAX_BOXES + 1))
    boxes = {int(s): str(rng.choice(COLOURS)) for s in rng.permutation(N_SLOTS)[:n_first]}
    while True:
        yield float(rng.uniform(2.0, 6.0)), dict(boxes)
        adds = len(boxes) == 0 or (len(boxes) < MAX_BOXES and bool(rng.integers(2)))
        if adds:
            free = [slot for slot in range(N_SLOTS) if slot not in boxes]
            boxes[int(rng.choice(free))] = str(rng.choice(COLOURS))
        else:
            del boxes[int(rng.choice(sorted(boxes)))]


def _display_spans(rng: np.random.Generator) -> Iterator[Span[tuple[int, Count, float]]]:
    value = int(rng.integers(100))
    signs: dict[Count, int] = {"up": 1, "down": -1, "steady": 0}
    while True:
        mode: Count = (["up", "down", "steady"])[int(rng.integers(3))]  # type: ignore[assignment]
        step_s = float(rng.uniform(0.4, 0.9))
        n_steps = int(rng.integers(6, 13))
        if not 0 <= value + signs[mode] * n_steps <= 99:
            mode = "down" if mode == "up" else "up"
        yield n_steps * step_s, (value, mode, step_s)
        value += signs[mode] * n_steps


def _gauge_spans(rng: np.random.Generator) -> Iterator[Span[tuple[float, float]]]:
    level = float(rng.uniform())
    while True:
        yield float(rng.uniform(2.0, 6.0)), (level, 0.0)
        target = float(rng.uniform())
        yield abs(target - level) / 0.3 + 1e-3, (level, 0.3 if target > level else -0.3)
        level = target


def _belt_spans(rng: np.random.Generator) -> Iterator[Span[tuple[Belt, float]]]:
    modes: tuple[Belt, ...] = ("left", "right", "stopped")
    belt, phase = modes[int(rng.integers(3))], float(rng.uniform(0, 128))
    while True:
        duration = float(rng.uniform(4.0, 9.0))
        yield duration, (belt, phase)
        phase = (phase + _direction(belt) * BELT_SPEED_PX_S * duration) % 128.0
        belt = modes[(modes.index(belt) + 1 + int(rng.integers(2))) % 3]

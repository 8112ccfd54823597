"""How long a question would wait for others until its first token, and which wait is too long.

`Line` is pure: time comes as an argument, everything can be tested with integers.

A question in progress without a first token is *work*. What a question of its shape takes is learned:
while n questions are work, each of them has a share of 1/n of the time, so the shares add up to the
time that was spent, whatever works for whom on which thread, in whichever process. The forecast of a
newcomer's wait is what all before it are still expected to take.

- As a rule `burst` average questions may be before a newcomer: chance brings several at once, and
  clients that wait for their answers never bring more than they are.
- Under overload a queue never ends and only makes all late: then three quarters of an average question
  may be before a newcomer, or `FLOOR_S` where questions are cheap: with less the processes wait for each
  other, and half of the time is lost (decision 0014).
- It is an overload once more than `OVERLOAD` of the time is offered, over the last seconds and those included
  who are refused, or once somebody is refused while more than all of it is; until less than `CALM` is.
- A tenant that has no work here is let in, whoever else has: slots go to tenants by turns, and there are
  few of them. So one that overloads the server is refused, and others are not.
- Batch questions wait behind all others, and half as long: they are refused first.
- Answers that are being written are no work: decoding many at once costs little more than one. What
  they do take, and sessions that are all taken, makes first tokens come later, and is learned so.

Where many wait for one thing after the other, shares tell half of the wait: of a burst twice as many are
taken. Behind the one or two questions of an overload that makes no difference.

Who is refused is told when there is room if everybody who was refused comes back as told: one after
the other, at the rate at which questions are answered. Where that would be later than `HORIZON_S` the
times begin anew: those who come back at once are few, and nobody stays away for long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from liveedge.core.clock import Clock
from liveedge.core.errors import QueueFull
from liveedge.engine.decide.rates import Ratio

Priority: TypeAlias = Literal["interactive", "batch"]
Shape: TypeAlias = tuple[int, int, int]

FAIR_QUESTIONS: Final = 0.75  # of an average one: what may be before a newcomer under overload
FLOOR_S: Final = 0.1  # what nobody minds who asks about a picture
OVERLOAD: Final = 1.2  # seconds of work offered per second: clients that wait for answers offer 1
CALM: Final = 0.95
SEEN_S: Final = 2.0  # what is offered is an average over so long, or over twice the burst
HORIZON_S: Final = (
    10.0  # nobody is told to stay away for longer, unless one question takes that long
)
KEPT: Final = 0.95  # of what was learned, with each question more


def shape_of(*, n_uploads: int, n_frames: int, n_chars: int) -> Shape:
    """What a question costs depends on, in powers of two: a few dozen shapes at most."""
    return (n_uploads.bit_length(), n_frames.bit_length(), (n_chars >> 11).bit_length())


@dataclass(slots=True, eq=False)
class Place:
    """One question that is work."""

    shape: Shape
    priority: Priority
    expected_s: float
    share_s: float  # the common share when it came
    tenant: str = ""


@dataclass(slots=True)
class _Learned:
    """Seconds of work per question."""

    all: Ratio = field(default_factory=lambda: Ratio(KEPT))
    by_shape: dict[Shape, Ratio] = field(default_factory=dict)

    def add(self, shape: Shape, seconds: float) -> None:
        self.all.add(seconds, 1)
        self.by_shape.setdefault(shape, Ratio(KEPT)).add(seconds, 1)

    def expected_s(self, shape: Shape) -> float:
        known = self.by_shape.get(shape)
        value = None if known is None else known.value
        return (self.all.value if value is None else value) or 0.0


class Line:
    """All questions that are work, and what is known of such questions."""

    def __init__(self, *, burst: int, max_wait_s: float | None = None) -> None:
        """`max_wait_s` is the bound under overload; None: what `FAIR_QUESTIONS` take, or `FLOOR_S`."""
        self.refused = 0
        self._burst = burst
        self._max_wait_s = max_wait_s
        self._work: dict[int, Place] = {}  # by id, in order of arrival
        self._learned = _Learned()
        self._share_s = 0.0  # what a question that was always there would have had
        self._now_s: float | None = None
        self._offered_s = 0.0  # work that came lately, in seconds
        self._is_overloaded = False
        self._returns_s = 0.0  # until then places are promised to those who were refused

    @property
    def n_work(self) -> int:
        return len(self._work)

    @property
    def is_overloaded(self) -> bool:
        """Whether more came in the last seconds than can be done."""
        return self._is_overloaded

    @property
    def seen_s(self) -> float:
        """How far back that looks: a burst of slow questions is no overload."""
        return max(SEEN_S, 2 * self._burst * (self._learned.all.value or 0.0))

    @property
    def bound_s(self) -> float:
        """The wait that a newcomer may have before it."""
        average_s = self._learned.all.value or 0.0
        if not self.is_overloaded:
            return self._burst * average_s
        if self._max_wait_s is not None:
            return self._max_wait_s
        return max(FLOOR_S, FAIR_QUESTIONS * average_s)

    def wait_s(self, priority: Priority, *, now_s: float) -> float:
        """The forecast for somebody who comes now."""
        self._advance(now_s)
        return sum(
            self._left_s(place)
            for place in self._work.values()
            if priority == "batch" or place.priority == "interactive"
        )

    def enter(self, shape: Shape, priority: Priority, *, now_s: float, tenant: str = "") -> Place:
        """Raises QueueFull, with the time after which to try again."""
        self._advance(now_s)
        expected_s = self._learned.expected_s(shape)
        self._offered_s += expected_s
        if self._offered_s > OVERLOAD * self.seen_s:
            self._is_overloaded = True
        self.require_room(priority, now_s=now_s, tenant=tenant)
        place = Place(shape, priority, expected_s, self._share_s, tenant)
        self._work[id(place)] = place
        return place

    def require_room(self, priority: Priority, *, now_s: float, tenant: str = "") -> None:
        """Raise QueueFull as for somebody who comes now, and take no place."""
        wait_s = self.wait_s(priority, now_s=now_s)
        fair_s = self.bound_s if priority == "interactive" else self.bound_s / 2
        is_first = not any(place.tenant == tenant for place in self._work.values())
        if wait_s > fair_s and not is_first:
            if priority == "interactive":  # batch questions are refused before a burst is full
                self._is_overloaded |= self._offered_s > self.seen_s
            raise self._refusal(wait_s, fair_s, now_s=now_s)

    def began(self, place: Place, *, now_s: float) -> None:
        """It has its first token: learn what it took. Once per place counts."""
        self._advance(now_s)
        if self._work.pop(id(place), None) is not None:
            self._learned.add(place.shape, self._share_s - place.share_s)

    def leave(self, place: Place, *, now_s: float) -> None:
        """It is over, with a first token or without."""
        self._advance(now_s)
        self._work.pop(id(place), None)

    def _left_s(self, place: Place) -> float:
        return max(0.0, place.expected_s - (self._share_s - place.share_s))

    def _advance(self, now_s: float) -> None:
        passed_s = 0.0 if self._now_s is None else max(0.0, now_s - self._now_s)
        self._now_s = now_s
        self._offered_s *= math.exp(-passed_s / self.seen_s)
        if self._offered_s < CALM * self.seen_s:
            self._is_overloaded = False
        if self._work:
            self._share_s += passed_s / len(self._work)

    def _refusal(self, wait_s: float, fair_s: float, *, now_s: float) -> QueueFull:
        self.refused += 1
        retry_s = self._promise_s(wait_s - fair_s, now_s=now_s)
        return QueueFull(
            f"{len(self._work)} questions are before this one, and it would wait about"
            f" {1000 * wait_s:.0f} ms for them, {1000 * fair_s:.0f} ms are the limit"
            f" (max_queue_ms): try again in {retry_s:.0f} s",
            retry_after_s=retry_s,
        )

    def _promise_s(self, over_s: float, *, now_s: float) -> float:
        """When to come back: behind everybody who was told a time before."""
        first_s = now_s + max(1.0, over_s)
        latest_s = now_s + max(HORIZON_S, 2 * over_s)
        next_s = self._returns_s + (self._learned.all.value or 0.0)
        # From the beginning again where nobody is before it, or the horizon is full.
        self._returns_s = next_s if first_s <= next_s <= latest_s else first_s
        return self._returns_s - now_s


class Queueing:
    """The line of a server, by its clock."""

    def __init__(self, *, clock: Clock, burst: int, max_wait_s: float | None = None) -> None:
        self._clock = clock
        self._line = Line(burst=burst, max_wait_s=max_wait_s)

    @contextmanager
    def place(
        self, shape: Shape, priority: Priority, *, tenant: str = ""
    ) -> Iterator[Callable[[], None]]:
        """Be work for the time of the block, or until what it gives is called: the first token is
        there. Raises QueueFull."""
        line, clock = self._line, self._clock
        place = line.enter(shape, priority, now_s=clock.monotonic_s(), tenant=tenant)
        try:
            yield lambda: line.began(place, now_s=clock.monotonic_s())
        finally:
            line.leave(place, now_s=clock.monotonic_s())

    def require_room(self, priority: Priority, *, tenant: str = "") -> None:
        """Raise QueueFull where `place` would, now."""
        self._line.require_room(priority, now_s=self._clock.monotonic_s(), tenant=tenant)

    # `limits.Bounded`, in milliseconds

    @property
    def used(self) -> int:
        """What a newcomer would wait."""
        return round(1000 * self._line.wait_s("interactive", now_s=self._clock.monotonic_s()))

    @property
    def capacity(self) -> int:
        """The wait beyond which newcomers are refused."""
        return round(1000 * self._line.bound_s)

    @property
    def refused(self) -> int:
        """Questions."""
        return self._line.refused

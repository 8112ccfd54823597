"""One stream under watch while something is done to its camera, and what came of it."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cameras.footage import Footage, Shape
from cameras.rig import Rig, Seen
from report import percentile

POLL_S = 0.05
CALM_S = 1.5  # undisturbed for so long: it has recovered
CALM_SHARE = 0.8  # of the frames, at least
LIMIT_S = 60.0


class Failed(Exception):
    """What was promised did not come; the message is for the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one fault did to a stream."""

    recover_s: float = (
        math.nan
    )  # end of the cause to the first clean frame of the calm; nan: no frames
    lost: int = 0  # pictures that the camera sent and that never became frames
    flagged: int = 0  # frames that the server itself calls corrupt
    shown_clean: int = 0  # smeared frames that it does not
    unseen: int = 0  # frames that were gone before they could be looked at
    note: str = ""

    @property
    def is_right(self) -> bool:
        return self.shown_clean == 0


@dataclass(frozen=True, slots=True)
class Span:
    """Wall clock milliseconds."""

    from_ms: float
    to_ms: float

    def has(self, at_ms: float) -> bool:
        return self.from_ms <= at_ms < self.to_ms


class Shot:
    """A stream and everything that was seen of it."""

    def __init__(
        self,
        rig: Rig,
        stream_id: str,
        footage: Footage,
        *,
        publish: dict[str, Any] | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.publish = publish  # what a publisher has to know
        self.opened_ms = wall_ms()
        self.footage = footage
        self.seen: list[Seen] = []
        self._rig = rig
        self._is_watched = False

    def watch(self, *, truth: bool) -> None:
        """Look at every frame from now on."""
        self._rig.watch(self.stream_id, self.footage, truth=truth)
        self._is_watched = True

    def look(self) -> dict[str, Any]:
        """Take in what has come; the stream as a client sees it."""
        if self._is_watched:
            self.seen += self._rig.seen(self.stream_id)
        return self._rig.client.stream(self.stream_id)

    def until(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Wait for a state of the stream."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            stream = self.look()
            if condition(stream):
                return stream
            time.sleep(POLL_S)
        raise Failed(f"not {what} within {LIMIT_S:.0f} s, but {self.look()['health']}")

    def until_calm(self, since_ms: float, what: str = "calm again") -> None:
        """Wait until frames have come, all clean and none missing, for a while after a moment."""

        def is_calm(_stream: object) -> bool:
            latest_ms = wall_ms()
            calm_from_ms = max(since_ms, latest_ms - CALM_S * 1000)
            if latest_ms - calm_from_ms < CALM_S * 1000 * 0.99:
                return False
            recent = [s for s in self.seen if s.arrived_ms >= calm_from_ms]
            wanted = CALM_S * self.footage.shape.fps * CALM_SHARE
            return len(recent) >= wanted and not any(s.corrupt or s.smeared for s in recent)

        self.until(is_calm, what)

    def outcome(
        self, cause: Span, *, unsent: Sequence[Span] = (), note: str = "", settled: bool = True
    ) -> Outcome:
        """What the fault did, from its beginning to the newest frame. In `unsent` the camera was off."""
        if settled:
            self.until_calm(cause.to_ms)
        self.look()
        seen = [s for s in self.seen if s.arrived_ms >= cause.from_ms]
        sent_ms = [self.sent_ms(s) for s in seen if s.number is not None and not s.evicted]
        readable = [at_ms for at_ms in sent_ms if at_ms >= cause.from_ms]
        n_unreadable = len(seen) - len(sent_ms)
        missing = self._missing(readable, cause.from_ms, unsent)
        return Outcome(
            recover_s=self._recovered_s(seen, missing, cause),
            lost=max(0, len(missing) - n_unreadable),
            flagged=sum(s.corrupt for s in seen),
            shown_clean=sum(s.smeared and not s.corrupt for s in seen),
            unseen=sum(s.evicted for s in self.seen),
            note=note,
        )

    def sent_ms(self, seen: Seen) -> float:
        """When the camera sent it."""
        assert seen.number is not None
        return seen.arrived_ms - self.footage.age_ms(seen.number, seen.arrived_ms)

    def delays_ms(self, span: Span | None = None) -> list[float]:
        """Sending to being in the store, of every frame that says when it was sent."""
        return [
            self.footage.age_ms(s.number, s.arrived_ms)
            for s in self.seen
            if s.number is not None and (span is None or span.has(s.arrived_ms))
        ]

    def delay_ms(self, percent: float, span: Span | None = None) -> float:
        return percentile(self.delays_ms(span), percent)

    def clock_error_ms(self) -> float:
        """The most by which the stream's clock left that of arrival; it must never go backwards."""
        times = [s for s in self.seen if not s.evicted]
        if any(b.time_ms < a.time_ms for a, b in itertools.pairwise(times)):
            raise Failed("the clock of the stream went backwards")
        first = times[0]
        return max(
            abs((s.time_ms - first.time_ms) - (s.arrived_ms - first.arrived_ms)) for s in times
        )

    def _missing(
        self, sent_ms: Sequence[float], from_ms: float, unsent: Sequence[Span]
    ) -> list[float]:
        """When pictures were sent that never came."""
        if not sent_ms:
            return []
        period_ms = self.footage.period_ms
        came = {round(at_ms / period_ms) for at_ms in sent_ms}
        expected = range(math.ceil(from_ms / period_ms), max(came))
        gone = (n * period_ms for n in expected if n not in came)
        return [at_ms for at_ms in gone if not any(span.has(at_ms) for span in unsent)]

    def _recovered_s(self, seen: Sequence[Seen], missing: Sequence[float], cause: Span) -> float:
        """From the end of the cause to the first frame behind which nothing is wrong any more."""
        wrong_ms = [s.arrived_ms for s in seen if s.corrupt or s.smeared]
        last_wrong_ms = max([*wrong_ms, *missing, cause.from_ms])
        clean_ms = [
            s.arrived_ms
            for s in seen
            if s.arrived_ms > last_wrong_ms and s.arrived_ms >= cause.to_ms and not s.corrupt
        ]
        return (min(clean_ms) - cause.to_ms) / 1000 if clean_ms else math.nan


@dataclass(slots=True)
class Stage:
    """The server and the folder of loops that all scenes of a run share."""

    rig: Rig
    make_footage: Callable[[Shape], Footage]
    shots: list[Shot] = field(default_factory=list)

    def open(self, source: dict[str, Any], footage: Footage) -> Shot:
        """Open a stream that nobody looks at yet."""
        created = self.rig.client.create_stream(source)
        shot = Shot(self.rig, created["id"], footage, publish=created.get("publish"))
        self.shots.append(shot)
        return shot

    def shoot(self, source: dict[str, Any], footage: Footage, *, truth: bool = True) -> Shot:
        """Open a stream and look at every frame of it; without `truth` at its number only."""
        shot = self.open(source, footage)
        shot.watch(truth=truth)
        return shot

    def clear(self) -> None:
        """End what a scene has opened; everything that came must have been counted."""
        shots, self.shots = self.shots, []
        for shot in shots:
            counters = self.rig.counters(shot.stream_id)
            self.rig.delete(shot.stream_id)
            accounted = counters["retained"] + counters["evicted"] + counters["dropped"]
            if counters["received"] != accounted:
                raise Failed(f"{counters['received']} received, {accounted} accounted for")


def wall_ms() -> float:
    return time.time() * 1000

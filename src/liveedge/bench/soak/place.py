"""What every part of a soak needs to know: where the server is, what time it is, what to write to.

Thread  any. Parts share nothing else than this and the fleet of cameras.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from liveedge.bench.soak.fleet import Fleet
from liveedge.bench.soak.log import Log
from liveedge.bench.soak.options import SoakOptions
from liveedge.client.http import Client
from liveedge.core.clock import Clock

JITTER = 0.2  # of a period


@dataclass(slots=True)
class StreamTime:
    """Stream time since the soak began; it stands still while there is nothing to be soaked."""

    clock: Clock  # runs as fast as the server's
    offset_s: float  # of the segments before
    _began_s: float | None = None

    def start(self) -> None:
        """The cameras are there: from now on it counts."""
        self._began_s = self.clock.monotonic_s()

    @property
    def now_s(self) -> float:
        began_s = self._began_s
        return self.offset_s + (0.0 if began_s is None else self.clock.monotonic_s() - began_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One server during one segment of the soak."""

    url: str
    model: str
    pid: int | None  # of the server; None: on another machine, or not told
    options: SoakOptions
    log: Log
    stream_clock: Clock  # runs as fast as the server's
    real_clock: Clock
    time: StreamTime
    stopping: threading.Event
    fleet: Fleet

    @property
    def now_s(self) -> float:
        """Stream time since the soak began, without the pauses between segments."""
        return self.time.now_s

    def client(self) -> Client:
        """Latencies that it measures are real."""
        return Client(self.url, clock=self.real_clock)

    def chance(self, part: str) -> random.Random:
        """The part's own chance, the same in every run of one seed."""
        return random.Random(f"{self.options.seed}:{part}:{self.time.offset_s:.0f}")

    def pause(self, seconds: float) -> bool:
        """Wait so much stream time; False once the run is over."""
        return not self.stream_clock.wait(self.stopping, max(0.0, seconds))

    def ticks(self, part: str, every_s: float) -> Iterator[int]:
        """The number of each period at its moment, some chance beside it, until the run is over.

        A moment that has passed by more than a period is left out, and written down.
        """
        chance = self.chance(f"{part}:schedule")
        for number in itertools.count(math.floor(self.now_s / every_s) + 1):
            due_s = (number + chance.uniform(-JITTER, JITTER)) * every_s
            if due_s < self.now_s - every_s:
                self.log.write("skipped", part=part, number=number)
                continue
            if not self.pause(due_s - self.now_s):
                return
            yield number


class Act:
    """Something that is done to the server: a line when it begins, and one when it has ended."""

    def __init__(self, place: Place, act: str, number: int, /, **fields: object) -> None:
        self._log = place.log
        self._names = {"act": act, "number": number}
        self._log.write("begin", **self._names, **fields)

    def done(self, /, *, ok: bool, **fields: object) -> None:
        self._log.write("done", **self._names, ok=ok, **fields)

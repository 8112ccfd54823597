"""A sink that remembers, for tests of single sources."""

from __future__ import annotations

import threading
from collections import Counter

from liveedge.core.tasks import OwnedThread
from liveedge.frames.frame import CodedFrame, Frame, Pixels
from liveedge.media.source import FrameSink, Health, Source, SourceLost
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import ListTarget
from tests.media_files import number_of


class ListSink(FrameSink):
    """Remembers what a source does; can be slow, and can stop it after some frames."""

    def __init__(
        self,
        clock: FakeClock,
        *,
        costs_s: float = 0.0,
        stop_after: int | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self.pixels: list[Pixels] = []
        self.source_times_s: list[float | None] = []
        self.arrived_s: list[float] = []
        self.corrupt: list[bool] = []
        self.coded: list[CodedFrame | None] = []
        self.states: list[tuple[Health, str]] = []
        self.codec: str | None = None
        self.n_broken = 0
        self.n_dropped: Counter[str] = Counter()
        self.n_gaps = 0
        self.first = threading.Event()
        self._clock = clock
        self._target = ListTarget(clock)
        self._costs_s = costs_s
        self._stop_after = stop_after
        self._stopping = stopping

    def frame(
        self,
        pixels: Pixels,
        *,
        source_time_s: float | None = None,
        corrupt: bool = False,
        coded: CodedFrame | None = None,
    ) -> Frame | None:
        self.pixels.append(pixels)
        self.coded.append(coded)
        self.source_times_s.append(source_time_s)
        self.arrived_s.append(self._clock.monotonic_s())
        self.corrupt.append(corrupt)
        self._clock.move(self._costs_s)
        if self._stopping is not None and len(self.pixels) == self._stop_after:
            self._stopping.set()
        frame = self._target.publish(
            pixels, source_time_s=source_time_s, corrupt=corrupt, coded=coded
        )
        self.first.set()
        return frame

    def state(self, health: Health, reason: str = "", *, codec: str | None = None) -> None:
        self.states.append((health, reason))
        self.codec = codec or self.codec

    def broken(self, count: int = 1) -> None:
        self.n_broken += count

    def dropped(self, reason: str, count: int = 1) -> None:
        self.n_dropped[reason] += count

    def gap(self) -> None:
        self.n_gaps += 1

    def numbers(self) -> list[int | None]:
        return [number_of(pixels.rgb()) for pixels in self.pixels]


def run_to_end(source: Source, sink: FrameSink, *, within_s: float = 20.0) -> None:
    """Run a source until it returns; raise what it raises."""
    losses: list[SourceLost] = []

    def work(stopping: threading.Event) -> None:
        try:
            source.run(sink, stopping)
        except SourceLost as loss:
            losses.append(loss)

    thread = OwnedThread("run-to-end", work)
    thread.start()
    for _ in range(round(within_s / 0.002)):
        if not thread.alive:
            break
        threading.Event().wait(0.002)
    assert thread.stop(5), "the source did not end"
    if thread.error is not None:
        raise thread.error
    if losses:
        raise losses[0]

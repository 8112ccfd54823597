"""Sources and a target that a test drives, with the promises of `media.source`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.core.clock import Clock
from liveedge.frames.frame import CodedFrame, Frame, Pixels, RgbPixels
from liveedge.media.source import FrameSink, SourceKind, SourceLost

Script: TypeAlias = Callable[[FrameSink, threading.Event], None]

_LOOK_S = 0.002  # real time between two looks of a waiting camera


def plain_pixels(width: int = 64, height: int = 48, *, grey: int = 128) -> RgbPixels:
    """A picture of one shade."""
    return RgbPixels(np.full((height, width, 3), grey, dtype=np.uint8))


class ListTarget:
    """A frame store that only remembers. Times are those of the clock."""

    def __init__(self, clock: Clock) -> None:
        self.frames: list[Frame] = []
        self.dropped: Counter[str] = Counter()
        self.n_gaps = 0
        self._clock = clock
        self._started_s: float | None = None

    def publish(
        self,
        pixels: Pixels,
        *,
        source_time_s: float | None = None,
        corrupt: bool = False,
        coded: CodedFrame | None = None,
    ) -> Frame:
        now_s = self._clock.monotonic_s()
        if self._started_s is None:
            self._started_s = now_s
        frame = Frame(
            index=len(self.frames),
            stream_time_ms=round((now_s - self._started_s) * 1000),
            captured_at_ms=self._clock.wall_ms(),
            arrived_s=now_s,
            pixels=pixels,
            corrupt=corrupt,
            coded=coded,
        )
        self.frames.append(frame)
        return frame

    def count_dropped(self, reason: str, *, n: int = 1) -> None:
        self.dropped[reason] += n

    def mark_gap(self) -> None:
        self.n_gaps += 1


class ScriptedSource:
    """Attempt n follows script n; the last script serves all further attempts."""

    def __init__(
        self,
        *scripts: Script,
        clock: Clock,
        kind: SourceKind = "rtsp",
        stall_after_s: float | None = 5.0,
        restart_on_stall: bool = True,
    ) -> None:
        self.kind: SourceKind = kind
        self.stall_after_s = stall_after_s
        self.restart_on_stall = restart_on_stall
        self.started_at_s: list[float] = []
        self._clock = clock
        self._scripts = scripts

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        n = len(self.started_at_s)
        self.started_at_s.append(self._clock.monotonic_s())
        self._scripts[min(n, len(self._scripts) - 1)](sink, stopping)


def fails(reason: str, *, hopeless: bool = False) -> Script:
    """Does not open."""

    def script(_sink: FrameSink, _stopping: threading.Event) -> None:
        raise SourceLost(reason, hopeless=hopeless)

    return script


def hangs(_sink: FrameSink, stopping: threading.Event) -> None:
    """Neither opens nor fails, until it is stopped."""
    stopping.wait()


def delivers(n_frames: int, *, then: Script = hangs) -> Script:
    """Opens and sends frames at once, then goes on as told."""

    def script(sink: FrameSink, stopping: threading.Event) -> None:
        sink.state("waiting_for_keyframe", codec="h264")
        for _ in range(n_frames):
            sink.frame(plain_pixels())
        then(sink, stopping)

    return script


class FakeCamera:
    """A camera whose every frame, loss and end is a call of the test. Opens at once."""

    def __init__(
        self,
        *,
        kind: SourceKind = "rtsp",
        stall_after_s: float | None = 5.0,
        restart_on_stall: bool = True,
    ) -> None:
        self.kind: SourceKind = kind
        self.stall_after_s = stall_after_s
        self.restart_on_stall = restart_on_stall
        self.n_runs = 0
        self._sink: FrameSink | None = None
        self._running = threading.Event()
        self._over: SourceLost | None = None
        self._ended = threading.Event()

    @property
    def is_running(self) -> bool:
        return self._running.is_set()

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        self.n_runs += 1
        self._ended.clear()
        self._sink = sink
        sink.state("waiting_for_keyframe", codec="h264")
        self._running.set()
        while not stopping.wait(_LOOK_S) and not self._ended.is_set():
            pass
        self._running.clear()
        loss, self._over = self._over, None
        if loss is not None and not stopping.is_set():
            raise loss

    def send(
        self,
        pixels: Pixels | NDArray[np.uint8] | None = None,
        *,
        source_time_s: float | None = None,
        corrupt: bool = False,
    ) -> Frame | None:
        """Deliver a frame from the calling thread; waits for the camera to have opened."""
        assert self._running.wait(5), "the camera is not running: start its supervisor first"
        assert self._sink is not None
        if isinstance(pixels, np.ndarray):
            pixels = RgbPixels(pixels)
        return self._sink.frame(
            pixels or plain_pixels(), source_time_s=source_time_s, corrupt=corrupt
        )

    def lose(self, reason: str) -> None:
        """Break the connection."""
        assert self._running.wait(5), "the camera is not running: start its supervisor first"
        self._over = SourceLost(reason)
        self._ended.set()

    def end(self) -> None:
        """Finish for good, as a file does."""
        assert self._running.wait(5), "the camera is not running: start its supervisor first"
        self._ended.set()

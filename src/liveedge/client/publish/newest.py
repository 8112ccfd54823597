"""The picture that is sent next: always the newest one, from a thread to the event loop."""

from __future__ import annotations

import asyncio
import threading
from fractions import Fraction

from av import VideoFrame

from liveedge.core.clock import Clock

TIME_BASE = Fraction(1, 90_000)  # of RTP video


class EndOfPictures(Exception):
    """The source has no more."""


class Newest:
    """One picture of room: a newer one replaces it, and is counted.

    `put` and `end` are called by the thread that makes pictures, `next` in the event loop, by one
    sender at a time. Frames carry the time at which they came, so that pauses stay pauses.
    """

    def __init__(self, *, clock: Clock) -> None:
        self.skipped = 0
        self.sent = 0
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._there = asyncio.Event()
        self._frame: VideoFrame | None = None
        self._is_over = False
        self._began_s = clock.monotonic_s()

    def put(self, frame: VideoFrame) -> None:
        frame.time_base = TIME_BASE
        frame.pts = int((self._clock.monotonic_s() - self._began_s) / TIME_BASE)
        with self._lock:
            self.skipped += self._frame is not None
            self._frame = frame
        self._wake()

    def count_anew(self) -> None:
        """What was skipped while nobody took anything says nothing about how it goes."""
        self.skipped = self.sent = 0

    def end(self) -> None:
        """Nothing more will come; what is there is still given out."""
        with self._lock:
            self._is_over = True
        self._wake()

    async def next(self) -> VideoFrame:
        """Raises EndOfPictures."""
        while True:
            with self._lock:
                frame, self._frame = self._frame, None
                is_over = self._is_over
                self._there.clear()
            if frame is not None:
                self.sent += 1
                return frame
            if is_over:
                raise EndOfPictures
            await self._there.wait()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._there.set)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

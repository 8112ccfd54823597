"""Memory that two processes share for pixels on their way to the engine.

Owns     the ranges of an anonymous memory file: first fit, and who finds no room waits in order.
Threads  `Ranges` is a plain state machine; `FrameRoom` guards one and may be called from any thread.
Bound    `capacity` bytes. A picture larger than all of it is refused, a smaller one waits.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import insort
from collections import deque
from collections.abc import Hashable, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import MediaTooLarge
from liveedge.engine.process.messages import Range, SharedPixels

ALIGNMENT = 64  # bytes: a cache line, and enough for every vector instruction


class Ranges:
    """Who holds which range, and who waits. An owner holds or waits for one range at a time."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held: dict[Hashable, Range] = {}
        self._ordered: list[Range] = []  # the same, by place
        self._waiting: deque[tuple[Hashable, int]] = deque()

    @property
    def used_bytes(self) -> int:
        return sum(place.n_bytes for place in self._ordered)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def ask(self, owner: Hashable, n_bytes: int) -> None:
        """Queue up for a range; see `held`. Raises MediaTooLarge for what can never have one."""
        if n_bytes > self.capacity:
            raise MediaTooLarge(
                f"the pixels of a picture and its pair have {n_bytes} bytes, the memory between"
                f" the processes has {self.capacity}: send smaller ones, or raise"
                " shared_frame_bytes (--shared-frames-mb)"
            )
        self._waiting.append((owner, n_bytes))
        self._grant()

    def held(self, owner: Hashable) -> Range | None:
        return self._held.get(owner)

    def knows(self, owner: Hashable) -> bool:
        """Whether an owner holds something or waits."""
        return owner in self._held or any(waiting == owner for waiting, _ in self._waiting)

    def give_back(self, owner: Hashable) -> None:
        """Free what an owner holds, or take it out of the queue. Unknown owners gave back before."""
        place = self._held.pop(owner, None)
        if place is None:
            self._waiting = deque(item for item in self._waiting if item[0] != owner)
        else:
            self._ordered.remove(place)
        self._grant()

    def _grant(self) -> None:
        """Strictly in order: a large picture is not overtaken for ever by small ones."""
        while self._waiting:
            owner, n_bytes = self._waiting[0]
            start = self._first_fit(n_bytes)
            if start is None:
                return
            self._waiting.popleft()
            self._held[owner] = place = Range(start, n_bytes)
            insort(self._ordered, place, key=attrgetter("start"))

    def _first_fit(self, n_bytes: int) -> int | None:
        start = 0
        for place in self._ordered:
            if place.start - start >= n_bytes:
                return start
            start = _aligned(place.start + place.n_bytes)
        return start if self.capacity - start >= n_bytes else None


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT


class FrameRoom:
    """The side that writes: hands out ranges and waits for room."""

    def __init__(self, fd: int, capacity: int) -> None:
        os.ftruncate(fd, capacity)  # no page is taken before it is written to
        self._memory = map_frames(fd, capacity)
        self._ranges = Ranges(capacity)
        self._changed = threading.Condition()  # over the line above

    @property
    def used_bytes(self) -> int:
        with self._changed:
            return self._ranges.used_bytes

    def take(self, owner: Hashable, n_bytes: int) -> Range | None:
        """Block until there is room; None where `cancel` was called for the owner meanwhile."""
        with self._changed:
            self._ranges.ask(owner, n_bytes)
            self._changed.wait_for(
                lambda: self._ranges.held(owner) is not None or not self._ranges.knows(owner)
            )
            return self._ranges.held(owner)

    def cancel(self, owner: Hashable) -> None:
        """Wait no more. A range that is held stays: somebody may be writing to it."""
        with self._changed:
            if self._ranges.held(owner) is None:
                self._ranges.give_back(owner)
                self._changed.notify_all()

    def free(self, owner: Hashable) -> None:
        with self._changed:
            self._ranges.give_back(owner)
            self._changed.notify_all()

    def arrays(self, pixels: SharedPixels) -> Sequence[NDArray[np.uint8]]:
        return views(self._memory, pixels)


def map_frames(fd: int, n_bytes: int) -> NDArray[np.uint8]:
    """The whole shared memory as bytes of this process."""
    # Writable on both sides: torch shares memory only with arrays that it may write to.
    return np.frombuffer(mmap.mmap(fd, n_bytes), dtype=np.uint8)


def views(memory: NDArray[np.uint8], pixels: SharedPixels) -> Sequence[NDArray[np.uint8]]:
    """Each frame of a range, [height, width, 3], where it lies."""
    start = pixels.place.start
    found: list[NDArray[np.uint8]] = []
    for height, width in pixels.sizes:
        stop = start + frame_bytes(height, width)
        found.append(memory[start:stop].reshape(height, width, 3))
        start = stop
    return found


def frame_bytes(height: int, width: int) -> int:
    return height * width * 3

"""Frames that were drawn and may be sent: the newest of each camera, and the first ones if wanted.

Bounded by number; `put` is called by one thread, everything else by another.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from liveedge.bench.sources.truth import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One encoded frame."""

    frame: int  # number in this run
    moment: Moment
    base64: str = field(repr=False)
    size: tuple[int, int]  # width, height


class Shelf:
    """The frames of all cameras."""

    def __init__(self, *, n_sources: int, n_kept: int, keep_first: int) -> None:
        self.capacity = n_sources * (n_kept + keep_first)
        self._n_kept = n_kept
        self._keep_first = keep_first
        self._lock = threading.Lock()
        self._frames: list[dict[int, Drawn]] = [{} for _ in range(n_sources)]

    @property
    def n_bytes(self) -> int:
        """Held now."""
        with self._lock:
            return sum(len(one.base64) for frames in self._frames for one in frames.values())

    def full_bytes(self) -> int:
        """Once it is full, as the frames there are suggest."""
        with self._lock:
            sizes = [len(one.base64) for frames in self._frames for one in frames.values()]
        return sum(sizes) * self.capacity // max(1, len(sizes))

    def put(self, source: int, frame: Drawn) -> None:
        """The oldest makes room."""
        with self._lock:
            frames = self._frames[source]
            frames[frame.frame] = frame
            if len(frames) > self._n_kept + self._keep_first:
                del frames[next(number for number in frames if number >= self._keep_first)]

    def has_frame(self, number: int) -> bool:
        """Whether every camera has drawn that frame, or a later one in its place."""
        with self._lock:
            return all(frames and max(frames) >= number for frames in self._frames)

    def frames(self, source: int, numbers: Sequence[int]) -> list[Drawn]:
        """The frames of these numbers; for one that was left out, the one before it. At least one."""
        with self._lock:
            held = self._frames[source]
            found = {self._at_or_before(held, number) for number in numbers}
            return [held[number] for number in sorted(found)]

    @staticmethod
    def _at_or_before(held: dict[int, Drawn], number: int) -> int:
        if number in held:
            return number
        return max((one for one in held if one <= number), default=next(iter(held)))

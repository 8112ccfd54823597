"""How long uploads wait for the workers that decode them, and who is refused because of it.

A question that would be decoded only after its deadline, or shortly before it, is refused while that
is still worth something: at once, with the time after which it may come again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from liveedge.core.errors import QueueFull
from liveedge.service.limits import Budget

FIRST_GUESS_S_PER_MB = 0.02  # decoded, measured from then on; a 4K JPEG takes 0.1 s of a core
LEAST_MB = 1.0  # of what is measured: with less it is the way there that takes the time
NEWEST_SHARE = 0.2  # of the estimate, per measurement
USABLE_SHARE = 0.3  # of the time that is left: the prompt and the answer are made in the rest
_MB = 1e6


class Backlog:
    """What is waiting to be decoded. The event loop's alone. Refusals are counted with `counted`."""

    def __init__(self, *, n_workers: int, counted: Budget) -> None:
        self._counted = counted
        self._n_workers = n_workers
        self._waiting_mb = 0.0
        self._s_per_mb = FIRST_GUESS_S_PER_MB

    @property
    def wait_s(self) -> float:
        """Until a newcomer's turn."""
        return self._waiting_mb * self._s_per_mb / self._n_workers

    @contextmanager
    def waiting(self, n_bytes: int, *, left_s: float) -> Iterator[None]:
        """Count what a question brings while it is decoded. Raises QueueFull.

        Alone it is never refused: how long it takes is then not known better by waiting.
        """
        wait_s = self.wait_s
        if wait_s > USABLE_SHARE * left_s:
            self._counted.refused += 1
            raise QueueFull(
                f"the uploads of other questions take {wait_s:.0f} s to decode, too long for the"
                f" {left_s:.0f} s that this one has; retry later, or raise timeout_ms",
                retry_after_s=wait_s,
            )
        self._waiting_mb += n_bytes / _MB
        try:
            yield
        finally:
            self._waiting_mb -= n_bytes / _MB

    @property
    def waiting_bytes(self) -> int:
        return round(self._waiting_mb * _MB)

    def took(self, ahead_bytes: int, seconds: float) -> None:
        """Note after how long an upload was decoded that had so many bytes before it, its own
        included: how busy the machine is otherwise is in it."""
        ahead_mb = ahead_bytes / _MB
        if ahead_mb >= LEAST_MB:
            newest = seconds * self._n_workers / max(ahead_mb, 1e-9)
            self._s_per_mb += NEWEST_SHARE * (newest - self._s_per_mb)

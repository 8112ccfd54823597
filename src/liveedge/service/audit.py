"""Who was let in and who was not: lines of the log `liveedge.audit`, and counters.

A line names a key by its id and a request by its id, and never holds a key. Refusals are counted all,
and written only so many a minute: whoever guesses keys must not fill the disk.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Literal, TypeAlias

from liveedge.core.clock import Clock

log = logging.getLogger("liveedge.audit")

Refusal: TypeAlias = Literal[
    "no_key", "malformed", "unknown_key", "expired_key", "revoked_key", "scope"
]
REFUSALS: tuple[Refusal, ...] = (
    "no_key",
    "malformed",
    "unknown_key",
    "expired_key",
    "revoked_key",
    "scope",
)
MINUTE_S = 60.0
MAX_REFUSALS_PER_MINUTE = 30


class Audit:
    """The log and the counters."""

    def __init__(self, clock: Clock) -> None:
        self.refused: Counter[Refusal] = Counter()
        self._clock = clock
        self._minute_began_s = clock.monotonic_s()
        self._n_written = 0
        self._n_left_out = 0

    def refusal(self, reason: Refusal, *, request_id: str, key_id: str | None = None) -> None:
        """Somebody was not let in."""
        self.refused[reason] += 1
        if self._has_room():
            log.warning("refused reason=%s key=%s request=%s", reason, key_id or "-", request_id)

    def event(self, what: str, *, key_id: str, request_id: str, stream_id: str) -> None:
        """Somebody made or ended a stream."""
        log.info("%s stream=%s key=%s request=%s", what, stream_id, key_id, request_id)

    def key(self, what: str, *, key_id: str, name: str, owner: str) -> None:
        """A key began or ended to be accepted."""
        log.info("%s key=%s name=%r owner=%s", what, key_id, name, owner)

    def _has_room(self) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s - self._minute_began_s >= MINUTE_S:
            if self._n_left_out:
                log.warning("refused %d more, which were not written", self._n_left_out)
            self._minute_began_s, self._n_written, self._n_left_out = now_s, 0, 0
        if self._n_written >= MAX_REFUSALS_PER_MINUTE:
            self._n_left_out += 1
            return False
        self._n_written += 1
        return True

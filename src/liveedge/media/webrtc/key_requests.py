"""When to ask a publisher for a key frame.

Pure: the caller brings the time. One thread.
"""

from __future__ import annotations

FIRST_WITHIN_S = 0.1  # most publishers begin with a key frame unasked
MIN_BETWEEN_S = 0.5
N_QUICK = 6  # requests without an answer, before asking less often
SLOW_BETWEEN_S = 2.0


class KeyRequests:
    """At the start, after a loss, and every `every_s` so that the history has beginnings."""

    def __init__(self, *, every_s: float) -> None:
        self.n_sent = 0
        self.every_s = every_s
        self._is_wanted = False
        self._n_unanswered = 0
        self._begun_s: float | None = None
        self._sent_s: float | None = None
        self._key_s: float | None = None

    def is_urgent(self, now_s: float) -> bool:
        """Whether a wanted one may be asked for already."""
        return self._is_wanted and self._may_ask(now_s)

    def packet_came(self, now_s: float) -> None:
        """From the first packet on, a key frame is expected."""
        if self._begun_s is None:
            self._begun_s = now_s

    def want(self) -> None:
        """Something was lost."""
        self._is_wanted = True

    def key_came(self, now_s: float) -> None:
        self._is_wanted = False
        self._n_unanswered = 0
        self._key_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Whether to ask now; if so it counts as asked."""
        if not self._is_wanted and not self._is_old(now_s):
            return False
        if not self._may_ask(now_s):
            return False
        self._sent_s = now_s
        self._n_unanswered += 1
        self.n_sent += 1
        return True

    def _may_ask(self, now_s: float) -> bool:
        between_s = MIN_BETWEEN_S if self._n_unanswered < N_QUICK else SLOW_BETWEEN_S
        return self._sent_s is None or now_s - self._sent_s >= between_s

    def _is_old(self, now_s: float) -> bool:
        if self._key_s is not None:
            return now_s - self._key_s >= self.every_s
        return self._begun_s is not None and now_s - self._begun_s >= FIRST_WITHIN_S

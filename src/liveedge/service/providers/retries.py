"""Whether and when a failed request is made again. Pure: time and chance are given.

All requests to one provider share a budget, so that a provider in trouble is not asked twice as
much as one that is well: a retry takes a whole token, a request brings a tenth of one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How much is done again, and how soon."""

    share: float = 0.1  # of the requests
    floor: float = 3.0  # tokens at the start, which come back by themselves
    floor_per_s: float = 0.1
    most: float = 10.0  # tokens that are kept
    first_s: float = 0.25  # the longest first wait; twice as long for each further one
    longest_s: float = 4.0


class RetryBudget:
    """The tokens of one provider."""

    def __init__(self, *, now_s: float, limits: RetryLimits | None = None) -> None:
        self.limits = limits or RetryLimits()
        self.n_refused = 0
        self.n_taken = 0
        self._tokens = self.limits.floor
        self._at_s = now_s

    def request_made(self) -> None:
        """A first attempt: it brings a share of a retry."""
        self._tokens = min(self._tokens + self.limits.share, self.limits.most)

    def take(self, now_s: float) -> bool:
        """Take a retry out of the budget, if it holds one."""
        grown = self._tokens + (now_s - self._at_s) * self.limits.floor_per_s
        # Time alone fills it up to the floor, and takes nothing away above it.
        self._tokens = max(self._tokens, min(grown, self.limits.floor))
        self._at_s = now_s
        if self._tokens < 1:
            self.n_refused += 1
            return False
        self._tokens -= 1
        self.n_taken += 1
        return True


def delay_s(
    attempt: int, *, asked_s: float | None, limits: RetryLimits, rng: random.Random
) -> float:
    """How long to wait after attempt 0, 1, ...: a random time up to a bound that doubles, and no less
    than the server asked for."""
    spread_s = rng.uniform(0, min(limits.first_s * 2**attempt, limits.longest_s))
    return spread_s if asked_s is None else asked_s + spread_s


def parse_retry_after(text: str | None, *, wall_ms: int) -> float | None:
    """Seconds from now, of a number or a date; None where it is neither."""
    if text is None:
        return None
    text = text.strip()[:64]
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        when = parsedate_to_datetime(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        left_s = when.timestamp() - wall_ms / 1000
    except (ValueError, OverflowError):  # the latter of numbers that no date has
        return None
    return min(max(0.0, left_s), MAX_RETRY_AFTER_S)

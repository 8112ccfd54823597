"""A circuit breaker: a server that fails again and again is left alone for a while. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["closed", "half_open", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """When it opens, and for how long."""

    failures: int = 5  # in a row
    open_s: float = 5.0  # the first time; twice as long each time a trial fails
    max_open_s: float = 60.0


class Breaker:
    """Counts failures in a row. Once open it lets one trial through when its time is over."""

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self.n_opened = 0
        self._limits = limits or BreakerLimits()
        self._n_failures = 0
        self._n_in_a_row = 0  # times it opened without a success between
        self._open_until_s: float | None = None  # None: closed
        self._is_trying = False

    def state(self, now_s: float) -> State:
        if self._open_until_s is None:
            return "closed"
        return "open" if now_s < self._open_until_s else "half_open"

    def is_shut(self, now_s: float) -> bool:
        """Whether a request would be refused now."""
        return self.state(now_s) == "open" or self._is_trying

    def retry_after_s(self, now_s: float) -> float:
        """When a request may be let through again; a second at least."""
        return max(1.0, (self._open_until_s or now_s) - now_s)

    def enter(self, now_s: float) -> bool:
        """Whether a request may be made. If so, exactly one of the three below follows."""
        if self.is_shut(now_s):
            return False
        self._is_trying = self.state(now_s) == "half_open"
        return True

    def succeeded(self) -> None:
        """The server answered."""
        self._n_failures = self._n_in_a_row = 0
        self._open_until_s = None
        self._is_trying = False

    def failed(self, now_s: float) -> None:
        """The server is broken or away."""
        self._n_failures += 1
        is_trial, self._is_trying = self._is_trying, False
        if self.state(now_s) == "open":
            return  # of a request from before it opened
        if is_trial or self._n_failures >= self._limits.failures:
            limits = self._limits
            open_s = min(limits.open_s * 2**self._n_in_a_row, limits.max_open_s)
            self._open_until_s = now_s + open_s
            self._n_in_a_row = min(self._n_in_a_row + 1, 16)
            self._n_failures = 0
            self.n_opened += 1

    def abandoned(self) -> None:
        """Nobody waited for the answer, or it says nothing about the server."""
        self._is_trying = False

"""Frames per second over the last few seconds. Pure; bounded memory; one thread at a time."""

from __future__ import annotations

from collections import deque

WINDOW_S = 5.0
_MAX_ARRIVALS = 1024  # beyond 200 frames a second the window gets shorter, not wrong


class RateMeter:
    """Arrivals in a sliding window, over the time since the oldest of them."""

    def __init__(self) -> None:
        self._arrivals_s: deque[float] = deque(maxlen=_MAX_ARRIVALS)

    def record(self, arrived_s: float) -> None:
        """Count one frame."""
        self._arrivals_s.append(arrived_s)

    def per_second(self, now_s: float) -> float:
        """The rate now; it falls while nothing arrives, and is 0 after a whole window."""
        arrivals_s = self._arrivals_s
        while arrivals_s and arrivals_s[0] <= now_s - WINDOW_S:
            arrivals_s.popleft()
        span_s = now_s - arrivals_s[0] if arrivals_s else 0.0
        return (len(arrivals_s) - 1) / span_s if span_s > 0 else 0.0

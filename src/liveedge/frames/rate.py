"""Frames per second over the last few seconds. Pure; bounded memory; one thread at a time."""

from __future__ import annotations

from collections import deque

WINDOW_S = 5.0
_MAX_ARRIVALS = 1024  # beyond 200 frames a second the window gets shorter, not wrong


class RateMeter:
    """Counts arrivals in a sliding window."""

    def __init__(self) -> None:
        self._arrivals_s: deque[float] = deque(maxlen=_MAX_ARRIVALS)
        self._has_full_window = False

    def record(self, arrived_s: float) -> None:
        """Count one frame."""
        self._arrivals_s.append(arrived_s)

    def per_second(self, now_s: float) -> float:
        """Rate over the window; while the stream is younger than that, over its life."""
        arrivals_s = self._arrivals_s
        while arrivals_s and arrivals_s[0] <= now_s - WINDOW_S:
            arrivals_s.popleft()
            self._has_full_window = True
        if not arrivals_s:
            return 0.0
        if self._has_full_window and len(arrivals_s) < _MAX_ARRIVALS:
            return len(arrivals_s) / WINDOW_S
        lived_s = now_s - arrivals_s[0]
        return (len(arrivals_s) - 1) / lived_s if lived_s > 0 else 0.0

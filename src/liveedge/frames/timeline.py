"""The stream clock: when a frame was captured, from when it arrived and what its source claims.

The arrival clock rules. A source's timestamps, where they make sense, give the spacing, because
networks and decoders deliver in bursts; they can neither move the clock backwards nor pull it away
from arrival by more than a bound. Whatever a source claims, nobody ever sleeps on it.

Pure: no clock is read here. One thread at a time.

Invariants
1. The first frame has time 0; times never fall.
2. arrival - MAX_BEHIND_S <= time <= arrival + MAX_AHEAD_S, then rounded up to whole milliseconds,
   except where 1 forbids to go back that far.
"""

from __future__ import annotations

import math

MAX_BEHIND_S = 1.0  # a burst after a stall this long still gets its true spacing
MAX_AHEAD_S = 0.02  # timer jitter; inside it a steady source keeps its exact spacing
DRIFT_WINDOW_S = 5.0  # how long a source must lag before the clock follows it


class Timeline:
    """Stamps the frames of one stream, over reconnects."""

    def __init__(self) -> None:
        self._first_arrived_s: float | None = None
        self._time_s = 0.0
        self._source_s: float | None = None  # the previous frame's claim
        self._offset_s = 0.0  # stream time = source time + offset
        self._window_from_s = 0.0
        self._window_lag_s = math.inf  # smallest arrival - stream time in the window

    @classmethod
    def resumed(cls, *, first_arrived_s: float, time_ms: int) -> Timeline:
        """Go on from `time_ms`; the first frame arrived then, on the present monotonic clock."""
        timeline = cls()
        timeline._first_arrived_s = first_arrived_s
        timeline._time_s = time_ms / 1000
        return timeline

    def restart_source(self) -> None:
        """Forget the source's clock: a reconnected source may count from anywhere."""
        self._source_s = None

    def stamp_ms(self, *, arrived_s: float, source_s: float | None) -> int:
        """Stream time of the next frame, in milliseconds.

        Rounded up: a source at 30 frames a second then has its frames at or after the ticks of a
        30 per second grid, and a grid that divides its rate finds a frame at every tick.
        """
        if self._first_arrived_s is None:
            self._first_arrived_s = arrived_s
        arrival_s = max(arrived_s - self._first_arrived_s, 0.0)
        claimed_s = self._claimed_s(arrival_s, source_s)
        self._time_s = max(self._time_s, claimed_s)
        return math.ceil(round(self._time_s * 1e6) / 1e3)

    def _claimed_s(self, arrival_s: float, source_s: float | None) -> float:
        if source_s is None or not math.isfinite(source_s):
            self._source_s = None
            return arrival_s
        known = self._source_s is not None and source_s > self._source_s
        lag_s = arrival_s - (source_s + self._offset_s)
        self._source_s = source_s
        if not known or not -MAX_AHEAD_S <= lag_s <= MAX_BEHIND_S:
            self._anchor(arrival_s, source_s)
            return arrival_s
        self._follow_drift(arrival_s, lag_s)
        return source_s + self._offset_s

    def _anchor(self, arrival_s: float, source_s: float) -> None:
        self._offset_s = arrival_s - source_s
        self._start_window(arrival_s)

    def _follow_drift(self, arrival_s: float, lag_s: float) -> None:
        """A source slower than our clock falls behind for ever; catch up once a window's best
        frame is later than jitter explains."""
        self._window_lag_s = min(self._window_lag_s, lag_s)
        if arrival_s - self._window_from_s < DRIFT_WINDOW_S:
            return
        if self._window_lag_s > MAX_AHEAD_S:
            self._offset_s += self._window_lag_s
        self._start_window(arrival_s)

    def _start_window(self, arrival_s: float) -> None:
        self._window_from_s = arrival_s
        self._window_lag_s = math.inf

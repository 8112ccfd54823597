"""Whether a picture is late: how long it was under way, more than others of its sender.

After a pause of the link a sender delivers what has piled up. Those pictures are decoded, as later
ones need them, but they are no news any more. A delay that lasts is a longer way, not a backlog.

Pure: the caller brings the time. One thread.
"""

from __future__ import annotations

from liveedge.media.webrtc.rtp import VIDEO_CLOCK_HZ

LATE_AFTER_S = 0.8  # the stream's clock gives everything up to 1 s its true time
LEAP_S = 10.0  # beyond, the sender's clock was set
PATIENCE_S = 4.0  # of a backlog; the measured ones drain within 2 s
DRIFT = 0.001  # s per s: how much slower a sender's clock may be than ours


class SenderClock:
    """RTP's 32-bit timestamps as seconds since the first, and how late they arrive."""

    def __init__(self) -> None:
        self._stamp: int | None = None
        self._ticks = 0
        self._best_s = 0.0  # smallest arrival - time
        self._seen_s: float | None = None
        self._late_since_s: float | None = None

    def time_s(self, timestamp: int) -> float:
        """Wraps are undone: the nearer of the two ways round is taken."""
        if self._stamp is not None:
            self._ticks += (timestamp - self._stamp + (1 << 31) & 0xFFFFFFFF) - (1 << 31)
        self._stamp = timestamp
        return self._ticks / VIDEO_CLOCK_HZ

    def is_late(self, time_s: float, now_s: float) -> bool:
        """Of each picture once, in the order of their arrival."""
        way_s = now_s - time_s
        if self._seen_s is None:
            self._best_s = way_s
        else:
            self._best_s += DRIFT * (now_s - self._seen_s)
        self._seen_s = now_s
        excess_s = way_s - self._best_s
        if excess_s < 0 or excess_s > LEAP_S:
            self._best_s = way_s
            excess_s = 0.0
        if excess_s < LATE_AFTER_S:
            self._late_since_s = None
            return False
        if self._late_since_s is None:
            self._late_since_s = now_s
        if now_s - self._late_since_s > PATIENCE_S:
            self._best_s = way_s
            self._late_since_s = None
            return False
        return True

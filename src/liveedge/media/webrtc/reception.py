"""How well one sender's packets arrive, as RTP wants it reported (RFC 3550, section 6.4)."""

from __future__ import annotations

from liveedge.media.webrtc.rtp import ReportBlock


class Reception:
    """Counts of one SSRC. One thread."""

    def __init__(self, ssrc: int, *, clock_hz: int) -> None:
        self.ssrc = ssrc
        self.n_received = 0
        self._clock_hz = clock_hz
        self._first: int | None = None
        self._highest = 0
        self._transit: int | None = None
        self._jitter = 0.0
        self._n_expected_then = 0
        self._n_received_then = 0
        self._report_middle = 0
        self._report_s: float | None = None

    def packet(self, sequence: int, timestamp: int, now_s: float) -> None:
        self.n_received += 1
        if self._first is None:
            self._first = self._highest = sequence
        else:
            step = (sequence - self._highest + 0x8000 & 0xFFFF) - 0x8000
            self._highest += max(step, 0)
        transit = int(now_s * self._clock_hz) - timestamp
        if self._transit is not None:
            # 32 bits wrap; an outlier must not spoil the mean for long.
            change = abs((transit - self._transit + (1 << 31) & 0xFFFFFFFF) - (1 << 31))
            self._jitter += (min(change, self._clock_hz) - self._jitter) / 16
        self._transit = transit

    def sender_report(self, ntp_middle: int, now_s: float) -> None:
        self._report_middle = ntp_middle
        self._report_s = now_s

    @property
    def n_lost(self) -> int:
        """Those that never arrived, less those that arrived twice."""
        return self._n_expected - self.n_received

    @property
    def _n_expected(self) -> int:
        return 0 if self._first is None else self._highest - self._first + 1

    def report(self, now_s: float) -> ReportBlock:
        """The news since the last report."""
        expected = self._n_expected - self._n_expected_then
        lost = expected - (self.n_received - self._n_received_then)
        self._n_expected_then, self._n_received_then = self._n_expected, self.n_received
        since_s = 0.0 if self._report_s is None else now_s - self._report_s
        return ReportBlock(
            ssrc=self.ssrc,
            fraction_lost=0 if expected <= 0 or lost <= 0 else min(255, lost * 256 // expected),
            n_lost=self.n_lost,
            highest_sequence=self._highest,
            jitter=int(self._jitter),
            last_report=self._report_middle,
            since_last_report=int(since_s * 65536),
        )

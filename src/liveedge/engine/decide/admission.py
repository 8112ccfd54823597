"""Which requests are not worth beginning, or going on with: too late, or about something too old.

Pure. Both bounds are checked when a request comes and at every step until they are met.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from liveedge.core.errors import DeadlineExceeded, FrameStale, LiveEdgeError, QueueFull
from liveedge.engine.decide.features import Features
from liveedge.engine.decide.forecast import Backlog, backlog
from liveedge.engine.decide.limits import Limits
from liveedge.engine.decide.rates import Rates
from liveedge.engine.decide.sequence import Sequence
from liveedge.engine.decide.slots import SlotTable


def overdue(sequence: Sequence, now_s: float) -> LiveEdgeError | None:
    """Why a sequence ends now although it is not done."""
    limit_s = sequence.limit_s
    if limit_s is None or now_s < limit_s:
        return None
    waited_ms = (now_s - sequence.marks.submitted_s) * 1000
    if sequence.deadline_s is not None and now_s >= sequence.deadline_s:
        return DeadlineExceeded(
            f"not finished in time: {waited_ms:.0f} ms after admission the request was "
            f"{sequence.phase} with {len(sequence.tokens)} tokens; raise timeout_ms or ask for less"
        )
    return FrameStale(
        f"the newest frame became older than max_age_ms before the first token: the request was "
        f"{sequence.phase}, {waited_ms:.0f} ms after the engine got it; raise max_age_ms, or ask "
        "when less is waiting"
    )


class Admission:
    """Tells a request at once what would come too late."""

    def __init__(
        self, *, features: Features, slots: SlotTable, limits: Limits, rates: Rates
    ) -> None:
        self._features = features
        self._slots = slots
        self._limits = limits
        self._rates = rates

    def refuse(
        self, sequence: Sequence, before: Seq[Sequence], *, now_s: float
    ) -> QueueFull | None:
        """Why a new request would not have its first token in time, behind these. Whoever has
        nothing before it is always tried."""
        if sequence.limit_s is None or not before:
            return None
        work = self._backlog(sequence, before)
        wait_s, left_s = work.wait_s(self._rates, self._limits), sequence.limit_s - now_s
        if wait_s <= left_s:
            return None
        return QueueFull(
            f"the answer would begin in about {wait_s:.1f} s ({work.describe()}), and it is wanted "
            f"within {left_s:.1f} s: try again in {wait_s - left_s:.1f} s, or raise timeout_ms or "
            "max_age_ms",
            retry_after_s=max(1.0, wait_s - left_s),
        )

    def _backlog(self, sequence: Sequence, before: Seq[Sequence]) -> Backlog:
        missing = {group.key: group for group in self._features.missing([*before, sequence])}
        loads = self._features.loads
        return backlog(
            sequence,
            before,
            missing=missing,
            n_loads=sum(loads.patches(key) is None for key in missing),
            n_free=self._slots.n_free,
            n_slots=self._slots.n_slots,
            answer_tokens=self._rates.answer.value or 0.0,
        )

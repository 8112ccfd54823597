"""Work for the spare slot, one piece at a time: next prefixes of windows, and verifications.

Owns    what waits for the spare and what has it.
Thread  the engine thread only.
Bound   one waiting prefix per window, `n_windows` windows, `max_verifications` verifications.

Of two prefixes of a window the newer wins: the one that waits is replaced where it stands; the one
that is being computed ends, and the newer goes on with what it left. But not twice in a row, so a
window whose frames come faster than they can be computed is behind, and yet moves.
"""

from __future__ import annotations

from liveedge.engine.decide.sequence import Sequence, Verifying, Warming


class BackgroundWork:
    """A queue in the order of arrival, and the piece that has the spare."""

    def __init__(self) -> None:
        self.current: Sequence | None = None
        self._waiting: list[Sequence] = []
        self._interrupted: set[str] = set()  # windows whose last prefix did not get done

    def _all(self) -> list[Sequence]:
        return [*self._waiting, *([self.current] if self.current else [])]

    def window_ids(self) -> set[str]:
        """Windows that something is being done for."""
        goals = (sequence.background for sequence in self._all())
        return {goal.window_id for goal in goals if isinstance(goal, Warming)}

    @property
    def n_verifications(self) -> int:
        return sum(isinstance(s.background, Verifying) for s in self._waiting)

    def add(self, sequence: Sequence) -> Sequence | None:
        """The older prefix of the same window that this one supersedes: end it."""
        goal = sequence.background
        if isinstance(goal, Warming):
            for place, other in enumerate(self._waiting):
                if other.background == goal:
                    self._waiting[place] = sequence
                    return other
            if self._may_interrupt(goal):
                self._interrupted.add(goal.window_id)
                self._waiting.insert(0, sequence)
                return self.current
        self._waiting.append(sequence)
        return None

    def _may_interrupt(self, goal: Warming) -> bool:
        current = self.current
        if current is None or current.background != goal:
            return False
        return goal.window_id not in self._interrupted

    def of_window(self, window_id: str) -> list[Sequence]:
        """Everything under way for a window."""
        return [s for s in self._all() if s.background == Warming(window_id)]

    def first(self) -> Sequence | None:
        """What gets the spare next."""
        return self._waiting[0] if self._waiting else None

    def start(self) -> None:
        """The first one has the spare now."""
        self.current = self._waiting.pop(0)

    def postpone(self) -> Sequence | None:
        """What has the spare gives it up and is first in the queue again."""
        postponed, self.current = self.current, None
        if postponed is not None:
            self._waiting.insert(0, postponed)
        return postponed

    def leave(self, sequence: Sequence) -> None:
        """It ended, however it was."""
        if sequence is self.current:
            self.current = None
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def done(self, window_id: str) -> None:
        """A prefix of this window was completed, or the window is gone."""
        self._interrupted.discard(window_id)

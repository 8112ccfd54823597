"""When an engine process is started, asked for a sign of life, given up and started again.

Pure: it is told what happened and when, and says what to do; `link` does it. A process is hung when
a ping stays unanswered for `hang_s`, or it has not answered its first one `load_s` after its start,
or sooner where earlier starts show how long one takes.
Silence is counted in small steps between looks, so that a server that was itself held up, by a
debugger or a busy machine, does not take that for silence of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Action: TypeAlias = Literal["nothing", "start", "ping", "kill", "prepare"]

MAX_BACK_OFF_S = 30.0
HEALTHY_S = 5.0  # so long without a fault: the next one is a first one again
LOOK_EVERY_S = 1.0
SHORTEST_RETRY_S = 1.0  # a standby, with all its imports done, answers in about that time
PREPARE_AFTER_S = 1.0  # a standby's imports do not slow the first answers
PREPARE_AGAIN_S = 30.0  # after one that died while it waited, or could not be started
SLOWER_LOAD = 10  # times the slowest load so far: what takes longer, and a minute, is hung
MIN_LOAD_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long an engine may be silent, and whether a successor waits for its end."""

    hang_s: float = 30.0  # while it answers; longer than the longest step of a slow machine
    load_s: float = 900.0  # from its start until it answers, the first time
    standby: bool = True


class Supervision:
    """The life of one engine, over any number of processes."""

    def __init__(self, patience: Patience) -> None:
        self.n_restarts = 0
        self._patience = patience
        self._state: Literal["waiting", "loading", "ready"] = "waiting"
        self._start_at_s = 0.0
        self._n_faults = 0  # since it was last healthy
        self._ready_s = 0.0  # since when it is
        self._silence_s = 0.0
        self._slowest_load_s: float | None = None
        self._looked_s: float | None = None
        self._is_asked = False  # a ping is on its way
        self._pinged_s = 0.0
        self._has_standby = False
        self._prepare_at_s = 0.0

    # what happened

    def started(self) -> None:
        """A process was told what to run."""
        self._state = "loading"
        self._silence_s = 0.0
        self._is_asked = False

    def opened(self, now_s: float) -> None:
        """It answers."""
        self._state = "ready"
        self._ready_s = now_s
        self._slowest_load_s = max(self._slowest_load_s or 0.0, self._silence_s)
        self._silence_s = 0.0
        self._pinged_s = now_s
        self._prepare_at_s = now_s + PREPARE_AFTER_S

    def heard(self) -> None:
        """It answered a ping."""
        self._silence_s = 0.0
        self._is_asked = False

    def ended(self, now_s: float) -> None:
        """The process is gone, by itself or by us: it starts again, at first without delay."""
        if self._state == "ready" and now_s - self._ready_s >= HEALTHY_S:
            self._n_faults = 0
        self._state = "waiting"
        self._start_at_s = now_s + back_off_s(self._n_faults)
        self._n_faults += 1
        self.n_restarts += 1

    def standby(self, *, present: bool) -> None:
        """A process waits for its turn, or does not any more."""
        self._has_standby = present

    # what to do

    def next(self, now_s: float) -> Action:
        """To be asked again after each answer but `nothing`, and at least every `LOOK_EVERY_S`."""
        elapsed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if self._state == "waiting":
            return "start" if now_s >= self._start_at_s else "nothing"
        if self._state == "loading" or self._is_asked:
            self._silence_s += min(elapsed_s, 2 * LOOK_EVERY_S)
        if self._silence_s >= self._limit_s:
            self._silence_s = 0.0
            return "kill"
        return "nothing" if self._state == "loading" else self._while_ready(now_s)

    def _while_ready(self, now_s: float) -> Action:
        if not self._is_asked and now_s - self._pinged_s >= self._ping_every_s:
            self._is_asked = True
            self._pinged_s = now_s
            return "ping"
        if self._patience.standby and not self._has_standby and now_s >= self._prepare_at_s:
            self._prepare_at_s = now_s + PREPARE_AGAIN_S
            return "prepare"
        return "nothing"

    def wait_s(self, now_s: float) -> float:
        """How long `next` has nothing to say, unless something happens."""
        if self._state == "waiting":
            return min(LOOK_EVERY_S, max(0.0, self._start_at_s - now_s))
        return min(LOOK_EVERY_S, self._ping_every_s)

    def retry_after_s(self, now_s: float) -> float:
        """When a client may ask again, roughly."""
        return max(SHORTEST_RETRY_S, self._start_at_s - now_s)

    @property
    def _ping_every_s(self) -> float:
        return min(5.0, self._patience.hang_s / 4)

    @property
    def _limit_s(self) -> float:
        if self._state != "loading":
            return self._patience.hang_s
        if self._slowest_load_s is None:
            return self._patience.load_s
        return min(self._patience.load_s, max(MIN_LOAD_S, SLOWER_LOAD * self._slowest_load_s))


def back_off_s(n_faults: int) -> float:
    """None after a first fault, then 1, 2, 4 and so on, up to half a minute."""
    return 0.0 if n_faults == 0 else min(MAX_BACK_OFF_S, 2.0 ** (n_faults - 1))

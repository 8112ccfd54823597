"""kill -9 of the engine's process by schedule, and the time until the next right answer. Real time.

Three in a row, then a life that is long enough to see whether the engine itself grows.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from liveedge.bench.soak.asking import ask_once
from liveedge.bench.soak.place import Act, Place
from liveedge.bench.soak.processes import engine_pid

LIMIT_S = 120.0
POLL_S = 0.05
IN_A_ROW = 3
CYCLE = 8  # periods from the first of a row to the first of the next


def kill_on(place: Place) -> None:
    """Until the run is over."""
    if place.pid is None:
        return
    for number in place.ticks("kill", place.options.kill_every_s):
        if (number - 1) % CYCLE >= IN_A_ROW:
            continue
        pid = engine_pid(place.pid)
        if pid is None:
            place.log.write("skipped", part="kill", number=number)
            continue
        act = Act(place, "kill", number, pid=pid)
        os.kill(pid, signal.SIGKILL)
        if (outcome := _until_right(place)) is not None:
            act.done(**outcome, new_pid=engine_pid(place.pid))


def _until_right(place: Place) -> dict[str, Any] | None:
    """How long it took and what was answered meanwhile; None where the run ended first."""
    began_s = place.real_clock.monotonic_s()
    answers: dict[str, int] = {}
    while (passed_s := place.real_clock.monotonic_s() - began_s) < LIMIT_S:
        outcome = ask_once(place)
        if outcome == "right":
            passed_s = place.real_clock.monotonic_s() - began_s
            return {"ok": True, "recovered_real_s": round(passed_s, 3), "answers": answers}
        answers[outcome] = answers.get(outcome, 0) + 1
        if place.real_clock.wait(place.stopping, POLL_S):
            return None
    return {"ok": False, "recovered_real_s": None, "answers": answers}

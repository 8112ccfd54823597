"""Waits for threads that live by a clock of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable

from liveedge.testing.clock import FakeClock

LOOK_S = 0.002
MOST_LOOKS = 20_000
MOST_BUSY = 50  # looks


def until(
    condition: Callable[[], bool], *, clock: FakeClock | None = None, moving_s: float = 0.0
) -> None:
    """Wait until `condition` holds, moving the clock in small steps if asked to.

    Time passes while somebody waits for it, not while a busy machine keeps a thread from running.
    """
    busy = 0
    for _ in range(MOST_LOOKS):
        if condition():
            return
        if clock is not None:
            busy = 0 if clock.n_waiting else busy + 1
            if busy in (0, MOST_BUSY):  # nobody waits for the clock: it is wanted all the same
                clock.move(moving_s)
                busy = 0
        threading.Event().wait(LOOK_S)
    raise AssertionError("the condition never came true")

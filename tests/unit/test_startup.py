"""The start of the server, stage by stage."""

from liveedge.core.clock import SystemClock
from liveedge.core.startup import Startup, process_started_s
from liveedge.testing.clock import FakeClock


def test_the_start_is_told_stage_by_stage():
    clock = FakeClock()
    lines: list[str] = []
    began_s = clock.monotonic_s()
    clock.move(0.5)
    startup = Startup(clock, say=lines.append)
    startup.passed("imports", since_s=began_s)
    clock.move(0.02)
    startup.passed("listen")
    startup.breakdown("listens")
    clock.move(2)
    startup.passed("model")
    startup.breakdown("answers", {"weights": 1500.0})
    assert lines == [
        "listens after 0.52 s: imports 500 ms, listen 20 ms",
        "answers after 2.52 s: imports 500 ms, listen 20 ms, model 2000 ms (weights 1500 ms)",
    ]


def test_the_start_of_this_process_is_in_the_past():
    clock = SystemClock()
    started_s = process_started_s(clock)
    assert started_s is not None
    assert 0 < clock.monotonic_s() - started_s < 600

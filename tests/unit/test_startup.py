"""The start of the server, stage by stage."""

import subprocess
import sys

from liveedge.core.clock import SystemClock
from liveedge.core.startup import Startup
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


def test_the_start_of_a_process_is_in_its_past():
    """In a young process: that of the tests may be older than any start takes."""
    code = (
        "from liveedge.core.clock import SystemClock; "
        "from liveedge.core.startup import process_started_s; "
        "clock = SystemClock(); "
        "print(clock.monotonic_s(), process_started_s(clock))"
    )
    before_s = SystemClock().monotonic_s()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    now_s, started_s = map(float, done.stdout.split())
    assert before_s - 0.02 <= started_s <= now_s  # the system tells it in ticks of 10 ms

"""The fuzzer of the API with few requests: `tools/api_fuzz.py` runs it for as long as one likes."""

import pytest

from api_fuzz import KEY, fuzz
from liveedge.core.clock import SystemClock
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.testing.engine import FakeEngine
from tests.serving import SMALL

# Generating questions takes longest, and a time would be another run on every machine.
FLAGS = ("--phases", "fuzzing", "--include-path-regex", "/(streams|models|frames)$")


@pytest.mark.timeout(300)  # ten seconds of processor time, on a busy machine minutes
def test_generated_requests_find_no_crash_and_no_answer_outside_the_document():
    clock = SystemClock()
    settings = Settings(port=0, api_key=KEY, timeout_ms=8000, max_streams_per_key=12, **SMALL)
    with BackgroundServer(
        settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock)
    ) as server:
        found = fuzz(server.url, key=KEY, seconds=None, seed=1, max_examples=2, flags=FLAGS)
    assert found.status == 0, found.output
    assert found.n_calls > 5
    assert not [status for status in found.by_status if status.startswith("5") and status != "501"]

"""A source that had opened before the server was restarted is never given up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from liveedge.media.source import Source
from liveedge.media.supervisor import Supervisor, SupervisorSettings
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import ListTarget, ScriptedSource, delivers, fails, hangs
from tests.moving import until

SETTINGS = SupervisorSettings(jitter=0.0, stop_grace_s=0.2)


class Bench:
    """Resumes supervisors and ends them with the test."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.target = ListTarget(self.clock)
        self.started: list[Supervisor] = []

    def resume(self, source: Source) -> Supervisor:
        supervisor = Supervisor(
            source,
            self.target,
            clock=self.clock,
            name="test",
            settings=SETTINGS,
            rng=random.Random(0),
        )
        self.started.append(supervisor)
        supervisor.resume()
        return supervisor

    def until(self, condition: Callable[[], bool], *, moving_s: float = 0.0) -> None:
        until(condition, clock=self.clock, moving_s=moving_s)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for supervisor in bench.started:
        assert supervisor.stop()


@pytest.mark.parametrize("hopeless", [False, True])
def test_a_source_that_fails_is_tried_until_it_opens(bench: Bench, hopeless: bool) -> None:
    failure = fails("refused", hopeless=hopeless)
    source = ScriptedSource(*[failure] * 12, delivers(1), clock=bench.clock)
    supervisor = bench.resume(source)
    bench.until(lambda: supervisor.status().health == "reconnecting", moving_s=0.01)
    bench.until(lambda: len(source.started_at_s) == 8, moving_s=0.2)
    # Long after the 15 s in which a new stream's source has to open.
    assert source.started_at_s[-1] - source.started_at_s[0] > 15
    assert supervisor.status().health == "reconnecting"
    assert supervisor.status().reason == "refused"
    bench.until(lambda: supervisor.status().health == "live", moving_s=0.2)
    assert len(bench.target.frames) == 1


def test_a_source_that_stays_silent_is_tried_again(bench: Bench) -> None:
    source = ScriptedSource(hangs, hangs, delivers(1), clock=bench.clock)
    supervisor = bench.resume(source)
    bench.until(lambda: supervisor.status().health == "live", moving_s=0.2)
    assert source.started_at_s[2] - source.started_at_s[0] >= 2 * SETTINGS.open_within_s
    assert supervisor.status().reconnects == 2


async def test_opened_returns_once_it_has_really_opened(bench: Bench) -> None:
    supervisor = bench.resume(ScriptedSource(delivers(0), clock=bench.clock))
    await supervisor.opened()
    assert supervisor.status().health == "waiting_for_keyframe"


def test_a_source_that_ends_has_ended(bench: Bench) -> None:
    source = ScriptedSource(delivers(2, then=lambda _sink, _stop: None), clock=bench.clock)
    supervisor = bench.resume(source)
    bench.until(lambda: supervisor.status().health == "ended", moving_s=0.1)
    assert len(bench.target.frames) == 2

"""A source is opened, watched and brought back, on a clock that the test moves (cases 28 to 30)."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from liveedge.core.errors import SourceUnavailable
from liveedge.frames.store import FrameStore, StoreLimits
from liveedge.media.source import FrameSink, Source, SourceLost
from liveedge.media.supervisor import Backoff, Supervisor, SupervisorSettings
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import (
    FakeCamera,
    ListTarget,
    ScriptedSource,
    delivers,
    fails,
    hangs,
    plain_pixels,
)
from tests.moving import until

SETTINGS = SupervisorSettings(jitter=0.0, stop_grace_s=0.2)


class Bench:
    """Starts supervisors and ends them with the test."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.target = ListTarget(self.clock)
        self.started: list[Supervisor] = []

    def run(self, source: Source, target: Any = None) -> Supervisor:
        supervisor = Supervisor(
            source,
            target or self.target,
            clock=self.clock,
            name="test",
            settings=SETTINGS,
            rng=random.Random(0),
        )
        self.started.append(supervisor)
        supervisor.start()
        return supervisor

    def until(self, condition: Callable[[], bool], *, moving_s: float = 0.0) -> None:
        until(condition, clock=self.clock, moving_s=moving_s)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for supervisor in bench.started:
        assert supervisor.stop()


def test_waits_between_attempts_double_up_to_a_limit_and_start_again() -> None:
    backoff = Backoff(SupervisorSettings(jitter=0.0), random.Random(0))
    assert [backoff.next_s() for _ in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.next_s() == 0.5


def test_jitter_only_lengthens_a_wait_and_by_no_more_than_its_fraction() -> None:
    backoff = Backoff(SupervisorSettings(jitter=0.5, backoff_max_s=0.5), random.Random(1))
    waits = [backoff.next_s() for _ in range(50)]
    assert all(0.5 <= wait_s <= 0.75 for wait_s in waits)
    assert len(set(waits)) > 40


async def test_opening_succeeds_when_the_source_says_so(bench: Bench) -> None:
    supervisor = bench.run(ScriptedSource(delivers(0), clock=bench.clock))
    await supervisor.opened()
    assert supervisor.status().health == "waiting_for_keyframe"
    assert supervisor.status().codec == "h264"


async def test_a_frame_makes_the_source_live(bench: Bench) -> None:
    supervisor = bench.run(ScriptedSource(delivers(3), clock=bench.clock))
    await supervisor.opened()
    bench.until(lambda: len(bench.target.frames) == 3)
    assert supervisor.status().health == "live"
    assert supervisor.status().received_frames == 3


async def test_an_opening_source_is_retried_with_backoff(bench: Bench) -> None:
    source = ScriptedSource(*[fails("connection refused")] * 3, delivers(1), clock=bench.clock)
    supervisor = bench.run(source)
    bench.until(lambda: len(bench.target.frames) == 1, moving_s=0.05)
    await supervisor.opened()
    begun = [round(at_s - source.started_at_s[0], 1) for at_s in source.started_at_s]
    expected = [0, 0.5, 1.5, 3.5]
    assert all(0 <= got - want < 0.4 for got, want in zip(begun, expected, strict=True)), begun


async def test_a_last_attempt_that_is_cut_off_does_not_hide_what_the_earlier_ones_found(
    bench: Bench,
) -> None:
    source = ScriptedSource(fails("it sends no such stream"), hangs, clock=bench.clock)
    supervisor = bench.run(source)
    bench.until(lambda: len(source.started_at_s) == 2, moving_s=0.05)
    bench.until(lambda: supervisor.status().health == "ended", moving_s=0.5)
    with pytest.raises(SourceUnavailable, match=r"it sends no such stream \(2 attempts\)"):
        await supervisor.opened()


async def test_a_failure_that_nobody_waits_for_any_more_is_not_logged_as_a_mistake(
    bench: Bench,
) -> None:
    """A client that left during its create: asyncio called the error "never retrieved"."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    supervisor = bench.run(ScriptedSource(hangs, clock=bench.clock))
    client = asyncio.create_task(supervisor.opened())
    await asyncio.sleep(0)
    client.cancel()
    await asyncio.wait((client,))
    assert client.cancelled()
    assert supervisor.stop()
    for _ in range(3):  # turns of the loop, in which what it waited for ends
        await asyncio.sleep(0)
    bench.started.clear()
    del client, supervisor  # and is freed: that is when it would be logged
    gc.collect()
    assert said == []


async def test_after_15_seconds_of_retries_the_last_reason_is_told(bench: Bench) -> None:
    source = ScriptedSource(fails("connection refused"), clock=bench.clock)
    supervisor = bench.run(source)
    began_s = bench.clock.monotonic_s()
    opening = asyncio.ensure_future(supervisor.opened())
    bench.until(lambda: supervisor.status().health == "ended", moving_s=0.1)
    with pytest.raises(
        SourceUnavailable, match=r"rtsp source .*: connection refused \(5 attempts\)"
    ):
        await opening
    assert 14.9 <= bench.clock.monotonic_s() - began_s < 18


async def test_a_source_that_never_answers_times_out(bench: Bench) -> None:
    supervisor = bench.run(ScriptedSource(hangs, clock=bench.clock))
    bench.until(lambda: supervisor.status().health == "ended", moving_s=0.5)
    with pytest.raises(SourceUnavailable, match="timed out"):
        await supervisor.opened()


async def test_a_hopeless_source_is_told_at_once(bench: Bench) -> None:
    supervisor = bench.run(
        ScriptedSource(fails("no video track", hopeless=True), clock=bench.clock)
    )
    with pytest.raises(SourceUnavailable, match=r"no video track \(1 attempt\)"):
        await supervisor.opened()  # the clock has not moved


async def test_stopping_an_opening_source_fails_its_opening(bench: Bench) -> None:
    supervisor = bench.run(ScriptedSource(hangs, clock=bench.clock))
    assert supervisor.stop()
    with pytest.raises(SourceUnavailable):
        await supervisor.opened()


def test_a_lost_camera_is_reopened_for_ever(bench: Bench) -> None:
    def lost(sink: FrameSink, stopping: threading.Event) -> None:
        raise SourceLost("the camera closed the connection", hopeless=True)

    source = ScriptedSource(delivers(1, then=lost), clock=bench.clock)
    supervisor = bench.run(source)
    bench.until(lambda: len(source.started_at_s) == 20, moving_s=0.2)
    assert supervisor.status().reconnects >= 19
    assert bench.target.n_gaps >= 19


def test_while_it_is_away_the_state_says_why(bench: Bench) -> None:
    camera = FakeCamera()
    supervisor = bench.run(camera)
    camera.send()
    camera.lose("connection refused")
    bench.until(lambda: supervisor.status().health == "reconnecting")
    assert supervisor.status().reason == "connection refused"
    bench.until(lambda: supervisor.status().health == "waiting_for_keyframe", moving_s=0.1)
    camera.send()
    assert supervisor.status().health == "live"
    assert supervisor.status().reason == ""


def test_a_camera_that_keeps_failing_is_asked_less_and_less_often(bench: Bench) -> None:
    source = ScriptedSource(
        delivers(1, then=fails("lost")), fails("connection refused"), clock=bench.clock
    )
    bench.run(source)
    bench.until(lambda: len(source.started_at_s) == 9, moving_s=0.1)
    begun = source.started_at_s
    waits = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert waits[0] < 1 < waits[3] < waits[5]
    assert all(wait_s < 12 for wait_s in waits)


def test_a_stall_is_the_age_of_the_newest_frame_and_reopens_the_camera(bench: Bench) -> None:
    source = ScriptedSource(delivers(2), clock=bench.clock)
    supervisor = bench.run(source)
    bench.until(lambda: len(bench.target.frames) == 2)
    bench.clock.move(4.9)
    assert supervisor.status().health == "live"
    bench.until(lambda: len(source.started_at_s) == 2, moving_s=0.1)
    assert 5 <= source.started_at_s[1] - source.started_at_s[0] < 8
    assert supervisor.status().reconnects == 1


def test_a_frame_in_time_keeps_the_watchdog_quiet(bench: Bench) -> None:
    camera = FakeCamera()
    supervisor = bench.run(camera)
    for _ in range(10):
        camera.send()
        bench.clock.move(4.5)
    assert camera.n_runs == 1
    assert supervisor.status().health == "live"


def test_a_camera_without_its_first_key_frame_gets_more_time(bench: Bench) -> None:
    camera = FakeCamera()
    supervisor = bench.run(camera)
    bench.until(lambda: supervisor.status().health == "waiting_for_keyframe")
    bench.clock.move(25)
    camera.send()
    assert camera.n_runs == 1
    assert supervisor.status().health == "live"


def test_a_publisher_that_pauses_is_shown_as_stalled_and_not_restarted(bench: Bench) -> None:
    camera = FakeCamera(kind="push", restart_on_stall=False)
    supervisor = bench.run(camera)
    camera.send()
    bench.until(lambda: supervisor.status().health == "stalled", moving_s=0.5)
    assert supervisor.status().reason == "no frame for 5 s"
    bench.clock.move(60)
    assert camera.send() is not None
    assert supervisor.status().health == "live"
    assert (camera.n_runs, bench.target.n_gaps) == (1, 1)


def test_an_attempt_that_will_not_end_is_abandoned_and_its_frames_do_not_mix(bench: Bench) -> None:
    sinks: list[FrameSink] = []
    release = threading.Event()

    def deaf(sink: FrameSink, stopping: threading.Event) -> None:
        sinks.append(sink)
        sink.frame(plain_pixels(grey=1))
        release.wait(20)  # ignores `stopping`

    source = ScriptedSource(deaf, delivers(1), clock=bench.clock)
    bench.run(source)
    bench.until(lambda: len(bench.target.frames) == 2, moving_s=0.2)
    assert sinks[0].frame(plain_pixels(grey=2)) is None
    release.set()
    assert len(bench.target.frames) == 2


def test_attempts_that_never_end_are_counted_and_no_more_than_a_few_pile_up(bench: Bench) -> None:
    """A call into a library that never returns costs a thread; the next attempts wait for it."""
    release = threading.Event()

    def deaf(sink: FrameSink, stopping: threading.Event) -> None:
        sink.frame(plain_pixels())
        release.wait(20)  # ignores `stopping`

    source = ScriptedSource(deaf, deaf, deaf, delivers(1), clock=bench.clock)
    supervisor = bench.run(source)
    bench.until(lambda: supervisor.status().abandoned == 3, moving_s=0.2)
    for _ in range(200):
        bench.clock.move(1)
        threading.Event().wait(0.001)
    assert len(source.started_at_s) == 3
    assert "hang" in supervisor.status().reason
    assert supervisor.status().health == "reconnecting"
    release.set()
    bench.until(lambda: len(source.started_at_s) == 4, moving_s=0.5)
    bench.until(lambda: supervisor.status().abandoned == 0, moving_s=0.5)
    bench.until(lambda: supervisor.status().health == "live")


def test_a_machine_without_a_thread_to_spare_costs_attempts_and_not_the_camera(
    bench: Bench,
) -> None:
    source = ScriptedSource(delivers(1, then=fails("lost")), delivers(1), clock=bench.clock)
    supervisor = bench.run(source)
    bench.until(lambda: supervisor.status().health == "reconnecting")
    threading.stack_size(1 << 47)  # more than there are addresses: no thread can begin
    try:
        bench.until(lambda: "no thread" in supervisor.status().reason, moving_s=0.05)
    finally:
        threading.stack_size(0)
    bench.until(lambda: len(bench.target.frames) == 2, moving_s=0.05)
    assert supervisor.status().health == "live"


def test_a_password_that_stops_working_is_tried_seldom_and_for_ever(bench: Bench) -> None:
    """Cameras lock an account after a few wrong tries."""
    source = ScriptedSource(
        delivers(1, then=fails("lost")), fails("401 from the camera", hopeless=True),
        clock=bench.clock,
    )  # fmt: skip
    supervisor = bench.run(source)
    bench.until(lambda: len(source.started_at_s) == 5, moving_s=0.5)
    waits = [later - earlier for earlier, later in itertools.pairwise(source.started_at_s)]
    assert waits[0] < 2
    assert all(30 <= wait_s < 35 for wait_s in waits[1:])
    assert supervisor.status().reason == "401 from the camera"
    assert supervisor.status().health == "reconnecting"


def test_a_camera_that_never_sends_a_key_frame_is_reopened_with_that_reason(bench: Bench) -> None:
    source = ScriptedSource(delivers(0), clock=bench.clock)
    supervisor = bench.run(source)
    bench.until(lambda: supervisor.status().reconnects == 1, moving_s=0.5)
    assert supervisor.status().reason.startswith("no key frame for 30 s")


def test_a_crashing_source_is_reported_and_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def crashes(sink: FrameSink, stopping: threading.Event) -> None:
        sink.frame(plain_pixels())
        raise KeyError("a defect")

    source = ScriptedSource(crashes, delivers(1), clock=bench.clock)
    supervisor = bench.run(source)
    bench.until(lambda: len(bench.target.frames) == 2, moving_s=0.1)
    assert supervisor.status().reconnects == 1
    assert "a defect" in caplog.text


def test_the_end_of_a_source_is_shown_and_nothing_follows(bench: Bench) -> None:
    camera = FakeCamera(kind="file")
    supervisor = bench.run(camera)
    camera.send()
    camera.end()
    bench.until(lambda: supervisor.status().health == "ended")
    bench.clock.move(100)
    assert camera.n_runs == 1


def test_a_source_that_breaks_off_for_good_ends_with_its_reason(bench: Bench) -> None:
    def breaks_off(sink: FrameSink, _stopping: threading.Event) -> None:
        sink.frame(plain_pixels())
        raise SourceLost("the rest cannot be read", final=True)

    source = ScriptedSource(breaks_off, clock=bench.clock)
    supervisor = bench.run(source)
    bench.until(lambda: supervisor.status().health == "ended")
    assert supervisor.status().reason == "the rest cannot be read"
    assert (len(source.started_at_s), len(bench.target.frames)) == (1, 1)


def test_after_stop_no_frame_is_taken(bench: Bench) -> None:
    camera = FakeCamera()
    supervisor = bench.run(camera)
    assert camera.send() is not None
    sink = camera._sink
    assert sink is not None
    assert supervisor.stop()
    assert sink.frame(plain_pixels()) is None
    sink.broken(3)
    assert len(bench.target.frames) == 1
    assert supervisor.status().broken_frames == 0


def test_fifty_reconnects_leave_no_thread_behind(bench: Bench) -> None:
    source = ScriptedSource(delivers(1, then=fails("lost")), clock=bench.clock)
    before = set(threading.enumerate())
    supervisor = bench.run(source)
    bench.until(lambda: len(source.started_at_s) >= 53, moving_s=0.5)
    # One that decides, one that runs the source, and the one before it that may be ending.
    assert len(set(threading.enumerate()) - before) <= 3
    assert supervisor.status().received_frames >= 52


def test_received_is_used_plus_dropped_over_reconnects(bench: Bench) -> None:
    """Case 34: what a source sent is a frame of the store or a drop with a reason."""

    def some_broken(sink: FrameSink, stopping: threading.Event) -> None:
        for _ in range(4):
            sink.frame(plain_pixels())
        sink.broken(2)
        raise SourceLost("gone")

    store = FrameStore("s", clock=bench.clock, limits=StoreLimits(history_bytes=0))
    source = ScriptedSource(some_broken, clock=bench.clock)
    supervisor = bench.run(source, store)
    bench.until(lambda: supervisor.status().reconnects == 5, moving_s=0.2)
    supervisor.stop()
    n_runs = len(source.started_at_s)
    counters = store.counters()
    status = supervisor.status()
    assert counters.received == counters.retained + counters.evicted + counters.dropped
    assert status.received_frames == counters.retained + counters.evicted
    assert status.broken_frames == counters.dropped == 2 * n_runs
    assert len(counters.gaps) >= 4
    store.close()

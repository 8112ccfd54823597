"""Cameras and their consumers together, from the source to the frame store (cases 24 to 26, 29 to 32,
34 and 35). What one part promises alone is tested beside it; here the whole line has to keep it."""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from liveedge.core.clock import Clock, SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.frames.frame import Frame, RgbPixels
from liveedge.frames.store import FrameStore, StoreCounters, StoreLimits
from liveedge.media.published import PublishedSource, Publisher
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.rtsp import RtspSource
from liveedge.media.source import FrameSink, Source, SourceLost
from liveedge.media.supervisor import Supervisor, SupervisorSettings
from liveedge.sim.clockcode import CodeReading, read_code, write_code
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import FakeCamera, ScriptedSource, plain_pixels
from tests.media_files import encode_numbered, number_of, numbered
from tests.media_sinks import ListSink
from tests.rtp_camera import RtpCamera, Video, video_of

FPS = 30
PERIOD_S = 1 / FPS
PERIOD_MS = 1000 / FPS
LIMITS = StoreLimits(hot_bytes=2 << 20, history_bytes=1 << 20, prefault=False)
AT_ONCE = SupervisorSettings(backoff_first_s=0.001, backoff_max_s=0.001, jitter=0.0)


class Line:
    """Sources, their supervisors and stores on one clock; everything is ended with the test."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.opened: list[tuple[Supervisor, FrameStore]] = []
        self.cameras: list[RtpCamera] = []

    def open(
        self,
        source: Source,
        *,
        settings: SupervisorSettings = AT_ONCE,
        limits: StoreLimits = LIMITS,
    ) -> tuple[Supervisor, FrameStore]:
        name = f"camera-{len(self.opened)}"
        store = FrameStore(name, clock=self.clock, limits=limits)
        supervisor = Supervisor(source, store, clock=self.clock, name=name, settings=settings)
        self.opened.append((supervisor, store))
        supervisor.start()
        return supervisor, store

    def rtsp(self, camera: RtpCamera) -> tuple[Supervisor, FrameStore]:
        self.cameras.append(camera)
        return self.open(RtspSource(camera.url, policy=PullPolicy(), clock=self.clock))

    def close(self) -> None:
        for supervisor, store in self.opened:
            assert supervisor.stop(20)
            store.close()
        for camera in self.cameras:
            camera.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def line(clock: FakeClock) -> Iterator[Line]:
    line = Line(clock)
    yield line
    line.close()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Lets go what hangs, also where the test fails: it must not hang on into others."""
    released = threading.Event()
    yield released
    released.set()


@pytest.fixture
def real_line() -> Iterator[Line]:
    line = Line(SystemClock())
    yield line
    line.close()


@pytest.fixture(scope="module")
def video() -> Video:
    """300 pictures, and a single key frame."""
    data = encode_numbered(300, container="mpegts", gop=300, codec="libx264", tune="zerolatency")
    return video_of(data, fps=FPS)


def until(condition: Callable[[], bool], *, moving: FakeClock | None = None) -> None:
    """Wait, moving the clock in small steps if there is one."""
    for _ in range(6000):
        if condition():
            return
        if moving is not None:
            moving.move(0.01)
        threading.Event().wait(0.005)
    raise AssertionError("the condition never came true")


def clocked(number: int, wall_ms: int) -> RgbPixels:
    """A small picture with the moment of its taking burned in."""
    rgb = np.full((64, 128, 3), number % 200, dtype=np.uint8)
    write_code(rgb, CodeReading(number, 0, wall_ms))
    return RgbPixels(rgb)


def newest_of(store: FrameStore) -> Frame:
    newest = store.latest
    assert newest is not None
    return newest


def adds_up(counters: StoreCounters) -> bool:
    return counters.received == counters.retained + counters.evicted + counters.dropped


# ── consumers ──


def test_neither_a_slow_consumer_nor_one_that_never_reads_makes_frames_older(
    line: Line, clock: FakeClock
) -> None:
    """Case 24, one minute of it: one frame is read a second, and one consumer holds what it got."""
    camera = FakeCamera()
    _, store = line.open(camera)
    held: list[Frame | None] = []

    def takes_one(stopping: threading.Event) -> None:
        held.append(store.wait_newer_blocking(None, 3600))
        stopping.wait()

    absent = OwnedThread("absent", takes_one)
    absent.start()
    ages_ms: list[float] = []
    most_bytes = 0
    for number in range(60 * FPS):
        clock.move(PERIOD_S)
        assert camera.send(clocked(number, clock.wall_ms())) is not None
        if number % FPS == FPS - 1:
            clock.move(0.9 * PERIOD_S)  # just before the next one
            reading = read_code(store.load(newest_of(store).index))
            assert reading is not None
            ages_ms.append(clock.wall_ms() - reading.wall_ms)
            most_bytes = max(most_bytes, store.counters().memory_bytes)
    until(lambda: bool(held))
    assert absent.stop()
    assert max(ages_ms) < 2 * PERIOD_MS
    assert statistics.linear_regression(range(60), ages_ms).slope == pytest.approx(0, abs=0.1)
    assert most_bytes <= LIMITS.reserved_bytes + newest_of(store).pixels.nbytes
    assert adds_up(store.counters())


def test_a_consumer_that_stalls_costs_the_reader_nothing(real_line: Line, video: Video) -> None:
    """Cases 25 and 26: it looks at one picture, and sleeps until the last one of the group is there."""
    camera = RtpCamera(video)
    looked, go_on = threading.Event(), threading.Event()
    seen: list[int | None] = []

    def consume(_stopping: threading.Event) -> None:
        first = store.wait_newer_blocking(None, 30)
        assert first is not None
        looked.set()
        go_on.wait(30)  # the stall: everything else arrives meanwhile
        newest = newest_of(store)
        assert not newest.corrupt
        rgb = newest.pixels.rgb()
        seen.append(number_of(rgb))
        error = np.abs(rgb.astype(int) - numbered(seen[0] or 0)).mean()
        assert error < 8, error  # a picture decoded without its references is far off

    supervisor, store = real_line.rtsp(camera)
    consumer = OwnedThread("consumer", consume)
    consumer.start()
    assert looked.wait(30)
    until(lambda: store.counters().received >= 300)
    go_on.set()
    until(lambda: not consumer.alive)
    assert consumer.error is None
    assert seen == [299]
    assert supervisor.status().broken_frames == 0
    assert store.counters().corrupt == 0


def test_a_decoder_that_does_not_keep_up_gives_up_to_the_next_key_frame(clock: FakeClock) -> None:
    """What waits in the connection grows old, and its time of arrival would not tell."""
    data = encode_numbered(300, container="mpegts", gop=30, codec="libx264", tune="zerolatency")
    camera = RtpCamera(video_of(data, fps=FPS))  # all of it at once
    sink = ListSink(clock, costs_s=0.2)
    try:
        with pytest.raises(SourceLost, match="closed"):
            RtspSource(camera.url, policy=PullPolicy(), clock=clock).run(sink, threading.Event())
    finally:
        camera.close()
    numbers = [number or 0 for number in sink.numbers()]
    assert sink.n_dropped["decoder_behind"] > 60
    assert len(numbers) + sink.n_dropped["decoder_behind"] == 300
    assert not any(sink.corrupt)
    after_gaps = [b for a, b in itertools.pairwise(numbers) if b != a + 1]
    assert after_gaps
    assert all(number % 30 == 0 for number in after_gaps)


# ── many cameras, and one that is bad ──


def test_a_camera_that_freezes_for_good_is_no_matter_to_seven_others(
    line: Line, clock: FakeClock, released: threading.Event
) -> None:
    """Case 29: it answers to nothing, not even to being ended."""

    def freezes(sink: FrameSink, _stopping: threading.Event) -> None:
        sink.frame(plain_pixels())
        released.wait(60)

    settings = SupervisorSettings(jitter=0.0, stop_grace_s=0.05)
    frozen, frozen_store = line.open(ScriptedSource(freezes, clock=clock), settings=settings)
    cameras = [FakeCamera() for _ in range(7)]
    others = [line.open(camera, settings=settings) for camera in cameras]
    until(lambda: frozen.status().received_frames == 1)
    for number in range(12 * FPS):
        clock.move(PERIOD_S)
        for camera in cameras:
            frame = camera.send(clocked(number, clock.wall_ms()))
            assert frame is not None
            assert frame.captured_at_ms == pytest.approx(clock.wall_ms(), abs=1)
        if number == 6 * FPS:
            until(lambda: frozen.status().reconnects >= 1)
    for supervisor, store in others:
        counters = store.counters()
        assert supervisor.status().health == "live"
        assert (counters.received, counters.gaps, counters.corrupt) == (12 * FPS, (), 0)
    assert adds_up(frozen_store.counters())


def test_fifty_reconnects_leave_no_descriptor_no_thread_and_no_memory(
    real_line: Line, video: Video
) -> None:
    """Case 30: the connection breaks in the middle of any picture."""
    chance = random.Random(1)
    breaks_at = [0]

    def breaks(number: int, payloads: list[bytes]) -> list[bytes]:
        if number == 0:
            breaks_at[0] = chance.randrange(1, 8)
        if number == breaks_at[0]:
            raise ConnectionAbortedError("as planned")
        return payloads

    def flap(n_times: int) -> Counter[object]:
        supervisor, store = real_line.rtsp(RtpCamera(video, sends=breaks))
        until(lambda: supervisor.status().reconnects >= n_times)
        assert supervisor.stop(20)
        counters = store.counters()
        assert adds_up(counters)
        assert counters.received >= n_times
        assert len(counters.gaps) >= n_times - 1
        real_line.cameras.pop().close()
        store.close()
        real_line.opened.pop()
        gc.collect()
        return Counter[object](open_files()) + Counter[object](threading.enumerate())

    before = flap(5)
    # What is new since then; threads and files of earlier tests may end meanwhile.
    assert flap(50) - before == Counter()


def open_files() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this listing, or another thread's
            yield str(link.readlink())


# ── time stamps ──

LEAPS: dict[str, Callable[[float], float]] = {
    "to zero": lambda s: s - 500.0,
    "an hour ahead": lambda s: s + 3600.0,
    "seconds back": lambda s: s - 7.0,
    "a wrap of 32 bits": lambda s: s - 2**32 / 90_000,
    "not a number": lambda _: float("nan"),
}


@pytest.mark.parametrize("leap", LEAPS.values(), ids=LEAPS)
@pytest.mark.parametrize("once", [True, False], ids=["one frame", "for good"])
def test_time_stamps_that_leap_neither_stop_nor_age_a_stream(
    line: Line, clock: FakeClock, leap: Callable[[float], float], once: bool
) -> None:
    """Case 31."""
    camera = FakeCamera()
    _, store = line.open(camera)
    frames = []
    for number in range(90):
        clock.move(PERIOD_S)
        stamp_s = 500 + number * PERIOD_S
        if number == 30 or (number > 30 and not once):
            stamp_s = leap(stamp_s)
        frame = camera.send(source_time_s=stamp_s)
        assert frame is not None
        assert frame.arrived_s == clock.monotonic_s()  # nobody slept on it
        assert frame.captured_at_ms == pytest.approx(clock.wall_ms(), abs=25)
        frames.append(frame)
    times_ms = [frame.stream_time_ms for frame in frames]
    assert times_ms == sorted(times_ms)
    assert [frame.index for frame in frames] == list(range(90))
    assert adds_up(store.counters())


def test_a_clock_that_begins_anew_with_every_connection_does_not_move_the_streams(
    line: Line, clock: FakeClock
) -> None:
    """Case 31: the camera counts from zero after each reconnect."""
    camera = FakeCamera()
    supervisor, store = line.open(camera)
    for n_losses in range(5):
        for number in range(20):
            clock.move(PERIOD_S)
            frame = camera.send(source_time_s=number * PERIOD_S)
            assert frame is not None
            assert frame.captured_at_ms == pytest.approx(clock.wall_ms(), abs=25)
            assert frame.after_gap == (number == 0 and n_losses > 0)
        camera.lose("gone")
        until(lambda: not camera.is_running)
        until(lambda: camera.is_running, moving=clock)
    assert supervisor.status().reconnects == 5
    assert newest_of(store).index == 99
    assert len(store.counters().gaps) == 4


# ── two producers ──


def test_of_two_publishers_that_come_and_go_fast_the_frames_never_mix(
    line: Line, clock: FakeClock
) -> None:
    """Case 32: both send as fast as they can, each taking over twenty times."""
    source = PublishedSource("livekit")
    _, store = line.open(source, limits=StoreLimits(hot_bytes=64 << 20, history_bytes=0))
    until(lambda: takes_publishers(source))

    def publish(shade: int, _stopping: threading.Event) -> None:
        for _ in range(20):
            publisher = source.attach(lambda _reason: None)
            for _ in range(20):
                if publisher.frame(plain_pixels(grey=shade)) is None:
                    break
            publisher.close()  # nothing, where the other one has taken over

    pair = [OwnedThread(f"publisher-{shade}", partial(publish, shade)) for shade in (0, 100)]
    for thread in pair:
        thread.start()
    until(lambda: not any(thread.alive for thread in pair))
    assert [thread.error for thread in pair] == [None, None]
    counters = store.counters()
    assert counters.received > 40
    assert adds_up(counters)
    frames = [store.load(index) for index in range(counters.received)]
    shades = [int(rgb[0, 0, 0]) for rgb in frames]
    runs = [len(list(group)) for _, group in itertools.groupby(shades)]
    assert len(runs) <= 40  # a run is never interrupted by a frame of the other


def takes_publishers(source: PublishedSource) -> bool:
    try:
        source.attach(lambda _reason: None).close()
    except Exception:  # noqa: BLE001  it has not been started yet
        return False
    return True


# ── nothing is dropped in silence ──


def sends_damage(sink: FrameSink) -> int:
    for number in range(10):
        sink.frame(plain_pixels(), corrupt=number % 3 == 0)
    sink.broken(4)
    return 14


def sends_before_a_key_frame(sink: FrameSink) -> int:
    sink.dropped("before_key_frame", 7)
    sink.frame(plain_pixels())
    return 8


def sends_too_much(sink: FrameSink) -> int:
    for _ in range(300):
        sink.frame(plain_pixels(width=640, height=480))
    sink.dropped("decoder_behind", 30)
    return 330


def sends_and_pauses(sink: FrameSink) -> int:
    for _ in range(3):
        sink.frame(plain_pixels())
        sink.gap()
    return 3


@pytest.mark.parametrize(
    "sends", [sends_damage, sends_before_a_key_frame, sends_too_much, sends_and_pauses]
)
def test_what_a_camera_sent_is_a_frame_or_a_drop_with_a_reason(
    line: Line, clock: FakeClock, sends: Callable[[FrameSink], int]
) -> None:
    """Case 34, over a loss of the connection and beyond the end of the stream."""
    n_sent, n_runs_over = [0], [0]

    def send(sink: FrameSink) -> None:
        n_sent[0] += sends(sink)
        n_runs_over[0] += 1

    def script(sink: FrameSink, stopping: threading.Event) -> None:
        send(sink)
        raise SourceLost("gone")

    def last(sink: FrameSink, stopping: threading.Event) -> None:
        send(sink)
        stopping.wait()

    supervisor, store = line.open(ScriptedSource(script, script, last, clock=clock))
    until(lambda: supervisor.status().reconnects == 2 and n_runs_over[0] == 3, moving=clock)
    counters = store.counters()
    assert counters.received == n_sent[0]
    assert adds_up(counters)
    assert supervisor.status().received_frames == counters.retained + counters.evicted
    assert all(counters.dropped_by_reason.values())
    store.close()
    assert store.publish(plain_pixels()) is None
    assert adds_up(store.counters())
    assert store.counters().dropped_by_reason["ended"] == 1


# ── for hours ──


def test_hours_with_a_camera_whose_clock_is_wrong_change_neither_age_nor_cost(
    line: Line, clock: FakeClock
) -> None:
    """Case 35: two hours at five frames a second; the camera's clock is 300 ppm fast."""
    limits = StoreLimits(hot_bytes=1 << 20, history_bytes=0, retention_s=60)
    camera = FakeCamera()
    _, store = line.open(camera, limits=limits)
    chance = random.Random(0)
    pixels = plain_pixels()
    n_blocks, per_block = 36, 1000
    offs_ms: list[float] = []
    costs_s: list[float] = []
    memory: set[int] = set()
    for _ in range(n_blocks):
        begun_s = time.process_time()
        for _ in range(per_block):
            clock.move(0.2)
            stamp_s = clock.monotonic_s() * 1.0003 + chance.uniform(0, 0.01)
            camera.send(pixels, source_time_s=stamp_s)
        costs_s.append(time.process_time() - begun_s)
        frame = newest_of(store)
        offs_ms.append(clock.wall_ms() - frame.captured_at_ms)
        memory.add(store.counters().memory_bytes)
    hours = [block * per_block * 0.2 / 3600 for block in range(n_blocks)]
    assert abs(statistics.linear_regression(hours[4:], offs_ms[4:]).slope) < 5  # ms an hour
    assert max(map(abs, offs_ms)) < 50
    assert len(memory) == 1
    early, late = statistics.median(costs_s[4:14]), statistics.median(costs_s[-10:])
    assert late < 2 * early, (early, late)


def test_a_publisher_is_known_to_be_the_present_one_only_while_it_is(
    line: Line, clock: FakeClock
) -> None:
    source = PublishedSource("whip")
    line.open(source)
    until(lambda: takes_publishers(source))
    first: Publisher = source.attach(lambda _reason: None)
    assert first.frame(plain_pixels()) is not None
    second = source.attach(lambda _reason: None)
    assert (first.is_current, second.is_current) == (False, True)
    assert first.frame(plain_pixels()) is None

"""Publishers of one stream: the newest wins, and whoever is replaced or ended is told so once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from liveedge.core.errors import StreamStateInvalid
from liveedge.core.tasks import OwnedThread
from liveedge.frames.frame import Frame, Pixels, RgbPixels
from liveedge.media.published import WAITING, LeaveReason, PublishedSource, Publisher
from liveedge.media.supervisor import Supervisor
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import ListTarget, plain_pixels
from tests.media_sinks import ListSink


class Guest:
    """A publisher's connection, as far as its stream is concerned."""

    def __init__(self, source: PublishedSource) -> None:
        self.told: list[LeaveReason] = []
        self.publisher: Publisher = source.attach(self.told.append)


class Running:
    """A published source whose `run` goes on in a thread until `stop`."""

    def __init__(self) -> None:
        self.source = PublishedSource("livekit")
        self.sink = ListSink(FakeClock())
        self.thread = self.start(self.sink)

    def start(self, sink: ListSink) -> OwnedThread:
        n_before = len(sink.states)
        thread = OwnedThread("run", lambda stopping: self.source.run(sink, stopping))
        thread.start()
        poll(lambda: len(sink.states) > n_before)
        return thread

    def stop(self) -> None:
        assert self.thread.stop(5)
        assert self.thread.error is None


def poll(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it did not happen")


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    yield running
    running.stop()


def test_it_opens_at_once_and_says_that_nobody_is_there(running: Running):
    assert running.sink.states == [("waiting_for_publisher", WAITING)]


def test_frames_of_the_publisher_reach_the_stream_with_what_is_said_about_them(running: Running):
    guest = Guest(running.source)
    guest.publisher.state("waiting_for_keyframe", "connected", codec="vp8")
    frame = guest.publisher.frame(plain_pixels(), source_time_s=1.5, corrupt=True)
    guest.publisher.broken(2)
    guest.publisher.dropped("late", 3)
    assert frame is not None
    assert running.sink.source_times_s == [1.5]
    assert running.sink.corrupt == [True]
    assert (running.sink.n_broken, running.sink.n_dropped) == (2, Counter(late=3))
    assert running.sink.codec == "vp8"
    assert guest.publisher.is_current


def test_the_newest_publisher_wins_and_the_older_is_told_once(running: Running):
    old, new = Guest(running.source), Guest(running.source)
    assert old.told == ["replaced"]
    assert not old.publisher.is_current
    assert old.publisher.frame(plain_pixels(grey=1)) is None
    assert new.publisher.frame(plain_pixels(grey=2)) is not None
    assert [int(p.rgb()[0, 0, 0]) for p in running.sink.pixels] == [2]
    running.stop()
    assert (old.told, new.told) == (["replaced"], ["ended"])


def test_a_replaced_publisher_changes_nothing_any_more(running: Running):
    old, new = Guest(running.source), Guest(running.source)
    before = (list(running.sink.states), running.sink.n_gaps)
    old.publisher.state("live", "I am here")
    old.publisher.broken()
    old.publisher.dropped("late")
    old.publisher.gap()
    old.publisher.close("gone")
    assert (running.sink.states, running.sink.n_gaps) == before
    assert (running.sink.n_broken, running.sink.n_dropped) == (0, Counter())
    assert new.publisher.is_current


def test_a_change_of_publishers_is_a_gap(running: Running):
    Guest(running.source)
    assert running.sink.n_gaps == 0
    Guest(running.source)
    assert running.sink.n_gaps == 1


def test_a_publisher_that_leaves_is_a_gap_with_its_reason_and_may_come_back(running: Running):
    guest = Guest(running.source)
    guest.publisher.frame(plain_pixels())
    guest.publisher.close("the publisher has left")
    guest.publisher.close("again")
    assert running.sink.states[-1] == ("waiting_for_publisher", "the publisher has left")
    assert running.sink.n_gaps == 1
    assert guest.publisher.frame(plain_pixels()) is None
    assert guest.told == []  # it knows
    assert Guest(running.source).publisher.frame(plain_pixels()) is not None


def test_the_end_of_the_stream_is_told_to_its_publisher_and_nobody_gets_in_any_more():
    running = Running()
    guest = Guest(running.source)
    running.stop()
    assert guest.told == ["ended"]
    assert guest.publisher.frame(plain_pixels()) is None
    with pytest.raises(StreamStateInvalid, match="starting or ended"):
        Guest(running.source)


def test_before_the_source_runs_nobody_gets_in():
    with pytest.raises(StreamStateInvalid, match="starting or ended"):
        Guest(PublishedSource("whip"))


def test_a_run_that_was_cut_off_does_not_end_the_one_that_replaced_it(running: Running):
    first = Guest(running.source)
    sink = ListSink(FakeClock())
    late = running.thread
    running.thread = running.start(sink)
    assert first.told == ["ended"]
    assert late.stop(5)
    second = Guest(running.source)
    assert second.publisher.frame(plain_pixels()) is not None
    assert len(sink.pixels) == 1
    assert running.sink.pixels == []


class Slow(ListTarget):
    """A store that notices frames of two publishers after a change, and calls at one time."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.order: list[int] = []
        self.overlaps = 0
        self._inside = 0

    def publish(self, pixels: Pixels, **options) -> Frame:
        self._inside += 1
        self.overlaps += self._inside != 1
        frame = super().publish(pixels, **options)
        self.order.append(int(pixels.rgb()[0, 0, 0]) | int(pixels.rgb()[0, 0, 1]) << 8)
        self._inside -= 1
        return frame


def numbered(number: int) -> RgbPixels:
    rgb = np.zeros((2, 2, 3), dtype=np.uint8)
    rgb[0, 0, :2] = (number & 255, number >> 8)
    return RgbPixels(rgb)


def test_frames_of_publishers_never_mix_in_a_storm_of_republishing():
    """Case 32: 200 publishers in four threads, each sending until it is told to leave."""
    clock = FakeClock()
    target = Slow(clock)
    source = PublishedSource("livekit")
    supervisor = Supervisor(source, target, clock=clock, name="storm")
    supervisor.start()
    supervisor.wait_opened(5)
    told: Counter[int] = Counter()
    lock = threading.Lock()

    def publish(number: int) -> None:
        def leave(_reason: LeaveReason) -> None:
            with lock:
                told[number] += 1

        publisher = source.attach(leave)
        for _ in range(20):
            if publisher.frame(numbered(number)) is None:
                break

    def one_after_the_other(first: int) -> OwnedThread:
        def work(_stopping: threading.Event) -> None:
            for i in range(50):
                publish(first + 4 * i)

        thread = OwnedThread(f"guests-{first}", work)
        thread.start()
        return thread

    threads = [one_after_the_other(first) for first in range(4)]
    poll(lambda: not any(thread.alive for thread in threads))
    assert [thread.error for thread in threads] == [None] * 4
    assert supervisor.stop(5)
    runs = [n for i, n in enumerate(target.order) if i == 0 or target.order[i - 1] != n]
    assert len(runs) == len(set(runs)), "a publisher came back after another one's frame"
    assert target.overlaps == 0
    assert set(told) == set(range(200))
    assert set(told.values()) == {1}, "everybody is told once: replaced, or ended"


def attach(
    source: PublishedSource, told: list[LeaveReason], refused: list[bool], _: threading.Event
) -> None:
    try:
        source.attach(told.append)
    except StreamStateInvalid:
        refused.append(True)


def test_attaching_while_the_stream_ends_is_refused_or_told():
    for _ in range(50):
        running = Running()
        told: list[LeaveReason] = []
        refused: list[bool] = []
        attaching = OwnedThread("attach", partial(attach, running.source, told, refused))
        attaching.start()
        running.thread.stopping.set()
        assert attaching.stop(5)
        running.stop()
        assert (len(told), len(refused)) in ((1, 0), (0, 1))


def supervised() -> tuple[FakeClock, ListTarget, PublishedSource, Supervisor]:
    clock = FakeClock()
    target = ListTarget(clock)
    source = PublishedSource("livekit")
    supervisor = Supervisor(source, target, clock=clock, name="published")
    supervisor.start()
    supervisor.wait_opened(5)
    return clock, target, source, supervisor


def test_silence_of_a_publisher_is_a_stall_that_ends_with_its_next_frame():
    clock, target, source, supervisor = supervised()
    guest = Guest(source)
    guest.publisher.frame(plain_pixels())
    assert supervisor.status().health == "live"
    clock.move(5.1)
    poll(lambda: supervisor.status().health == "stalled")
    assert supervisor.status().reason == "no frame for 5 s"
    assert target.n_gaps == 1
    guest.publisher.frame(plain_pixels())
    assert supervisor.status().health == "live"
    assert supervisor.stop(5)
    assert guest.told == ["ended"]


def test_nobody_there_is_no_stall_and_keeps_its_reason():
    clock, target, source, supervisor = supervised()
    guest = Guest(source)
    guest.publisher.frame(plain_pixels())
    guest.publisher.close("the publisher has left")
    for _ in range(4):
        clock.move(3)
        threading.Event().wait(0.01)  # the supervisor looks
    assert supervisor.status().health == "waiting_for_publisher"
    assert supervisor.status().reason == "the publisher has left"
    assert target.n_gaps == 1
    back = Guest(source)
    threading.Event().wait(0.01)
    assert supervisor.status().health == "waiting_for_keyframe", "it has only just come"
    clock.move(5.1)
    poll(lambda: supervisor.status().health == "stalled")
    assert back.publisher.is_current
    assert supervisor.stop(5)


class Newcomer:
    """A publisher whose offer has not been answered."""

    def __init__(self, source: PublishedSource) -> None:
        self.told: list[LeaveReason] = []
        self.publisher: Publisher = source.enter(self.told.append)


def test_who_publishes_goes_on_until_a_newcomer_is_answered(running: Running):
    old, new = Guest(running.source), Newcomer(running.source)
    new.publisher.state("live", "not yet")
    assert new.publisher.frame(plain_pixels(grey=2)) is None
    assert old.publisher.frame(plain_pixels(grey=1)) is not None
    assert old.told == []
    assert new.publisher.answered()
    assert old.told == ["replaced"]
    assert new.publisher.frame(plain_pixels(grey=2)) is not None


def test_a_newcomer_that_gives_up_changes_nothing(running: Running):
    old, new = Guest(running.source), Newcomer(running.source)
    before = (list(running.sink.states), running.sink.n_gaps)
    new.publisher.close("its offer cannot be answered")
    assert not new.publisher.answered()
    assert (running.sink.states, running.sink.n_gaps) == before
    assert old.publisher.frame(plain_pixels()) is not None


def test_of_those_who_wait_the_newest_stays_and_the_end_is_told_to_all(running: Running):
    old, first, second = (
        Guest(running.source), Newcomer(running.source), Newcomer(running.source)
    )  # fmt: skip
    assert (old.told, first.told, second.told) == ([], ["replaced"], [])
    assert not first.publisher.answered()
    running.stop()
    assert (old.told, second.told) == (["ended"], ["ended"])
    assert not second.publisher.answered()


def test_who_waits_comes_in_when_the_publisher_leaves(running: Running):
    old, new = Guest(running.source), Newcomer(running.source)
    old.publisher.close("left")
    assert new.publisher.is_current
    assert running.sink.states[-1] == ("waiting_for_keyframe", "the publisher is connecting")


def test_of_two_who_are_not_answered_yet_the_newest_wins_at_once(running: Running):
    old, new = Newcomer(running.source), Newcomer(running.source)
    assert old.told == ["replaced"]
    assert new.publisher.is_current

"""The simulated camera is never behind its scene (case 33: live always drops)."""

from __future__ import annotations

import threading

import pytest

from liveedge.core.errors import SourceUnavailable
from liveedge.core.tasks import OwnedThread
from liveedge.media.sim import SimOptions, SimSource, parse_sim_url
from liveedge.sim.clockcode import read_code
from liveedge.testing.clock import FakeClock
from tests.media_sinks import ListSink

SMALL = SimOptions(seed=3, fps=10, width=192, height=108, difficulty="easy")


class SteppingClock(FakeClock):
    """A wait is over at once, and exactly its time has passed."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.move(timeout_s)
        return event.is_set()


def play(
    n_frames: int,
    *,
    costs_s: float = 0.0,
    source: SimSource | None = None,
    clock: FakeClock | None = None,
) -> ListSink:
    clock = clock or SteppingClock()
    stopping = threading.Event()
    sink = ListSink(clock, costs_s=costs_s, stop_after=n_frames, stopping=stopping)
    (source or SimSource(SMALL, clock=clock)).run(sink, stopping)
    return sink


def codes(sink: ListSink) -> list[tuple[int, int, int]]:
    readings = [read_code(pixels.rgb()) for pixels in sink.pixels]
    return [(r.frame_number, r.t_ms, r.wall_ms) for r in readings if r is not None]


def test_frame_n_shows_the_scene_at_n_divided_by_the_rate_and_comes_then() -> None:
    clock = SteppingClock()
    began_s, began_ms = clock.monotonic_s(), clock.wall_ms()
    sink = play(5, clock=clock)
    assert codes(sink) == [(n, n * 100, began_ms + n * 100) for n in range(5)]
    assert sink.source_times_s == pytest.approx([n / 10 for n in range(5)])
    assert [at_s - began_s for at_s in sink.arrived_s] == pytest.approx([n / 10 for n in range(5)])


def test_a_slow_machine_skips_numbers_and_stays_with_the_scene() -> None:
    clock = SteppingClock()
    began_ms = clock.wall_ms()
    sink = play(6, costs_s=0.25, clock=clock)
    read = codes(sink)
    assert [number for number, _, _ in read] == [0, 2, 5, 7, 10, 12]
    for _, t_ms, wall_ms in read:
        assert 0 <= wall_ms - began_ms - t_ms <= 100  # less than a period behind


def test_the_scene_goes_on_over_a_restart() -> None:
    clock = SteppingClock()
    source = SimSource(SMALL, clock=clock)
    first = play(4, source=source, clock=clock)
    clock.move(5)
    second = play(2, source=source, clock=clock)
    assert codes(first)[-1][0] == 3
    assert codes(second)[0][0] >= 50


def test_equal_seeds_give_equal_pictures_and_others_do_not() -> None:
    def pictures(seed: int) -> list[bytes]:
        clock = SteppingClock()
        options = SimOptions(seed=seed, fps=1, width=192, height=108, difficulty="easy")
        sink = play(3, source=SimSource(options, clock=clock), clock=clock)
        return [pixels.rgb().tobytes() for pixels in sink.pixels]

    assert pictures(1) == pictures(1)
    assert pictures(1) != pictures(2)


def test_a_stop_ends_the_wait_for_the_next_frame_at_once() -> None:
    clock = FakeClock()  # stands still
    source = SimSource(SMALL, clock=clock)
    sink = ListSink(clock)
    thread = OwnedThread("sim", lambda stopping: source.run(sink, stopping))
    thread.start()
    assert sink.first.wait(10)
    assert thread.stop(5)
    assert len(sink.pixels) == 1


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (None, SimOptions()),
        ("sim://workcell", SimOptions()),
        ("sim://", SimOptions()),
        ("sim://workcell/?seed=7", SimOptions(seed=7)),
        ("sim://workcell?fps=1e-2", SimOptions(fps=0.01)),
        ("sim://workcell?width=3840&height=2160", SimOptions(width=3840, height=2160)),
        ("sim://workcell?width=2160&height=3840", SimOptions(width=2160, height=3840)),
        (
            "sim://workcell?seed=7&fps=29.97&width=640&height=360&difficulty=hard",
            SimOptions(seed=7, fps=29.97, width=640, height=360, difficulty="hard"),
        ),
    ],
)
def test_sim_urls_carry_options(url: str | None, options: SimOptions) -> None:
    assert parse_sim_url(url) == options


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://workcell", "sim://workcell"),
        ("sim://kitchen", "sim://workcell"),
        ("sim://workcell?speed=2", "unknown option 'speed'"),
        ("sim://workcell?seed=1&seed=2", "given twice"),
        ("sim://workcell?seed", "key=value"),
        ("sim://workcell?seed=", "seed is ''"),
        ("sim://workcell?seed=-1", "seed is -1"),
        ("sim://workcell?fps=0", "fps is 0"),
        ("sim://workcell?fps=nan", "fps is nan"),
        ("sim://workcell?fps=1e9", "fps is 1000000000"),
        ("sim://workcell?fps=1e-12", "fps is 1e-12, needs to be 0.01 to 240"),
        ("sim://workcell?fps=1_0", "fps is '1_0'"),
        ("sim://workcell?seed=1_000", "seed is '1_000'"),
        ("sim://workcell?seed=%201", "seed is ' 1'"),
        ("sim://workcell#x", "sim://workcell"),
        ("sim://workcell?width=3840&height=2161", "size is 3840x2161"),
        ("sim://workcell?width=16", "size is 16x480"),
        ("sim://workcell?height=5000", "size is 854x5000"),
        ("sim://workcell?difficulty=nightmare", "difficulty is 'nightmare'"),
    ],
)
def test_wrong_options_are_refused_with_the_way_out(url: str, why: str) -> None:
    with pytest.raises(SourceUnavailable, match=r"^sim: ") as caught:
        parse_sim_url(url)
    assert why in caught.value.message

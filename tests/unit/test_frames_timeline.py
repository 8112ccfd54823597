"""The stream clock under everything sources do to timestamps (case 31)."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from liveedge.frames.timeline import MAX_AHEAD_S, MAX_BEHIND_S, Timeline

START_S = 5_000.0  # when the process' clock saw the first frame


def stamps_ms(arrivals_s, sources_s):
    timeline = Timeline()
    return [
        timeline.stamp_ms(arrived_s=START_S + arrived, source_s=source)
        for arrived, source in zip(arrivals_s, sources_s, strict=True)
    ]


def steady(n, *, fps=30.0, origin=0.0):
    return [origin + i / fps for i in range(n)]


def jittered(times_s, *, jitter_s=0.008):
    return [t + jitter_s * ((7 * i) % 5) / 4 for i, t in enumerate(times_s)]


def test_without_source_timestamps_arrival_is_the_clock():
    assert stamps_ms([0.0, 0.1, 0.25], [None] * 3) == [0, 100, 250]


def test_source_timestamps_give_the_spacing_that_jitter_hides():
    times = steady(300)
    stamps = stamps_ms(jittered(times), [90_000 + t for t in times])
    assert stamps == [math.ceil(round(1e6 * t) / 1e3) for t in times]


def test_a_steady_source_has_a_frame_at_every_tick_of_a_grid_that_divides_its_rate():
    stamps = stamps_ms(jittered(steady(301)), steady(301))
    for rate in (1, 2, 3, 5, 6, 10, 15, 30):
        for k in range(10 * rate):
            tick_ms = 1000 * k / rate
            assert 0 <= min(stamp for stamp in stamps if stamp >= tick_ms) - tick_ms < 1


def test_a_burst_after_a_short_stall_keeps_its_true_spacing():
    sources = steady(60)
    arrivals = [max(t, 1.5) if 0.7 < t < 1.5 else t for t in sources]
    stamps = stamps_ms(arrivals, sources)
    assert stamps == [math.ceil(round(1e6 * t) / 1e3) for t in sources]


JUMPS = {
    "RTP restarts at zero": lambda i, t: t if i < 50 else t - 40_000.0,
    "one frame 9,800 s back": lambda i, t: t - 9_800.0 if i == 50 else t,
    "one frame 37,600 s ahead": lambda i, t: t + 37_600.0 if i == 50 else t,
    "rewinds by 3 s again and again": lambda i, t: t - 3.0 * (i // 20),
    "rewinds by 200 ms": lambda i, t: t - 0.2 * (i // 20),
    "leaps by 300 ms": lambda i, t: t + 0.3 * (i // 20),
    "a 32-bit counter of 90 kHz wraps": lambda i, t: (47_720.0 + t) % (2**32 / 90_000),
    "not a number": lambda i, t: math.nan if i % 3 else t,
    "infinite": lambda i, t: math.inf if i % 7 == 0 else t,
    "stuck": lambda _i, _t: 12.0,
    "runs backwards": lambda _i, t: -t,
    "five times too fast": lambda _i, t: 5 * t,
    "five times too slow": lambda _i, t: t / 5,
}


@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS.keys())
def test_no_jump_of_the_source_moves_the_clock_away_from_arrival(jump):
    arrivals = jittered(steady(200))
    stamps = stamps_ms(arrivals, [jump(i, t) for i, t in enumerate(steady(200, origin=40_000.0))])
    assert stamps == sorted(stamps)
    for arrived, stamp in zip(arrivals, stamps, strict=True):
        assert arrived - MAX_BEHIND_S <= stamp / 1000 <= arrived + MAX_AHEAD_S + 0.001


@pytest.mark.parametrize("name", ["RTP restarts at zero", "one frame 9,800 s back"])
def test_after_an_outlier_the_spacing_is_fine_again(name):
    arrivals, sources = jittered(steady(200)), steady(200, origin=40_000.0)
    stamps = stamps_ms(arrivals, [JUMPS[name](i, t) for i, t in enumerate(sources)])
    steps = [b - a for a, b in pairwise(stamps[60:])]
    assert set(steps) <= {33, 34}


@pytest.mark.parametrize("name", ["rewinds by 200 ms", "rewinds by 3 s again and again", "stuck"])
def test_a_rewind_never_gives_two_frames_one_time(name):
    arrivals, sources = jittered(steady(200)), steady(200, origin=40_000.0)
    stamps = stamps_ms(arrivals, [JUMPS[name](i, t) for i, t in enumerate(sources)])
    assert min(b - a for a, b in pairwise(stamps)) >= 20


@pytest.mark.parametrize("speed", [0.999, 1.001])
def test_hours_of_drift_never_add_up(speed):
    times = [0.5 * i for i in range(4 * 7200)]
    stamps = stamps_ms(times, [t * speed for t in times])
    lags_s = [t - stamp / 1000 for t, stamp in zip(times, stamps, strict=True)]
    assert max(lags_s) < 0.05
    assert min(lags_s) > -MAX_AHEAD_S - 0.001


def test_the_clock_goes_on_over_a_reconnect():
    timeline = Timeline()
    assert timeline.stamp_ms(arrived_s=START_S, source_s=77.0) == 0
    assert timeline.stamp_ms(arrived_s=START_S + 0.1, source_s=77.1) == 100
    timeline.restart_source()
    assert timeline.stamp_ms(arrived_s=START_S + 30.0, source_s=77.2) == 30_000
    assert timeline.stamp_ms(arrived_s=START_S + 30.11, source_s=77.3) == 30_100


def test_a_source_that_reconnects_quickly_starts_from_arrival():
    timeline = Timeline()
    assert timeline.stamp_ms(arrived_s=START_S, source_s=77.0) == 0
    timeline.restart_source()
    assert timeline.stamp_ms(arrived_s=START_S + 0.5, source_s=77.04) == 500


def test_the_clock_waits_where_arrival_falls_behind_it():
    assert stamps_ms([0.0, 0.1, 0.105, 0.2], [0.0, 0.115, None, None]) == [0, 115, 115, 200]


TIMES_S = st.floats(0.0, 3.0)
CLAIMS_S = st.none() | st.floats(-1e5, 1e5) | st.floats(allow_nan=True) | st.floats(0.0, 5.0)


@given(st.lists(st.tuples(TIMES_S, CLAIMS_S, st.booleans()), max_size=60))
def test_whatever_a_source_claims_the_invariants_hold(frames):
    timeline = Timeline()
    arrived_s, previous_ms = START_S, 0
    for i, (step_s, claim_s, reconnects) in enumerate(frames):
        if reconnects:
            timeline.restart_source()
        arrived_s += step_s if i else 0.0
        stamp_ms = timeline.stamp_ms(arrived_s=arrived_s, source_s=claim_s)
        assert i or stamp_ms == 0
        assert stamp_ms >= previous_ms
        lag_s = arrived_s - START_S - stamp_ms / 1000
        assert -MAX_AHEAD_S - 0.0011 <= lag_s <= MAX_BEHIND_S + 0.0001
        previous_ms = stamp_ms

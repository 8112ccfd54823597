"""A clock that runs faster: all processes of a machine agree, and waits are as much shorter."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from liveedge.core.clock import ScaledClock, SystemClock, clock_at
from liveedge.resources import engine_settings
from liveedge.settings import Settings

pytestmark = pytest.mark.unit

DAY_S = 86_400.0
VERY_FAST = 1e7  # a day takes 9 ms


def test_monotonic_time_is_the_machines_times_the_speed() -> None:
    before = time.monotonic()
    told = ScaledClock(8.0).monotonic_s()
    assert 8 * before <= told <= 8 * time.monotonic()


def test_wall_time_goes_on_from_the_same_moment_in_every_process() -> None:
    first, second = ScaledClock(8.0), ScaledClock(8.0)
    before_ms, told_ms, after_ms = first.wall_ms(), second.wall_ms(), first.wall_ms()
    tolerance_ms = 8 * 50  # between the two readings that each makes of the machine's clocks
    assert before_ms - tolerance_ms <= told_ms <= after_ms + tolerance_ms


def test_wall_and_monotonic_time_run_alike() -> None:
    clock = ScaledClock(VERY_FAST)
    wall_ms, monotonic_s = clock.wall_ms(), clock.monotonic_s()
    time.sleep(0.001)
    passed_s = clock.monotonic_s() - monotonic_s
    assert passed_s >= 0.001 * VERY_FAST
    assert (clock.wall_ms() - wall_ms) / 1000 >= passed_s * 0.9


async def test_a_day_of_sleep_and_of_waiting_is_over_at_once() -> None:
    clock = ScaledClock(VERY_FAST)
    began_s = clock.monotonic_s()
    await clock.sleep(DAY_S)
    assert await asyncio.to_thread(clock.wait, threading.Event(), DAY_S) is False
    assert clock.monotonic_s() - began_s >= 2 * DAY_S


def test_a_set_event_ends_a_wait() -> None:
    event = threading.Event()
    event.set()
    assert ScaledClock(1e-6).wait(event, 1.0) is True


def test_at_its_own_speed_it_is_the_machines_clock() -> None:
    assert isinstance(clock_at(1.0), SystemClock)
    assert isinstance(clock_at(8.0), ScaledClock)


def test_the_engine_is_told_the_speed_of_the_server() -> None:
    assert engine_settings(Settings(clock_speed=8.0), "a/b").clock_speed == 8.0
    assert engine_settings(Settings(), "a/b").clock_speed == 1.0

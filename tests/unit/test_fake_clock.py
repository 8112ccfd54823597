"""The fake clock keeps the promises that tests build on."""

import asyncio
import threading

from liveedge.core.tasks import OwnedThread, TaskSet
from liveedge.testing.clock import FakeClock
from tests.moving import until


def test_time_stands_still_until_it_is_moved():
    clock = FakeClock(monotonic_s=5.0, wall_ms=1_000)
    assert (clock.monotonic_s(), clock.wall_ms()) == (5.0, 1_000)
    clock.move(1.5)
    assert (clock.monotonic_s(), clock.wall_ms()) == (6.5, 2_500)


async def test_sleepers_wake_in_order_at_their_own_deadline():
    clock = FakeClock(monotonic_s=0.0)
    woken: list[float] = []

    async def sleeper(*pauses: float) -> None:
        for pause in pauses:
            await clock.sleep(pause)
            woken.append(clock.monotonic_s())

    tasks = TaskSet("test")
    tasks.start(sleeper(3, 1), name="a")
    tasks.start(sleeper(1, 1, 5), name="b")
    await clock.advance(4)
    assert woken == [1, 2, 3, 4]
    assert clock.n_sleepers == 1
    await tasks.close()
    assert clock.n_sleepers == 0


async def test_moving_at_once_wakes_everything_that_is_due():
    clock = FakeClock()
    tasks = TaskSet("test")
    task = tasks.start(clock.sleep(2), name="nap")
    await clock.advance(1)
    assert not task.done()
    clock.move(1)
    await asyncio.wait_for(task, timeout=1)


def test_a_waiting_thread_returns_when_time_is_over_or_the_event_is_set():
    clock = FakeClock()
    event, results = threading.Event(), []
    thread = OwnedThread("waiter", lambda stopping: results.append(clock.wait(event, 10)))
    thread.start()
    until(lambda: clock.n_waiting == 1)
    clock.move(9)
    assert clock.n_waiting == 1
    clock.move(1)
    assert clock.n_waiting == 0  # its time is over, whether or not it has run since
    until(lambda: bool(results))
    event.set()
    assert results == [False]
    assert clock.wait(event, 10)
    assert thread.stop()


async def test_a_loop_until_a_moment_between_two_ticks_ends():
    clock = FakeClock(monotonic_s=0.0)
    n_sleeps = 0

    async def loop() -> None:
        nonlocal n_sleeps
        while clock.monotonic_s() < 4e-10 and n_sleeps < 10:  # the clock counts nanoseconds
            n_sleeps += 1
            await clock.sleep(4e-10 - clock.monotonic_s())

    await asyncio.gather(loop(), clock.advance(1.0))
    assert n_sleeps == 1

"""Pixels on their way to the engine: asked for, loaded once, placed in shared memory, given back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from liveedge.core.clock import SystemClock
from liveedge.core.errors import FrameEvicted, InternalError, LiveEdgeError, MediaTooLarge
from liveedge.engine.decide.plan import SALT, LoadJob
from liveedge.engine.interface import FeatureGroup, PreparedRequest
from liveedge.engine.process.desk import Desk
from liveedge.engine.process.intake import Intake
from liveedge.engine.process.messages import (
    DropFetch,
    Fetch,
    Fetched,
    Freed,
    Loaded,
    Released,
    SharedPixels,
)
from liveedge.engine.process.shared import FrameRoom, map_frames
from liveedge.engine.request import FrameInput, GenerateRequest

HEIGHT, WIDTH = 6, 10
FRAME = HEIGHT * WIDTH * 3
LIMIT_S = 20.0


class Camera:
    """Frames whose pixels can be held back or lost."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        self.error: Exception | None = None
        self.loads: list[str] = []

    def group(self, key: str, *, n_frames: int = 1, width: int = WIDTH) -> FeatureGroup:
        return FeatureGroup(
            key=key,
            frames=tuple(self._frame(f"{key}-{n}", width) for n in range(n_frames)),
            height=HEIGHT,
            width=width,
            start=0,
            n_tokens=1,
        )

    def _frame(self, key: str, width: int) -> FrameInput:
        def load() -> NDArray[np.uint8]:
            self.loads.append(key)
            self.asked.set()
            assert self.open.wait(LIMIT_S)
            if self.error is not None:
                raise self.error
            return pixels_of(key, width)

        return FrameInput(key=key, width=width, height=HEIGHT, load=load)


def pixels_of(key: str, width: int = WIDTH) -> NDArray[np.uint8]:
    """Other pixels for every key."""
    rng = np.random.default_rng(list(key.encode()))
    return rng.integers(0, 256, (HEIGHT, width, 3), dtype=np.uint8)


def prepared(request_id: str, *groups: FeatureGroup) -> PreparedRequest:
    none = np.zeros(0, np.int64)
    return PreparedRequest(
        request=GenerateRequest(request_id=request_id, messages=()),
        ids=none,
        positions=none.reshape(3, 0),
        position_delta=0,
        identity=none,
        groups=groups,
        image_tokens=0,
        max_new_tokens=1,
    )


class Halves:
    """A desk and an intake that hand each other their messages at once; the test can hold some."""

    def __init__(self, capacity: int | None) -> None:
        self.loaded: list[Loaded] = []
        self.fetched: list[Fetched] = []
        self.hold_fetched = False
        self.hold_work = threading.Event()
        self.hold_work.set()
        self.in_hand: list[int] = []  # an entry per group that a worker took
        self.began: list[str] = []
        self.room = None
        memory = None
        self.fd = os.memfd_create("test")
        if capacity is not None:
            self.room = FrameRoom(self.fd, capacity)
            memory = map_frames(self.fd, capacity)
        self.desk = Desk(send=self._to_intake, n_threads=2, room=self.room)
        self.intake = Intake(
            preprocess=self._preprocess,
            n_threads=2,
            send=self.desk.take,
            done=self.loaded.append,
            memory=memory,
            begin=lambda: self.began.append(threading.current_thread().name),
        )
        self.intake.start()

    def _to_intake(self, message: Fetched) -> None:
        self.fetched.append(message)
        if not self.hold_fetched:
            self.intake.take(message)

    def _preprocess(self, frames: Sequence[NDArray[np.uint8]], *, size: tuple[int, int]) -> object:
        self.in_hand.append(len(frames))
        assert self.hold_work.wait(LIMIT_S)
        assert size[0] == HEIGHT
        return [frame.copy() for frame in frames]

    def ask(self, *groups: FeatureGroup, request_id: str = "q") -> list[LoadJob]:
        self.desk.enter(prepared(request_id, *groups))
        jobs = [LoadJob(group) for group in groups]
        self.intake.submit(jobs)
        return jobs

    def outcome(self, job: LoadJob) -> Any:
        until(lambda: any(message.job is job for message in self.loaded))
        return next(message.outcome for message in self.loaded if message.job is job)

    def close(self) -> None:
        self.hold_work.set()
        self.intake.close()
        self.desk.close()
        os.close(self.fd)


def until(condition: Callable[[], bool]) -> None:
    clock, never = SystemClock(), threading.Event()
    limit_s = clock.monotonic_s() + LIMIT_S
    while not condition():
        assert clock.monotonic_s() < limit_s, "waited in vain"
        clock.wait(never, 0.001)


@pytest.fixture
def camera() -> Iterator[Camera]:
    camera = Camera()
    yield camera
    camera.open.set()


@pytest.fixture(params=[None, 4 * FRAME + 256], ids=["arrays", "shared"])
def halves(request: pytest.FixtureRequest) -> Iterator[Halves]:
    halves = Halves(request.param)
    yield halves
    halves.close()


@pytest.fixture
def shared() -> Iterator[Halves]:
    halves = Halves(2 * FRAME + 64)
    yield halves
    halves.close()


def test_pixels_arrive_as_they_were_and_their_memory_is_given_back(
    halves: Halves, camera: Camera
) -> None:
    jobs = halves.ask(*(camera.group(f"g{n}", n_frames=1 + n % 2) for n in range(12)))
    for job in jobs:
        for frame, pixels in zip(job.group.frames, halves.outcome(job), strict=True):
            assert np.array_equal(pixels, pixels_of(frame.key))
    assert sorted(camera.loads) == sorted(f.key for job in jobs for f in job.group.frames)
    assert halves.desk.used_bytes == 0
    assert len(halves.loaded) == len(jobs)


def test_each_worker_is_set_up_before_its_first_group(halves: Halves, camera: Camera) -> None:
    for job in halves.ask(*(camera.group(f"g{n}") for n in range(4))):
        halves.outcome(job)
    assert set(halves.began) <= {"liveedge-load-0", "liveedge-load-1"}
    assert halves.began


def test_a_frame_that_cannot_be_had_is_told_with_its_reason(halves: Halves, camera: Camera) -> None:
    camera.error = FrameEvicted("frame 7 is gone")
    (job,) = halves.ask(camera.group("g"))
    assert halves.outcome(job) is camera.error
    assert halves.desk.used_bytes == 0


def test_a_group_that_is_encoded_once_more_takes_no_compressed_copies(
    halves: Halves, camera: Camera
) -> None:
    group = camera.group("g")
    copies = tuple(replace(frame, is_exact=lambda: False) for frame in group.frames)
    halves.desk.enter(prepared("q", replace(group, frames=copies)))
    again, asked = LoadJob(replace(group, key=f"g{SALT}1")), LoadJob(group)
    halves.intake.submit([again, asked])
    assert isinstance(halves.outcome(again), FrameEvicted)
    assert np.array_equal(halves.outcome(asked)[0], pixels_of("g-0"))
    assert halves.desk.used_bytes == 0


def test_an_unexpected_error_of_a_source_is_not_told_outside(
    halves: Halves, camera: Camera
) -> None:
    camera.error = OSError("disk on fire at /secret/path")
    (job,) = halves.ask(camera.group("g"))
    outcome = halves.outcome(job)
    assert isinstance(outcome, InternalError)
    assert "secret" not in outcome.message


def test_frames_are_taken_from_any_live_request_that_has_them(
    halves: Halves, camera: Camera
) -> None:
    other = Camera()
    halves.desk.enter(prepared("first", camera.group("g")))
    halves.desk.enter(prepared("second", other.group("g")))
    halves.desk.take(Released(("first",)))
    assert halves.desk.n_live == 1
    job = LoadJob(camera.group("g"))
    halves.intake.submit([job])
    assert np.array_equal(halves.outcome(job)[0], pixels_of("g-0"))
    assert (camera.loads, other.loads) == ([], ["g-0"])


def test_frames_that_no_live_request_has_are_refused(halves: Halves, camera: Camera) -> None:
    halves.desk.enter(prepared("q", camera.group("g")))
    halves.desk.take(Released(("q",)))
    job = LoadJob(camera.group("g"))
    halves.intake.submit([job])
    assert isinstance(halves.outcome(job), InternalError)
    assert halves.desk.n_live == 0


def test_what_is_dropped_before_it_is_loaded_leaves_nothing(halves: Halves, camera: Camera) -> None:
    camera.open.clear()
    jobs = halves.ask(*(camera.group(f"g{n}") for n in range(4)))
    assert camera.asked.wait(LIMIT_S)
    halves.intake.drop(jobs)
    camera.open.set()
    (last,) = halves.ask(camera.group("last"))
    halves.outcome(last)
    until(lambda: halves.desk.used_bytes == 0)
    assert [message.job for message in halves.loaded] == [last]
    assert len(camera.loads) <= 3  # two that workers had begun


def test_what_is_dropped_after_it_was_sent_is_given_back(shared: Halves, camera: Camera) -> None:
    shared.hold_fetched = True
    jobs = shared.ask(camera.group("g"))
    until(lambda: len(shared.fetched) == 1)
    shared.intake.drop(jobs)
    assert shared.desk.used_bytes == FRAME  # on its way: nobody may write there
    shared.intake.take(shared.fetched[0])
    assert shared.desk.used_bytes == 0
    assert shared.loaded == []


def test_what_is_dropped_while_it_waits_for_a_worker_is_given_back(
    shared: Halves, camera: Camera
) -> None:
    big = Halves(8 * FRAME)
    big.hold_work.clear()
    jobs = big.ask(*(camera.group(f"g{n}") for n in range(5)))
    until(lambda: len(big.fetched) == 5 and len(big.in_hand) == 2)
    big.intake.drop(jobs)
    big.hold_work.set()
    until(lambda: big.desk.used_bytes == 0)
    assert len(big.loaded) == 2  # what the workers had begun
    big.close()


def test_at_the_cap_groups_wait_in_order_and_all_arrive(shared: Halves, camera: Camera) -> None:
    shared.hold_work.clear()
    jobs = shared.ask(*(camera.group(f"g{n}", n_frames=2) for n in range(6)))
    until(lambda: len(shared.fetched) == 1)
    assert shared.desk.used_bytes == 2 * FRAME
    assert camera.loads == ["g0-0", "g0-1"]  # what waits for room has loaded nothing
    shared.hold_work.set()
    for job in jobs:
        shared.outcome(job)
    assert shared.desk.used_bytes == 0


def test_a_picture_larger_than_the_memory_fails_its_group_alone(
    shared: Halves, camera: Camera
) -> None:
    large, small = shared.ask(camera.group("large", width=3 * WIDTH), camera.group("small"))
    outcome = shared.outcome(large)
    assert isinstance(outcome, MediaTooLarge)
    assert "shared_frame_bytes" in outcome.message
    assert not isinstance(shared.outcome(small), LiveEdgeError)
    assert camera.loads == ["small-0"]


def test_when_the_engine_is_gone_everything_is_given_back_and_nothing_is_sent(
    shared: Halves, camera: Camera
) -> None:
    shared.hold_fetched = True
    shared.ask(camera.group("sent"))
    until(lambda: len(shared.fetched) == 1)
    camera.open.clear()
    camera.asked.clear()
    shared.ask(camera.group("loading"), camera.group("waits for room"), request_id="r")
    assert camera.asked.wait(LIMIT_S)
    shared.desk.reset()
    # The worker still writes: its range is nobody else's until it is done.
    assert shared.desk.used_bytes == FRAME
    camera.open.set()
    until(lambda: shared.desk.used_bytes == 0)
    assert len(shared.fetched) == 1
    assert shared.desk.n_live == 0


def test_what_an_engine_that_is_gone_says_late_changes_nothing(
    shared: Halves, camera: Camera
) -> None:
    shared.desk.take(Freed(99))
    shared.desk.take(DropFetch((98, 99)))
    shared.desk.take(Released(("nobody",)))
    shared.intake.take(Fetched(97, FrameEvicted("gone")))
    (job,) = shared.ask(camera.group("g"))
    assert not isinstance(shared.outcome(job), LiveEdgeError)


def test_a_range_is_read_where_it_lies(camera: Camera) -> None:
    """No copy between the processes but the one into the shared memory."""
    fd = os.memfd_create("test")
    room = FrameRoom(fd, 1 << 16)
    place = room.take("a", 2 * FRAME)
    assert place is not None
    pixels = SharedPixels(place, ((HEIGHT, WIDTH), (HEIGHT, WIDTH)))
    for number, frame in enumerate(room.arrays(pixels)):
        frame[:] = number + 1
    memory = map_frames(fd, 1 << 16)
    assert memory[place.start] == 1
    assert memory[place.start + FRAME] == 2
    os.close(fd)


def test_a_fetch_names_the_group(camera: Camera) -> None:
    fetches: list[Fetch] = []
    intake = Intake(
        preprocess=lambda frames, *, size: None,
        n_threads=1,
        send=lambda message: fetches.append(message) if isinstance(message, Fetch) else None,
        done=lambda _message: None,
        first_ticket=1 << 32,
    )
    intake.submit([LoadJob(camera.group("a")), LoadJob(camera.group("b"))])
    assert fetches == [Fetch(1 << 32, "a"), Fetch((1 << 32) + 1, "b")]

"""Pushed pictures become the stream's newest frames."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from liveedge.core.errors import MediaInvalid, MediaTooLarge, StreamStateInvalid
from liveedge.media.picture import PictureLimits
from liveedge.media.push import PushSource
from liveedge.media.supervisor import Supervisor
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import ListTarget
from tests.media_files import encode_image

LIMITS = PictureLimits(max_pixels=10_000)


def picture(kind: str = "JPEG", size: tuple[int, int] = (64, 48)) -> bytes:
    return encode_image(Image.new("RGB", size, (200, 30, 40)), kind)


class Running:
    """A push source under its supervisor."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.target = ListTarget(self.clock)
        self.source = PushSource(limits=LIMITS)
        self.supervisor = Supervisor(self.source, self.target, clock=self.clock, name="push")
        self.supervisor.start()
        self.supervisor.wait_opened(5)


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    yield running
    assert running.supervisor.stop()


def test_it_opens_at_once_and_waits(running: Running) -> None:
    assert running.supervisor.status().health == "waiting_for_publisher"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_picture_becomes_the_newest_frame(running: Running, kind: str) -> None:
    frame = running.source.push(picture(kind))
    assert frame is running.target.frames[-1]
    assert (frame.index, frame.pixels.width, frame.pixels.height) == (0, 64, 48)
    assert np.abs(frame.pixels.rgb()[0, 0].astype(int) - (200, 30, 40)).max() < 6
    assert running.supervisor.status().health == "live"


def test_a_bad_picture_is_refused_and_the_stream_lives_on(running: Running) -> None:
    with pytest.raises(MediaInvalid, match="the pushed frame"):
        running.source.push(b"not a picture")
    with pytest.raises(MediaTooLarge, match="the pushed frame"):
        running.source.push(picture(size=(200, 200)))
    assert running.source.push(picture()).index == 0


def test_pushes_from_many_threads_are_all_kept(running: Running) -> None:
    def push() -> None:
        for _ in range(10):
            running.source.push(picture("PNG"))

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [frame.index for frame in running.target.frames] == list(range(40))


def test_a_pause_before_the_first_picture_is_no_stall(running: Running) -> None:
    running.clock.move(100)
    running.source.push(picture())
    assert running.supervisor.status().health == "live"
    assert running.target.n_gaps == 0


def test_after_the_end_a_push_is_refused(running: Running) -> None:
    running.source.push(picture())
    running.supervisor.stop()
    with pytest.raises(StreamStateInvalid):
        running.source.push(picture())


def test_before_the_start_a_push_is_refused() -> None:
    with pytest.raises(StreamStateInvalid):
        PushSource(limits=LIMITS).push(picture())

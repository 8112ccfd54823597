"""Sources of `liveedge publish`: read in their own pace, in the size asked for, damage passed over."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from av import VideoFrame
from numpy.typing import NDArray

from liveedge.client.publish.newest import EndOfPictures, Newest
from liveedge.client.publish.pictures import NoPictures, Pictures, Wanted, open_pictures
from liveedge.core.clock import SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.sim.clockcode import read_code
from liveedge.testing.clock import FakeClock
from tests.media_files import encode_numbered, number_of


class Taken:
    """Runs a source in a thread, moving its clock, until so many pictures have come or it ends."""

    def __init__(self, pictures: Pictures, clock: FakeClock, *, at_most: int = 1000) -> None:
        self.frames: list[VideoFrame] = []
        self.at_s: list[float] = []
        self._clock = clock
        self._at_most = at_most
        self._enough = threading.Event()
        thread = OwnedThread("pictures", lambda _: pictures.run(self._take, self._enough))
        thread.start()
        for _ in range(20_000):
            if self._enough.is_set() or not thread.alive:
                break
            clock.move(0.005)
            threading.Event().wait(0.0005)
        self._enough.set()
        assert thread.stop(10)
        self.error = thread.error

    def _take(self, frame: VideoFrame) -> None:
        self.frames.append(frame)
        self.at_s.append(self._clock.monotonic_s())
        if len(self.frames) >= self._at_most:
            self._enough.set()

    def numbers(self) -> list[int | None]:
        return [number_of(rgb_of(frame)) for frame in self.frames]


def rgb_of(frame: VideoFrame) -> NDArray[np.uint8]:
    return np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8)


def clip(tmp_path: Path, n: int = 10, *, fps: int = 20, width: int = 64, height: int = 48) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode_numbered(n, fps=fps, width=width, height=height))
    return path


def test_the_simulated_camera_burns_in_when_each_picture_was_made():
    clock = FakeClock()
    pictures = open_pictures("sim", Wanted(size=(321, 181), fps=10), clock=clock)
    assert (pictures.size, pictures.fps) == ((320, 180), 10)
    taken = Taken(pictures, clock, at_most=4)
    codes = [read_code(rgb_of(frame)) for frame in taken.frames]
    assert all(code is not None for code in codes)
    made_ms = [code.wall_ms for code in codes if code is not None]
    assert made_ms == sorted(made_ms)
    assert {frame.format.name for frame in taken.frames} == {"yuv420p"}


def test_seeds_of_the_simulated_camera_are_different_scenes():
    clock = FakeClock()
    seen = []
    for source in ("sim", "sim://workcell?seed=7&difficulty=easy"):
        pictures = open_pictures(source, Wanted(size=(160, 90)), clock=clock)
        seen.append(rgb_of(Taken(pictures, clock, at_most=1).frames[0]))
    assert not np.array_equal(seen[0], seen[1])


def test_a_file_that_cannot_be_read_to_its_end_is_said(tmp_path: Path):
    """As is a camera that is unplugged: their packets end with an error."""
    path = tmp_path / "clip.y4m"
    frame = b"FRAME\n" + bytes(64 * 48 * 3 // 2)
    path.write_bytes(b"YUV4MPEG2 W64 H48 F20:1 C420\n" + frame * 5 + b"x" * len(frame) * 5)
    clock = FakeClock()
    taken = Taken(open_pictures(str(path), Wanted(), clock=clock), clock)
    assert len(taken.frames) == 5
    assert isinstance(taken.error, NoPictures)
    assert "clip.y4m cannot be read any further" in str(taken.error)


def test_a_file_comes_in_its_own_pace_and_begins_again(tmp_path: Path):
    clock = FakeClock()
    pictures = open_pictures(str(clip(tmp_path)), Wanted(), clock=clock)
    assert pictures.size == (64, 48)
    assert pictures.fps == pytest.approx(20, abs=1)
    taken = Taken(pictures, clock, at_most=25)
    assert taken.numbers() == [*range(10), *range(10), *range(5)]
    assert taken.at_s[9] - taken.at_s[0] == pytest.approx(0.45, abs=0.1)
    assert taken.at_s[10] - taken.at_s[9] >= 0.04


def test_a_file_may_be_shown_once(tmp_path: Path):
    clock = FakeClock()
    taken = Taken(open_pictures(str(clip(tmp_path)), Wanted(once=True), clock=clock), clock)
    assert taken.numbers() == list(range(10))
    assert taken.error is None


def test_size_and_rate_of_a_file_can_be_less(tmp_path: Path):
    clock = FakeClock()
    wanted = Wanted(size=(32, 24), fps=5, once=True)
    taken = Taken(open_pictures(str(clip(tmp_path)), wanted, clock=clock), clock)
    assert len(taken.frames) == 3
    assert {(frame.width, frame.height) for frame in taken.frames} == {(32, 24)}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere.mp4", "neither a file nor a device"),
        ("sim://kitchen", "no simulated camera"),
        ("sim://workcell?seed=x", "no simulated camera"),
        ("sim://workcell?colour=red", "no simulated camera"),
        ("sim://workcell?difficulty=absurd", "easy, normal, hard"),
        ("/dev/video98", "/dev/video98 cannot be read"),
    ],
)
def test_a_source_that_is_none_is_told(source: str, says: str):
    with pytest.raises(NoPictures, match=says):
        open_pictures(source, Wanted(), clock=FakeClock())


@pytest.mark.parametrize("content", [b"", b"no video at all", b"\0" * 5000])
def test_a_file_without_video_is_told(tmp_path: Path, content: bytes):
    path = tmp_path / "notes.mp4"
    path.write_bytes(content)
    with pytest.raises(NoPictures, match=r"notes\.mp4"):
        open_pictures(str(path), Wanted(), clock=FakeClock())


async def test_the_newest_picture_is_sent_and_what_it_replaced_is_counted():
    newest = Newest(clock=SystemClock())
    for shade in (10, 20, 30):
        newest.put(VideoFrame.from_ndarray(np.full((2, 2, 3), shade, np.uint8), format="rgb24"))
    frame = await newest.next()
    assert frame.to_ndarray(format="rgb24")[0, 0, 0] == 30
    assert (newest.sent, newest.skipped) == (1, 2)
    newest.count_anew()
    assert (newest.sent, newest.skipped) == (0, 0)


async def test_the_last_picture_is_given_out_before_the_end():
    newest = Newest(clock=SystemClock())
    newest.put(VideoFrame(2, 2, "yuv420p"))
    newest.end()
    await newest.next()
    with pytest.raises(EndOfPictures):
        await newest.next()


async def test_pictures_from_a_thread_wake_the_sender_and_their_times_rise():
    newest = Newest(clock=SystemClock())

    def work(stopping: threading.Event) -> None:
        while not stopping.wait(0.002):
            newest.put(VideoFrame(2, 2, "yuv420p"))

    thread = OwnedThread("put", work)
    thread.start()
    times = [(await newest.next()).pts or 0 for _ in range(20)]
    assert thread.stop(5)
    assert times == sorted(times)
    assert len(set(times)) == 20

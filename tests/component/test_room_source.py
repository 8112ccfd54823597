"""Frames from a room of a LiveKit server: what its changes mean for the stream, and the SDK's frames."""

import asyncio
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from livekit import rtc

from liveedge.core.clock import SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.media.livekit.room_client import frames_of, planar
from liveedge.media.livekit.subscriber import (
    WAITING,
    RoomFrame,
    RoomRefused,
    RoomSource,
    RoomVideo,
)
from liveedge.media.source import SourceLost
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import plain_pixels
from tests.media_sinks import ListSink


class FakeRoom:
    """A room whose every change is a call of the test, from its own thread."""

    def __init__(self, *, refuses=None):
        self.joined = []
        self.is_closed = False
        self.n_sent = 0
        self._refuses = refuses
        self._videos = []
        self._lost = None
        self._frames = {}

    def opened(self, changed):
        if isinstance(self._refuses, RoomRefused) and self._refuses.hopeless:
            raise self._refuses
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        return self

    async def connect(self, url, token):
        if self._refuses:
            raise self._refuses
        self.joined.append((url, token))

    def videos(self):
        return list(self._videos)

    def lost(self):
        return self._lost

    async def frames(self, sid):
        while (frame := await self._queue(sid).get()) is not None:
            if isinstance(frame, Exception):
                raise frame
            yield frame

    async def close(self):
        self.is_closed = True

    # ── the test ──

    def show(self, *videos):
        self._call(lambda: setattr(self, "_videos", list(videos)))

    def lose(self, reason):
        self._call(lambda: setattr(self, "_lost", reason))

    def send(self, sid):
        def put():
            self.n_sent += 1
            self._queue(sid).put_nowait(RoomFrame(pixels=plain_pixels(), source_time_s=1.5))

        self._loop.call_soon_threadsafe(put)

    def put(self, sid, ending):
        """Its frames end, or cannot be read."""
        self._loop.call_soon_threadsafe(lambda: self._queue(sid).put_nowait(ending))

    def n_waiting(self, sid):
        return self._queue(sid).qsize()

    def _queue(self, sid):
        return self._frames.setdefault(sid, asyncio.Queue())

    def _call(self, change):
        def both():
            change()
            self._changed()

        self._loop.call_soon_threadsafe(both)


class Running:
    def __init__(self, room):
        self.room = room
        self.sink = ListSink(FakeClock())
        self.lost = None
        self._source = RoomSource(
            url="wss://somewhere", token=lambda: "t", open_room=room.opened, clock=SystemClock()
        )
        self.thread = OwnedThread("room", self._run)

    def _run(self, stopping):
        try:
            self._source.run(self.sink, stopping)
        except SourceLost as loss:
            self.lost = loss

    def until(self, condition):
        for _ in range(5000):
            if condition():
                return
            threading.Event().wait(0.002)
        raise AssertionError(f"it never happened; the states were {self.sink.states}")

    def until_state(self, *state):
        self.until(lambda: self.sink.states and self.sink.states[-1] == state)


@contextmanager
def running(room):
    it = Running(room)
    it.thread.start()
    try:
        yield it
    finally:
        assert it.thread.stop()
        assert it.thread.error is None


@pytest.fixture
def room():
    return FakeRoom()


def test_the_room_is_joined_and_empty(room):
    with running(room) as it:
        it.until_state("waiting_for_publisher", WAITING)
        assert room.joined == [("wss://somewhere", "t")]
    assert room.is_closed


def test_frames_of_the_video_reach_the_stream(room):
    with running(room) as it:
        it.until_state("waiting_for_publisher", WAITING)
        room.show(RoomVideo(sid="a"))
        it.until_state("waiting_for_keyframe", "connected")
        room.send("a")
        it.until(lambda: len(it.sink.pixels) == 1)
        assert it.sink.source_times_s == [1.5]


def test_the_newest_video_wins_and_the_older_is_taken_again(room):
    with running(room) as it:
        it.until_state("waiting_for_publisher", WAITING)
        room.show(RoomVideo(sid="a"))
        it.until_state("waiting_for_keyframe", "connected")
        room.show(RoomVideo(sid="a"), RoomVideo(sid="b"))
        it.until(lambda: it.sink.n_gaps == 1)
        room.send("a")
        room.send("b")
        it.until(lambda: len(it.sink.pixels) == 1)
        room.show(RoomVideo(sid="a"))
        it.until(lambda: it.sink.n_gaps == 2)
        it.until(lambda: len(it.sink.pixels) == 2)  # the one that waited


def test_a_publisher_that_leaves_is_waited_for(room):
    with running(room) as it:
        it.until_state("waiting_for_publisher", WAITING)
        room.show(RoomVideo(sid="a"))
        it.until_state("waiting_for_keyframe", "connected")
        room.show()
        it.until_state("waiting_for_publisher", WAITING)
        assert it.sink.n_gaps == 1


def test_a_muted_video_is_said_and_its_black_frames_are_not_shown(room):
    with running(room) as it:
        it.until_state("waiting_for_publisher", WAITING)
        room.show(RoomVideo(sid="a"))
        it.until_state("waiting_for_keyframe", "connected")
        room.show(RoomVideo(sid="a", is_muted=True))
        it.until_state("stalled", "muted by the publisher")
        room.send("a")
        it.until(lambda: room.n_sent == 1 and room.n_waiting("a") == 0)
        room.show(RoomVideo(sid="a"))
        it.until(lambda: room.send("a") or len(it.sink.pixels) > 0)
        assert len(it.sink.pixels) < room.n_sent


def test_a_video_whose_frames_end_while_it_is_published_is_taken_anew(room):
    """As an SDK does that has lost its connection and come back."""
    with running(room) as it:
        it.until_state("waiting_for_publisher", WAITING)
        room.show(RoomVideo(sid="a"))
        it.until_state("waiting_for_keyframe", "connected")
        room.put("a", None)
        room.send("a")
        it.until(lambda: len(it.sink.pixels) == 1)
        assert it.sink.n_gaps == 1


def test_a_video_that_cannot_be_read_is_no_silence(room):
    with running(room) as it:
        it.until_state("waiting_for_publisher", WAITING)
        room.show(RoomVideo(sid="a"))
        it.until_state("waiting_for_keyframe", "connected")
        room.put("a", ValueError("a format from the future"))
        it.until(lambda: it.lost is not None)
        assert "could not be read" in it.lost.reason
    assert room.is_closed


def test_a_room_that_is_lost_is_joined_again_by_the_supervisor(room):
    with running(room) as it:
        it.until_state("waiting_for_publisher", WAITING)
        room.lose("the LiveKit server has ended the connection")
        it.until(lambda: it.lost is not None)
        assert it.lost.reason == "the LiveKit server has ended the connection"
        assert not it.lost.hopeless
    assert room.is_closed


@pytest.mark.parametrize("hopeless", [True, False])
def test_a_room_that_cannot_be_joined_says_why(hopeless):
    room = FakeRoom(refuses=RoomRefused("the SDK is missing", hopeless=hopeless))
    with running(room) as it:
        it.until(lambda: it.lost is not None)
        assert (it.lost.reason, it.lost.hopeless) == ("the SDK is missing", hopeless)


# ── the official SDK ──


@pytest.mark.parametrize("size", [(64, 48), (33, 17), (1280, 720)])
def test_a_frame_of_the_sdk_keeps_its_pixels(size):
    width, height = size
    rgba = np.full((height, width, 4), 255, dtype=np.uint8)
    rgba[..., 0] = 200
    rgba[: height // 2, :, 1:3] = 30
    source = rtc.VideoFrame(width, height, rtc.VideoBufferType.RGBA, rgba.tobytes())
    made = planar(source.convert(rtc.VideoBufferType.I420))
    rgb = made.to_ndarray(format="rgb24")
    assert rgb.shape == (height, width, 3)
    assert abs(int(rgb[0, 0, 0]) - 200) < 12
    assert rgb[0, 0, 1] < 60
    assert rgb[-1, -1, 1] > 230


async def test_only_the_newest_frame_of_the_sdk_waits():
    """Case 24: nobody reads for a while, and then gets the newest, not what has piled up."""
    source = rtc.VideoSource(64, 48)
    track = rtc.LocalVideoTrack.create_video_track("drawn", source)
    frames = frames_of(track)
    first = asyncio.create_task(anext(frames))

    def draw(shade):
        data = np.full((48, 64, 4), shade, dtype=np.uint8).tobytes()
        source.capture_frame(rtc.VideoFrame(64, 48, rtc.VideoBufferType.RGBA, data))

    for _ in range(500):
        draw(10)
        await asyncio.sleep(0.01)
        if first.done():
            break
    assert (await first).pixels.width == 64
    for shade in range(20, 220):
        draw(shade)
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.2)
    seen = (await anext(frames)).pixels.rgb()
    assert seen.mean() > 150
    await frames.aclose()

"""Frames from a room of an external LiveKit server, which this server joins without being seen.

Experimental: tried without such a server. The room's client is the official SDK (`room_client`), which
decodes by itself, so that the history has no packets of the source to keep.

Thread  the stream's own, with an event loop in it. Every call of the sink comes from there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from liveedge.core.clock import Clock
from liveedge.core.tasks import TaskSet
from liveedge.frames.frame import Pixels
from liveedge.media.source import FrameSink, SourceKind, SourceLost

WAITING = "no publisher is in the room"
LOOK_EVERY_S = 0.2  # at whether to stop; changes of the room are seen at once


class RoomRefused(Exception):
    """The room could not be joined; `reason` is for people and holds no URL."""

    def __init__(self, reason: str, *, hopeless: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hopeless = hopeless


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomVideo:
    """A video that somebody publishes into the room."""

    sid: str
    is_muted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomFrame:
    """A decoded frame with its sender's time."""

    pixels: Pixels
    source_time_s: float


class Room(Protocol):
    """A joined room. Used from one event loop."""

    async def connect(self, url: str, token: str) -> None:
        """Raises RoomRefused."""
        ...

    def videos(self) -> Sequence[RoomVideo]:
        """What is published, oldest first."""
        ...

    def lost(self) -> str | None:
        """Why the room was left, once the client has given up to come back by itself."""
        ...

    def frames(self, sid: str) -> AsyncGenerator[RoomFrame, None]:
        """The newest frames of a video. What nobody takes in time is dropped: one waits at most."""
        ...

    async def close(self) -> None: ...


class RoomSource:
    """The newest video of a room. Rejoins by being run again."""

    stall_after_s: float | None = 5.0
    restart_on_stall = False

    def __init__(
        self,
        *,
        url: str,
        token: Callable[[], str],
        open_room: Callable[[Callable[[], None]], Room],
        clock: Clock,
    ) -> None:
        """`open_room` makes a client that calls its argument whenever the room has changed; raises
        RoomRefused."""
        self.kind: SourceKind = "livekit"
        self._url = url
        self._token = token
        self._open_room = open_room
        self._clock = clock

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._follow(sink, stopping))
        except RoomRefused as refused:
            raise SourceLost(refused.reason, hopeless=refused.hopeless) from refused

    async def _follow(self, sink: FrameSink, stopping: threading.Event) -> None:
        changed = asyncio.Event()
        room = self._open_room(changed.set)
        playing = _Playing(room, sink)
        try:
            await room.connect(self._url, self._token())
            sink.state("waiting_for_publisher", WAITING)
            while not stopping.is_set():
                if (reason := room.lost()) is not None:
                    raise SourceLost(reason)
                playing.show(room.videos())
                await self._wait(changed)
        finally:
            await playing.close()
            await room.close()

    async def _wait(self, changed: asyncio.Event) -> None:
        waits = TaskSet("room")
        jobs = (
            waits.start(changed.wait(), name="change"),
            waits.start(self._clock.sleep(LOOK_EVERY_S), name="look"),
        )
        await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        await waits.close()
        changed.clear()


class _Playing:
    """The one video of the room that becomes the stream."""

    def __init__(self, room: Room, sink: FrameSink) -> None:
        self._room = room
        self._sink = sink
        self._tasks = TaskSet("room")
        self._video: RoomVideo | None = None
        self._task: asyncio.Task[None] | None = None

    def show(self, videos: Sequence[RoomVideo]) -> None:
        """Play the newest."""
        newest = videos[-1] if videos else None
        before, self._video = self._video, newest
        if newest is not None and before is not None and newest.sid == before.sid:
            self._go_on(newest)
        else:
            self._switch(newest)
        if newest == before:
            return
        if newest is None:
            self._sink.state("waiting_for_publisher", WAITING)
        elif newest.is_muted:
            self._sink.gap()
            self._sink.state("stalled", "muted by the publisher")
        elif before is None or newest.sid != before.sid:
            self._sink.state("waiting_for_keyframe", "connected")

    async def close(self) -> None:
        await self._tasks.close()

    def _go_on(self, video: RoomVideo) -> None:
        """Its frames may have ended without it: an SDK that came back gives them anew."""
        task = self._task
        if task is None or not task.done():
            return
        if not task.cancelled() and task.exception() is not None:
            raise SourceLost("the frames of the room's video could not be read; see the log")
        self._switch(video)

    def _switch(self, video: RoomVideo | None) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._sink.gap()
        if video is not None:
            self._task = self._tasks.start(self._play(video.sid), name=f"play {video.sid}")

    async def _play(self, sid: str) -> None:
        async with aclosing(self._room.frames(sid)) as frames:
            async for frame in frames:
                video = self._video
                if video is not None and video.sid == sid and not video.is_muted:
                    self._sink.frame(frame.pixels, source_time_s=frame.source_time_s)

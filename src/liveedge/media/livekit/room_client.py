"""A room of a LiveKit server, joined by the official SDK. Imported only where such a server is
configured: the SDK is an optional dependency.

Thread  one event loop, that of the room's stream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import cast

import numpy as np
from av import VideoFrame
from livekit import rtc

from liveedge.media.livekit.subscriber import RoomFrame, RoomRefused, RoomVideo
from liveedge.media.pixels import AS_STORED, AvPixels, Turn

CONNECT_WITHIN_S = 10.0
_TURNS: dict[int, Turn] = {  # to be turned clockwise by
    rtc.VideoRotation.VIDEO_ROTATION_90: Turn(swap=True, mirror_x=True),
    rtc.VideoRotation.VIDEO_ROTATION_180: Turn(mirror_x=True, mirror_y=True),
    rtc.VideoRotation.VIDEO_ROTATION_270: Turn(swap=True, mirror_y=True),
}


class SdkRoom:
    """Implements `subscriber.Room`. Subscribes to video alone."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._room = rtc.Room()
        self._videos: dict[str, rtc.RemoteTrackPublication] = {}  # subscribed, oldest first
        self._lost: str | None = None
        self._room.on("track_published", self._published)
        self._room.on("track_subscribed", self._subscribed)
        self._room.on("track_unsubscribed", self._unsubscribed)
        self._room.on("track_muted", lambda *_: self._changed())
        self._room.on("track_unmuted", lambda *_: self._changed())
        self._room.on("disconnected", self._disconnected)

    async def connect(self, url: str, token: str) -> None:
        options = rtc.RoomOptions(auto_subscribe=False, connect_timeout=CONNECT_WITHIN_S)
        try:
            await self._room.connect(url, token, options)
        except rtc.ConnectError as error:
            raise RoomRefused(_explained(error.message)) from error
        for participant in self._room.remote_participants.values():
            for publication in participant.track_publications.values():
                self._published(publication, participant)

    def videos(self) -> Sequence[RoomVideo]:
        return [RoomVideo(sid=sid, is_muted=p.muted) for sid, p in self._videos.items()]

    def lost(self) -> str | None:
        return self._lost

    async def frames(self, sid: str) -> AsyncGenerator[RoomFrame, None]:
        track = self._videos[sid].track
        if isinstance(track, rtc.RemoteVideoTrack):
            async with aclosing(frames_of(track)) as frames:
                async for frame in frames:
                    yield frame

    async def close(self) -> None:
        await self._room.disconnect()

    def _published(
        self, publication: rtc.RemoteTrackPublication, _by: rtc.RemoteParticipant
    ) -> None:
        if publication.kind == rtc.TrackKind.KIND_VIDEO:
            publication.set_subscribed(True)

    def _subscribed(
        self, _track: rtc.Track, publication: rtc.RemoteTrackPublication, _by: rtc.RemoteParticipant
    ) -> None:
        self._videos[publication.sid] = publication
        self._changed()

    def _unsubscribed(
        self, _track: rtc.Track, publication: rtc.RemoteTrackPublication, _by: rtc.RemoteParticipant
    ) -> None:
        self._videos.pop(publication.sid, None)
        self._changed()

    def _disconnected(self, _reason: rtc.DisconnectReason) -> None:
        self._lost = "the LiveKit server has ended the connection"
        self._changed()


async def frames_of(track: rtc.Track) -> AsyncGenerator[RoomFrame, None]:
    """The newest frames of a track: one waits at most, an older one is dropped."""
    stream = rtc.VideoStream.from_track(track=track, capacity=1, format=rtc.VideoBufferType.I420)
    try:
        async for event in stream:
            turn = _TURNS.get(cast(int, event.rotation), AS_STORED)
            yield RoomFrame(
                pixels=AvPixels(planar(event.frame), turn),
                source_time_s=event.timestamp_us / 1e6,
            )
    finally:
        await stream.aclose()


def planar(frame: rtc.VideoFrame) -> VideoFrame:
    """An I420 frame of the SDK as one of PyAV, whose lines are longer."""
    made = VideoFrame(frame.width, frame.height, "yuv420p")
    data = np.frombuffer(frame.data, np.uint8)
    offset = 0
    for plane in made.planes:
        lines = np.frombuffer(memoryview(cast(bytes, plane)), np.uint8).reshape(
            plane.height, plane.line_size
        )
        n_bytes = plane.height * plane.width
        lines[:, : plane.width] = data[offset : offset + n_bytes].reshape(plane.height, plane.width)
        offset += n_bytes
    return made


def _explained(message: str) -> str:
    """Why a room could not be joined, without the address that the SDK's message may hold."""
    text = message.lower()
    if any(word in text for word in ("401", "403", "unauthorized", "permission", "token")):
        return "the LiveKit server refuses the token: livekit.api_key or api_secret is wrong"
    return "the LiveKit server cannot be reached"

"""`liveedge publish --via livekit` beside its media: what the SDK's failures mean, with an SDK that a test drives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liveedge.client.publish.livekit import send_by_livekit
from liveedge.client.publish.newest import Newest
from liveedge.client.publish.sending import Lost, Refused, Target
from liveedge.testing.clock import FakeClock

TARGET = Target(
    url="ws://h",
    whip_url="",
    token="t",
    size=(64, 48),
    fps=15.0,
    codec="vp8",
    is_local=True,
)


class PublishTrackError(Exception):
    """As in the SDK: of no other class."""


class Room:
    """A room whose answer to a track is the test's."""

    def __init__(self, *, fails: Exception | None, ends: str | None) -> None:
        self.is_left = False
        self.local_participant = self
        self._fails = fails
        self._ends = ends
        self._tell: Callable[[str], None] = lambda _reason: None

    def on(self, event: str, tell: Callable[[str], None]) -> None:
        assert event == "disconnected"
        self._tell = tell

    async def connect(self, *_: object) -> None:
        return

    async def publish_track(self, *_: object) -> None:
        if self._fails is not None:
            raise self._fails
        if self._ends is not None:
            self._tell(self._ends)
        await asyncio.Event().wait()  # as the SDK does once its room is gone

    async def disconnect(self) -> None:
        self.is_left = True


def sdk(room: Room) -> Any:
    def nothing(*_: object, **__: object) -> None:
        return

    return SimpleNamespace(
        Room=lambda: room,
        ConnectError=ConnectionError,
        participant=SimpleNamespace(PublishTrackError=PublishTrackError),
        DisconnectReason=SimpleNamespace(Name=str),
        RoomOptions=nothing,
        VideoSource=nothing,
        LocalVideoTrack=SimpleNamespace(create_video_track=nothing),
        TrackPublishOptions=nothing,
        TrackSource=SimpleNamespace(SOURCE_CAMERA=1),
        VideoCodec=SimpleNamespace(Value=nothing),
        VideoEncoding=nothing,
    )


async def ended(*, fails: Exception | None = None, ends: str | None = None) -> None:
    room = Room(fails=fails, ends=ends)
    pictures = Newest(clock=FakeClock())
    try:
        sending = send_by_livekit(TARGET, pictures, connected=lambda: None, sdk=lambda: sdk(room))
        await asyncio.wait_for(sending, 10)
    finally:
        assert room.is_left


async def test_a_track_that_the_server_does_not_take_is_a_sentence():
    with pytest.raises(Lost, match="could not be published: no permission"):
        await ended(fails=PublishTrackError("no permission"))


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("DUPLICATE_IDENTITY", "another publisher has taken over"),
        ("PARTICIPANT_REMOVED", "sent this publisher away"),
        ("ROOM_DELETED", "the stream has ended"),
    ],
)
async def test_who_is_sent_away_while_publishing_does_not_wait_for_ever(reason: str, text: str):
    with pytest.raises(Refused, match=text):
        await ended(ends=reason)


async def test_a_connection_that_breaks_while_publishing_is_lost():
    with pytest.raises(Lost, match="media failure"):
        await ended(ends="MEDIA_FAILURE")

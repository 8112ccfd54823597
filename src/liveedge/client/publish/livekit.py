"""Sends pictures by LiveKit's own SDK, which is installed only where somebody wants that."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

from liveedge.client.publish.newest import EndOfPictures, Newest
from liveedge.client.publish.sending import Lost, Refused, Target
from liveedge.core.tasks import TaskSet

LAST_PACKETS_S = 0.3
LEAVE_WITHIN_S = 3.0
SDK = "livekit.rtc"
CODECS = {"vp8": "VP8", "h264": "H264"}
ENDS = {  # after which trying again is useless
    "DUPLICATE_IDENTITY": "another publisher has taken over the stream",
    "PARTICIPANT_REMOVED": "the server has sent this publisher away",
    "ROOM_DELETED": "the stream has ended",
    "ROOM_CLOSED": "the stream has ended",
}


def load_sdk() -> Any:
    """Raises Refused where it is not installed."""
    try:
        return importlib.import_module(SDK)
    except ModuleNotFoundError as error:
        raise Refused(
            "publishing by LiveKit needs its SDK: install liveedge[livekit], or use --via whip"
        ) from error


async def send_by_livekit(
    target: Target,
    pictures: Newest,
    *,
    connected: Callable[[], None],
    sdk: Callable[[], Any] = load_sdk,
) -> None:
    """One connection: returns when the pictures are over. Raises Lost or Refused."""
    rtc = sdk()
    room = rtc.Room()
    tasks = TaskSet("publish")
    over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    room.on("disconnected", lambda reason: _tell(over, rtc.DisconnectReason.Name(reason)))
    try:
        try:
            await room.connect(target.url, target.token, rtc.RoomOptions(auto_subscribe=False))
        except (rtc.ConnectError, RuntimeError) as error:
            raise Lost(f"no connection: {error}") from error
        # The SDK waits for ever for a track whose room is gone.
        sending = tasks.start(_send(rtc, room, target, pictures, connected), name="pictures")
        await asyncio.wait((sending, over), return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            raise _ending(over.result())
        if (lost := await sending) is not None:
            raise lost
        await asyncio.sleep(LAST_PACKETS_S)
    finally:
        await tasks.close()
        await _leave(room)


async def _published(rtc: Any, room: Any, target: Target) -> Any:
    source = rtc.VideoSource(*target.size)
    track = rtc.LocalVideoTrack.create_video_track("liveedge", source)
    options = rtc.TrackPublishOptions(
        source=rtc.TrackSource.SOURCE_CAMERA,
        video_codec=rtc.VideoCodec.Value(CODECS[target.codec]),
        # Nobody here watches smaller versions of the picture.
        simulcast=False,
        video_encoding=rtc.VideoEncoding(
            max_bitrate=target.max_bitrate_bps, max_framerate=target.fps
        ),
    )
    await room.local_participant.publish_track(track, options)
    return source


async def _send(
    rtc: Any, room: Any, target: Target, pictures: Newest, connected: Callable[[], None]
) -> Lost | None:
    """Publish until the pictures are over; why it could not be, where it could not."""
    try:
        source = await _published(rtc, room, target)
    except (rtc.participant.PublishTrackError, RuntimeError) as error:
        return Lost(f"the video could not be published: {error}")
    connected()
    while True:
        try:
            picture = await pictures.next()
        except EndOfPictures:
            return None
        data = picture.to_ndarray(format="yuv420p").tobytes()
        frame = rtc.VideoFrame(picture.width, picture.height, rtc.VideoBufferType.I420, data)
        source.capture_frame(frame)


def _tell(over: asyncio.Future[str], reason: str) -> None:
    if not over.done():
        over.set_result(reason)


def _ending(reason: str) -> Exception:
    if reason in ENDS:
        return Refused(ENDS[reason])
    return Lost(f"the connection was lost ({reason.lower().replace('_', ' ')})")


async def _leave(room: Any) -> None:
    try:
        async with asyncio.timeout(LEAVE_WITHIN_S):
            await room.disconnect()
    except TimeoutError:  # the process is about to end anyway
        return

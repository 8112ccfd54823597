"""A camera that publishes a loop of `footage` with the official LiveKit SDK, in a process of its own.

    python livekit_camera.py URL TOKEN LOOP.es SHAPE [--simulcast]

The SDK encodes: what it shows is as old as its encoder is slow. `leave` on standard input ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
from livekit import rtc

sys.path.append(str(Path(__file__).resolve().parents[1]))

from cameras.footage import Footage, Shape

CODECS = {"h264": rtc.VideoCodec.H264, "vp8": rtc.VideoCodec.VP8}
MAX_BITRATE = 3_000_000
LATE_S = 0.2


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("loop", type=Path)
    parser.add_argument("shape", help="JSON of footage.Shape")
    parser.add_argument("--simulcast", action="store_true")
    options = parser.parse_args()
    shape = Shape(**json.loads(options.shape))
    pictures = planes(Footage(options.loop.parent, shape))
    room = rtc.Room()
    room.on("disconnected", lambda reason: tell(state="disconnected", reason=str(reason)))
    begun_s = time.time()
    await room.connect(options.url, options.token, rtc.RoomOptions(auto_subscribe=False))
    tell(begun_ms=begun_s * 1000, answered_ms=time.time() * 1000)
    source = rtc.VideoSource(shape.width, shape.height)
    track = rtc.LocalVideoTrack.create_video_track("camera", source)
    asked = rtc.TrackPublishOptions(
        source=rtc.TrackSource.SOURCE_CAMERA,
        simulcast=options.simulcast,
        video_codec=CODECS[shape.codec],
        video_encoding=rtc.VideoEncoding(max_bitrate=MAX_BITRATE, max_framerate=shape.fps),
    )
    showing = asyncio.create_task(show(source, pictures, shape))
    await room.local_participant.publish_track(track, asked)
    tell(state="published")
    await left()
    showing.cancel()
    await room.disconnect()


def planes(footage: Footage) -> list[bytes]:
    """Every picture as the SDK takes it without a conversion of its own."""
    numbers = range(footage.shape.n_frames)
    frames = (av.VideoFrame.from_ndarray(footage.picture(n), format="rgb24") for n in numbers)
    return [np.ascontiguousarray(f.to_ndarray(format="yuv420p")).tobytes() for f in frames]


async def show(source: rtc.VideoSource, pictures: list[bytes], shape: Shape) -> None:
    number = int(time.time() * shape.fps) + 1
    while True:
        wait_s = number / shape.fps - time.time()
        if wait_s < -LATE_S:
            number = int(time.time() * shape.fps) + 1
            continue
        await asyncio.sleep(max(0.0, wait_s))
        data = bytearray(pictures[number % len(pictures)])
        kind = rtc.VideoBufferType.I420
        source.capture_frame(rtc.VideoFrame(shape.width, shape.height, kind, data))
        number += 1


async def left() -> None:
    """Return once told to leave, or once nobody is there any more who could."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while (await reader.readline()).decode().strip() not in ("", "leave"):
        pass


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    asyncio.run(main())

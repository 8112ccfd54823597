"""Publish a video file with LiveKit's Python SDK and ask about it live; no LiveKit server is needed.

    python examples/publish_livekit.py http://127.0.0.1:8000 VIDEO "What do you see?"

Needs livekit and av. A server with keys wants one in LIVEEDGE_API_KEY.
"""

import asyncio
import os
import sys
from pathlib import Path

import av
import httpx
from livekit import rtc

WATCH_S = 5
FPS = 10


async def publish_and_ask(http: httpx.AsyncClient, video: str, question: str) -> None:
    created = (await http.post("/streams")).raise_for_status().json()
    room = rtc.Room()
    try:
        # This and the frames are all: any LiveKit SDK publishes so, from any language.
        await room.connect(created["publish"]["url"], created["publish"]["token"])
        sending = asyncio.create_task(send(room, video))
        await first_frame(http, created["id"])
        await asyncio.sleep(WATCH_S)
        print(await ask(http, created["id"], question))
        sending.cancel()
    finally:
        await room.disconnect()
        (await http.delete(f"/streams/{created['id']}")).raise_for_status()


async def send(room: rtc.Room, video: str) -> None:
    with av.open(video) as container:
        stream = container.streams.video[0]
        source = rtc.VideoSource(stream.width, stream.height)
        track = rtc.LocalVideoTrack.create_video_track("camera", source)
        await room.local_participant.publish_track(
            track, rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_CAMERA, simulcast=False)
        )
        while True:
            container.seek(0)
            for picture in container.decode(stream):
                rgba = picture.to_ndarray(format="rgba").tobytes()
                frame = rtc.VideoFrame(stream.width, stream.height, rtc.VideoBufferType.RGBA, rgba)
                source.capture_frame(frame)
                await asyncio.sleep(1 / FPS)


async def first_frame(http: httpx.AsyncClient, stream_id: str) -> None:
    stream = {}
    for _ in range(300):
        stream = (await http.get(f"/streams/{stream_id}")).raise_for_status().json()
        if stream["retained_frame_count"]:
            return
        await asyncio.sleep(0.1)
    sys.exit(f"no frame arrived: {stream['health']}: {stream['health_reason']}")


async def ask(http: httpx.AsyncClient, stream_id: str, question: str) -> str:
    frame = {"url": f"ovs://streams/{stream_id}?frame_index=-1"}
    content = [{"type": "image_url", "image_url": frame}, {"type": "text", "text": question}]
    model = (await http.get("/models")).raise_for_status().json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    answer = (await http.post("/chat/completions", json=body)).raise_for_status().json()
    return str(answer["choices"][0]["message"]["content"])


async def run(url: str, video: str, question: str) -> None:
    headers = {"Authorization": f"Bearer {os.environ.get('LIVEEDGE_API_KEY') or 'any'}"}
    try:
        async with httpx.AsyncClient(base_url=f"{url}/v1beta", headers=headers, timeout=30) as http:
            await publish_and_ask(http, video, question)
    except httpx.HTTPStatusError as error:
        sys.exit(f"{error.response.status_code}: {error.response.text}")
    except httpx.HTTPError as error:
        sys.exit(f"no answer from {url}: {error}")


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    if not Path(sys.argv[2]).is_file():
        sys.exit(f"{sys.argv[2]} is no file")
    asyncio.run(run(*sys.argv[1:]))


if __name__ == "__main__":
    main()

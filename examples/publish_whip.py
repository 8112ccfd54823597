"""Publish a video file by WHIP, as a camera in a browser or OBS would, and ask about it live.

    python examples/publish_whip.py http://127.0.0.1:8000 VIDEO "What do you see?"

Needs aiortc. A server with keys wants one in LIVEEDGE_API_KEY.
"""

import asyncio
import os
import sys
from pathlib import Path
from urllib.parse import urljoin

import httpx
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.contrib.media import MediaPlayer

WATCH_S = 5


async def publish_and_ask(http: httpx.AsyncClient, video: str, question: str) -> None:
    created = (await http.post("/streams")).raise_for_status().json()
    peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    try:
        session = await publish(http, peer, video, created["publish"])
        await first_frame(http, created["id"])
        await asyncio.sleep(WATCH_S)
        print(await ask(http, created["id"], question))
        await http.delete(session)
    finally:
        await peer.close()
        (await http.delete(f"/streams/{created['id']}")).raise_for_status()


async def publish(
    http: httpx.AsyncClient, peer: RTCPeerConnection, video: str, target: dict[str, str]
) -> str:
    """Connect; the URL that ends it."""
    camera = MediaPlayer(video, loop=True).video or sys.exit(f"{video} holds no picture")
    peer.addTransceiver(camera, direction="sendonly")
    await peer.setLocalDescription(await peer.createOffer())
    answer = await http.post(
        target["whip_url"],
        content=peer.localDescription.sdp,
        headers={"Content-Type": "application/sdp", "Authorization": f"Bearer {target['token']}"},
    )
    answer.raise_for_status()
    await peer.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
    return urljoin(target["whip_url"], answer.headers["Location"])


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

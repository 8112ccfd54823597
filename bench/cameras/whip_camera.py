"""A camera that publishes a loop of `footage` by WHIP, with aiortc, in a process of its own.

    python whip_camera.py URL TOKEN LOOP.es SHAPE [--loss 1.0] [--flaps 20]

The loop's packets are sent as they are, so that sending costs little; of a `live` shape pictures are
encoded on the way, so that a request for a key frame is honoured. With `--flaps` it comes and goes so
often, every other time without a good-bye, before it stays. Commands come on standard input:
`loss 0.05` (of the RTP packets it sends), `leave`. Events go out as lines of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import fractions
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import av
import httpx
from aiortc import (
    RTCConfiguration,
    RTCPeerConnection,
    RTCRtpSender,
    RTCSessionDescription,
    VideoStreamTrack,
)

sys.path.append(str(Path(__file__).resolve().parents[1]))

from cameras.footage import Footage, Shape

RTP_HZ = 90_000
LATE_S = 0.2
MIME = {"h264": "video/H264", "vp8": "video/VP8"}


class LoopTrack(VideoStreamTrack):
    """Picture `n` of the loop when the wall clock says so."""

    def __init__(self, footage: Footage) -> None:
        super().__init__()
        self._footage = footage
        self._packets = [] if footage.shape.live else footage.packets()
        self._number = int(time.time() * footage.shape.fps) + 1

    async def recv(self) -> Any:
        fps = self._footage.shape.fps
        wait_s = self._number / fps - time.time()
        if wait_s < -LATE_S:  # what nobody has encoded against can be left out, nothing else
            due = int(time.time() * fps) + 1
            self._number = due + -due % (self._footage.shape.gop if self._packets else 1)
            wait_s = self._number / fps - time.time()
        await asyncio.sleep(max(0.0, wait_s))
        number, self._number = self._number % self._footage.shape.n_frames, self._number + 1
        data: Any
        if self._packets:
            data = av.Packet(self._packets[number])
        else:
            data = av.VideoFrame.from_ndarray(self._footage.picture(number), format="rgb24")
        data.pts = self._number * RTP_HZ // fps
        data.time_base = fractions.Fraction(1, RTP_HZ)
        return data


class Loss:
    """Between the camera and the world: some of its RTP packets never leave."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.n_lost = 0
        self._chance = random.Random(0)

    def install(self, sender: RTCRtpSender) -> None:
        ice = sender.transport.transport
        send: Callable[[bytes], Awaitable[None]] = ice._send

        async def lossy(data: bytes) -> None:
            is_media = 128 <= data[0] < 192 and not 192 <= data[1] < 224
            if is_media and self._chance.random() < self.share:
                self.n_lost += 1
            else:
                await send(data)

        ice._send = lossy


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("loop", type=Path)
    parser.add_argument("shape", help="JSON of footage.Shape")
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--flaps", type=int, default=0)
    options = parser.parse_args()
    footage = Footage(options.loop.parent, Shape(**json.loads(options.shape)))
    loss = Loss(options.loss)
    headers = {"authorization": f"Bearer {options.token}"}
    async with httpx.AsyncClient(trust_env=False, timeout=20, headers=headers) as http:
        chance = random.Random(footage.shape.variant)
        for number in range(options.flaps):
            peer, resource = await publish(http, options.url, footage, loss)
            await asyncio.sleep(chance.uniform(0, 1))
            if number % 2 == 0:
                await http.delete(resource)
            await peer.close()
        tell(flapped=options.flaps)
        peer, resource = await publish(http, options.url, footage, loss)
        await obey(loss)
        await http.delete(resource)
    await peer.close()


async def publish(
    http: httpx.AsyncClient, url: str, footage: Footage, loss: Loss
) -> tuple[RTCPeerConnection, str]:
    """The connection, and where the publication can be ended."""
    peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    transceiver = peer.addTransceiver(LoopTrack(footage), direction="sendonly")
    mime = MIME[footage.shape.codec]
    codecs = RTCRtpSender.getCapabilities("video").codecs
    transceiver.setCodecPreferences([c for c in codecs if c.mimeType in (mime, "video/rtx")])
    loss.install(transceiver.sender)
    peer.on("connectionstatechange", lambda: tell(state=peer.connectionState))
    await peer.setLocalDescription(await peer.createOffer())
    begun_s = time.time()
    reply = await http.post(
        url, content=peer.localDescription.sdp, headers={"content-type": "application/sdp"}
    )
    if reply.status_code != 201:
        tell(refused=reply.status_code, text=reply.text)
        raise SystemExit(1)
    await peer.setRemoteDescription(RTCSessionDescription(reply.text, "answer"))
    tell(begun_ms=begun_s * 1000, answered_ms=time.time() * 1000)
    return peer, urljoin(url, reply.headers["location"])


async def obey(loss: Loss) -> None:
    """Until told to leave, or until nobody is there any more who could."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := (await reader.readline()).decode().split():
        if line[0] == "leave":
            return
        loss.share = float(line[1])
        tell(loss=loss.share, lost=loss.n_lost)


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    asyncio.run(main())

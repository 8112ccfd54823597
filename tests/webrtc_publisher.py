"""A publisher for tests: aiortc sends numbered pictures to our receiver over loopback.

Everything that is lost, doubled or late on the way is decided by a `Road`, which sees the datagrams
before SRTP does, so that what is sent again is no replay.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction

import av
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCRtpSender,
    RTCSessionDescription,
    VideoStreamTrack,
)

from liveedge.core.clock import SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.frames.frame import CodedFrame, Frame, Pixels
from liveedge.media.published import PublishedSource, Publisher
from liveedge.media.source import FrameSink, Health
from liveedge.media.webrtc.engine import WebRtc, WebRtcSettings
from liveedge.media.webrtc.session import MediaSession
from tests.media_files import number_of, numbered

WITHIN_S = 20.0


class Road:
    """What happens to the datagrams of media on their way to us. The rest arrives."""

    def __init__(self, *, loss: float = 0.0, seed: int = 1) -> None:
        self.loss = loss
        self.is_cut = False
        self.n_seen = 0
        self.n_lost = 0
        self._rng = random.Random(seed)

    def __call__(self, datagram: bytes) -> bool:
        if self.is_cut:
            return False
        is_media = 127 < datagram[0] < 192 and not 192 <= datagram[1] < 224
        if not is_media:
            return True
        self.n_seen += 1
        lost = self._rng.random() < self.loss
        self.n_lost += lost
        return not lost


class Relay:
    """A road of its own between publisher and server: loses, doubles and delays datagrams."""

    def __init__(
        self, *, loss: float = 0.0, doubled: float = 0.0, jitter_s: float = 0.0, seed: int = 1
    ) -> None:
        self.n_passed = 0
        self._loss, self._doubled, self._jitter_s = loss, doubled, jitter_s
        self._rng = random.Random(seed)
        self._server: tuple[str, int] | None = None
        self._publisher: tuple[str, int] | None = None
        self._front: asyncio.DatagramTransport | None = None
        self._back: asyncio.DatagramTransport | None = None

    async def open(self, answer: str) -> str:
        """The answer with this road's address instead of the server's."""
        lines = answer.split("\r\n")
        found = [line.split() for line in lines if line.startswith("a=candidate:")]
        host, port = next((w[4], int(w[5])) for w in found if ":" not in w[4])
        self._server = (host, port)
        loop = asyncio.get_running_loop()
        self._front, _ = await loop.create_datagram_endpoint(
            lambda: _RelayEnd(self._from_publisher), local_addr=(host, 0)
        )
        self._back, _ = await loop.create_datagram_endpoint(
            lambda: _RelayEnd(self._from_server), local_addr=(host, 0)
        )
        place = self._front.get_extra_info("sockname")
        ours = f"a=candidate:1 1 udp 2130706431 {place[0]} {place[1]} typ host"
        kept = [line for line in lines if not line.startswith("a=candidate:")]
        at = kept.index("a=end-of-candidates")
        return "\r\n".join([*kept[:at], ours, *kept[at:]])

    def close(self) -> None:
        for transport in (self._front, self._back):
            if transport is not None:
                transport.close()

    def _from_publisher(self, data: bytes, address: tuple[str, int]) -> None:
        self._publisher = address
        is_media = 127 < data[0] < 192
        if is_media and self._rng.random() < self._loss:
            return
        for _ in range(1 + (is_media and self._rng.random() < self._doubled)):
            delay_s = self._rng.random() * self._jitter_s if is_media else 0.0
            asyncio.get_running_loop().call_later(delay_s, self._pass_on, data)

    def _pass_on(self, data: bytes) -> None:
        self.n_passed += 1
        if self._back is not None and not self._back.is_closing():
            self._back.sendto(data, self._server)

    def _from_server(self, data: bytes, _address: tuple[str, int]) -> None:
        if self._front is not None and self._publisher is not None:
            self._front.sendto(data, self._publisher)


class _RelayEnd(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes, tuple[str, int]], None]) -> None:
        self._received = received

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._received(data, addr)


class NumberedTrack(VideoStreamTrack):
    """Pictures 0, 1, 2, … with their number burned in, at a steady rate."""

    def __init__(
        self,
        *,
        fps: float = 15.0,
        first: int = 0,
        size: Callable[[int], tuple[int, int]] = lambda _n: (320, 240),
    ) -> None:
        super().__init__()
        self.n = first
        self._first = first
        self._fps = fps
        self._size = size
        self._begun_s: float | None = None
        self._clock = SystemClock()
        self.sent_s: dict[int, float] = {}

    async def recv(self) -> av.VideoFrame:
        loop = asyncio.get_running_loop()
        if self._begun_s is None:
            self._begun_s = loop.time()
        due_s = self._begun_s + (self.n - self._first) / self._fps
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        width, height = self._size(self.n)
        frame = av.VideoFrame.from_ndarray(
            numbered(self.n, width=width, height=height), format="rgb24"
        ).reformat(format="yuv420p")
        frame.pts = round((self.n - self._first) * 90_000 / self._fps)
        frame.time_base = Fraction(1, 90_000)
        self.sent_s[self.n] = self._clock.monotonic_s()
        self.n += 1
        return frame


class Peer:
    """One aiortc connection that publishes."""

    def __init__(self, session: MediaSession) -> None:
        self.session = session
        self.pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))

    def add(self, track: MediaStreamTrack, *, codec: str | None = None) -> None:
        transceiver = self.pc.addTransceiver(track, direction="sendonly")
        if codec is not None:
            able = RTCRtpSender.getCapabilities("video").codecs
            wanted = [c for c in able if c.name.lower() in (codec, "rtx")]
            transceiver.setCodecPreferences(wanted)

    async def negotiate(
        self, munge: Callable[[str], str] = lambda sdp: sdp, *, relay: Relay | None = None
    ) -> str:
        await self.pc.setLocalDescription(await self.pc.createOffer())
        answer = await self.session.answer(munge(self.pc.localDescription.sdp))
        if relay is not None:
            answer = await relay.open(answer)
        await self.pc.setRemoteDescription(RTCSessionDescription(sdp=answer, type="answer"))
        return answer

    async def close(self) -> None:
        await self.pc.close()


class Noise:
    """While it is on, a peer's packets carry noise behind their first two bytes."""

    def __init__(self, peer: Peer, *, is_on: bool) -> None:
        self.is_on = is_on
        self._rng = random.Random(3)
        (sender,) = peer.pc.getSenders()
        self._transport = sender.transport
        self._send = self._transport._send_rtp
        self._transport._send_rtp = self._send_noise  # type: ignore[method-assign]

    async def _send_noise(self, data: bytes) -> None:
        at = 12 + 4 * (data[0] & 15)
        if data[0] & 16:
            at += 4 + 4 * int.from_bytes(data[at + 2 : at + 4], "big")
        is_rtcp = 192 <= data[1] < 224
        if self.is_on and not is_rtcp and len(data) > at + 2:
            data = data[: at + 2] + self._rng.randbytes(len(data) - at - 2)
        await self._send(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A frame as it came."""

    pixels: Pixels
    at_s: float
    source_time_s: float | None
    corrupt: bool
    coded: CodedFrame | None

    @property
    def number(self) -> int | None:
        return number_of(self.pixels.rgb())


class Sink(FrameSink):
    """Remembers what comes, with the real time; may be slow."""

    def __init__(self) -> None:
        self.frames: list[Seen] = []
        self.states: list[tuple[Health, str]] = []
        self.codec: str | None = None
        self.n_broken = 0
        self.n_dropped: Counter[str] = Counter()
        self.n_gaps = 0
        self.costs_s = 0.0
        self._clock = SystemClock()

    def frame(
        self,
        pixels: Pixels,
        *,
        source_time_s: float | None = None,
        corrupt: bool = False,
        coded: CodedFrame | None = None,
    ) -> Frame | None:
        now_s = self._clock.monotonic_s()
        self.frames.append(
            Seen(
                pixels=pixels,
                at_s=now_s,
                source_time_s=source_time_s,
                corrupt=corrupt,
                coded=coded,
            )
        )
        if self.costs_s:
            self._clock.wait(threading.Event(), self.costs_s)
        return None

    def state(self, health: Health, reason: str = "", *, codec: str | None = None) -> None:
        self.states.append((health, reason))
        self.codec = codec or self.codec

    def broken(self, count: int = 1) -> None:
        self.n_broken += count

    def dropped(self, reason: str, count: int = 1) -> None:
        self.n_dropped[reason] += count

    def gap(self) -> None:
        self.n_gaps += 1


class Stage:
    """A stream with its sink, and an engine."""

    def __init__(self, engine: WebRtc) -> None:
        self.engine = engine
        self.sink = Sink()
        self.source = PublishedSource("whip")
        self.ends: list[str] = []
        self.left: list[str] = []
        self._thread = OwnedThread("published", lambda stop: self.source.run(self.sink, stop))

    def attach(self) -> Publisher:
        return self.source.attach(self.left.append)

    async def open(self) -> MediaSession:
        return await self.engine.open(self.attach(), on_end=self.ends.append, label="test")

    async def peer(
        self, *tracks: MediaStreamTrack, codec: str | None = None, relay: Relay | None = None
    ) -> Peer:
        peer = Peer(await self.open())
        for track in tracks:
            peer.add(track, codec=codec if track.kind == "video" else None)
        await peer.negotiate(relay=relay)
        return peer

    async def frames(self, n: int, *, within_s: float = WITHIN_S) -> list[Seen]:
        """Once there are so many."""
        await until(lambda: len(self.sink.frames) >= n, f"{n} frames", within_s=within_s)
        return list(self.sink.frames)

    async def number(self, least: int) -> None:
        """Once the newest frame has this number or a higher one."""
        await until(
            lambda: bool(self.sink.frames) and (self.sink.frames[-1].number or 0) >= least,
            f"picture {least}",
        )

    def said(self, health: Health, beginning: str) -> int:
        """How often."""
        return sum(
            state == health and reason.startswith(beginning) for state, reason in self.sink.states
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()


@asynccontextmanager
async def stage(
    settings: WebRtcSettings | None = None,
    *,
    filter_in: Callable[[bytes], bool] = lambda _datagram: True,
) -> AsyncIterator[Stage]:
    engine = WebRtc(settings, clock=SystemClock(), rng=random.Random(7), filter_in=filter_in)
    await asyncio.to_thread(engine.start)
    made = Stage(engine)
    made.start()
    await until(lambda: bool(made.sink.states), "the source runs")
    try:
        yield made
    finally:
        await asyncio.to_thread(engine.close)
        await asyncio.to_thread(made.stop)


async def until(
    done: Callable[[], bool], what: str = "it happens", *, within_s: float = WITHIN_S
) -> None:
    for _ in range(round(within_s / 0.02)):
        if done():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {within_s:g} s: {what}")

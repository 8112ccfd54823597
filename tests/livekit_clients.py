"""The other side of LiveKit signalling for tests: a socket, offers, and a stream to publish into."""

from __future__ import annotations

import asyncio
import base64
import gzip
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from livekit.protocol import models, rtc

from liveedge.core.errors import StreamNotFound
from liveedge.core.tasks import OwnedThread
from liveedge.media.livekit.connection import Socket
from liveedge.media.published import PublishedSource
from liveedge.testing.clock import FakeClock
from tests.media_sinks import ListSink

ROOM = "5b3f6f64-6f0b-4f0e-8d6f-000000000001"
SECRET = b"0123456789abcdef0123456789abcdef"


class FakeSocket(Socket):
    """A WebSocket whose client is the test. Takes messages at once unless `may_send` is cleared."""

    def __init__(self) -> None:
        self.is_accepted = False
        self.closed: tuple[int, str] | None = None
        self.sent: list[rtc.SignalResponse] = []
        self.on_sent: Callable[[rtc.SignalResponse], None] = lambda _message: None
        self.may_send = asyncio.Event()
        self.may_send.set()
        self._incoming: deque[bytes | str | None] = deque()
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()

    async def accept(self) -> None:
        self.is_accepted = True

    async def receive(self) -> bytes | str | None:
        while not self._incoming:
            self._arrived.clear()
            await self._arrived.wait()
        return self._incoming.popleft()

    async def send(self, data: bytes) -> bool:
        await self.may_send.wait()
        self.sent.append(rtc.SignalResponse.FromString(data))
        self.on_sent(self.sent[-1])
        self._changed.set()
        return True

    async def close(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = (code, reason)

    # ── the client ──

    def put(self, message: rtc.SignalRequest | bytes | str | None) -> None:
        """Send a message; None drops the connection."""
        raw = message.SerializeToString() if isinstance(message, rtc.SignalRequest) else message
        self._incoming.append(raw)
        self._arrived.set()

    def kinds(self) -> list[str | None]:
        return [message.WhichOneof("message") for message in self.sent]

    def got(self, kind: str) -> list[rtc.SignalResponse]:
        return [message for message in self.sent if message.WhichOneof("message") == kind]

    async def wait_for(self, kind: str, *, n: int = 1) -> rtc.SignalResponse:
        """The n-th message of a kind."""

        async def wait() -> None:
            while len(self.got(kind)) < n:
                self._changed.clear()
                await self._changed.wait()

        await asyncio.wait_for(wait(), 10)
        return self.got(kind)[n - 1]


def offer_sdp(*sections: tuple[str, str, str], codecs: str = "96 VP8,97 rtx") -> str:
    """An offer of (mid, direction, track id); a mid that starts with `a` is audio, `d` is data."""
    lines = ["v=0", "o=- 1 1 IN IP4 127.0.0.1", "s=-", "t=0 0"]
    maps = [pair.split() for pair in codecs.split(",")]
    for mid, direction, track in sections:
        if mid.startswith("d"):
            lines += ["m=application 9 UDP/DTLS/SCTP webrtc-datachannel", f"a=mid:{mid}"]
            continue
        kind = "audio" if mid.startswith("a") else "video"
        payloads = " ".join(payload for payload, _ in maps)
        lines += [f"m={kind} 9 UDP/TLS/RTP/SAVPF {payloads}", f"a=mid:{mid}", f"a={direction}"]
        lines += [f"a=rtpmap:{payload} {name}/90000" for payload, name in maps]
        if track:
            lines.append(f"a=msid:stream {track}")
    return "".join(f"{line}\r\n" for line in lines)


def empty_offer() -> str:
    """What clients send with their join: nothing yet, and a data channel."""
    return offer_sdp(("a0", "recvonly", ""), ("0", "recvonly", ""), ("d", "", ""))


def offer(sdp: str, offer_id: int = 1) -> rtc.SignalRequest:
    return rtc.SignalRequest(offer=rtc.SessionDescription(type="offer", sdp=sdp, id=offer_id))


def add_track(cid: str, *, codec: str = "", **fields: object) -> rtc.SignalRequest:
    asked = rtc.AddTrackRequest(
        cid=cid, type=models.VIDEO, width=640, height=480, source=models.CAMERA
    )
    if codec:
        asked.simulcast_codecs.add(codec=codec, cid=cid)
    for name, value in fields.items():
        setattr(asked, name, value)
    return rtc.SignalRequest(add_track=asked)


def packed_join(
    request: rtc.JoinRequest | None = None, *, data: bytes | None = None, packed: bool = True
) -> str:
    """The URL's parameter, as SDKs make it."""
    raw = data if data is not None else (request or rtc.JoinRequest()).SerializeToString()
    wrapped = rtc.WrappedJoinRequest(
        compression=rtc.WrappedJoinRequest.GZIP if packed else rtc.WrappedJoinRequest.NONE,
        join_request=gzip.compress(raw, mtime=0) if packed else raw,
    )
    return base64.urlsafe_b64encode(wrapped.SerializeToString()).decode().rstrip("=")


def join_query(**fields: object) -> dict[str, str]:
    return {"join_request": packed_join(rtc.JoinRequest(**fields))}  # type: ignore[arg-type]


class Stream:
    """A published stream and its entrance, with a sink that remembers."""

    def __init__(self, clock: FakeClock, *, stream_id: str = ROOM) -> None:
        self.id = stream_id
        self.source = PublishedSource("livekit")
        self.sink = ListSink(clock)
        self._thread = OwnedThread(
            "published", lambda stopping: self.source.run(self.sink, stopping)
        )

    def entrance(self, stream_id: str) -> PublishedSource:
        if stream_id != self.id or self._thread.stopping.is_set():
            raise StreamNotFound(f"there is no stream {stream_id}")
        return self.source

    def end(self) -> None:
        self._thread.stop()

    @property
    def health(self) -> tuple[str, str]:
        return self.sink.states[-1]


@contextmanager
def published_stream(clock: FakeClock) -> Iterator[Stream]:
    """A stream that waits for its publisher."""
    stream = Stream(clock)
    stream._thread.start()
    for _ in range(5000):
        if stream.sink.states:
            break
        threading.Event().wait(0.002)
    assert stream.sink.states, "the source never opened"
    try:
        yield stream
    finally:
        stream.end()

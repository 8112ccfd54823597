"""What the tests of real publishers share: a server, a stream, and the burned-in clock read back."""

from __future__ import annotations

import asyncio
import io
import logging
import statistics
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from livekit import rtc
from PIL import Image

from liveedge.core.clock import SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.sim.clockcode import CodeReading, read_code, write_code

log = logging.getLogger("tests.publishing")

CLOCK = SystemClock()
LIMIT_S = 60.0
# A loaded machine is slow, not wrong: 15 frames a second are drawn, and arrive after about 30 ms.
MIN_FPS = 4.0
MAX_DELAY_MS = 1500.0
POLL_S = 0.02


async def until(condition: Callable[[], Any], *, what: str, within_s: float = LIMIT_S) -> Any:
    """Poll until it is true; its value."""
    end_s = CLOCK.monotonic_s() + within_s
    while not (value := condition()):
        assert CLOCK.monotonic_s() < end_s, f"it never happened: {what}"
        await asyncio.sleep(POLL_S)
    return value


@dataclass(frozen=True, slots=True)
class Seen:
    """A frame of the server, read back."""

    index: int
    number: int  # that the publisher drew into it
    delay_ms: float  # from the drawing to the ring, both by this machine's clock
    size: tuple[int, int]
    mean: float  # of all pixels


@dataclass
class StreamView:
    """A published stream as its owner sees it over HTTP."""

    http: httpx.Client
    id: str
    publish: dict[str, Any] = field(repr=False)

    @classmethod
    def create(cls, http: httpx.Client) -> StreamView:
        answer = http.post("/streams")
        assert answer.status_code == 201, answer.text
        made = answer.json()
        return cls(http, made["id"], made["publish"])

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/streams/{self.id}").json()
        return found

    @property
    def health(self) -> tuple[str, str]:
        status = self.status()
        return status["health"], status["health_reason"]

    @property
    def newest_index(self) -> int:
        index = self.status()["last_frame_index"]
        return -1 if index is None else int(index)

    def newest(self) -> Seen | None:
        """The newest frame; None while there is none, or while its clock cannot be read."""
        answer = self.http.get(f"/streams/{self.id}/frame.png")
        if answer.status_code != 200:
            return None
        picture = Image.open(io.BytesIO(answer.content)).convert("RGB")
        rgb = np.asarray(picture)
        code = read_code(rgb)
        if code is None:
            return None
        captured_at_ms = int(answer.headers["x-captured-at-ms"])
        return Seen(
            index=int(answer.headers["x-frame-index"]),
            number=code.frame_number,
            delay_ms=captured_at_ms - code.wall_ms,
            size=picture.size,
            mean=float(rgb[: rgb.shape[0] // 2].mean()),
        )

    async def frame_after(self, index: int, *, within_s: float = LIMIT_S) -> Seen:
        """A frame newer than `index`, with a readable clock."""

        def newer() -> Seen | None:
            seen = self.newest()
            return seen if seen is not None and seen.index > index else None

        seen: Seen = await until(newer, what=f"a frame after {index}", within_s=within_s)
        return seen

    async def measured(self, *, n_frames: int = 24, n_looks: int = 6) -> Measured:
        """The next frames: how many a second, and how long some of them took."""
        before, delays = self.status(), []
        seen = await self.frame_after(before["last_frame_index"])
        for look in range(1, n_looks + 1):
            delays.append(seen.delay_ms)
            wanted = before["last_frame_index"] + look * n_frames // n_looks
            while self.newest_index < wanted:  # noqa: ASYNC110  it happens in another process
                await asyncio.sleep(POLL_S)
            seen = await self.frame_after(wanted - 1)
        after = self.status()
        took_ms = after["stream_time_ms"] - before["stream_time_ms"]
        return Measured(
            fps=(after["last_frame_index"] - before["last_frame_index"]) * 1000 / took_ms,
            delay_p50_ms=statistics.median(delays),
            delay_max_ms=max(delays),
            size=seen.size,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """How a publisher's frames arrive."""

    fps: float
    delay_p50_ms: float
    delay_max_ms: float
    size: tuple[int, int]

    def log(self, what: str, *, connect_ms: float, first_ms: float) -> None:
        log.info(
            "%s: connect %.0f ms, first frame %.0f ms, %.1f fps, delay %.0f ms (most %.0f), %dx%d",
            what,
            connect_ms,
            first_ms,
            self.fps,
            self.delay_p50_ms,
            self.delay_max_ms,
            *self.size,
        )


class SdkPublisher:
    """The official Python SDK, publishing drawn frames."""

    def __init__(self, *, width: int = 640, height: int = 480, fps: float = 15.0) -> None:
        self.room = rtc.Room()
        self.events: list[str] = []
        self._size = (width, height)
        self._fps = fps
        self._drawing: OwnedThread | None = None
        self._number = 0
        for event in ("disconnected", "reconnecting", "reconnected", "token_refreshed"):
            self.room.on(event, lambda *args, event=event: self.events.append(_shown(event, args)))

    async def connect(self, url: str, token: str, *, single: bool | None = None) -> float:
        """Join; how many milliseconds it took."""
        began_s = CLOCK.monotonic_s()
        options = rtc.RoomOptions(
            auto_subscribe=False, single_peer_connection=single, connect_timeout=30.0
        )
        await self.room.connect(url, token, options)
        return (CLOCK.monotonic_s() - began_s) * 1000

    async def publish(
        self,
        *,
        codec: rtc.VideoCodec.ValueType = rtc.VideoCodec.VP8,
        simulcast: bool = False,
        shade: int = 90,
    ) -> rtc.LocalTrackPublication:
        """Publish a new track of drawn frames; the one before goes on being sent, without change."""
        self._stop_drawing()
        source = rtc.VideoSource(*self._size)
        track = rtc.LocalVideoTrack.create_video_track("drawn", source)
        options = rtc.TrackPublishOptions(
            video_codec=codec,
            simulcast=simulcast,
            source=rtc.TrackSource.SOURCE_CAMERA,
            video_encoding=rtc.VideoEncoding(max_bitrate=1_500_000, max_framerate=self._fps),
        )
        # In a thread of its own: the test's loop waits for HTTP.
        self._drawing = OwnedThread("draw", lambda stopping: self._draw(source, shade, stopping))
        self._drawing.start()
        return await self.room.local_participant.publish_track(track, options)

    async def close(self) -> None:
        self._stop_drawing()
        await self.room.disconnect()

    def _stop_drawing(self) -> None:
        if self._drawing is not None:
            assert self._drawing.stop()
            self._drawing = None

    def _draw(self, source: rtc.VideoSource, shade: int, stopping: threading.Event) -> None:
        width, height = self._size
        next_s = CLOCK.monotonic_s()
        rgba = np.full((height, width, 4), 255, dtype=np.uint8)
        while not stopping.wait(max(0.0, next_s - CLOCK.monotonic_s())):
            next_s += 1 / self._fps
            self._number += 1
            rgba[..., :3] = (shade, shade, (self._number * 4) % 256)
            rgb = rgba[..., :3].copy()
            write_code(rgb, CodeReading(self._number, 0, CLOCK.wall_ms()))
            rgba[..., :3] = rgb
            frame = rtc.VideoFrame(width, height, rtc.VideoBufferType.RGBA, rgba.tobytes())
            source.capture_frame(frame)


def _shown(event: str, args: tuple[Any, ...]) -> str:
    return " ".join([event, *map(str, args)])


class Relay:
    """A TCP relay between a client and the server, so that a test can cut the signalling alone."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.n_connections = 0
        self.refuses_resume = False  # older clients' resumes name somebody who is not there
        self.url = ""

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"ws://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self) -> None:
        """Cut every connection, without a word."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._copy(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if self.refuses_resume and data.startswith(b"GET "):
                    data = data.replace(b"sid=PA_", b"sid=PX_")
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
            self._writers.discard(sink)

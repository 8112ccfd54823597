"""A whole server in the test's own event loop: real routes, services, stores and push sources, a
fake engine and a clock that the test moves."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from PIL import Image

from liveedge.assembly import Built, build_app
from liveedge.core.clock import Clock
from liveedge.engine.interface import Engine
from liveedge.settings import Settings
from liveedge.testing.clock import FakeClock
from liveedge.testing.engine import FakeEngine
from liveedge.testing.webrtc import FakeMediaSessions

MODEL = "liveedge/workcell-tiny"
SMALL: dict[str, Any] = {"hot_mb": 4, "history_mb": 1, "streams_mb": 400}
REAL_LIMIT_S = 20.0  # against a test that waits for ever


def picture(
    colour: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (64, 48)
) -> bytes:
    """A PNG of one colour; `size` is width, height."""
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def video(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def chat_body(*parts: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A question about the parts."""
    content = [*parts, {"type": "text", "text": "what is there"}]
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **options}


def sse_events(text: str) -> list[Any]:
    """The JSON of every event; the end mark as text."""
    lines = [
        line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")
    ]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@dataclass
class Serving:
    """A running server and its client."""

    built: Built
    client: httpx.AsyncClient
    engine: FakeEngine
    clock: FakeClock
    sessions: FakeMediaSessions  # of publishers
    foreign: str = ""  # streams that a test may keep here
    empty: str = ""
    filled: str = ""
    upstream: Any = None  # another server, likewise

    async def new_stream(self, **headers: str) -> str:
        body = {"source": {"type": "push"}}
        answer = await self.client.post("/v1beta/streams", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        stream_id: str = answer.json()["id"]
        return stream_id

    async def push(
        self, stream_id: str, data: bytes | None = None, **headers: str
    ) -> dict[str, Any]:
        answer = await self.client.post(
            f"/v1beta/streams/{stream_id}/frames", content=data or picture(), headers=headers
        )
        assert answer.status_code == 201, answer.text
        acknowledged: dict[str, Any] = answer.json()
        return acknowledged

    async def filled_stream(self, n_frames: int, *, every_ms: int = 100) -> str:
        """A stream whose newest frame is from now."""
        stream_id = await self.new_stream()
        for i in range(n_frames):
            if i:
                self.clock.move(every_ms / 1000)
            await self.push(stream_id, picture((i % 256, 0, 0)))
        return stream_id

    async def ask(self, *parts: dict[str, Any], **options: Any) -> httpx.Response:
        return await self.client.post("/v1beta/chat/completions", json=chat_body(*parts, **options))


@asynccontextmanager
async def serving(
    *,
    engine: Callable[[Clock], FakeEngine] | None = None,
    load_engine: Callable[[], Engine] | None = None,
    clock: FakeClock | None = None,
    **settings: Any,
) -> AsyncIterator[Serving]:
    """Start everything, give it, stop everything; nothing may be left running."""
    clock = clock or FakeClock()
    fake = engine(clock) if engine else FakeEngine(clock=clock)
    sessions = FakeMediaSessions()
    built = build_app(
        Settings(**{**SMALL, **settings}),
        clock,
        load_engine=load_engine or (lambda: fake),
        sessions=sessions,
    )
    transport = httpx.ASGITransport(built.app, raise_app_exceptions=False)
    async with (
        built.app.router.lifespan_context(built.app),
        httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None) as client,
    ):
        if load_engine is None:
            await built.models.ready()
        yield Serving(built, client, fake, clock, sessions)
    assert built.streams.n_closing == 0
    left = [t.name for t in threading.enumerate() if t.name.startswith(("source:", "history-"))]
    assert left == []


@dataclass
class Exchange:
    """One raw ASGI exchange, so that a test can leave in the middle of it.

    `httpx` gives an answer only when it is complete; here it is seen as it is sent.
    """

    app: Any
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)  # of the request, then of the answer
    method: str = "POST"
    query_string: bytes = b""
    status: int | None = None
    received: bytes = b""
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._has_left = asyncio.Event()
        self._changed = asyncio.Event()
        self._body_sent = False
        self.may_send = asyncio.Event()  # cleared: the client does not read
        self.may_send.set()

    async def __aenter__(self) -> Exchange:
        self.task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, kind: object, error: object, at: object) -> None:
        self.leave()
        assert self.task is not None
        await asyncio.wait_for(self.task, REAL_LIMIT_S)

    @property
    def has_begun(self) -> bool:
        return self.status is not None

    def leave(self) -> None:
        """Close the connection, as a client does that lost interest."""
        self._has_left.set()

    async def until(self, condition: Callable[[Exchange], bool]) -> None:
        async def wait() -> None:
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

        await asyncio.wait_for(wait(), REAL_LIMIT_S)

    async def ended(self) -> None:
        assert self.task is not None
        await asyncio.wait_for(self.task, REAL_LIMIT_S)

    async def _run(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query_string,
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in self.headers.items()],
            "server": ("test", 80),
            "client": ("test", 1),
        }
        await self.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._body_sent:
            self._body_sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {key.decode(): value.decode() for key, value in message["headers"]}
        else:
            await self.may_send.wait()
            self.received += message.get("body", b"")
        self._changed.set()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn, and threads run, until the condition holds."""

    async def wait() -> None:
        while not condition():  # noqa: ASYNC110  what it waits for may happen in a thread
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), REAL_LIMIT_S)


def noise(width: int, height: int, *, seed: int = 0) -> bytes:
    """A PNG that does not compress."""
    rgb = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(rgb).save(out, "PNG")
    return out.getvalue()

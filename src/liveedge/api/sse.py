"""Server-sent events: how one is written, and a heartbeat while nothing happens.

Owns    the response from its first byte to its last; one writer and one heartbeat.
"""

from __future__ import annotations

from typing import Any

from starlette.types import Send

from liveedge.api.reply import dump
from liveedge.core.clock import Clock
from liveedge.core.tasks import TaskSet

HEARTBEAT_S = 15.0
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx would collect the answer before passing it on
)
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def event(data: Any) -> bytes:
    """One event. JSON never holds a raw line break, so one `data:` line is enough."""
    return b"data: " + dump(data) + b"\n\n"


def named_event(kind: str, data: bytes, *, event_id: int | None = None) -> bytes:
    """One event with a name, and the id from which a client resumes. `data` is JSON."""
    head = b"" if event_id is None else b"id: %d\n" % event_id
    return b"%bevent: %b\ndata: %b\n\n" % (head, kind.encode(), data)


class EventStream:
    """An open event stream. `async with` starts the response and the heartbeat, and ends both."""

    def __init__(self, send: Send, *, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._tasks = TaskSet("sse")
        self._last_sent_s = 0.0

    async def __aenter__(self) -> EventStream:
        start = {"type": "http.response.start", "status": 200, "headers": list(HEADERS)}
        await self._send(start)
        self._last_sent_s = self._clock.monotonic_s()
        self._tasks.start(self._beat(), name="heartbeat")
        return self

    async def __aexit__(self, kind: object, error: object, at: object) -> None:
        await self._tasks.close()
        if kind is None:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send(self, data: bytes) -> None:
        self._last_sent_s = self._clock.monotonic_s()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _beat(self) -> None:
        while True:
            idle_s = self._clock.monotonic_s() - self._last_sent_s
            if idle_s < HEARTBEAT_S:
                await self._clock.sleep(HEARTBEAT_S - idle_s)
            else:
                await self.send(PING)

"""Requests in progress by key, so that those of a key that ends can be ended with it.

A key that is revoked must not go on watching through a connection that it opened before: previews,
event streams, WebSockets and answers end at once. Where an answer had not begun it is a 401.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from liveedge.api.errors import answer, error_object
from liveedge.api.reply import error_reply
from liveedge.api.sse import event
from liveedge.core.errors import Unauthorized

ENDLESS = ("text/event-stream", "multipart/x-mixed-replace")  # these can end at any place
KEY_HAS_ENDED = 1008  # of a WebSocket: "policy violation"


@dataclass(slots=True, eq=False)
class _Request:
    """One request while it is answered."""

    task: asyncio.Task[object] | None
    key_id: str | None = None
    has_ended: bool = False


class Leashes:
    """The requests in progress. Loop only."""

    def __init__(self) -> None:
        self._requests: set[_Request] = set()

    def hold(self, scope: Scope, key_id: str) -> None:
        """This request is of this key."""
        request: _Request | None = scope["state"].get("leash")
        if request is not None:
            request.key_id = key_id

    def end(self, key_id: str) -> None:
        """Nothing more for this key."""
        for request in [one for one in self._requests if one.key_id == key_id]:
            request.has_ended = True
            if request.task is not None:
                request.task.cancel()

    @contextmanager
    def open(self, scope: Scope) -> Iterator[_Request]:
        """For the time of one request."""
        request = _Request(asyncio.current_task())
        scope.setdefault("state", {})["leash"] = request
        self._requests.add(request)
        try:
            yield request
        finally:
            self._requests.discard(request)

    def __len__(self) -> int:
        return len(self._requests)


class OnLeash:
    """ASGI middleware: what `Leashes.end` cancels ends here, in order."""

    def __init__(self, app: ASGIApp, *, leashes: Leashes) -> None:
        self._app = app
        self._leashes = leashes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        begun: list[Headers] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.append(Headers(raw=list(message["headers"])))
            await send(message)

        with self._leashes.open(scope) as request:
            try:
                await self._app(scope, receive, watched)
            except asyncio.CancelledError:
                if not request.has_ended or request.task is None or request.task.uncancel():
                    raise  # the end of the server
                await _say(scope, receive, send, begun)


async def _say(scope: Scope, receive: Receive, send: Send, begun: list[Headers]) -> None:
    error = Unauthorized("the key was revoked, or has expired")
    if scope["type"] == "websocket":
        with suppress(RuntimeError, OSError):  # it was not accepted yet, or is over already
            await send({"type": "websocket.close", "code": KEY_HAS_ENDED})
    elif not begun:
        await error_reply(answer(error, face="flat"))(scope, receive, send)
    else:
        kind = begun[0].get("content-type", "")
        last = event({"error": error_object(error)}) if kind.startswith(ENDLESS[0]) else b""
        if kind.startswith(ENDLESS):
            await send({"type": "http.response.body", "body": last, "more_body": False})

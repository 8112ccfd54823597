"""A server that stops, seen from HTTP: what is in progress goes on, nothing new begins.

`/ready` tells load balancers to go elsewhere, `/health` that the process lives; every other new request
is refused. The listener stays open meanwhile: a refused client is told when to come back.

Thread  the server's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from liveedge.api.errors import answer
from liveedge.api.reply import error_reply
from liveedge.core.errors import ModelUnavailable

RETRY_AFTER_S = 5.0  # about what a restart takes
STILL_ANSWERED = ("/health", "/metrics", "/version")


class Drain:
    """How many requests are in progress, and whether new ones may begin."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.n_in_progress = 0
        self._changed = asyncio.Event()

    def begin(self) -> None:
        """From now on new requests are refused."""
        self.is_stopping = True

    def entered(self) -> None:
        self.n_in_progress += 1

    def left(self) -> None:
        self.n_in_progress -= 1
        self._changed.set()

    async def idle(self) -> None:
        """Return once no request is in progress."""
        while self.n_in_progress:
            self._changed.clear()
            await self._changed.wait()


class DrainGate:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, drain: Drain, prefixes: Sequence[str]) -> None:
        self._app = app
        self._drain = drain
        self._still_answered = {f"{prefix}{path}" for prefix in prefixes for path in STILL_ANSWERED}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in self._still_answered:
            await self._app(scope, receive, send)
        elif self._drain.is_stopping:
            await _refuse(scope, receive, send)
        elif scope["type"] == "websocket":  # has no end of its own to be waited for
            await self._app(scope, receive, send)
        else:
            self._drain.entered()
            try:
                await self._app(scope, receive, send)
            finally:
                self._drain.left()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = ModelUnavailable(
        "the server is stopping; ask again when it is back", retry_after_s=RETRY_AFTER_S
    )
    refused = answer(error, face="flat")
    refused.headers["connection"] = "close"
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(error_reply(refused))
    else:
        await error_reply(refused)(scope, receive, send)

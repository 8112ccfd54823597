"""The outermost layer of a server that stops: what it cuts off ends with an error, not in silence.

The server cancels the answers that are still going when its patience is over. Nobody else cancels
a request, so a cancellation that arrives here means the end of the server.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from liveedge.api.errors import answer, error_object
from liveedge.api.reply import error_reply
from liveedge.api.sse import event
from liveedge.core.errors import ModelUnavailable


class LastWords:
    """ASGI middleware. A cancelled request is answered with 503, an event stream with an event."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        started: list[Headers] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(Headers(raw=list(message["headers"])))
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            # A client that does not read its answer cannot be told; cancelled again, we give up.
            with suppress(asyncio.CancelledError):
                await _say(scope, receive, send, started)


async def _say(scope: Scope, receive: Receive, send: Send, started: list[Headers]) -> None:
    error = ModelUnavailable("the server is stopping; ask again when it is back")
    if scope["type"] == "websocket":
        return  # closed by the server itself
    if not started:
        failed = answer(error, face="flat")
        if request_id := scope.get("state", {}).get("request_id"):
            failed.headers["x-request-id"] = request_id
        await error_reply(failed)(scope, receive, send)
    elif started[0].get("content-type", "").startswith("text/event-stream"):
        last = event({"error": error_object(error)})
        await send({"type": "http.response.body", "body": last, "more_body": False})

"""Cross-origin requests from browsers: localhost always, other origins by configuration.

Without keys a page of any site could act here through its visitor's browser, and needs no answer for
that; so an open server refuses what such a page sends, not only the reading of answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from liveedge.api.errors import flat_body
from liveedge.api.reply import json_reply

ALLOWED_HEADERS = "Authorization, Content-Type, If-Match, X-Request-Id, X-Overshoot-Region"
ALLOWED_METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
EXPOSED_HEADERS = (
    "X-Request-Id, X-Overshoot-Region, retry-after, Location, ETag, Link, Accept-Patch,"
    " x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset"
)
MAX_AGE_S = 600
_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")


class Cors:
    """ASGI middleware: answers every preflight itself, marks every other answer."""

    def __init__(
        self, app: ASGIApp, *, origins: Sequence[str], is_open: Callable[[], bool]
    ) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers() if scope["type"] == "lifespan" else Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None:
            await self._app(scope, receive, send)
            return
        allowed = self._allows(origin, own_host=headers.get("host"))
        method = scope.get("method", "CONNECT")  # a WebSocket has none
        if method == "OPTIONS" and "access-control-request-method" in headers:
            await _answer_preflight(send, origin=origin if allowed else None)
            return
        if self._is_open() and not allowed and method not in _HARMLESS:
            await _refuse(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.add_vary_header("Origin")
                if allowed:
                    answer["access-control-allow-origin"] = origin
                    answer["access-control-expose-headers"] = EXPOSED_HEADERS
            await send(message)

        await self._app(scope, receive, marked)

    def _allows(self, origin: str, *, own_host: str | None) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        is_own = own_host is not None and origin in (f"http://{own_host}", f"https://{own_host}")
        return is_own or _LOCAL.fullmatch(origin) is not None


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    text = "requests of this origin are refused: set an api_key, or add it to cors_origins"
    body = flat_body(text, "authentication_error", "origin_not_allowed")
    await json_reply(body, status=403, headers={"x-should-retry": "false"})(scope, receive, send)


async def _answer_preflight(send: Send, *, origin: str | None) -> None:
    """204 for everybody; without the allow headers the browser refuses."""
    start: Message = {"type": "http.response.start", "status": 204, "headers": []}
    headers = MutableHeaders(scope=start)
    headers["vary"] = "Origin"
    if origin is not None:
        headers["access-control-allow-origin"] = origin
        headers["access-control-allow-methods"] = ALLOWED_METHODS
        headers["access-control-allow-headers"] = ALLOWED_HEADERS
        headers["access-control-max-age"] = str(MAX_AGE_S)
    await send(start)
    await send({"type": "http.response.body", "body": b""})

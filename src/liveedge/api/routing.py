"""Where a request leads when no route takes it as it is: HEAD, wrong methods, unknown WebSockets."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from liveedge.api.errors import ErrorAnswer, flat_body
from liveedge.api.reply import error_reply

METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")


class HeadAsGet:
    """ASGI middleware: HEAD works wherever GET does, and its answer has no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        routed = {**scope, "method": "GET"}
        await self._app(routed, receive, without_body)
        scope["route"] = routed.get("route")  # for who counts


class NoSuchWebSocket:
    """ASGI middleware: a WebSocket that no route takes is refused with a 404 in JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket" or _is_routed(scope["app"], scope):
            await self._app(scope, receive, send)
            return
        text = f"there is no WebSocket {scope['path'][:200]}"
        refused = ErrorAnswer(404, flat_body(text, "invalid_request_error", "not_found"), {})
        await WebSocket(scope, receive, send).send_denial_response(error_reply(refused))


def allowed_methods(request: Request) -> str:
    """All methods of a path, as the header `Allow` names them."""
    asked = {key: request.scope[key] for key in ("type", "path", "root_path")}
    found = [m for m in METHODS if _is_routed(request.app, {**asked, "method": m})]
    return ", ".join(sorted([*found, "HEAD"] if "GET" in found else found))


def _is_routed(app: Starlette, scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in app.routes)

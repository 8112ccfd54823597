"""The outermost layer of HTTP: request ids, one log line per request, and no crash unanswered.

What a route tells about itself (`mark`) decides the shape of its errors and its region header.

The log line holds the path without its query, the status and the time. Keys, bodies and queries
never reach a log.
"""

from __future__ import annotations

import logging
import re
import traceback
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from liveedge.api.errors import Face, answer
from liveedge.api.http_stats import HttpStats
from liveedge.api.reply import dump
from liveedge.core.clock import Clock
from liveedge.core.errors import InternalError
from liveedge.core.log import LogIds, bound

log = logging.getLogger("liveedge.http")

MAX_TRACE_CHARS = 4000
POLLED = frozenset({"/health", "/ready"})  # every second or so, by supervisors: not worth a line
CLIENT_LEFT = 499  # the status that proxies log for a client that did not wait
_WITH_RATE = frozenset({200, 201, 429})
_STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_SECRET_PATH = re.compile(r"(/whip/[^/]+/).+")  # whoever has the URL of a session can end it


def mark(scope: Scope, *, face: Face, region: str | None = None) -> None:
    """Tell which shape this route's errors have, and the region that answers."""
    scope["state"].update(face=face, region=region)


def face_of(scope: Scope) -> Face:
    """The shape of this route's errors; flat where no route was found."""
    face: Face = scope["state"].get("face", "flat")
    return face


class RequestContext:
    """ASGI middleware; everything else of the API runs inside it."""

    def __init__(self, app: ASGIApp, *, clock: Clock, stats: HttpStats) -> None:
        self._app = app
        self._clock = clock
        self._stats = stats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send, began_s=self._clock.monotonic_s())
        with bound(request_id=exchange.request_id) as ids:
            try:
                await self._app(scope, receive, exchange.send)
            except ClientDisconnect:
                exchange.status = CLIENT_LEFT
            except Exception:  # noqa: BLE001  the outermost frame of a request: nobody else can answer
                exchange.log_crash()
                await exchange.answer_crash()
            finally:
                took_s = self._clock.monotonic_s() - exchange.began_s
                self._stats.count(scope, status=exchange.status or CLIENT_LEFT, seconds=took_s)
                exchange.log_end(took_s, ids)


class _Exchange:
    """One request and what was answered."""

    def __init__(self, scope: Scope, send: Send, *, began_s: float) -> None:
        self.status = 0
        self._scope = scope
        self._send = send
        self.began_s = began_s
        self._has_started = False
        asked = Headers(scope=scope).get("x-request-id", "")
        self.request_id = asked if _REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = self.request_id

    async def send(self, message: Message) -> None:
        if message["type"] in _STARTS:
            self._has_started = True
            self.status = message.get("status", 101)
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            if self.status in _WITH_RATE:
                headers.update(self._scope["state"].get("rate_headers", {}))
            if region := self._scope["state"].get("region"):
                headers["x-overshoot-region"] = region
        await self._send(message)

    def log_crash(self) -> None:
        trace = traceback.format_exc()[-MAX_TRACE_CHARS:]
        log.error("request %s crashed\n%s", self.request_id, trace)

    async def answer_crash(self) -> None:
        """A plain 500 if nothing was sent yet; a broken answer stays broken otherwise."""
        if self._has_started or self._scope["type"] != "http":
            return
        error = InternalError("internal error; the server's log says more")
        failed = answer(error, face=face_of(self._scope))
        headers = [(b"content-type", b"application/json")]
        await self.send(
            {"type": "http.response.start", "status": failed.status, "headers": headers}
        )
        await self.send({"type": "http.response.body", "body": dump(failed.body)})

    def log_end(self, took_s: float, ids: LogIds) -> None:
        method, path = self._scope.get("method", "WS"), _shown(self._scope["path"])
        stream_id = self._scope.get("path_params", {}).get("stream_id")
        if stream_id is not None and stream_id not in ids.stream_ids:
            ids.stream_ids.append(_UNPRINTABLE.sub("?", stream_id)[:64])
        took_ms = round(took_s * 1000, 1)
        facts = {"method": method, "path": path, "status": self.status, "duration_ms": took_ms}
        log.log(
            logging.DEBUG if self._scope["path"] in POLLED else logging.INFO,
            "%s %s %d %.0f ms %s",
            method,
            path,
            self.status,
            took_ms,
            self.request_id,
            extra={"facts": facts},
        )


def _shown(path: str) -> str:
    return _SECRET_PATH.sub(r"\1...", _UNPRINTABLE.sub("?", path))[:200]

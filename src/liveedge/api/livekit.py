"""What LiveKit's SDKs call: the signalling WebSocket, and the check that explains its refusal.

A refusal is an HTTP answer before the WebSocket is accepted: SDKs tell 404 (no such room) from 401
(show the text). Tokens come in the header or the query, and reach no log.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from liveedge.api.context import mark
from liveedge.api.errors import answer
from liveedge.core.errors import LiveEdgeError, StreamNotFound
from liveedge.service.publishing import Publishing

_PREFIXES = ("", "/v1", "/v1beta")
# The token is the credential, not the page that holds it.
_ANY_ORIGIN = {"access-control-allow-origin": "*"}
# Browser SDKs look for these words: without them they try the older path.
_NO_ROOM = "requested room does not exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveKitRoutes:
    """The two ways into the signalling, with their checks."""

    publishing: Publishing  # imports what signalling needs when somebody comes
    region: str = "local"

    def router(self) -> APIRouter:
        """Under the API's prefixes too, for whoever gives an SDK the URL of the API."""
        router = APIRouter(tags=["publishing"], include_in_schema=False)
        for prefix in _PREFIXES:
            router.add_api_websocket_route(f"{prefix}/rtc/v1", self.signal)
            router.add_api_websocket_route(f"{prefix}/rtc", self.signal_older)
            for path in (f"{prefix}/rtc/v1/validate", f"{prefix}/rtc/validate"):
                router.add_api_route(path, self.validate, methods=["GET"])
        return router

    async def signal(self, websocket: WebSocket) -> None:
        """Signalling of current clients: the join request stands in the URL."""
        await self._serve(websocket, is_older=False)

    async def signal_older(self, websocket: WebSocket) -> None:
        """Signalling of older clients, and of those that ask for two connections."""
        await self._serve(websocket, is_older=True)

    async def validate(self, request: Request) -> Response:
        """Why a connection was refused."""
        mark(request.scope, face="flat", region=self.region)
        try:
            ingest = await self.publishing.ingest()
            ingest.validate(_token(request))
        except LiveEdgeError as error:
            return _refusal(error)
        return PlainTextResponse("success", headers=_ANY_ORIGIN)

    async def _serve(self, websocket: WebSocket, *, is_older: bool) -> None:
        mark(websocket.scope, face="flat", region=self.region)
        try:
            ingest = await self.publishing.ingest()
            await ingest.livekit(
                WebSocketAsSocket(websocket),
                token=_token(websocket),
                way="v0" if is_older else "v1",
                query=dict(websocket.query_params),
            )
        except LiveEdgeError as error:
            with suppress(OSError):  # gone already
                await websocket.send_denial_response(_refusal(error))


class WebSocketAsSocket:
    """A WebSocket as signalling sees it."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._is_over = False

    async def accept(self) -> None:
        try:
            await self._websocket.accept()
        except OSError:
            self._is_over = True

    async def receive(self) -> bytes | str | None:
        if self._is_over:
            return None
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._is_over = True
            return None
        data: bytes | None = message.get("bytes")
        text: str = message.get("text") or ""
        return text if data is None else data

    async def send(self, data: bytes) -> bool:
        try:
            await self._websocket.send_bytes(data)
        except WebSocketDisconnect:
            self._is_over = True
        return not self._is_over

    async def close(self, code: int, reason: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        try:
            await self._websocket.close(code, reason)
        except WebSocketDisconnect:
            return


def _token(connection: HTTPConnection) -> str:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return connection.query_params.get("access_token", "")


def _refusal(error: LiveEdgeError) -> Response:
    refused = answer(error, face="flat")
    text = error.message
    if isinstance(error, StreamNotFound):
        text = f"{_NO_ROOM}: {text}"
    return PlainTextResponse(
        text, status_code=refused.status, headers={**refused.headers, **_ANY_ORIGIN}
    )

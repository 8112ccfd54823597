"""Routes about streams: create, look, keep alive, end; pictures out, frames in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fastapi import APIRouter, Request, Response, WebSocket
from starlette.datastructures import Headers

from liveedge.api.body import Bodies, parse
from liveedge.api.disconnect import DisconnectGuard
from liveedge.api.encode import created_stream, kept_stream, pushed_frame, stream_object
from liveedge.api.gate import Gate
from liveedge.api.preview import MjpegResponse
from liveedge.api.public_url import PublicUrl
from liveedge.api.push import checked_capture_time, push_over_websocket
from liveedge.api.reply import json_reply
from liveedge.api.schema import SourceBody, StreamBody
from liveedge.core.clock import Clock
from liveedge.core.errors import RequestInvalid
from liveedge.core.log import note
from liveedge.service.caller import Caller
from liveedge.service.pictures import Pictures
from liveedge.service.preview import Previews, preview_fps
from liveedge.service.publishing import Publishing
from liveedge.service.sources import SourceSpec
from liveedge.service.streams import Streams
from liveedge.service.view import StreamView
from liveedge.service.windows import Windows

MAX_STREAM_BODY_BYTES = 64 * 1024
CAPTURED_AT = "x-captured-at-ms"
PUBLISHED_BY_SDK = "livekit"  # what a stream without a source is


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRoutes:
    """Handlers; each parses, calls one service and encodes."""

    gate: Gate
    bodies: Bodies
    streams: Streams
    windows: Windows
    pictures: Pictures
    previews: Previews
    publishing: Publishing
    public_url: PublicUrl
    clock: Clock

    def router(self) -> APIRouter:
        router = APIRouter(tags=["streams"])
        add = router.add_api_route
        add("/streams", self.create, methods=["POST"])
        add("/streams", self.list, methods=["GET"])
        add("/streams/{stream_id}", self.look, methods=["GET"])
        add("/streams/{stream_id}", self.delete, methods=["DELETE"])
        add("/streams/{stream_id}/keepalive", self.keepalive, methods=["POST"])
        add("/streams/{stream_id}/viewer-token", self.viewer_token, methods=["POST"])
        add("/streams/{stream_id}/frame.jpg", self.jpeg, methods=["GET"])
        add("/streams/{stream_id}/frame.png", self.png, methods=["GET"])
        add("/streams/{stream_id}/preview.mjpeg", self.preview, methods=["GET"])
        add("/streams/{stream_id}/frames", self.push, methods=["POST"])
        router.add_api_websocket_route("/streams/{stream_id}/frames", self.push_many)
        return router

    async def create(self, request: Request) -> Response:
        """Create a stream. Without a source the client publishes with a LiveKit SDK."""
        caller = self.gate.open_stream(request, scope="streams")
        tenant = caller.tenant
        async with self.bodies.read(request, owner=tenant, max_bytes=MAX_STREAM_BODY_BYTES) as data:
            body = parse(data, StreamBody) if data.strip() not in (b"", b"null") else StreamBody()
        source = body.source or SourceBody(type=PUBLISHED_BY_SDK)
        async with DisconnectGuard(request.receive):
            view = await self.streams.create(
                tenant,
                SourceSpec(type=source.type, url=source.url),
                max_streams=caller.allowance.max_streams,
            )
        self._note("stream_created", request, caller, view.id)
        publish = await self.publishing.told(
            view.id, view.source.type, base_url=self.public_url.base(request)
        )
        return json_reply(created_stream(view, publish), status=201)

    async def list(self, request: Request) -> Response:
        """The streams of the key."""
        tenant = self.gate.open_stream(request, scope="view").tenant
        views = self.streams.views(tenant)
        return json_reply({"object": "list", "data": [self._shown(tenant, view) for view in views]})

    async def look(self, request: Request, stream_id: str) -> Response:
        """Everything known about a stream."""
        tenant = self.gate.open_stream(request, scope="view").tenant
        return json_reply(self._shown(tenant, self.streams.view(tenant, stream_id)))

    def _shown(self, tenant: str, view: StreamView) -> dict[str, Any]:
        return stream_object(replace(view, windows=self.windows.views(tenant, view.id)))

    async def delete(self, request: Request, stream_id: str) -> Response:
        """End a stream."""
        caller = self.gate.open_stream(request, scope="streams")
        self.streams.delete(caller.tenant, stream_id)
        self._note("stream_deleted", request, caller, stream_id)
        await self.streams.settled()
        return json_reply({"id": stream_id, "deleted": True})

    def _note(self, what: str, request: Request, caller: Caller, stream_id: str) -> None:
        request_id = request.state.request_id
        note(stream_ids=(stream_id,))
        self.gate.audit.event(
            what, key_id=caller.key_id, request_id=request_id, stream_id=stream_id
        )

    async def keepalive(self, request: Request, stream_id: str) -> Response:
        """Renew the lease of a stream."""
        tenant = self.gate.open_stream(request, scope="streams").tenant
        view = self.streams.keepalive(tenant, stream_id)
        await self.streams.settled()
        publish = await self.publishing.renewed(
            stream_id, view.source.type, base_url=self.public_url.base(request)
        )
        return json_reply(kept_stream(view, publish))

    async def viewer_token(self, request: Request, stream_id: str) -> Response:
        """A token to watch a stream with a LiveKit SDK, where a LiveKit server is configured."""
        tenant = self.gate.open_stream(request, scope="view").tenant
        self.streams.own_store(tenant, stream_id)  # an ended stream has no room
        source = self.streams.view(tenant, stream_id).source
        view = await self.publishing.viewed(stream_id, source.type)
        return json_reply({"id": stream_id, "view": asdict(view)})

    async def jpeg(self, request: Request, stream_id: str) -> Response:
        """A retained frame as JPEG."""
        return await self._picture(request, stream_id, "jpeg")

    async def png(self, request: Request, stream_id: str) -> Response:
        """A retained frame as PNG."""
        return await self._picture(request, stream_id, "png")

    async def _picture(
        self, request: Request, stream_id: str, fmt: Literal["jpeg", "png"]
    ) -> Response:
        tenant = self.gate.open_stream(request, scope="view").tenant
        async with DisconnectGuard(request.receive):
            picture = await self.pictures.encode(tenant, stream_id, request.url.query, fmt)
        headers = {
            "x-frame-index": str(picture.frame_index),
            "x-captured-at-ms": str(picture.captured_at_ms),
            "x-age-ms": str(picture.age_ms),
            "cache-control": "no-store",
        }
        return Response(picture.data, media_type=f"image/{fmt}", headers=headers)

    async def preview(self, request: Request, stream_id: str) -> Response:
        """The newest frames as MJPEG, until the stream ends."""
        tenant = self.gate.open_stream(request, scope="view").tenant
        fps = preview_fps(request.query_params.get("fps"))
        pictures = self.previews.pictures(tenant, stream_id, fps=fps)
        return MjpegResponse(pictures, self.previews.place(tenant))

    async def push(self, request: Request, stream_id: str) -> Response:
        """Push one encoded picture into a stream of type push."""
        tenant = self.gate.open_stream(request, scope="streams", cost=0).tenant
        captured_at_ms = _captured_at_ms(request.headers, now_ms=self.clock.wall_ms())
        async with self.bodies.read(request, owner=tenant) as data:
            frame = await self.streams.push(tenant, stream_id, data, captured_at_ms=captured_at_ms)
        return json_reply(pushed_frame(frame, sent_ms=captured_at_ms), status=201)

    async def push_many(self, websocket: WebSocket, stream_id: str) -> None:
        """Push pictures over one connection, each acknowledged."""
        await push_over_websocket(
            websocket, stream_id, gate=self.gate, streams=self.streams, clock=self.clock
        )


def _captured_at_ms(headers: Headers, *, now_ms: int) -> int | None:
    text = headers.get(CAPTURED_AT)
    if text is None:
        return None
    loc = ("header", CAPTURED_AT)
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise RequestInvalid("needs to be Unix milliseconds, a whole number", loc=loc)
    return checked_capture_time(int(text), now_ms=now_ms, loc=loc)

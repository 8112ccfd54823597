"""Routes about warm windows: keep one, look at it, end it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction

from fastapi import APIRouter, Request, Response

from liveedge.api.body import Bodies, parse
from liveedge.api.gate import Gate
from liveedge.api.reply import json_reply
from liveedge.api.schema import WindowBody
from liveedge.service.windows import Windows, WindowSpec

MAX_WINDOW_BODY_BYTES = 1 << 20  # almost all of it may be the system text
PATH = "/streams/{stream_id}/windows/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRoutes:
    """Handlers; each parses, calls one service and encodes."""

    gate: Gate
    bodies: Bodies
    windows: Windows

    def router(self) -> APIRouter:
        router = APIRouter(tags=["windows"])
        router.add_api_route(PATH, self.put, methods=["PUT"])
        router.add_api_route(PATH, self.look, methods=["GET"])
        router.add_api_route(PATH, self.delete, methods=["DELETE"])
        return router

    async def put(self, request: Request, stream_id: str, name: str) -> Response:
        """Keep the newest seconds of a stream warm, under a name."""
        tenant = self.gate.open_stream(request, scope="ask").tenant
        async with self.bodies.read(request, owner=tenant, max_bytes=MAX_WINDOW_BODY_BYTES) as data:
            body = parse(data, WindowBody)
        view, is_new = await self.windows.put(tenant, stream_id, name, _spec(body))
        return json_reply(asdict(view), status=201 if is_new else 200)

    async def look(self, request: Request, stream_id: str, name: str) -> Response:
        """What a window holds, how old it is, and what it costs."""
        tenant = self.gate.open_stream(request, scope="ask").tenant
        return json_reply(asdict(self.windows.view(tenant, stream_id, name)))

    async def delete(self, request: Request, stream_id: str, name: str) -> Response:
        """End a window."""
        self.windows.delete(self.gate.open_stream(request, scope="ask").tenant, stream_id, name)
        return json_reply({"name": name, "deleted": True})


def _spec(body: WindowBody) -> WindowSpec:
    return WindowSpec(
        model=body.model,
        seconds=body.seconds,
        max_fps=Fraction(str(body.max_fps or 1.0)),  # as written: 29.97 is 2997/100
        max_pixels=body.max_pixels,
        system=body.system,
    )

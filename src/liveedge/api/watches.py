"""Routes about watches: standing questions, and their answers as resumable server-sent events."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from liveedge.api.body import Bodies, parse
from liveedge.api.chat import to_question
from liveedge.api.context import mark
from liveedge.api.disconnect import DisconnectGuard
from liveedge.api.gate import Gate
from liveedge.api.reply import json_reply
from liveedge.api.sse import EventStream, named_event
from liveedge.api.watch_body import WatchBody
from liveedge.api.watch_encode import missed_event, watch_object
from liveedge.core.clock import Clock
from liveedge.core.errors import ParameterUnsupported, QueryParamInvalid
from liveedge.service.caller import Caller
from liveedge.service.watch import Missed, Watch, WatchSpec
from liveedge.service.watch_log import Logged
from liveedge.service.watches import MAX_WATCH_BODY_BYTES, Watches

MAX_ID_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRoutes:
    """Handlers; each parses, calls one service and encodes."""

    gate: Gate
    bodies: Bodies
    watches: Watches
    clock: Clock
    default_max_tokens: int

    def router(self) -> APIRouter:
        router = APIRouter(tags=["watches"])
        router.add_api_route("/watches", self.create, methods=["POST"])
        router.add_api_route("/watches", self.list, methods=["GET"])
        router.add_api_route("/watches/{watch_id}", self.look, methods=["GET"])
        router.add_api_route("/watches/{watch_id}", self.delete, methods=["DELETE"])
        router.add_api_route("/watches/{watch_id}/events", self.events, methods=["GET"])
        return router

    async def create(self, request: Request) -> Response:
        """Ask a question again and again: every so often, or when the picture changes."""
        caller = self.gate.open_stream(request, scope="ask")
        # The body is one of chat, and is refused like one.
        mark(request.scope, face="chat", region=self.gate.region)
        async with self.bodies.read(
            request, owner=caller.tenant, max_bytes=MAX_WATCH_BODY_BYTES
        ) as data:
            body = parse(data, WatchBody)
        view = await self.watches.create(self._spec(body, request, caller))
        return json_reply(watch_object(view), status=201)

    async def list(self, request: Request) -> Response:
        """The key's watches, with those that ended a moment ago."""
        views = self.watches.views(self.gate.open_stream(request, scope="ask").tenant)
        return json_reply({"object": "list", "data": [watch_object(view) for view in views]})

    async def look(self, request: Request, watch_id: str) -> Response:
        """What a watch has asked, skipped and answered. Looking keeps it alive."""
        view = self.watches.view(self.gate.open_stream(request, scope="ask").tenant, watch_id)
        return json_reply(watch_object(view))

    async def delete(self, request: Request, watch_id: str) -> Response:
        """End a watch."""
        self.watches.delete(self.gate.open_stream(request, scope="ask").tenant, watch_id)
        return json_reply({"id": watch_id, "deleted": True})

    async def events(self, request: Request, watch_id: str) -> Response:
        """Results, skips, errors and the end as server-sent events; resumed by `Last-Event-ID`."""
        watch = self.watches.listen(self.gate.open_stream(request, scope="ask").tenant, watch_id)
        last_id = _last_id(request, watch)
        if watch.end_reason is not None and last_id == watch.last_event_id:
            return Response(status_code=204)  # tells an EventSource to stop
        return _EventsResponse(watch, last_id, self.clock)

    def _spec(self, body: WatchBody, request: Request, caller: Caller) -> WatchSpec:
        if body.pointless:
            raise ParameterUnsupported(
                f"{', '.join(body.pointless)}: a watch gives one answer in plain text or JSON at a"
                " time; leave it out, or ask by /chat/completions"
            )
        if body.priority is None:  # whoever waits for an answer comes first
            body = body.model_copy(update={"priority": "batch"})
        question = to_question(
            body,
            caller=caller,
            request_id=request.state.request_id,
            region=None,  # checked at the entrance
            default_max_tokens=self.default_max_tokens,
        )
        return WatchSpec(
            question=question,
            every_s=None if body.every_ms is None else body.every_ms / 1000,
            change=body.rule,
            until_ms=body.until,
            max_results=body.max_results,
        )


class _EventsResponse(Response):
    """Sends an event, and takes the next one only when the client has it."""

    def __init__(self, watch: Watch, last_id: int, clock: Clock) -> None:
        super().__init__()
        self._watch = watch
        self._last_id = last_id
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = self._watch
        with watch.listening():
            events = watch.events(self._last_id)
            async with (
                DisconnectGuard(receive) as guard,
                aclosing(events),
                EventStream(send, clock=self._clock) as stream,
            ):
                async for event in events:
                    await stream.send(_written(watch, event))
                guard.release()


def _written(watch: Watch, event: Logged | Missed) -> bytes:
    if isinstance(event, Missed):
        return named_event("missed", missed_event(watch.id, event))
    return named_event(event.kind, event.data, event_id=event.id)


def _last_id(request: Request, watch: Watch) -> int:
    """The id after which a client resumes; 0 where it names none. Raises QueryParamInvalid."""
    text = request.headers.get("last-event-id") or request.query_params.get("last_event_id") or "0"
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS
    if not is_number or int(text) > watch.last_event_id:
        raise QueryParamInvalid(
            f"last_event_id (Last-Event-ID) is {text[:40]!r}, and the newest event of this watch is"
            f" {watch.last_event_id}; send the id of an event, or none"
        )
    return int(text)

"""`/openapi.json`: what the framework finds by itself, and everything that it cannot see.

Bodies and queries are read by our own code, in the order of checks, so what they hold and how each
route can end is told here. `page` shows the document to people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from liveedge.api.schema import ChatBody, StreamBody, WindowBody
from liveedge.api.watch_body import WatchBody

PREFIX = "/v1beta"  # the others mean the same and are not listed again
ERROR: Mapping[str, Any] = {
    "type": "object",
    "description": "Every error, in the shape OpenAI clients read; `detail` repeats it.",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": "string"},
            },
        },
        "detail": {},
    },
}
PICTURE_TYPES = ("image/jpeg", "image/png", "image/webp")


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


IMAGE_QUERY = (
    _query(
        "frame_index", "Lifetime index; negative counts from the newest. Default -1", type="integer"
    ),
    _query("timestamp_ms", "Or: a time on the stream's clock", type="integer"),
    _query("offset_ms", "Or: negative from the newest frame, else from the oldest", type="integer"),
    _query("tolerance_ms", "How far from a time", type="integer", minimum=1, default=100),
    _query("direction", "Where from a time", enum=["nearest", "forward", "backward"]),
    _query("max_age_ms", "Wait for a frame no older than this", type="integer", minimum=1),
)
CAPTURED_AT: Mapping[str, Any] = {
    "name": "X-Captured-At-Ms",
    "in": "header",
    "description": "When the picture was taken, Unix milliseconds. Default: when it arrives",
    "schema": {"type": "integer", "minimum": 0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path, as its clients see it."""

    status: int = 200
    kinds: tuple[str, ...] = ("application/json",)  # of the answer
    errors: tuple[int, ...] = ()
    is_public: bool = False  # needs no key
    body: type[BaseModel] | None = None
    body_kinds: tuple[str, ...] = ()  # of a body that is no JSON
    parameters: tuple[Mapping[str, Any], ...] = ()
    headers: tuple[str, ...] = ()  # of the answer, with whole numbers
    text_headers: tuple[str, ...] = ()  # of the answer, with texts
    key: str = "key"  # which one it needs: of the server, or the stream's publish token


FPS = _query("fps", "Pictures per second", type="number", default=5, maximum=30)
IF_MATCH: Mapping[str, Any] = {
    "name": "If-Match",
    "in": "header",
    "required": True,
    "description": "The ETag that came with the answer",
    "schema": {"type": "string"},
}
LAST_EVENT_ID = (
    {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "Go on after this event",
        "schema": {"type": "integer", "minimum": 0},
    },
    _query("last_event_id", "The same, for clients that cannot set headers", type="integer"),
)
OF_EVERY_KEY = (401, 403, 409, 429)  # key, scope, region, rate
_PICTURE_ERRORS = (400, 401, 404, 409, 410)
_PICTURE_HEADERS = ("X-Frame-Index", "X-Captured-At-Ms", "X-Age-Ms")
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("/chat/completions", "post"): Operation(
        kinds=("application/json", "text/event-stream"),
        errors=(400, 401, 403, 404, 409, 410, 413, 422, 429, 500, 503, 504),
        body=ChatBody,
    ),
    ("/streams", "post"): Operation(
        status=201, errors=(401, 413, 422, 429, 501, 503), body=StreamBody
    ),
    ("/streams", "get"): Operation(errors=(401,)),
    ("/streams/{stream_id}", "get"): Operation(errors=(401, 404)),
    ("/streams/{stream_id}", "delete"): Operation(errors=(401, 404)),
    ("/streams/{stream_id}/keepalive", "post"): Operation(errors=(401, 404)),
    ("/streams/{stream_id}/viewer-token", "post"): Operation(errors=(401, 404, 501)),
    ("/streams/{stream_id}/frame.jpg", "get"): Operation(
        kinds=("image/jpeg",),
        errors=_PICTURE_ERRORS,
        parameters=IMAGE_QUERY,
        headers=_PICTURE_HEADERS,
    ),
    ("/streams/{stream_id}/frame.png", "get"): Operation(
        kinds=("image/png",),
        errors=_PICTURE_ERRORS,
        parameters=IMAGE_QUERY,
        headers=_PICTURE_HEADERS,
    ),
    ("/streams/{stream_id}/preview.mjpeg", "get"): Operation(
        kinds=("multipart/x-mixed-replace",), errors=(400, 401, 404, 429), parameters=(FPS,)
    ),
    ("/streams/{stream_id}/frames", "post"): Operation(
        status=201,
        errors=(400, 401, 404, 409, 413, 422, 429),
        body_kinds=PICTURE_TYPES,
        parameters=(CAPTURED_AT,),
    ),
    ("/streams/{stream_id}/windows/{name}", "put"): Operation(
        errors=(400, 401, 404, 413, 422, 429, 503), body=WindowBody
    ),
    ("/streams/{stream_id}/windows/{name}", "get"): Operation(errors=(401, 404)),
    ("/streams/{stream_id}/windows/{name}", "delete"): Operation(errors=(401, 404)),
    ("/watches", "post"): Operation(
        status=201,
        errors=(400, 401, 403, 404, 409, 413, 422, 429, 503, 504),
        body=WatchBody,
    ),
    ("/watches", "get"): Operation(errors=(401, 409)),
    ("/watches/{watch_id}", "get"): Operation(errors=(401, 404, 409)),
    ("/watches/{watch_id}", "delete"): Operation(errors=(401, 404, 409)),
    ("/watches/{watch_id}/events", "get"): Operation(
        kinds=("text/event-stream",),
        errors=(400, 401, 404, 409, 429),
        parameters=LAST_EVENT_ID,
    ),
    ("/whip/{stream_id}", "post"): Operation(
        status=201,
        kinds=("application/sdp",),
        errors=(400, 401, 404, 409, 413, 415, 422, 429, 503),
        body_kinds=("application/sdp",),
        text_headers=("Location", "ETag", "Link", "Accept-Patch"),
        key="publish_token",
    ),
    ("/whip/{stream_id}/{session_id}", "patch"): Operation(
        status=204,
        kinds=(),
        errors=(400, 404, 412, 413, 415, 422, 428, 501),
        body_kinds=("application/trickle-ice-sdpfrag",),
        parameters=(IF_MATCH,),
        is_public=True,
    ),
    ("/whip/{stream_id}/{session_id}", "delete"): Operation(
        kinds=(), errors=(404,), is_public=True
    ),
    ("/models", "get"): Operation(is_public=True),
    ("/health", "get"): Operation(is_public=True),
    ("/ready", "get"): Operation(is_public=True, errors=(503,)),
    ("/version", "get"): Operation(is_public=True),
    ("/metrics", "get"): Operation(kinds=("text/plain",), errors=(401,)),
}


class DocumentedApi(FastAPI):
    """A FastAPI whose document is completed when somebody first asks for it."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = _completed(super().openapi())
        return self.openapi_schema


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    bodies = [one.body for one in OPERATIONS.values() if one.body is not None]
    references, definitions = models_json_schema(
        [(model, "validation") for model in bodies], ref_template="#/components/schemas/{model}"
    )
    components = document.setdefault("components", {})
    # Ours alone: the framework's own errors never reach a client.
    components["schemas"] = {**definitions["$defs"], "Error": dict(ERROR)}
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"},
        "publish_token": {
            "type": "http",
            "scheme": "bearer",
            "description": "`publish.token` of the stream",
        },
    }
    document["security"] = [{"key": []}]
    for (path, method), operation in OPERATIONS.items():
        shown = document["paths"][PREFIX + path][method]
        shown["responses"] = _responses(operation)
        if operation.parameters:
            shown["parameters"] = [*shown["parameters"], *map(dict, operation.parameters)]
        if operation.is_public:
            shown["security"] = []
        elif operation.key != "key":
            shown["security"] = [{operation.key: []}]
        if operation.body is not None:
            schema = references[(operation.body, "validation")]
            shown["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        elif operation.body_kinds:
            content = {kind: {"schema": _schema(kind)} for kind in operation.body_kinds}
            shown["requestBody"] = {"required": True, "content": content}
    return document


_BINARY: Mapping[str, str] = {"type": "string", "format": "binary"}
_TEXT: Mapping[str, str] = {"type": "string"}


def _schema(kind: str) -> Mapping[str, str]:
    if "sdp" in kind:
        return _TEXT
    return _BINARY if kind.partition("/")[0] in ("image", "multipart") else {}


def _responses(operation: Operation) -> dict[str, Any]:
    content = {kind: {"schema": _schema(kind)} for kind in operation.kinds}
    success: dict[str, Any] = {
        "description": HTTPStatus(operation.status).phrase,
        "content": content,
    }
    kinds = dict.fromkeys(operation.headers, "integer")
    kinds |= dict.fromkeys(operation.text_headers, "string")
    if kinds:
        success["headers"] = {name: {"schema": {"type": kind}} for name, kind in kinds.items()}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    takes_key = operation.key == "key" and not operation.is_public
    failures = {
        str(status): {"description": HTTPStatus(status).phrase, "content": error}
        for status in sorted({*operation.errors, *(OF_EVERY_KEY if takes_key else ())})
    }
    return {str(operation.status): success, **failures}

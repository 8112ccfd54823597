"""`/openapi.json`: what the framework finds by itself, and everything that it cannot see.

Bodies and queries are read by our own code, in the order of checks, so what they hold and how each
route can end is told here: a new route needs its `Operation` in the table. `openapi.py` writes the
document, `page.py` shows it to people.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from liveedge.api import answers, answers_watches
from liveedge.api.openapi import complete, operation_id
from liveedge.api.operation import EVENTS, JSON, Operation, header, query
from liveedge.api.schema import ChatBody, StreamBody, WindowBody
from liveedge.api.watch_body import WatchBody
from liveedge.service.view import StreamView, WindowView

PREFIX = "/v1beta"  # the others mean the same and are not listed again
PICTURE_TYPES = ("image/jpeg", "image/png", "image/webp")
IMAGE_QUERY = (
    query(
        "frame_index", "Lifetime index; negative counts from the newest. Default -1", type="integer"
    ),
    query("timestamp_ms", "Or: a time on the stream's clock", type="integer"),
    query("offset_ms", "Or: negative from the newest frame, else from the oldest", type="integer"),
    query("tolerance_ms", "How far from a time", type="integer", minimum=1, default=100),
    query("direction", "Where from a time", enum=["nearest", "forward", "backward"]),
    query("max_age_ms", "Wait for a frame no older than this", type="integer", minimum=1),
)
CAPTURED_AT = header(
    "X-Captured-At-Ms",
    "When the picture was taken, Unix milliseconds. Default: when it arrives",
    type="integer",
    minimum=0,
)
FPS = query("fps", "Pictures per second", type="number", default=5, exclusiveMinimum=0, maximum=30)
IF_MATCH = header("If-Match", "The ETag that came with the answer", type="string") | {
    "required": True
}
LAST_EVENT_ID = (
    header("Last-Event-ID", "Go on after this event", type="integer", minimum=0),
    query("last_event_id", "The same, for clients that cannot set headers", type="integer"),
)
QUESTION = {
    "model": "liveedge/workcell-tiny",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is on the belt?"},
                {
                    "type": "image_url",
                    "image_url": {"url": "ovs://streams/<stream_id>?frame_index=-1"},
                },
            ],
        }
    ],
}
WATCH = {**QUESTION, "every_ms": 1000}
NEW_STREAM = {"source": {"type": "sim"}}
WINDOW = {"model": "liveedge/workcell-tiny", "seconds": 10, "max_fps": 1}


def _with_stream(path: str, method: str, *, stream_id: str = "$response.body#/id") -> Any:
    return {
        "operationId": operation_id(path, method),
        "parameters": {"path.stream_id": stream_id},
    }


_LINKS = {
    "look": _with_stream("/streams/{stream_id}", "get"),
    "keepalive": _with_stream("/streams/{stream_id}/keepalive", "post"),
    "picture": _with_stream("/streams/{stream_id}/frame.jpg", "get"),
    "push": _with_stream("/streams/{stream_id}/frames", "post"),
    "end": _with_stream("/streams/{stream_id}", "delete"),
}
_PICTURE_ERRORS = (400, 401, 404, 409, 410, 429, 504)
_PICTURE_HEADERS = ("X-Frame-Index", "X-Captured-At-Ms", "X-Age-Ms")


def _fact(answer: type[Any]) -> Operation:
    """Something about the server, for everybody."""
    return Operation(answer=answer, is_public=True, is_regional=False)


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("/chat/completions", "post"): Operation(
        kinds=(JSON, EVENTS),
        answer=answers.ChatCompletion,
        event=answers.ChatCompletionChunk,
        end_mark="[DONE]",
        face="chat",
        errors=(400, 401, 403, 404, 409, 410, 413, 422, 429, 500, 502, 503, 504),
        body=ChatBody,
        example=QUESTION,
    ),
    ("/streams", "post"): Operation(
        status=201,
        answer=answers.CreatedStream,
        errors=(401, 413, 422, 429, 501, 503),
        body=StreamBody,
        is_body_optional=True,
        example=NEW_STREAM,
        links=_LINKS,
    ),
    ("/streams", "get"): Operation(answer=answers.StreamList, errors=(401,)),
    ("/streams/{stream_id}", "get"): Operation(answer=StreamView, errors=(401, 404)),
    ("/streams/{stream_id}", "delete"): Operation(answer=answers.DeletedStream, errors=(401, 404)),
    ("/streams/{stream_id}/keepalive", "post"): Operation(
        answer=answers.KeptStream, errors=(401, 404)
    ),
    ("/streams/{stream_id}/viewer-token", "post"): Operation(
        answer=answers.ViewedStream, errors=(401, 404, 501)
    ),
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
        answer=answers.PushedFrame,
        errors=(400, 401, 404, 409, 413, 422, 429),
        body_kinds=PICTURE_TYPES,
        parameters=(CAPTURED_AT,),
    ),
    ("/streams/{stream_id}/windows/{name}", "put"): Operation(
        also=(201,),
        answer=WindowView,
        errors=(400, 401, 404, 413, 422, 429, 503),
        body=WindowBody,
        example=WINDOW,
    ),
    ("/streams/{stream_id}/windows/{name}", "get"): Operation(answer=WindowView, errors=(401, 404)),
    ("/streams/{stream_id}/windows/{name}", "delete"): Operation(
        answer=answers.DeletedWindow, errors=(401, 404)
    ),
    ("/watches", "post"): Operation(
        status=201,
        answer=answers_watches.ShownWatch,
        face="chat",
        errors=(400, 401, 403, 404, 409, 413, 422, 429, 502, 503, 504),
        body=WatchBody,
        example=WATCH,
    ),
    ("/watches", "get"): Operation(answer=answers_watches.WatchList, errors=(401, 409)),
    ("/watches/{watch_id}", "get"): Operation(
        answer=answers_watches.ShownWatch, errors=(401, 404, 409)
    ),
    ("/watches/{watch_id}", "delete"): Operation(
        answer=answers_watches.DeletedWatch, errors=(401, 404, 409)
    ),
    ("/watches/{watch_id}/events", "get"): Operation(
        kinds=(EVENTS,),
        event=answers_watches.WatchEvent,
        empty=(204,),
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
    ("/models", "get"): _fact(answers.ModelList),
    ("/health", "get"): _fact(answers.Healthy),
    ("/ready", "get"): _fact(answers.Ready),
    ("/version", "get"): _fact(answers.Version),
    ("/metrics", "get"): Operation(kinds=("text/plain",), errors=(401,), is_regional=False),
}


class DocumentedApi(FastAPI):
    """A FastAPI whose document is completed when somebody first asks for it."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = complete(super().openapi(), OPERATIONS, prefix=PREFIX)
        return self.openapi_schema

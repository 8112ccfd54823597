"""Errors to HTTP: the one table of statuses, and the four shapes of the body.

`RULES` holds every class of `core.errors`; a test fails when one is missing. A message is shown as
it is, so whoever raises keeps URLs, keys and payloads out of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from liveedge.core import errors as e

Face: TypeAlias = Literal["chat", "flat"]  # which shape a route's errors have

MAX_MESSAGE_CHARS = 600  # a message may quote what the client sent; an answer stays small
MAX_DETAILS = 20  # of one 422


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a class of errors is answered."""

    status: int
    flat: bool = False  # flat on every route, not only on stream routes
    curable: bool = False  # the same request may succeed later: a client should retry


RULES: Mapping[type[e.LiveEdgeError], Rule] = {
    e.LiveEdgeError: Rule(status=500, curable=True),
    e.InternalError: Rule(status=500, curable=True),
    e.SettingsInvalid: Rule(status=500),
    e.CheckpointInvalid: Rule(status=500),
    e.Unauthorized: Rule(status=401, flat=True),
    e.PermissionDenied: Rule(status=403),
    e.RequestInvalid: Rule(status=422),
    e.ParameterUnsupported: Rule(status=400),
    e.StreamError: Rule(status=400),
    e.StreamUrlInvalid: Rule(status=400),
    e.QueryParamInvalid: Rule(status=400),
    e.StreamNotFound: Rule(status=404),
    e.StreamUnauthorized: Rule(status=403),
    e.FrameNotYetProduced: Rule(status=409, curable=True),
    e.FrameEvicted: Rule(status=410),
    e.FrameStale: Rule(status=409, curable=True),
    e.SegmentEmpty: Rule(status=404),
    e.SegmentInvalid: Rule(status=400),
    e.SourceUnavailable: Rule(status=422, flat=True),
    e.StreamLimitReached: Rule(status=429, flat=True, curable=True),
    # Explicit windows stay until one is deleted: waiting frees none.
    e.WindowLimitReached: Rule(status=429, flat=True),
    e.WindowNotFound: Rule(status=404, flat=True),
    e.WatchLimitReached: Rule(status=429, flat=True),  # watches stay while somebody listens
    e.WatchNotFound: Rule(status=404, flat=True),
    e.StreamStateInvalid: Rule(status=409, flat=True),
    e.Unsupported: Rule(status=501, flat=True),
    e.MediaInvalid: Rule(status=400),
    e.MediaTooLarge: Rule(status=413),
    e.BodyTooLarge: Rule(status=413),
    e.ModelNotFound: Rule(status=404),
    e.ModelUnavailable: Rule(status=503, flat=True, curable=True),
    e.UpstreamError: Rule(status=502),
    e.UpstreamHttpError: Rule(status=502),
    e.UpstreamRejected: Rule(status=400),
    e.UpstreamLimited: Rule(status=429, curable=True),
    e.UpstreamRequestFailed: Rule(status=502),
    e.UpstreamTimeout: Rule(status=504),
    e.ProviderSafetyBlock: Rule(status=400),
    e.ModelVideoUnsupported: Rule(status=400),
    e.ContextLengthExceeded: Rule(status=400),
    e.ResponseFormatUnsupported: Rule(status=400),
    e.RateLimited: Rule(status=429, curable=True),
    e.QueueFull: Rule(status=429, curable=True),
    e.DeadlineExceeded: Rule(status=504, curable=True),
    e.RegionMismatch: Rule(status=409),
}

NEEDS_RETRY_AFTER = (
    e.RateLimited,
    e.QueueFull,
    e.ModelUnavailable,
    e.StreamLimitReached,
    e.UpstreamLimited,
)
DEFAULT_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """Status, body and headers of one error."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def rule_for(error: e.LiveEdgeError) -> Rule:
    """The rule of the error's class, or of its nearest base."""
    return next(RULES[cls] for cls in type(error).__mro__ if cls in RULES)


def answer(error: e.LiveEdgeError, *, face: Face) -> ErrorAnswer:
    """What a route of this face answers for `error`."""
    rule = rule_for(error)
    return ErrorAnswer(rule.status, _body(error, rule, face), _headers(error, rule))


def error_object(error: e.LiveEdgeError) -> dict[str, Any]:
    """The object under `error`, as every shape and the mid-stream event carry it."""
    shown: dict[str, Any] = {
        "message": _clip(error.message),
        "type": error.type,
        "code": error.code,
    }
    if isinstance(error, e.UpstreamError) and error.upstream:
        shown["upstream"] = error.upstream
    return shown


def invalid(details: Sequence[Mapping[str, Any]], *, face: Face) -> ErrorAnswer:
    """The 422 of a body that does not fit its model: `loc`, `msg` and `type` per detail."""
    shown = [
        {"loc": list(d["loc"]), "msg": _clip(str(d["msg"])), "type": d["type"]}
        for d in details[:MAX_DETAILS]
    ]
    headers = {"x-should-retry": "false"}
    if face == "chat":
        body = {
            "error": "validation_error",
            "message": "Request validation failed",
            "details": shown,
        }
        return ErrorAnswer(422, body, headers)
    text = "; ".join(": ".join(filter(None, (_place(d["loc"]), d["msg"]))) for d in shown)
    return ErrorAnswer(422, flat_body(text, "validation_error", "validation_error"), headers)


def _place(loc: Sequence[str | int]) -> str:
    return ".".join(map(str, loc))


def flat_body(message: str, error_type: str, code: str) -> dict[str, Any]:
    """`detail` as text for hosted clients, `error` as an object for OpenAI clients."""
    message = _clip(message)
    return {"detail": message, "error": {"message": message, "type": error_type, "code": code}}


def _body(error: e.LiveEdgeError, rule: Rule, face: Face) -> dict[str, Any]:
    if isinstance(error, e.RegionMismatch):
        facts = {
            "error": "region_error",
            "expected_region": error.expected,
            "requested_region": _clip(error.requested),
        }
        return {"detail": facts}
    if isinstance(error, e.RequestInvalid):
        detail = {"loc": error.loc, "msg": error.message, "type": "value_error"}
        return invalid([detail], face=face).body
    if rule.flat or face == "flat":
        return flat_body(error.message, error.type, error.code)
    shown = error_object(error)
    return {"detail": {"error": shown}, "error": shown}


def _headers(error: e.LiveEdgeError, rule: Rule) -> dict[str, str]:
    headers: dict[str, str] = {}
    retry_after_s = error.retry_after_s
    if retry_after_s is None and isinstance(error, NEEDS_RETRY_AFTER):
        retry_after_s = DEFAULT_RETRY_AFTER_S
    if retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry_after_s)))
    if 400 <= rule.status < 500 and not rule.curable:
        headers["x-should-retry"] = "false"
    if rule.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def _clip(text: str) -> str:
    if len(text) <= MAX_MESSAGE_CHARS:
        return text
    return text[: MAX_MESSAGE_CHARS - 1] + "…"

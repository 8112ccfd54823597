"""JSON answers: compact, real UTF-8, never HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from liveedge.api.errors import ErrorAnswer


def dump(data: Any) -> bytes:
    """JSON as every answer carries it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", errors="replace")


def json_reply(
    data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON response."""
    shown = {"content-type": "application/json", **(headers or {})}
    return Response(dump(data), status_code=status, headers=shown)


def error_reply(error: ErrorAnswer) -> Response:
    """The response of an error."""
    return json_reply(error.body, status=error.status, headers=error.headers)

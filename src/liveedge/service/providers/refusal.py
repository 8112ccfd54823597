"""What another server says when it does not answer, as an error of ours. Pure.

Never shows the key, more than a bound of what the server sent, or where the server is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from liveedge.core.errors import (
    ProviderSafetyBlock,
    UpstreamError,
    UpstreamHttpError,
    UpstreamLimited,
    UpstreamRejected,
    UpstreamRequestFailed,
)
from liveedge.service.providers.retries import parse_retry_after
from liveedge.service.providers.wire import error_in, is_safety_block

MAX_BODY_CHARS = 2048
MAX_LIMITS = 16  # headers about limits
MAX_LIMIT_CHARS = 100
MASK = "********"
_ADVICE = {
    401: "the server's key for it (api_key_env) is not accepted",
    403: "the server's key for it (api_key_env) may not do this",
    404: "it has no such model, or its base_url is wrong",
    429: "retry when it says so",
}


@dataclass(frozen=True, slots=True)
class Scrub:
    """Takes the key out of what a server sent, and most of the rest."""

    key: str | None = field(repr=False)

    def text(self, data: bytes | str, max_chars: int = MAX_BODY_CHARS) -> str:
        text = data if isinstance(data, str) else data.decode("utf-8", "replace")
        if self.key:
            text = text.replace(self.key, MASK)
        return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def facts(
    provider: str,
    scrub: Scrub,
    *,
    status: int | None = None,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The object `upstream` of an error."""
    about_limits = {
        name.lower(): scrub.text(value, MAX_LIMIT_CHARS)
        for name, value in (headers or {}).items()
        if name.lower().startswith(("x-ratelimit", "ratelimit", "retry-after"))
    }
    return {
        "provider": provider,
        "status": status,
        "body": scrub.text(body),
        "rate_limits": dict(list(about_limits.items())[:MAX_LIMITS]),
    }


def refused(
    provider: str,
    scrub: Scrub,
    *,
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    wall_ms: int,
) -> UpstreamError:
    """The error for a status that is no answer."""
    shown = facts(provider, scrub, status=status, body=body, headers=headers)
    said = _decoded(body)
    if status == 400 and is_safety_block(said):
        return ProviderSafetyBlock(
            f"the provider {provider} refuses what the question holds: {_words(said, scrub)}",
            upstream=shown,
        )
    advice = _ADVICE.get(status, "")
    message = ": ".join(
        filter(None, (f"the provider {provider} answered {status}", advice, _words(said, scrub)))
    )
    retry_after_s = parse_retry_after(headers.get("retry-after"), wall_ms=wall_ms)
    return _kind(status)(message, status=status, upstream=shown, retry_after_s=retry_after_s)


def failed(
    provider: str,
    scrub: Scrub,
    what: str,
    *,
    status: int | None = None,
    body: bytes = b"",
    is_unavailable: bool = False,
    may_retry: bool = False,
) -> UpstreamRequestFailed:
    """The error for no answer, or for one that is none."""
    return UpstreamRequestFailed(
        f"the provider {provider} gave no answer: {what}",
        upstream=facts(provider, scrub, status=status, body=body),
        is_unavailable=is_unavailable,
        may_retry=may_retry,
    )


def _kind(status: int) -> type[UpstreamHttpError]:
    if status == 429:
        return UpstreamLimited
    # A key of ours that is not accepted is no fault of the client's.
    if 400 <= status < 500 and status not in (401, 403):
        return UpstreamRejected
    return UpstreamHttpError


def _decoded(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _words(said: object, scrub: Scrub) -> str:
    return scrub.text(error_in(said) or "", 300)

"""The stream routes of the target, as a client from outside has them.

Owns    one connection pool, apart from that of the measured requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from liveedge.bench.answers import decoded
from liveedge.bench.scenario import Target

TIMEOUT_S = 30.0  # longer than a server needs to open a camera that does not answer
MAX_SAID = 300  # characters of what the server said
LOCAL = ("localhost", "127.0.0.1", "::1")


class SourceFailed(Exception):
    """A camera could not be opened, or did not last; the text is for people."""


class Streams:
    """Streams of one server and key."""

    def __init__(self, target: Target, *, api_key: str | None) -> None:
        self.base_url = target.base_url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if target.region:
            self.headers["X-Overshoot-Region"] = target.region
        # A proxy from the environment is for the world, never for this machine.
        self.is_local = httpx.URL(self.base_url).host in LOCAL
        self._http = httpx.AsyncClient(
            headers=self.headers, timeout=TIMEOUT_S, trust_env=not self.is_local
        )

    async def create(self, source: Mapping[str, Any]) -> dict[str, Any]:
        """Raises SourceFailed, with what the server says."""
        return _object(await self._call("POST", "", {"source": source}))

    async def view(self, stream_id: str) -> dict[str, Any]:
        return _object(await self._call("GET", f"/{stream_id}"))

    async def keep_alive(self, stream_id: str) -> None:
        await self._call("POST", f"/{stream_id}/keepalive")

    async def delete(self, stream_id: str) -> None:
        """What is gone already is fine."""
        await self._call("DELETE", f"/{stream_id}", ok=(httpx.codes.NOT_FOUND,))

    async def picture(self, stream_id: str, index: int) -> bytes | None:
        """PNG of a frame; None where it is not retained any more."""
        path = f"/{stream_id}/frame.png?frame_index={index}"
        gone = (httpx.codes.GONE, httpx.codes.NOT_FOUND)
        answer = await self._call("GET", path, ok=gone)
        return None if answer.status_code in gone else answer.content

    def push_url(self, stream_id: str) -> str:
        return f"{self.base_url}/streams/{stream_id}/frames"

    async def close(self) -> None:
        await self._http.aclose()

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        ok: tuple[int, ...] = (),
    ) -> httpx.Response:
        url = f"{self.base_url}/streams{path}"
        try:
            answer = await self._http.request(method, url, json=body)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise SourceFailed(f"{method} {url}: no answer: {reason}") from error
        if answer.is_error and answer.status_code not in ok:
            raise SourceFailed(f"{method} {url} answered {answer.status_code} {_said(answer)}")
        return answer


def _object(answer: httpx.Response) -> dict[str, Any]:
    document = decoded(answer.text)
    if not isinstance(document, dict):
        raise SourceFailed(f"{answer.url} answered no JSON object: {answer.text[:MAX_SAID]}")
    return document


def _said(answer: httpx.Response) -> str:
    """Code and message of an error as the API writes it, else its text."""
    try:
        error = answer.json()["error"]
        return f"{error['code']}: {str(error['message'])[:MAX_SAID]}"
    except (ValueError, KeyError, TypeError):
        return answer.text[:MAX_SAID]

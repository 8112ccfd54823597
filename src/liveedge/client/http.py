"""A small blocking client of one server: streams, questions, pictures.

Owns    one httpx connection pool; `close` or `with` ends it.
Thread  any one at a time.
Never   retries: what the server says is what the caller gets, as `Refused`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import httpx

from liveedge.client.sse import DONE, EventReader, StreamTooLarge
from liveedge.core.clock import Clock

TIMEOUT_S = 60.0  # longer than the server's own deadline of a question


class Refused(Exception):
    """The server answered with an error, or did not answer at all (status 0)."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}" if status else message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back for one question, and when, measured by the client."""

    text: str
    finish_reason: str | None
    ttft_ms: float  # sending to the first character, not to the role-only first chunk
    total_ms: float
    usage: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)  # the `liveedge` block

    @property
    def frames(self) -> Sequence[Mapping[str, Any]]:
        """The frames the model saw, in order."""
        frames: Sequence[Mapping[str, Any]] = self.evidence.get("frames", ())
        return frames


def image_part(stream_id: str, **query: object) -> dict[str, Any]:
    """One frame of a stream as a content part: `image_part(id, frame_index=-1)`."""
    return {"type": "image_url", "image_url": {"url": reference(stream_id, query)}}


def video_part(stream_id: str, **query: object) -> dict[str, Any]:
    """A segment of a stream as a content part: `video_part(id, start_offset_ms=-2000)`."""
    return {"type": "video_url", "video_url": {"url": reference(stream_id, query)}}


def reference(stream_id: str, query: Mapping[str, object]) -> str:
    """The `ovs://` URL of a frame or segment."""
    return f"ovs://streams/{stream_id}?{urlencode(query)}"


class Client:
    """One server and one key."""

    def __init__(self, url: str, *, clock: Clock, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._clock = clock
        # A proxy from the environment is for the world, never for this machine.
        self.is_local = httpx.URL(url).host in ("localhost", "127.0.0.1", "::1")
        self._http = httpx.Client(
            base_url=url,
            headers=headers,
            timeout=TIMEOUT_S,
            trust_env=not self.is_local,
            # SSL_CERT_FILE and SSL_CERT_DIR, also on this machine: its own certificate is in them.
            verify=httpx.create_ssl_context() if url.startswith("https:") else True,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        """The decoded JSON of a GET."""
        return self._call("GET", path).json()

    def models(self) -> list[dict[str, Any]]:
        models: list[dict[str, Any]] = self.get("/v1beta/models")["data"]
        return models

    def create_stream(self, source: Mapping[str, Any]) -> dict[str, Any]:
        """Create a stream that pulls from `source`, such as `{"type": "sim"}`, or waits for its
        publisher: `{"type": "livekit"}`."""
        created: dict[str, Any] = self._call("POST", "/v1beta/streams", {"source": source}).json()
        return created

    def stream(self, stream_id: str) -> dict[str, Any]:
        """The state and counters of a stream."""
        found: dict[str, Any] = self.get(f"/v1beta/streams/{stream_id}")
        return found

    def keep_alive(self, stream_id: str) -> dict[str, Any]:
        """Renew the lease of a stream; the answer holds a fresh publish token, where it has one."""
        path = f"/v1beta/streams/{stream_id}/keepalive"
        kept: dict[str, Any] = self._call("POST", path).json()
        return kept

    def delete_stream(self, stream_id: str) -> None:
        self._call("DELETE", f"/v1beta/streams/{stream_id}")

    def picture_png(self, stream_id: str, frame_index: int) -> bytes:
        """A retained frame, exact to the pixel as the server holds it."""
        path = f"/v1beta/streams/{stream_id}/frame.png?frame_index={frame_index}"
        return self._call("GET", path).content

    def ask(
        self,
        content: Sequence[Mapping[str, Any]],
        *,
        model: str,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int = 128,
        on_text: Callable[[str], None] | None = None,
    ) -> Answer:
        """Ask one question, streamed; `on_text` gets each piece as it arrives."""
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": list(content)}],
            "temperature": 0,
            "max_completion_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if response_format is not None:
            body["response_format"] = response_format
        begun_s = self._clock.monotonic_s()
        try:
            with self._http.stream("POST", "/v1beta/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                    raise _refusal(response)
                return self._collect(begun_s, _events(response), on_text)
        except httpx.HTTPError as error:
            raise _unreachable(self._http, error) from error
        except StreamTooLarge as error:
            raise Refused(200, "unreadable", f"the answer has no end: {error}") from error

    def _collect(
        self,
        begun_s: float,
        events: Iterator[dict[str, Any]],
        on_text: Callable[[str], None] | None,
    ) -> Answer:
        pieces: list[str] = []
        first_ms: float | None = None
        last: dict[str, Any] = {}
        for event in events:
            for choice in event.get("choices", ()):
                piece = choice.get("delta", {}).get("content") or ""
                last["finish_reason"] = choice.get("finish_reason") or last.get("finish_reason")
                if piece:
                    first_ms = first_ms or self._since_ms(begun_s)
                    pieces.append(piece)
                    if on_text is not None:
                        on_text(piece)
            last |= {key: event[key] for key in ("usage", "liveedge") if event.get(key)}
        total_ms = self._since_ms(begun_s)
        return Answer(
            text="".join(pieces),
            finish_reason=last.get("finish_reason"),
            ttft_ms=total_ms if first_ms is None else first_ms,
            total_ms=total_ms,
            usage=last.get("usage", {}),
            evidence=last.get("liveedge", {}),
        )

    def _since_ms(self, begun_s: float) -> float:
        return (self._clock.monotonic_s() - begun_s) * 1000

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise _unreachable(self._http, error) from error
        if response.is_error:
            raise _refusal(response)
        return response


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON of each SSE event until `[DONE]`; an error event is raised."""
    for data in _data(response):
        if data == DONE:
            continue  # read to the end, so that the connection serves the next question
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            error = event["error"]
            raise Refused(response.status_code, str(error.get("code")), str(error.get("message")))
        yield event


def _data(response: httpx.Response) -> Iterator[str]:
    """Not httpx's own lines: those are split inside texts that hold U+2028 or U+0085."""
    reader = EventReader()
    for piece in response.iter_bytes():
        yield from (event.data for event in reader.feed(piece))
    yield from (event.data for event in reader.finish())


def _refusal(response: httpx.Response) -> Refused:
    """What the body says, in whichever of the server's shapes."""
    try:
        body = response.json()
    except json.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        kind = response.headers.get("content-type") or "no content type"
        return Refused(
            response.status_code,
            "unreadable",
            f"the answer is no JSON ({kind}); is this the address of a liveedge server?",
        )
    error = body.get("error")
    if isinstance(error, dict):
        return Refused(response.status_code, str(error.get("code")), str(error.get("message")))
    details = body.get("details") or body.get("detail") or body
    return Refused(response.status_code, str(error or "error"), json.dumps(details)[:500])


def _unreachable(http: httpx.Client, error: httpx.HTTPError) -> Refused:
    return Refused(0, "unreachable", f"no answer from {http.base_url}: {error}")

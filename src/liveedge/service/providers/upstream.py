"""One provider over HTTP: a request goes out, pieces of JSON come back.

Owns    no connection beyond a request: leaving `ask` early closes it.
Thread  the event loop.
Never   follows a redirect, reads proxies or keys from the environment, keeps a cookie, believes a
        length, or unpacks what was packed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar, cast

import httpx

from liveedge.core.clock import Clock
from liveedge.core.errors import UpstreamError
from liveedge.core.version import VERSION
from liveedge.service.limits import most_json_values
from liveedge.service.providers.config import ProviderConfig
from liveedge.service.providers.patience import Patience
from liveedge.service.providers.refusal import Scrub, failed, refused
from liveedge.service.providers.sse import EventParser
from liveedge.service.providers.wire import MAX_COUNT, Malformed, error_in

log = logging.getLogger("liveedge.providers")

T = TypeVar("T")

MAX_REFUSAL_BYTES = 64 << 10
MAX_WHOLE_BYTES = 8 << 20  # of an answer that is not streamed, and of a list of models
# Values of JSON: all are looked at in the loop.
MAX_EVENT_VALUES = 1 << 16
MAX_WHOLE_VALUES = 1 << 18
MAX_LISTED = 1000
POLL_TIMEOUT_S = 5.0
KEEP_ALIVE_S = 4.0  # less than servers have (uvicorn: 5): a request never meets their end
DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Listed:
    """A model that a provider says it has."""

    id: str
    is_ready: bool
    max_model_len: int | None


def open_client(configs: Sequence[ProviderConfig]) -> httpx.AsyncClient:
    """The connections to all providers; each of these bounds its own."""
    most = sum(config.max_connections + 1 for config in configs)  # one more: its list of models
    return httpx.AsyncClient(
        timeout=None,
        trust_env=False,
        follow_redirects=False,
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
        limits=httpx.Limits(
            max_connections=most, max_keepalive_connections=most, keepalive_expiry=KEEP_ALIVE_S
        ),
    )


class Upstream:
    """Speaks to one provider."""

    def __init__(self, config: ProviderConfig, client: httpx.AsyncClient, *, clock: Clock) -> None:
        self._config = config
        self._client = client
        self._clock = clock
        self._scrub = Scrub(config.key)

    async def ask(self, body: bytes, patience: Patience) -> AsyncGenerator[object, None]:
        """The JSON of every piece of an answer, or of a whole one. Raises UpstreamError, and what
        `patience` raises. Hold it with `aclosing`."""
        async with self._sent("POST", "/chat/completions", body, patience) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status_code != 200:
                raise await self._refusal(response, patience)
            if kind == "application/json":
                yield self._decoded(await self._whole(response, patience), MAX_WHOLE_VALUES)
            elif kind == "text/event-stream":
                async with aclosing(self._events(response, patience)) as pieces:
                    async for piece in pieces:
                        yield piece
            else:
                start = await self._start(response, patience)
                what = f"it sent {kind[:60] or 'something without a type'}, which is no answer"
                raise self._failed(what, body=start, status=200)

    async def models(self) -> tuple[Listed, ...]:
        """What the provider says it has; nothing where it tells none. Raises UpstreamError."""
        now_s = self._clock.monotonic_s()
        async with (
            Patience(
                clock=self._clock,
                provider=self._config.name,
                deadline_s=now_s + POLL_TIMEOUT_S,
                silence_s=POLL_TIMEOUT_S,
            ) as patience,
            self._sent("GET", "/models", None, patience) as response,
        ):
            if response.status_code in (404, 405, 501):  # it is there, and has no list
                return ()
            if response.status_code != 200:
                raise await self._refusal(response, patience)
            whole = await self._whole(response, patience)
            return _listed(self._decoded(whole, MAX_WHOLE_VALUES))

    def no_answer(self, what: str, *, may_retry: bool = False) -> UpstreamError:
        """The error for pieces that make no answer."""
        return self._failed(what, status=200, may_retry=may_retry)

    @asynccontextmanager
    async def _sent(
        self, method: str, path: str, body: bytes | None, patience: Patience
    ) -> AsyncIterator[httpx.Response]:
        headers = {
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",
            "user-agent": f"liveedge/{VERSION}",
        }
        if body is not None:
            headers["content-type"] = "application/json"
        if self._config.key is not None:
            headers["authorization"] = f"Bearer {self._config.key}"
        url = self._config.base_url + path
        request = self._client.build_request(method, url, content=body, headers=headers)
        response = await self._known(self._client.send(request, stream=True), patience)
        try:
            packing = response.headers.get("content-encoding", "identity").lower()
            if packing != "identity":
                raise self._failed("it packed its answer, which nobody asked for", status=200)
            yield response
        finally:
            await response.aclose()

    async def _events(
        self, response: httpx.Response, patience: Patience
    ) -> AsyncGenerator[object, None]:
        parser = EventParser()
        async with aclosing(self._chunks(response, patience)) as chunks:
            async for data in chunks:
                for event in self._parsed(parser.feed, data):
                    if event == DONE:
                        return
                    yield self._decoded(event)
        for event in parser.finish():
            if event != DONE:
                yield self._decoded(event)

    def _parsed(self, feed: Callable[[bytes], list[bytes]], data: bytes) -> list[bytes]:
        try:
            return feed(data)
        except Malformed as error:
            raise self._failed(str(error), status=200) from error

    async def _chunks(
        self, response: httpx.Response, patience: Patience
    ) -> AsyncGenerator[bytes, None]:
        raw = cast("AsyncGenerator[bytes, None]", response.aiter_raw())
        async with aclosing(raw):
            while (data := await self._known(_next(raw), patience)) is not None:
                yield data

    def _decoded(self, data: bytes, max_values: int = MAX_EVENT_VALUES) -> object:
        if most_json_values(data) > max_values:
            raise self._failed(f"what it sent has more than {max_values} values", status=200)
        try:
            piece: object = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._failed("what it sent is no JSON", body=data, status=200) from error
        said = error_in(piece)
        if said is not None:
            raise self._failed(self._scrub.text(said), body=data, status=200)
        return piece

    async def _whole(self, response: httpx.Response, patience: Patience) -> bytes:
        data = bytearray()
        async with aclosing(self._chunks(response, patience)) as chunks:
            async for more in chunks:
                data += more
                if len(data) > MAX_WHOLE_BYTES:
                    what = f"its answer is longer than {MAX_WHOLE_BYTES} bytes"
                    raise self._failed(what, status=200)
        return bytes(data)

    async def _start(self, response: httpx.Response, patience: Patience) -> bytes:
        """The beginning of a body that is only shown; what there is of it."""
        data = bytearray()
        try:
            async with aclosing(self._chunks(response, patience)) as chunks:
                async for more in chunks:
                    data += more
                    if len(data) >= MAX_REFUSAL_BYTES:
                        break
        except UpstreamError:  # the status says more than how its body ended
            log.info("the provider %s broke off while it refused", self._config.name)
        return bytes(data[:MAX_REFUSAL_BYTES])

    async def _refusal(self, response: httpx.Response, patience: Patience) -> UpstreamError:
        return refused(
            self._config.name,
            self._scrub,
            status=response.status_code,
            body=await self._start(response, patience),
            headers=response.headers,
            wall_ms=self._clock.wall_ms(),
        )

    async def _known(self, work: Coroutine[Any, Any, T], patience: Patience) -> T:
        """Errors of HTTP as ours. Their own words may hold addresses: only the log has them."""
        try:
            return await patience.wait(work)
        except (httpx.ConnectError, httpx.UnsupportedProtocol) as error:
            log.info("the provider %s cannot be reached: %s", self._config.name, error)
            raise self._failed(
                "it cannot be reached", is_unavailable=True, may_retry=True
            ) from error
        except httpx.RemoteProtocolError as error:
            log.info("the provider %s does not speak HTTP: %s", self._config.name, error)
            raise self._failed("its answer broke off", may_retry=True) from error
        except httpx.TransportError as error:
            log.info("the provider %s broke off: %r", self._config.name, error)
            raise self._failed("its connection broke off", may_retry=True) from error

    def _failed(
        self,
        what: str,
        *,
        body: bytes = b"",
        status: int | None = None,
        is_unavailable: bool = False,
        may_retry: bool = False,
    ) -> UpstreamError:
        return failed(
            self._config.name,
            self._scrub,
            what,
            body=body,
            status=status,
            is_unavailable=is_unavailable,
            may_retry=may_retry,
        )


async def _next(raw: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(raw, None)


def _listed(said: object) -> tuple[Listed, ...]:
    """As OpenAI lists models, with what vLLM and liveedge add. What makes no sense is left out."""
    data = said.get("data") if isinstance(said, dict) else None
    models = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    found = []
    for item in models[:MAX_LISTED]:
        name, length = item.get("id"), item.get("max_model_len")
        if isinstance(name, str) and 0 < len(name) <= 200:
            has_length = type(length) is int and 0 < length < MAX_COUNT
            is_ready = item.get("status", "ready") != "unavailable"
            found.append(Listed(name, is_ready, length if has_length else None))
    return tuple(found)

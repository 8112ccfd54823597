"""What publishers are told, and the entrance that takes them in.

Nothing that only publishers need is imported before the first of them is expected: tokens, signalling
and WebRTC take half a second together, and most servers pull from cameras.

Thread  the event loop; imports run in a worker.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from liveedge.core.errors import ModelUnavailable, Unsupported
from liveedge.core.tasks import TaskSet
from liveedge.service.sources import PUBLISHED
from liveedge.service.workers import Workers

if TYPE_CHECKING:
    from liveedge.service.ingest import Ingest
    from liveedge.service.rooms import Rooms
    from liveedge.service.tokens import PublishTokens

VIEWER_S = 300  # a viewer asks for another token after that

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishView:
    """Where and with what a client publishes; field names are the wire's."""

    type: Literal["livekit"]
    url: str  # for LiveKit's SDKs
    token: str = field(repr=False)
    whip_url: str | None  # none where the stream's room is on another server


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomView:
    """Where and with what a stream can be watched; field names are the wire's."""

    type: Literal["livekit"]
    url: str
    token: str = field(repr=False)
    expires_in_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishParts:
    """How the parts are made: each once, in the event loop, after its modules were imported."""

    token_modules: tuple[str, ...]
    ingest_modules: tuple[str, ...]
    tokens: Callable[[], PublishTokens]
    ingest: Callable[[PublishTokens], Ingest]
    totals: Callable[[], Mapping[str, int]]  # what connections have counted, as `SessionStats`
    close: Callable[[], None]  # of what `ingest` has started; in a worker, may block
    room_modules: tuple[str, ...] = ()
    rooms: Callable[[], Rooms] | None = None  # of an external LiveKit server, if there is one


class Publishing:
    """The publishers' side of all streams."""

    def __init__(self, parts: PublishParts, *, valid_s: int) -> None:
        self._valid_s = valid_s
        self._workers = Workers("publishing", n_threads=1)
        self._tasks = TaskSet("publishing")
        self._tokens = _Once(self._make_tokens, self._tasks)
        self._ingest = _Once(self._make_ingest, self._tasks)
        self._rooms = _Once(self._make_rooms, self._tasks)
        self._parts = parts

    async def told(self, stream_id: str, source_type: str, *, base_url: str) -> PublishView | None:
        """What a publisher needs, with a fresh token; None for streams that take none.

        `base_url` is where the client reaches this server.
        """
        if source_type not in PUBLISHED:
            return None
        if source_type == "livekit" and self._parts.rooms is not None:
            rooms = await self._rooms.get()
            token = rooms.publisher_token(stream_id, valid_s=self._valid_s)
            return PublishView(type="livekit", url=rooms.url, token=token, whip_url=None)
        tokens = await self._tokens.get()
        self._ingest.begin()  # it will be needed within seconds
        return PublishView(
            type="livekit",
            url=base_url.replace("http", "ws", 1),
            token=tokens.make(stream_id, valid_s=self._valid_s),
            whip_url=f"{base_url}/whip/{stream_id}",
        )

    async def renewed(
        self, stream_id: str, source_type: str, *, base_url: str
    ) -> PublishView | None:
        """The same at a keepalive; a connected SDK is given the token too, to come back with."""
        view = await self.told(stream_id, source_type, base_url=base_url)
        if view is not None and self.loaded is not None:
            self.loaded.refresh(stream_id, view.token)
        return view

    async def viewed(self, stream_id: str, source_type: str) -> RoomView:
        """What somebody needs who watches the stream's room. Raises Unsupported."""
        if source_type != "livekit" or self._parts.rooms is None:
            raise Unsupported(
                "there is no LiveKit server here that could forward the stream to viewers; look at"
                f" it with GET /streams/{stream_id}/frame.jpg"
            )
        rooms = await self._rooms.get()
        token = rooms.viewer_token(stream_id, valid_s=VIEWER_S)
        return RoomView(type="livekit", url=rooms.url, token=token, expires_in_seconds=VIEWER_S)

    async def ingest(self) -> Ingest:
        """The entrance for publishers themselves."""
        return await self._ingest.get()

    @property
    def loaded(self) -> Ingest | None:
        """The same, while there is one."""
        return self._ingest.value

    def totals(self) -> Mapping[str, int]:
        """What all connections since the start have counted; nothing before the first of them."""
        return self._parts.totals()

    async def close(self) -> None:
        """Tell every publisher to leave, and let none in any more. Again does nothing."""
        self._ingest.close()
        self._rooms.close()
        await self._tasks.wait()  # what is being made has to be closed too
        self._tokens.close()
        ingest = self._ingest.take()
        if ingest is not None:
            await ingest.close()
            await self._workers.run(self._parts.close)
        self._workers.close()

    async def _make_tokens(self) -> PublishTokens:
        await self._imported(self._parts.token_modules)
        return self._parts.tokens()

    async def _make_ingest(self) -> Ingest:
        tokens = await self._tokens.get()
        await self._imported(self._parts.ingest_modules)
        return self._parts.ingest(tokens)

    async def _make_rooms(self) -> Rooms:
        assert self._parts.rooms is not None
        await self._imported(self._parts.room_modules)
        return self._parts.rooms()

    async def _imported(self, modules: tuple[str, ...]) -> None:
        for module in modules:
            await self._workers.run(partial(importlib.import_module, module))


class _Once(Generic[T]):
    """A value that is made when it is first needed, for everybody who waits for it. What failed is
    tried again for the next one: a port that was taken may be free."""

    def __init__(self, make: Callable[[], Coroutine[object, object, T]], tasks: TaskSet) -> None:
        self.value: T | None = None
        self._make = make
        self._tasks = tasks
        self._making: asyncio.Task[T] | None = None
        self._is_closed = False

    def begin(self) -> asyncio.Task[T]:
        has_failed = self._making is not None and self._making.done() and self.value is None
        if self._making is None or has_failed:
            if self._is_closed:
                raise ModelUnavailable("the server is stopping; publish again when it is back")
            self._making = self._tasks.start(self._keep(), name=self._make.__name__)
        return self._making

    async def get(self) -> T:
        # Shielded: a client that leaves must not end it for the others.
        return await asyncio.shield(self.begin())

    def close(self) -> None:
        """Begin nothing any more."""
        self._is_closed = True

    def take(self) -> T | None:
        """The value, for whoever ends it; nobody else gets it any more."""
        value, self.value, self._making = self.value, None, None
        return value

    async def _keep(self) -> T:
        self.value = await self._make()
        return self.value

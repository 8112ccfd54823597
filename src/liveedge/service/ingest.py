"""Publishers on their way into streams: LiveKit clients by WebSocket, WHIP clients by HTTP.

Owns    every publisher's connection, from the check of its token to its end.
Thread  the event loop.
Never   sees HTTP: sockets, tokens and SDP come in as values; errors go out as `core.errors`.

Invariants
1. Nothing is opened for a token that does not name the stream.
2. Whoever publishes goes on until the next one's offer is answered.
3. A LiveKit publisher whose socket dropped is kept only as long as its media comes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from liveedge.core.clock import Clock
from liveedge.core.errors import (
    LiveEdgeError,
    ModelUnavailable,
    QueueFull,
    RequestInvalid,
    StreamNotFound,
    StreamStateInvalid,
)
from liveedge.core.tasks import TaskSet
from liveedge.media.livekit import messages
from liveedge.media.livekit.connection import Connection, Socket
from liveedge.media.livekit.join import Join, Way, parse_join
from liveedge.media.livekit.sdp import beside, sections
from liveedge.media.livekit.signal import Signal, SignalParts
from liveedge.media.publication import Ending, Publication
from liveedge.media.published import PublishedSource
from liveedge.media.webrtc.session import IceServer, MediaSessions, OfferInvalid
from liveedge.service.limits import Budget
from liveedge.service.tokens import Grant, PublishTokens

MAX_SOCKETS = 256
MAX_OFFERS = 2  # by WHIP, of one stream: one is being answered, one waits
MAX_CANDIDATES = 64  # of one PATCH
LOOK_EVERY_S = 1.0  # at a publisher without a socket
LOST = "the publisher's connection was lost"

Entrance = Callable[[str], PublishedSource]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhipResource:
    """An accepted WHIP offer. The id is all that is needed to end it: a secret of its client."""

    id: str
    answer: str


@dataclass(slots=True, kw_only=True)
class _WhipPublisher:
    """A WHIP client while it is connected."""

    stream_id: str
    publication: Publication


@dataclass(slots=True)
class _Turns:
    """The offers of one stream that are under way."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    n_offers: int = 0


class Ingest:
    """All publishers of a server. `entrance` finds a stream's source, or raises StreamNotFound or
    StreamStateInvalid."""

    def __init__(
        self,
        *,
        entrance: Entrance,
        tokens: PublishTokens,
        sessions: MediaSessions,
        clock: Clock,
        ice_servers: Sequence[IceServer] = (),
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
        max_sockets: int = MAX_SOCKETS,
    ) -> None:
        self._entrance = entrance
        self._tokens = tokens
        self._sessions = sessions
        self._clock = clock
        self._new_id = new_id
        self._tasks = TaskSet("ingest")
        self._lingering = TaskSet("ingest")
        self._watched: set[str] = set()  # participants, by those tasks
        self._signals: dict[str, Signal] = {}  # by participant; removed when over
        self._whips: dict[str, _WhipPublisher] = {}
        self._turns: dict[str, _Turns] = {}  # by stream, while there are offers
        self._is_closed = False
        self.sockets = Budget(max_sockets, what="signalling connections")
        self.counters: Counter[str] = Counter()
        self._parts = SignalParts(
            clock=clock,
            tasks=self._tasks,
            new_id=new_id,
            ice_servers=tuple(ice_servers),
            counters=self.counters,
        )

    @property
    def n_publishers(self) -> int:
        return len(self._signals) + len(self._whips)

    async def close(self) -> None:
        """Tell every publisher that the server stops, and wait until their connections are over. Lets
        nobody in any more."""
        self._is_closed = True
        for signal in list(self._signals.values()):
            signal.end("shutdown", "the server is stopping")
        for resource_id in list(self._whips):
            self._whip_over(resource_id, "the server is stopping")
        await self._lingering.close()
        await self._tasks.wait()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ModelUnavailable("the server is stopping; publish again when it is back")

    # ── tokens ──

    def refresh(self, stream_id: str, token: str) -> None:
        """Give the stream's LiveKit publisher the token with which it may come back."""
        for signal in self._signals.values():
            if signal.room == stream_id:
                signal.refresh(token)

    def validate(self, token: str) -> Grant:
        """What the token allows now. Raises Unauthorized, StreamNotFound or StreamStateInvalid."""
        grant = self._tokens.check(token)
        self._entrance(grant.stream_id)
        return grant

    # ── LiveKit ──

    async def livekit(
        self, socket: Socket, *, token: str, way: Way, query: Mapping[str, str]
    ) -> None:
        """Serve one signalling socket to its end.

        Raises Unauthorized, StreamNotFound, StreamStateInvalid, RequestInvalid, QueueFull or
        ModelUnavailable, and only while the socket is not accepted.
        """
        try:
            self._require_open()
            grant = self._tokens.check(token)
            join = parse_join(way, query)
            with self.sockets.hold():
                if join.resumes is not None:
                    await self._resume(socket, grant, join.resumes)
                else:
                    await self._join(socket, grant, join)
        except LiveEdgeError as error:
            self.counters[f"refused_{error.code}"] += 1
            raise

    async def _join(self, socket: Socket, grant: Grant, join: Join) -> None:
        source = self._entrance(grant.stream_id)
        signal = Signal(
            room=grant.stream_id,
            identity=grant.identity,
            parts=self._parts,
            on_over=self._forget,
        )
        self._signals[signal.sid] = signal
        try:
            await signal.open(source, self._sessions)
        except LiveEdgeError:
            self._forget(signal)
            raise
        try:
            await socket.accept()
            connection = Connection(socket, clock=self._clock)
            joining = self._tasks.start(signal.join(connection, join), name=f"join {signal.sid}")
            await self._serve(connection, signal)
            await joining
        finally:
            self._linger(signal)

    async def _resume(self, socket: Socket, grant: Grant, sid: str) -> None:
        signal = self._signals.get(sid)
        await socket.accept()
        connection = Connection(socket, clock=self._clock)
        if signal is not None and signal.room == grant.stream_id and signal.can_resume:
            self.counters["resumed"] += 1
            signal.resume(connection)
            try:
                await self._serve(connection, signal)
            finally:
                self._linger(signal)
            return
        self.counters["resume_refused"] += 1
        kind: messages.LeaveKind = (
            "cannot resume" if self._exists(grant.stream_id) else "stream ended"
        )
        connection.send(messages.leave(kind).SerializeToString())
        connection.finish()
        await connection.serve(_ignore)

    async def _serve(self, connection: Connection, signal: Signal) -> None:
        try:
            over = await connection.serve(signal.receive)
            self.counters[f"socket_{over}"] += 1
        finally:
            signal.detach(connection)

    def _exists(self, stream_id: str) -> bool:
        try:
            self._entrance(stream_id)
        except (StreamNotFound, StreamStateInvalid):
            return False
        return True

    def _forget(self, signal: Signal) -> None:
        self._signals.pop(signal.sid, None)

    def _linger(self, signal: Signal) -> None:
        """Keep a publisher without a socket while its media comes: it may be back in a second."""
        if not (signal.is_over or signal.has_wire or signal.sid in self._watched):
            self._watched.add(signal.sid)
            self._lingering.start(self._watch(signal), name=f"linger {signal.sid}")

    async def _watch(self, signal: Signal) -> None:
        try:
            while signal.can_resume and not signal.has_wire:
                await self._clock.sleep(LOOK_EVERY_S)
        finally:
            self._watched.discard(signal.sid)
        if not signal.has_wire:
            signal.end(None, LOST)

    # ── WHIP ──

    def check_whip(self, stream_id: str, token: str) -> None:
        """Whether an offer would be read. Raises what `whip_offer` raises, but for the offer."""
        try:
            self._require_open()
            self._tokens.check_for(token, stream_id)
            self._entrance(stream_id)
        except LiveEdgeError as error:
            self.counters[f"refused_{error.code}"] += 1
            raise

    async def whip_offer(self, stream_id: str, token: str, sdp: str) -> WhipResource:
        """Connect a WHIP client. Raises Unauthorized, StreamNotFound, StreamStateInvalid, QueueFull,
        or RequestInvalid for an offer that cannot be answered."""
        try:
            self._require_open()
            self._tokens.check_for(token, stream_id)
            async with self._turn(stream_id):
                await _require_video(sdp)
                return await self._whip_connected(self._entrance(stream_id), stream_id, sdp)
        except LiveEdgeError as error:
            self.counters[f"refused_{error.code}"] += 1
            raise

    @asynccontextmanager
    async def _turn(self, stream_id: str) -> AsyncIterator[None]:
        """Offers of one stream, one after the other: each is answered before the next replaces it."""
        turns = self._turns.setdefault(stream_id, _Turns())
        if turns.n_offers >= MAX_OFFERS:
            raise QueueFull(
                f"{turns.n_offers} offers for this stream are being answered already; offer again in"
                " a moment"
            )
        turns.n_offers += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.n_offers -= 1
            if not turns.n_offers:
                del self._turns[stream_id]

    async def _whip_connected(
        self, source: PublishedSource, stream_id: str, sdp: str
    ) -> WhipResource:
        resource_id = secrets.token_urlsafe(24)
        publication = Publication(on_end=lambda ending: self._whip_ended(resource_id, ending))
        await publication.open(source, self._sessions, label=stream_id)
        self._whips[resource_id] = _WhipPublisher(stream_id=stream_id, publication=publication)
        answer: str | None = None
        why = "the publisher left while it was connecting"
        try:
            answer = await publication.answer(sdp)
        except OfferInvalid as error:
            why = error.reason
            raise RequestInvalid(error.reason, loc=()) from error
        finally:
            if answer is None:
                self._whip_over(resource_id, why)
        return WhipResource(id=resource_id, answer=answer)

    async def whip_patch(self, resource_id: str, fragment: str) -> None:
        """Take in trickled candidates. Raises StreamNotFound or RequestInvalid."""
        whip = self._whips.get(resource_id)
        if whip is None:
            raise _no_resource()
        for candidate, mid in _candidates(fragment):
            await whip.publication.session.add_candidate(candidate, mid=mid, line=None)

    async def whip_delete(self, resource_id: str) -> None:
        """The client leaves. Raises StreamNotFound if it is not connected."""
        whip = self._whips.pop(resource_id, None)
        if whip is None:
            raise _no_resource()
        await whip.publication.close("the publisher left")

    def whip_stream(self, resource_id: str) -> str | None:
        """The stream into which the client publishes."""
        whip = self._whips.get(resource_id)
        return None if whip is None else whip.stream_id

    def _whip_ended(self, resource_id: str, ending: Ending) -> None:
        self._whip_over(resource_id, ending.reason)

    def _whip_over(self, resource_id: str, reason: str) -> None:
        whip = self._whips.pop(resource_id, None)
        if whip is not None:
            self._tasks.start(whip.publication.close(reason), name="close whip")


async def _ignore(_message: bytes) -> None:
    return


def _no_resource() -> StreamNotFound:
    return StreamNotFound("there is no such WHIP resource: its publisher has left or was replaced")


async def _require_video(sdp: str) -> None:
    try:
        found = await beside(sdp, sections)
    except OfferInvalid as error:
        raise RequestInvalid(error.reason, loc=()) from error
    if not any(section.is_video for section in found):
        raise RequestInvalid(
            "the offer sends no video track; add one before making the offer", loc=()
        )


def _candidates(fragment: str) -> list[tuple[str, str | None]]:
    """Candidates of an SDP fragment, each with the mid above it."""
    found: list[tuple[str, str | None]] = []
    mid: str | None = None
    for line in fragment.splitlines():
        if line.startswith("a=mid:"):
            mid = line.removeprefix("a=mid:").strip()
        elif line.startswith("a=candidate:"):
            found.append((line.removeprefix("a="), mid))
    if len(found) > MAX_CANDIDATES:
        raise RequestInvalid(f"{len(found)} candidates at once, at most {MAX_CANDIDATES}", loc=())
    return found

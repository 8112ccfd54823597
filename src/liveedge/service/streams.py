"""The streams: who owns which, how long they live, what is known of each.

Owns    every stream's frames and source, the lease of the active and the tombstone of the ended.
Thread  the event loop. What blocks (opening, decoding, joining threads) runs in workers.
Never   tells a tenant about another's stream, or repeats the URL of a source.

Invariants
1. A stream is active or ended; ended is final, at the time its lease ran out or it was deleted.
2. The lease ends `LEASE_S` after the later of creation and keepalive; nothing else renews it.
3. An ended stream holds no frame; its last counters stay for `TOMBSTONE_S`.
4. The reserved memory of all streams that are active or opening never exceeds the budget.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from liveedge.core.clock import Clock
from liveedge.core.errors import (
    StreamLimitReached,
    StreamNotFound,
    StreamStateInvalid,
    StreamUnauthorized,
)
from liveedge.core.tasks import TaskSet
from liveedge.frames.frame import Frame
from liveedge.frames.store import FrameStore
from liveedge.service.sources import PUSHED, Pipeline, SourceSpec
from liveedge.service.totals import StreamTotals
from liveedge.service.view import EndReason, LifeView, StreamView, make_view
from liveedge.service.workers import Workers

LEASE_S = 300
TOMBSTONE_S = 300
SWEEP_EVERY_S = 1.0
LAST_PULL_STEP_MS = 1000  # `last_pull` moves at most once a second


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """How many streams there may be, and what their frames may take together."""

    max_streams: int = 64
    max_streams_per_tenant: int = 16
    reserved_bytes: int = 4 << 30
    reserved_bytes_per_stream: int = 320 << 20


@dataclass(slots=True, kw_only=True)
class _Active:
    """A stream with frames and a lease."""

    id: str
    tenant: str
    source_type: str
    created_at_ms: int
    expires_s: float  # monotonic
    expires_at_ms: int  # the same on the wall clock
    pipeline: Pipeline
    last_pull_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """What is left of a stream."""

    tenant: str
    view: StreamView
    forget_s: float  # monotonic


class Streams:
    """The registry of all streams."""

    def __init__(
        self,
        *,
        clock: Clock,
        make_pipeline: Callable[[str, SourceSpec], Pipeline],
        limits: StreamLimits,
        workers: Workers,
    ) -> None:
        self._clock = clock
        self._make_pipeline = make_pipeline
        self._limits = limits
        self._workers = workers
        self._active: dict[str, _Active] = {}
        self._ended: dict[str, _Ended] = {}
        self._past = StreamTotals()  # of all that ended
        self._opening: dict[str, str] = {}  # stream id to tenant: they count before they exist
        self._closers = Workers("close", n_threads=4)
        self._closing = TaskSet("streams")
        self._sweeping = TaskSet("streams")
        self._listeners: list[Callable[[str], None]] = []

    def on_end(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the id of every stream that ends."""
        self._listeners.append(listener)

    # ── the life of a stream ──

    def start(self) -> None:
        """Begin to end streams whose lease runs out, without anybody asking for them."""
        self._sweeping.start(self._sweep_for_ever(), name="sweeper")

    async def close(self) -> None:
        """End every stream and wait until its threads are over."""
        await self._sweeping.close()
        for stream in list(self._active.values()):
            self._end(stream, "deleted")
        await self._closing.wait()
        self._closers.close()

    async def create(self, tenant: str, spec: SourceSpec) -> StreamView:
        """Open the source and give it a stream.

        Raises SourceUnavailable, Unsupported or StreamLimitReached. A caller that is cancelled
        leaves nothing behind.
        """
        self._reap()
        self._require_room(tenant)
        stream_id = str(uuid.uuid4())
        self._opening[stream_id] = tenant
        try:
            pipeline = await self._opened(stream_id, spec)
        finally:
            del self._opening[stream_id]
        stream = _Active(
            id=stream_id,
            tenant=tenant,
            source_type=spec.type,
            created_at_ms=self._clock.wall_ms(),
            expires_s=self._clock.monotonic_s() + LEASE_S,
            expires_at_ms=self._clock.wall_ms() + LEASE_S * 1000,
            pipeline=pipeline,
        )
        self._active[stream_id] = stream
        return self._view(stream)

    def keepalive(self, tenant: str, stream_id: str) -> StreamView:
        """Renew the lease."""
        stream = self._own(tenant, stream_id)
        stream.expires_s = self._clock.monotonic_s() + LEASE_S
        stream.expires_at_ms = self._clock.wall_ms() + LEASE_S * 1000
        return self._view(stream)

    def delete(self, tenant: str, stream_id: str) -> None:
        """End the stream. Again and again while its tombstone stands."""
        self._reap()
        ended = self._ended.get(stream_id)
        if ended is None or ended.tenant != tenant:
            self._end(self._own(tenant, stream_id), "deleted")

    # ── looking at streams ──

    def view(self, tenant: str, stream_id: str) -> StreamView:
        """Everything about a stream, also of an ended one while its tombstone stands."""
        self._reap()
        ended = self._ended.get(stream_id)
        if ended is not None and ended.tenant == tenant:
            return ended.view
        return self._view(self._own(tenant, stream_id))

    def views(self, tenant: str) -> list[StreamView]:
        """The tenant's streams, oldest first, tombstones included."""
        self._reap()
        active = [self._view(s) for s in self._active.values() if s.tenant == tenant]
        ended = [e.view for e in self._ended.values() if e.tenant == tenant]
        return sorted([*active, *ended], key=lambda view: view.created_at_ms)

    def totals(self) -> StreamTotals:
        """Sums over every tenant's streams, for whoever runs the server."""
        self._reap()
        views = [self._view(stream) for stream in self._active.values()]
        return self._past.with_active(views, opening=len(self._opening))

    def own_store(self, tenant: str, stream_id: str) -> FrameStore:
        """The frames of the tenant's stream. Someone else's stream is not found."""
        return self._own(tenant, stream_id).pipeline.store

    def stores(self, tenant: str, stream_ids: Iterable[str]) -> dict[str, FrameStore]:
        """The frames of several streams. Someone else's raises StreamUnauthorized."""
        self._reap()
        return {stream_id: self._named(tenant, stream_id) for stream_id in stream_ids}

    @property
    def n_active(self) -> int:
        return len(self._active)

    @property
    def n_opening(self) -> int:
        return len(self._opening)

    @property
    def n_closing(self) -> int:
        """Ended streams whose threads are not over yet."""
        return len(self._closing)

    # ── frames from clients ──

    async def push(
        self, tenant: str, stream_id: str, data: bytes, *, captured_at_ms: int | None = None
    ) -> Frame:
        """Decode a picture and make it the stream's newest frame."""
        stream = self._own(tenant, stream_id)
        pushed = stream.pipeline.pushed
        if pushed is None:
            raise StreamStateInvalid(
                f"stream {stream_id} has a source of type {stream.source_type}; frames can only be"
                " pushed into a stream created with a source of type push"
            )
        return await self._workers.run(lambda: pushed.push(data, captured_at_ms=captured_at_ms))

    # ── inside ──

    def _require_room(self, tenant: str) -> None:
        tenants = [*(s.tenant for s in self._active.values()), *self._opening.values()]
        limits = self._limits
        if tenants.count(tenant) >= limits.max_streams_per_tenant:
            raise StreamLimitReached(
                f"this key has {limits.max_streams_per_tenant} streams, its limit"
                " (max_streams_per_key); delete one first"
            )
        if len(tenants) >= limits.max_streams:
            raise StreamLimitReached(
                f"the server has {limits.max_streams} streams, its limit (max_streams)"
            )
        if (len(tenants) + 1) * limits.reserved_bytes_per_stream > limits.reserved_bytes:
            raise StreamLimitReached(
                f"no memory for another stream: {len(tenants)} have"
                f" {limits.reserved_bytes_per_stream >> 20} MB each, all together may have"
                f" {limits.reserved_bytes >> 20} MB (streams_mb)"
            )

    async def _opened(self, stream_id: str, spec: SourceSpec) -> Pipeline:
        pipeline = await self._workers.run(lambda: self._make_pipeline(stream_id, spec))
        has_opened = False
        try:
            pipeline.feed.start()
            await pipeline.feed.opened()
            has_opened = True
        finally:
            if not has_opened:
                self._close_soon(pipeline, stream_id)
        return pipeline

    def _own(self, tenant: str, stream_id: str) -> _Active:
        self._reap()
        stream = self._active.get(stream_id)
        if stream is None or stream.tenant != tenant:
            raise _not_found(stream_id)
        return stream

    def _named(self, tenant: str, stream_id: str) -> FrameStore:
        stream = self._active.get(stream_id)
        if stream is None:
            raise _not_found(stream_id)
        if stream.tenant != tenant:
            raise StreamUnauthorized(f"stream {stream_id} belongs to another key")
        return stream.pipeline.store

    def _reap(self) -> None:
        """Bring every stream to the state that the time says."""
        now_s = self._clock.monotonic_s()
        for stream in [s for s in self._active.values() if s.expires_s <= now_s]:
            self._end(stream, "expired")
        for stream_id in [i for i, e in self._ended.items() if e.forget_s <= now_s]:
            del self._ended[stream_id]

    def _end(self, stream: _Active, reason: EndReason) -> None:
        is_expired = reason == "expired"
        at_s = stream.expires_s if is_expired else self._clock.monotonic_s()
        at_ms = stream.expires_at_ms if is_expired else self._clock.wall_ms()
        view = self._view(stream, ended_at_ms=at_ms, end_reason=reason)
        del self._active[stream.id]
        ended = _Ended(tenant=stream.tenant, view=view, forget_s=at_s + TOMBSTONE_S)
        self._ended[stream.id] = ended
        for listener in self._listeners:
            listener(stream.id)
        self._past.count(view)
        self._close_soon(stream.pipeline, stream.id)

    def _close_soon(self, pipeline: Pipeline, stream_id: str) -> None:
        self._closing.start(self._closers.run(pipeline.close), name=f"close {stream_id}")

    def _view(
        self,
        stream: _Active,
        *,
        ended_at_ms: int | None = None,
        end_reason: EndReason | None = None,
    ) -> StreamView:
        counters = stream.pipeline.store.counters()
        if stream.source_type not in PUSHED:
            stream.last_pull_ms = _stepped(stream.last_pull_ms, counters.last_frame_at_ms)
        life = LifeView(
            id=stream.id,
            source_type=stream.source_type,
            created_at_ms=stream.created_at_ms,
            expires_at_ms=stream.expires_at_ms if ended_at_ms is None else None,
            ttl_seconds=LEASE_S,
            ended_at_ms=ended_at_ms,
            end_reason=end_reason,
        )
        status = stream.pipeline.feed.status()
        return make_view(life, counters, status, last_pull_ms=stream.last_pull_ms)

    async def _sweep_for_ever(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_EVERY_S)
            self._reap()


def _not_found(stream_id: str) -> StreamNotFound:
    return StreamNotFound(f"there is no stream {stream_id[:80]}: unknown, ended or expired")


def _stepped(before_ms: int | None, newest_ms: int | None) -> int | None:
    if before_ms is None or newest_ms is None:
        return newest_ms
    return newest_ms if newest_ms - before_ms >= LAST_PULL_STEP_MS else before_ms

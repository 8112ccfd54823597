"""The streams: who owns which, how long they live, what is known of each.

Owns    every stream's frames and source, the lease of the active and the tombstone of the ended.
        With a registry all of them outlive the process: `resume` goes on where it ended.
Thread  the event loop. What blocks (opening, decoding, joining threads) runs in workers.
Never   tells a tenant about another's stream, or repeats the URL of a source.

Invariants
1. A stream is active or ended; ended is final, at the time its lease ran out or it was deleted.
2. The lease ends `LEASE_S` after the later of creation and keepalive; nothing else renews it.
3. An ended stream holds no frame; its last counters stay for `TOMBSTONE_S`.
4. The reserved memory of all streams that are active or opening never exceeds the budget.
5. With a registry: a stream that was answered for is in it. One that was deleted stays deleted: the
   name of its folder says so until the registry knows it.
6. With a registry: it has a mark of every stream that is never INDICES_AHEAD behind, so that no index
   names two pictures when files are lost.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from liveedge.core.clock import Clock
from liveedge.core.errors import (
    SourceUnavailable,
    StreamLimitReached,
    StreamNotFound,
    StreamStateInvalid,
    StreamUnauthorized,
)
from liveedge.core.tasks import TaskSet
from liveedge.frames.frame import Frame
from liveedge.frames.store import INDICES_AHEAD, FrameStore, StoreLimits
from liveedge.media.published import PublishedSource
from liveedge.media.source import SourceStatus
from liveedge.service.registry import ActiveRow, EndedRow, Registry
from liveedge.service.sources import PUSHED, Pipeline, SourceSpec
from liveedge.service.state_dir import holds_frames, remove
from liveedge.service.totals import StreamTotals
from liveedge.service.view import EndReason, LifeView, StreamView, make_view
from liveedge.service.workers import Workers

log = logging.getLogger("liveedge.service")

LEASE_S = 300
TOMBSTONE_S = 300
SWEEP_EVERY_S = 1.0
DELETE_LOST_EVERY_S = 3600.0
LAST_PULL_STEP_MS = 1000  # `last_pull` moves at most once a second


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """How many streams there may be, and what their frames may take together."""

    max_streams: int = 64
    max_streams_per_tenant: int = 16
    reserved_bytes: int = 4 << 30
    reserved_bytes_per_stream: int = 320 << 20
    disk_bytes_per_stream: int = 256 << 20  # where there is a registry


class MakePipeline(Protocol):
    """`service.sources.Pipelines.make`."""

    def __call__(self, stream_id: str, spec: SourceSpec, *, resumed: bool = False) -> Pipeline:
        """Blocking. `resumed`: on the frames of an earlier life, and whatever the policy says of its
        source now, which is then the reason why nothing comes."""
        ...


@dataclass(slots=True, kw_only=True)
class _Active:
    """A stream with frames and a lease."""

    id: str
    tenant: str
    spec: SourceSpec
    created_at_ms: int
    expires_s: float  # monotonic
    expires_at_ms: int  # the same on the wall clock
    pipeline: Pipeline
    last_pull_ms: int | None = None
    finished: SourceStatus | None = None  # of a source from which nothing will ever come again
    n_marked: int = 0  # frames, by the newest mark in the registry

    @property
    def row(self) -> ActiveRow:
        return ActiveRow(
            id=self.id,
            tenant=self.tenant,
            spec=self.spec,
            created_at_ms=self.created_at_ms,
            expires_at_ms=self.expires_at_ms,
            finished=None if self.finished is None else self.finished.reason,
            mark=self.pipeline.store.mark(),
        )


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
        make_pipeline: MakePipeline,
        limits: StreamLimits,
        workers: Workers,
        registry: Registry | None = None,
    ) -> None:
        self._clock = clock
        self._make_pipeline = make_pipeline
        self._limits = limits
        self._workers = workers
        self._registry = registry
        self._active: dict[str, _Active] = {}
        self._ended: dict[str, _Ended] = {}
        self._past = StreamTotals()  # of all that ended
        self._opening: dict[str, str] = {}  # stream id to tenant: they count before they exist
        self._making = threading.Lock()
        self._closers = Workers("close", n_threads=4)
        self._closing = TaskSet("streams")
        self._sweeping = TaskSet("streams")
        self._listeners: list[Callable[[str], None]] = []

    def on_end(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the id of every stream that ends."""
        self._listeners.append(listener)

    # ── the life of a stream ──

    async def resume(self) -> None:
        """Go on with the streams of the server's earlier life. Comes before `start`.

        Returns without waiting for cameras: they are reconnected for as long as their streams live.
        """
        if self._registry is None:
            return
        self._registry.start()
        rows, folder = self._registry.rows, self._registry.folder
        for row in rows:
            if isinstance(row, EndedRow):
                self._ended[row.id] = self._tombstone(row.tenant, row.view)
        unended = [row for row in rows if isinstance(row, ActiveRow)]
        self._clear_away(folder.orphans({row.id for row in unended}))
        for row in unended:
            if folder.has_ended(row.id):
                self._bury(row)
        active = [row for row in unended if row.id not in self._ended]
        results = await asyncio.gather(
            *(self._resume(row) for row in active), return_exceptions=True
        )
        for row, error in zip(active, results, strict=True):
            if error is not None:  # the others are not to pay for it
                log.error("stream %s could not be brought back", row.id, exc_info=error)
        self._reap()  # first: what is over takes no place
        self._end_what_does_not_fit()
        await self._go_on()
        if active:
            log.info("%d streams go on", len(self._active))

    def start(self) -> None:
        """Begin to end streams whose lease runs out, without anybody asking for them."""
        self._sweeping.start(self._sweep_for_ever(), name="sweeper")
        if self._registry is not None:
            self._sweeping.start(self._delete_lost_for_ever(), name="lost")

    async def close(self) -> None:
        """Wait until all threads are over. Streams end; with a registry they wait for `resume`."""
        await self._sweeping.close()
        self._reap()
        streams = list(self._active.values())
        for stream in streams:
            if self._registry is None:
                self._end(stream, "deleted")
            else:
                stream.pipeline.feed.stop(
                    timeout_s=0
                )  # all at once; then one need not be waited for
        for stream in streams if self._registry is not None else ():
            self._closing.start(
                self._closers.run(stream.pipeline.suspend), name=f"suspend {stream.id}"
            )
        await self._closing.wait()
        if self._registry is not None:
            await self._closers.run(self._registry.close)
            self._registry.folder.close()
        self._closers.close()

    async def create(
        self, tenant: str, spec: SourceSpec, *, max_streams: int | None = None
    ) -> StreamView:
        """Open the source and give it a stream. `max_streams` is of the key that asks; None: that of
        every key.

        Raises SourceUnavailable, Unsupported or StreamLimitReached. A caller that is cancelled
        leaves nothing behind.
        """
        self._reap()
        self._require_room(tenant, max_streams)
        stream_id = str(uuid.uuid4())
        self._opening[stream_id] = tenant
        try:
            pipeline = await self._opened(stream_id, spec)
            now_ms = self._clock.wall_ms()
            stream = _Active(
                id=stream_id,
                tenant=tenant,
                spec=spec,
                created_at_ms=now_ms,
                expires_s=self._clock.monotonic_s() + LEASE_S,
                expires_at_ms=now_ms + LEASE_S * 1000,
                pipeline=pipeline,
            )
            await self._kept(stream)
        finally:
            del self._opening[stream_id]
        self._active[stream_id] = stream
        return self._view(stream)

    def keepalive(self, tenant: str, stream_id: str) -> StreamView:
        """Renew the lease."""
        stream = self._own(tenant, stream_id)
        stream.expires_s = self._clock.monotonic_s() + LEASE_S
        stream.expires_at_ms = self._clock.wall_ms() + LEASE_S * 1000
        self._put(stream)
        return self._view(stream)

    def delete(self, tenant: str, stream_id: str) -> None:
        """End the stream. Again and again while its tombstone stands.

        Raises StreamLimitReached where a restart would bring it back.
        """
        self._reap()
        ended = self._ended.get(stream_id)
        if ended is None or ended.tenant != tenant:
            stream = self._own(tenant, stream_id)
            self._note_deletion(stream_id)
            self._end(stream, "deleted")

    def end_all(self, tenant: str) -> None:
        """End every stream of a tenant that is no more."""
        for stream in [one for one in self._active.values() if one.tenant == tenant]:
            with suppress(StreamLimitReached):  # a disk that refuses; its lease ends it
                self.delete(tenant, stream.id)

    async def settled(self) -> None:
        """Return once a restart would know all that has happened, if the disk lets it."""
        await self._is_settled()

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
        unsaved = 0 if self._registry is None else self._registry.n_waiting
        return self._past.with_active(views, opening=len(self._opening), unsaved=unsaved)

    def own_store(self, tenant: str, stream_id: str) -> FrameStore:
        """The frames of the tenant's stream. Someone else's stream is not found."""
        return self._own(tenant, stream_id).pipeline.store

    def stores(self, tenant: str, stream_ids: Iterable[str]) -> dict[str, FrameStore]:
        """The frames of several streams. Someone else's raises StreamUnauthorized."""
        self._reap()
        return {stream_id: self._named(tenant, stream_id) for stream_id in stream_ids}

    def publisher_entrance(self, stream_id: str) -> PublishedSource:
        """Where the stream's publishers come in. Whoever asks has checked their token, which is of
        no key. Raises StreamNotFound or StreamStateInvalid."""
        self._reap()
        stream = self._active.get(stream_id)
        if stream is None:
            raise _not_found(stream_id)
        if stream.pipeline.published is None:
            raise StreamStateInvalid(
                f"stream {stream_id} has a source of type {stream.spec.type}; only a stream created"
                " with a source of type livekit or whip takes publishers"
            )
        return stream.pipeline.published

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
                f"stream {stream_id} has a source of type {stream.spec.type}; frames can only be"
                " pushed into a stream created with a source of type push"
            )
        return await self._workers.run_in_turn(
            lambda: pushed.push(data, captured_at_ms=captured_at_ms),
            owner=tenant,
            part=f"frames of stream {stream_id}",
        )

    # ── inside ──

    def _require_room(self, tenant: str, of_key: int | None) -> None:
        tenants = [*(s.tenant for s in self._active.values()), *self._opening.values()]
        limits = self._limits
        most = limits.max_streams_per_tenant if of_key is None else of_key
        if (n_own := tenants.count(tenant)) >= most:
            name = "max_streams_per_key" if of_key is None else "max_streams of this key"
            raise StreamLimitReached(
                f"this key has {n_own} streams, its limit is {most} ({name}); delete one first"
            )
        if len(tenants) >= limits.max_streams:
            raise StreamLimitReached(
                f"the server has {limits.max_streams} streams, its limit (max_streams)"
            )
        if (len(tenants) + 1) * limits.reserved_bytes_per_stream > limits.reserved_bytes:
            raise StreamLimitReached(
                "no memory for another stream: each reserves"
                f" {limits.reserved_bytes_per_stream >> 20} MB (hot_mb and history_mb), and of the"
                f" {limits.reserved_bytes >> 20} MB for all (streams_mb) active ones hold"
                f" {len(tenants) * limits.reserved_bytes_per_stream >> 20} MB; delete one first"
            )

    async def _opened(self, stream_id: str, spec: SourceSpec) -> Pipeline:
        pipeline = await self._workers.run(lambda: self._made(stream_id, spec))
        has_opened = False
        try:
            pipeline.feed.start()
            await pipeline.feed.opened()
            has_opened = True
        finally:
            if not has_opened:
                self._close_soon(pipeline, stream_id)
        return pipeline

    def _made(self, stream_id: str, spec: SourceSpec) -> Pipeline:
        """Blocking."""
        if self._registry is None:
            return self._make_pipeline(stream_id, spec)
        folder = self._registry.folder
        with self._making:  # else two find room for one
            folder.require_room(self._limits.disk_bytes_per_stream)
            pipeline = self._make_pipeline(stream_id, spec)
        failure = pipeline.store.failure
        if failure is not None:
            pipeline.close()
            FrameStore.forget(folder.frames_of(stream_id))
            raise StreamLimitReached(
                f"the frames of another stream cannot be kept in {folder.path} (state_dir):"
                f" {failure}; free disk space, end a stream, or lower history_mb"
            )
        return pipeline

    async def _kept(self, stream: _Active) -> None:
        """Have the registry know the stream, or close it again."""
        if self._registry is None:
            return
        is_kept = False
        try:
            self._registry.put(stream.row)
            await self._registry.saved()
            is_kept = True
        finally:
            if not is_kept:
                self._registry.forget(stream.id)
                self._close_soon(stream.pipeline, stream.id)

    async def _resume(self, row: ActiveRow) -> None:
        # By the threads that end streams: there are more of them, and nobody waits for those yet.
        pipeline = await self._closers.run(lambda: self._revived(row))
        now_ms = self._clock.wall_ms()  # once: two looks would lengthen the lease
        # A wall clock that was set back in between must not make a lease longer than any.
        left_ms = min(row.expires_at_ms - now_ms, LEASE_S * 1000)
        stream = _Active(
            id=row.id,
            tenant=row.tenant,
            spec=row.spec,
            created_at_ms=row.created_at_ms,
            expires_s=self._clock.monotonic_s() + left_ms / 1000,
            expires_at_ms=now_ms + left_ms,
            pipeline=pipeline,
            n_marked=0 if row.mark is None else row.mark.n_produced,
        )
        if row.finished is not None:
            stream.finished = SourceStatus(health="ended", reason=row.finished)
        self._active[row.id] = stream
        self._past.discount(self._view(stream))
        self._renew_mark(stream)

    def _revived(self, row: ActiveRow) -> Pipeline:
        """Blocking."""
        pipeline = self._make_pipeline(row.id, row.spec, resumed=True)
        if row.mark is not None:
            pipeline.store.go_on_after(row.mark)
        return pipeline

    def _bury(self, row: ActiveRow) -> None:
        """It was deleted, and the registry could not be told. Its counters went with its frames."""
        assert self._registry is not None, "there are no rows without"
        limits = StoreLimits(hot_bytes=1, history_bytes=0, max_frames=1)
        life = LifeView(
            id=row.id,
            source_type=row.spec.type,
            created_at_ms=row.created_at_ms,
            expires_at_ms=None,
            ttl_seconds=LEASE_S,
            ended_at_ms=self._clock.wall_ms(),
            end_reason="deleted",
        )
        counters = FrameStore(row.id, clock=self._clock, limits=limits).counters()
        view = make_view(life, counters, SourceStatus(health="ended"), last_pull_ms=None)
        self._ended[row.id] = self._tombstone(row.tenant, view)
        self._registry.put(EndedRow(tenant=row.tenant, expires_at_ms=row.expires_at_ms, view=view))
        self._closing.start(self._forget_frames(row.id), name=f"forget {row.id}")

    async def _go_on(self) -> None:
        """Have the sources of all streams that are left begin again."""
        pipelines = [one.pipeline for one in self._active.values() if one.finished is None]
        for pipeline in pipelines:
            pipeline.feed.resume()
        for pipeline in pipelines:  # opened at once where clients may come as soon as we answer
            if pipeline.pushed is not None or pipeline.published is not None:
                with suppress(SourceUnavailable):
                    await pipeline.feed.opened()

    def _end_what_does_not_fit(self) -> None:
        """The server may have been started with less memory than the last time."""
        limits = self._limits
        most = min(
            limits.max_streams, limits.reserved_bytes // max(1, limits.reserved_bytes_per_stream)
        )
        oldest_first = sorted(self._active.values(), key=lambda stream: stream.created_at_ms)
        for stream in oldest_first[most:]:
            log.warning(
                "stream %s is ended: there is room for %d streams now (max_streams, streams_mb)",
                stream.id,
                most,
            )
            self._end(stream, "deleted")

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
            if self._registry is not None:
                self._registry.forget(stream_id)

    def _end(self, stream: _Active, reason: EndReason) -> None:
        at_ms = stream.expires_at_ms if reason == "expired" else self._clock.wall_ms()
        view = self._view(stream, ended_at_ms=at_ms, end_reason=reason)
        del self._active[stream.id]
        self._ended[stream.id] = self._tombstone(stream.tenant, view)
        if self._registry is not None:
            row = EndedRow(tenant=stream.tenant, expires_at_ms=stream.expires_at_ms, view=view)
            self._registry.put(row)
        for listener in self._listeners:
            listener(stream.id)
        self._past.count(view)
        self._close_soon(stream.pipeline, stream.id)

    def _tombstone(self, tenant: str, view: StreamView) -> _Ended:
        ended_ms_ago = self._clock.wall_ms() - (view.ended_at_ms or 0)
        left_s = min(TOMBSTONE_S - ended_ms_ago / 1000, TOMBSTONE_S)
        return _Ended(tenant=tenant, view=view, forget_s=self._clock.monotonic_s() + left_s)

    def _put(self, stream: _Active) -> None:
        if self._registry is not None:
            row = stream.row
            stream.n_marked = 0 if row.mark is None else row.mark.n_produced
            self._registry.put(row)

    def _renew_mark(self, stream: _Active) -> None:
        """Long before INDICES_AHEAD frames have come."""
        mark = stream.pipeline.store.mark()
        if mark is None:
            return
        if stream.n_marked == 0 or mark.n_produced - stream.n_marked > INDICES_AHEAD // 2:
            self._put(stream)

    def _note_deletion(self, stream_id: str) -> None:
        registry = self._registry
        if registry is None or registry.folder.note_ended(stream_id) or registry.failure is None:
            return
        raise StreamLimitReached(
            f"stream {stream_id} is not deleted, for a restart would not know it:"
            f" {registry.folder.path} (of state_dir) cannot be written: {registry.failure};"
            " free disk space, and delete it again"
        )

    async def _is_settled(self) -> bool:
        if self._registry is None:
            return True
        try:
            await self._registry.saved()
        except StreamLimitReached:  # logged, and tried again
            return False
        return True

    def _close_soon(self, pipeline: Pipeline, stream_id: str) -> None:
        self._closing.start(self._close(pipeline, stream_id), name=f"close {stream_id}")

    async def _close(self, pipeline: Pipeline, stream_id: str) -> None:
        await self._closers.run(pipeline.close)
        if self._registry is not None:
            await self._forget_frames(stream_id)

    async def _forget_frames(self, stream_id: str) -> None:
        assert self._registry is not None, "nothing is kept without"
        folder = self._registry.folder
        has_note = folder.has_ended(stream_id)
        if has_note:  # at once: the registry may need the space
            await self._closers.run(lambda: folder.empty_ended(stream_id))
        is_known = await self._is_settled()
        await self._closers.run(lambda: FrameStore.forget(folder.frames_of(stream_id)))
        if has_note and is_known:  # else the next start does it
            await self._closers.run(lambda: folder.forget_ended(stream_id))

    def _clear_away(self, orphans: list[Path]) -> None:
        """Folders for which there is no stream. One that the registry has never heard of may be all
        that is left of a registry that was lost."""
        assert self._registry is not None, "nothing is kept without"
        lost = [one for one in orphans if one.name not in self._ended and holds_frames(one)]
        for orphan in orphans:
            if orphan not in lost:
                self._delete_soon(orphan)
        if lost:
            place = self._registry.folder.set_aside(lost, now_ms=self._clock.wall_ms())
            log.warning(
                "the frames of %d streams that are not known any more (was streams.sqlite3 lost or"
                " cut?) are kept in %s for a day",
                len(lost),
                place,
            )

    async def _delete_lost_for_ever(self) -> None:
        assert self._registry is not None, "nothing is kept without"
        while True:
            for folder in self._registry.folder.overdue(now_ms=self._clock.wall_ms()):
                self._delete_soon(folder)
            await self._clock.sleep(DELETE_LOST_EVERY_S)

    def _delete_soon(self, folder: Path) -> None:
        log.info("%s belongs to no stream and is deleted", folder)
        self._closing.start(self._closers.run(lambda: remove(folder)), name=f"delete {folder.name}")

    def _view(
        self,
        stream: _Active,
        *,
        ended_at_ms: int | None = None,
        end_reason: EndReason | None = None,
    ) -> StreamView:
        counters = stream.pipeline.store.counters()
        if stream.spec.type not in PUSHED:
            stream.last_pull_ms = _stepped(stream.last_pull_ms, counters.last_frame_at_ms)
        life = LifeView(
            id=stream.id,
            source_type=stream.spec.type,
            created_at_ms=stream.created_at_ms,
            expires_at_ms=stream.expires_at_ms if ended_at_ms is None else None,
            ttl_seconds=LEASE_S,
            ended_at_ms=ended_at_ms,
            end_reason=end_reason,
        )
        status = stream.finished or stream.pipeline.feed.status()
        is_waiting = status.health == "waiting_for_publisher"
        if stream.spec.type == "push" and is_waiting and counters.last_frame_index is not None:
            status = replace(status, reason="no frame has been pushed since the restart")
        return make_view(life, counters, status, last_pull_ms=stream.last_pull_ms)

    async def _sweep_for_ever(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_EVERY_S)
            self._reap()
            self._note_progress()

    def _note_progress(self) -> None:
        """A file that has been played is not played again after a restart."""
        for stream in self._active.values() if self._registry is not None else ():
            status = stream.pipeline.feed.status()
            if stream.finished is None and status.health == "ended":
                stream.finished = status
                self._put(stream)
            self._renew_mark(stream)


def _not_found(stream_id: str) -> StreamNotFound:
    return StreamNotFound(f"there is no stream {stream_id[:80]}: unknown, ended or expired")


def _stepped(before_ms: int | None, newest_ms: int | None) -> int | None:
    if before_ms is None or newest_ms is None:
        return newest_ms
    return newest_ms if newest_ms - before_ms >= LAST_PULL_STEP_MS else before_ms

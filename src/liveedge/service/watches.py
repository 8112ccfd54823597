"""The watches: which there are, whose, and how long.

Owns    every watch and its tombstone, the thread of their thumbnails, and what is counted over all.
Thread  the event loop.
Never   tells a tenant about another's watch. With a state folder watches do not outlive the process.

Invariants
1. At most `max_watches` are active, at most `max_watches_per_tenant` of one tenant; as many
   tombstones of each.
2. A watch ends once, for a reason: with any stream of its question; at its `until` or `max_results`;
   deleted; with the server; or when nobody has listened to it or looked at it for `ttl_s`.
3. A watch that has ended can be looked at and read to its last event for `TOMBSTONE_S`.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from liveedge.core.clock import Clock
from liveedge.core.errors import (
    ModelUnavailable,
    RequestInvalid,
    WatchLimitReached,
    WatchNotFound,
)
from liveedge.core.tasks import TaskSet
from liveedge.service.lookup import is_live
from liveedge.service.parts import Reference
from liveedge.service.question import Answers, Question
from liveedge.service.streams import Streams
from liveedge.service.thumbnails import Thumbnails
from liveedge.service.watch import Live, Watch, WatchSpec, WatchTools
from liveedge.service.watch_events import END_REASONS, KINDS, SKIP_REASONS, EncodeEvent, WatchView

MAX_WATCH_BODY_BYTES = 256 << 10  # kept for as long as the watch lives
TOMBSTONE_S = 300.0
MIND_EVERY_S = 1.0

# Raises what the question would be refused with; gives its references.
Check = Callable[[Question], Awaitable[Sequence[Reference]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """How many watches there may be, and how long one goes on that nobody looks at."""

    max_watches: int = 32
    max_watches_per_tenant: int = 16
    ttl_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTotals:
    """What is counted over all watches of all keys."""

    active: int
    listeners: int
    events: Mapping[str, int]  # by kind
    skipped: Mapping[str, int]  # by reason; one event may stand for many
    ended: Mapping[str, int]  # by reason
    listeners_ended: Mapping[str, int]  # by reason
    dropped_events: int


class Watches:
    """The registry of all watches."""

    def __init__(
        self,
        *,
        clock: Clock,
        answers: Answers,
        check: Check,
        streams: Streams,
        encode: EncodeEvent,
        limits: WatchLimits,
        chance: random.Random,
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._check = check
        self._streams = streams
        self._watches: dict[str, Watch] = {}  # oldest first, tombstones included
        self._ended: Counter[str] = Counter()
        self._is_closed = False
        self._tasks = TaskSet("watches")
        self._minder: asyncio.Task[None] | None = None
        self._thumbnails = Thumbnails()
        self._tools = WatchTools(
            clock=clock,
            answers=answers,
            thumbnails=self._thumbnails,
            encode=encode,
            chance=chance,
            events=Counter(),
            skipped=Counter(),
            slow=Counter(),
        )
        streams.on_end(self._stream_ended)

    @property
    def n_active(self) -> int:
        return len(self._active())

    async def create(self, spec: WatchSpec) -> WatchView:
        """Begin to ask. Raises what a chat request with this question would be refused with, and
        RequestInvalid, WatchLimitReached or ModelUnavailable."""
        question = spec.question
        if spec.until_ms is not None and spec.until_ms <= self._clock.wall_ms():
            raise RequestInvalid(
                f"until is {spec.until_ms}, and it is {self._clock.wall_ms()} now; it is a moment of"
                " the wall clock in Unix milliseconds",
                loc=("body", "until"),
            )
        references = await self._check(question)
        _require_live(references)
        # From here on nothing waits: what is true now is true when the watch begins.
        stream_ids = tuple(dict.fromkeys(item.ref.stream_id for item in references))
        stores = self._streams.stores(question.tenant, stream_ids)
        self._require_room(question.tenant)
        live = tuple(
            Live(stores[item.ref.stream_id], _bound_s(item, question))
            for item in references
            if is_live(item.ref)
        )
        watch = Watch(uuid.uuid4().hex, spec, stream_ids=stream_ids, live=live, tools=self._tools)
        self._watches[watch.id] = watch
        watch.start()
        if self._minder is None:
            self._minder = self._tasks.start(self._mind(), name="minder")
        return self._view(watch)

    def view(self, tenant: str, watch_id: str) -> WatchView:
        """One of the tenant's watches, also one that has ended. Looking keeps it alive."""
        watch = self._require(tenant, watch_id)
        watch.noticed_s = self._clock.monotonic_s()
        return self._view(watch)

    def views(self, tenant: str) -> list[WatchView]:
        """The tenant's watches, oldest first, tombstones included. Keeps none alive."""
        self._forget()
        return [self._view(watch) for watch in self._watches.values() if watch.tenant == tenant]

    def delete(self, tenant: str, watch_id: str) -> None:
        """End it. Again and again while its tombstone stands."""
        self._require(tenant, watch_id).end("deleted")

    def end_of_key(self, key_id: str) -> None:
        """End what this key has begun: it was revoked, or has expired."""
        for watch in self._active():
            if watch.key_id == key_id:
                watch.end("key_ended")

    def listen(self, tenant: str, watch_id: str) -> Watch:
        """The watch, to read its events. Keeps it alive."""
        watch = self._require(tenant, watch_id)
        watch.noticed_s = self._clock.monotonic_s()
        return watch

    def totals(self) -> WatchTotals:
        """For whoever runs the server."""
        tools = self._tools
        return WatchTotals(
            active=self.n_active,
            listeners=sum(watch.listeners.used for watch in self._watches.values()),
            events={kind: tools.events[kind] for kind in KINDS},
            skipped={reason: tools.skipped[reason] for reason in SKIP_REASONS},
            ended=self._ends(),
            listeners_ended={"slow": tools.slow["slow"]},
            dropped_events=tools.events["dropped"],
        )

    def stop(self) -> None:
        """End all of them; their listeners are told that the server stops."""
        self._is_closed = True
        for watch in self._active():
            watch.end("server_stopping")

    async def close(self) -> None:
        self.stop()
        await self._tasks.close()
        for watch in self._watches.values():
            await watch.closed()
        await self._thumbnails.close()

    # ── inside ──

    def _active(self) -> list[Watch]:
        return [watch for watch in self._watches.values() if watch.end_reason is None]

    def _ends(self) -> dict[str, int]:
        found = self._ended + Counter(
            watch.end_reason for watch in self._watches.values() if watch.end_reason is not None
        )
        return {reason: found[reason] for reason in END_REASONS}

    def _view(self, watch: Watch) -> WatchView:
        return watch.view(ttl_s=self.limits.ttl_s)

    def _require(self, tenant: str, watch_id: str) -> Watch:
        self._forget()
        watch = self._watches.get(watch_id)
        if watch is None or watch.tenant != tenant:
            raise WatchNotFound(
                f"there is no watch {watch_id[:80]}: unknown, or ended more than"
                f" {TOMBSTONE_S:.0f} s ago"
            )
        return watch

    def _require_room(self, tenant: str) -> None:
        if self._is_closed:
            raise ModelUnavailable("the server is stopping; ask again when it is back")
        active, limits = self._active(), self.limits
        n_own = sum(watch.tenant == tenant for watch in active)
        if n_own >= limits.max_watches_per_tenant:
            raise WatchLimitReached(
                f"this key has {n_own} watches, its limit (max_watches_per_key); delete one first"
            )
        if len(active) >= limits.max_watches:
            raise WatchLimitReached(
                f"the server has {len(active)} watches, its limit (max_watches); delete one first"
            )

    def _stream_ended(self, stream_id: str) -> None:
        for watch in self._active():
            if stream_id in watch.stream_ids:
                watch.end("stream_ended")

    async def _mind(self) -> None:
        """End what nobody looks at, and forget what ended."""
        while self._watches:
            await self._clock.sleep(MIND_EVERY_S)
            now_s = self._clock.monotonic_s()
            for watch in self._active():
                if watch.listeners.used == 0 and watch.noticed_s + self.limits.ttl_s <= now_s:
                    watch.end("expired")
            self._forget()
        self._minder = None

    def _forget(self) -> None:
        """Tombstones that are old, or too many: the oldest go first."""
        now_s, limits = self._clock.monotonic_s(), self.limits
        ended = [watch for watch in self._watches.values() if watch.ended_s is not None]
        ended.sort(key=lambda watch: watch.ended_s or 0.0)
        kept: list[Watch] = []
        for watch in reversed(ended):
            is_old = (watch.ended_s or 0.0) + TOMBSTONE_S <= now_s
            n_own = sum(other.tenant == watch.tenant for other in kept)
            is_full = len(kept) >= limits.max_watches or n_own >= limits.max_watches_per_tenant
            if is_old or is_full:
                del self._watches[watch.id]
                self._ended[watch.end_reason or "failed"] += 1
            else:
                kept.append(watch)
        self._let_thumbnails_go()

    def _let_thumbnails_go(self) -> None:
        looked_at = {stream_id for watch in self._active() for stream_id in watch.stream_ids}
        self._thumbnails.keep_only(looked_at)


def _require_live(references: Iterable[Reference]) -> None:
    if not any(is_live(item.ref) for item in references):
        raise RequestInvalid(
            "nothing in the messages changes with time: a watch needs an ovs:// reference to the live"
            " edge of a stream, such as frame_index=-1 or start_offset_ms=-4000; ask a question about"
            " the past once, by /chat/completions",
            loc=("body", "messages"),
        )


def _bound_s(item: Reference, question: Question) -> float | None:
    bound_ms = item.ref.max_age_ms or question.max_age_ms
    return None if bound_ms is None else bound_ms / 1000

"""The engine's async face, where HTTP is served. Torch-free.

The engine itself is at the other end of a link: in a thread, or in a process of its own that is
replaced when it crashes or hangs.
Threads  `generate` and `warm` run in any event loop; the link's thread calls `take` and `down`.
Invariants
1. Every request that entered gets exactly one end, even when the engine crashes, hangs or stops.
2. At most `queue_capacity` requests wait for a slot; one more is refused before its first event.
3. Messages cannot overflow the engine's inbox: each kind is bounded by what may be alive at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias, assert_never

from liveedge.core.clock import Clock
from liveedge.core.errors import (
    LiveEdgeError,
    ModelUnavailable,
    QueueFull,
    WindowLimitReached,
)
from liveedge.engine.form.forms import AnswerForm
from liveedge.engine.form.schema_gate import SchemaGate
from liveedge.engine.front import Front
from liveedge.engine.interface import (
    EngineSettings,
    EngineStats,
    EngineStatus,
    ModelInfo,
    PreparedRequest,
    Warmed,
    WindowPrefix,
)
from liveedge.engine.prepare import Preparer
from liveedge.engine.process.desk import Desk
from liveedge.engine.process.link import Engine, Link, ProcessLink, ThreadLink
from liveedge.engine.process.messages import (
    Abort,
    Compile,
    DropFetch,
    DropWindow,
    Fetch,
    Freed,
    FromEngine,
    LeftQueue,
    Opened,
    OpenFailed,
    Pong,
    Released,
    Submit,
    Turned,
    Warm,
    most_warms,
)
from liveedge.engine.process.spawn import Nursery
from liveedge.engine.process.supervisor import Patience
from liveedge.engine.request import Event, Failed, Finished, GenerateRequest

log = logging.getLogger("liveedge.engine")

AnyEvent: TypeAlias = Event | Warmed
RETRY_S = 1.0

# What is as large as it is now; all other numbers are counted from zero by each engine, and their
# sums go on over restarts.
GAUGES: Final = frozenset(
    {
        "queue_depth",
        "running",
        "slots_total",
        "slots_used",
        "resident_tokens",
        "encoder_cache_bytes",
        "encoder_cache_capacity_bytes",
        "encoder_pinned_bytes",
        "loads_in_flight",
        "patch_bytes",
        "windows",
    }
)
# Known on this side alone.
OURS: Final = frozenset({"n_restarts", "refused", "shared_frame_bytes"})
COUNTERS: Final = tuple(
    f.name for f in fields(EngineStats) if f.name not in GAUGES and f.name not in OURS
)


@dataclass(slots=True, eq=False)
class _Outlet:
    """Where the events of one request go. At most one event per token, plus the end."""

    loop: asyncio.AbstractEventLoop
    events: list[AnyEvent] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False  # an end was sent; the link's thread only

    def put(self, events: list[AnyEvent]) -> None:
        """On the event loop's thread."""
        self.events += events
        self.arrived.set()

    async def take(self) -> list[AnyEvent]:
        await self.arrived.wait()
        self.arrived.clear()
        events, self.events = self.events, []
        return events


class EngineClient:
    """See `interface.Engine`. Made by `load_engine`."""

    def __init__(self, front: Front, link: Link, *, clock: Clock) -> None:
        self._front = front
        self._settings = front.settings
        self._link = link
        self._clock = clock
        self._schemas = SchemaGate(self._compile_ahead)
        self._preparer = Preparer(
            front.builder,
            model=front.model,
            max_media_tokens=front.sizing.feature_rows,
            schemas=self._schemas,
        )
        # As many as the engine asks for at once: a slow camera holds up only its own frames.
        n_fetches = front.sizing.limits.max_loading
        self._desk = Desk(send=link.send, n_threads=n_fetches, room=link.room)
        self._lock = threading.Lock()  # over everything below
        self._status: EngineStatus = "loading"
        self._failure: LiveEdgeError | None = None  # why it is not ready
        self._outlets: dict[str, _Outlet] = {}
        self._queued: set[str] = set()
        self._warming: set[str] = set()  # requests of `warm` that the engine has not released
        self._windows: set[str] = set()  # that it was told of
        self._settled = threading.Event()  # no longer loading
        self._refused = 0
        self._n_starts = 0
        self._startup_ms = dict(front.startup_ms)
        self._stats = EngineStats(slots_total=self._settings.n_slots)
        self._before = EngineStats()  # counters of engines that ended
        link.start(self)

    # any thread

    @property
    def model(self) -> ModelInfo:
        return self._front.model

    @property
    def n_starts(self) -> int:
        return self._n_starts

    @property
    def pid(self) -> int | None:
        """Of the engine process, while there is one."""
        return self._link.pid

    @property
    def standby_pid(self) -> int | None:
        """Of the process that waits for its turn, if there is one."""
        return self._link.standby_pid

    @property
    def n_live(self) -> int:
        """Requests whose frames the engine may still ask for; zero when idle."""
        return self._desk.n_live

    def status(self) -> EngineStatus:
        return self._status

    def retry_after_s(self) -> float:
        return self._link.retry_after_s()

    async def ready(self) -> None:
        await asyncio.to_thread(self._settled.wait)
        if self._failure is not None and self._status == "failed":
            raise self._failure
        self._check_ready()

    def startup_ms(self) -> Mapping[str, float]:
        return dict(self._startup_ms)

    def check_form(self, form: AnswerForm) -> None:
        self._schemas.check(form)

    def prepare(self, request: GenerateRequest) -> PreparedRequest:
        return self._preparer.prepare(request)

    def prepare_window(self, request: GenerateRequest) -> PreparedRequest:
        return self._preparer.prepare_window(request)

    def stats(self) -> EngineStats:
        with self._lock:
            stats = _sum(self._before, self._stats)
            return replace(
                stats,
                n_restarts=self._link.n_restarts,
                queue_depth=len(self._queued),
                refused=self._refused,
                shared_frame_bytes=self._desk.used_bytes,
            )

    def close(self) -> None:
        self._link.close()
        self._desk.close()

    async def generate(self, prepared: PreparedRequest) -> AsyncGenerator[Event, None]:
        request_id = prepared.request.request_id
        outlet = _Outlet(asyncio.get_running_loop())
        self._enter(outlet, prepared)
        ended = False
        try:
            while not ended:
                for event in await outlet.take():
                    assert not isinstance(event, Warmed), "that is the end of a prefix"
                    ended = isinstance(event, Finished | Failed)
                    yield event
        finally:
            self._leave(request_id, ended=ended)

    async def warm(self, prefix: WindowPrefix) -> Warmed:
        outlet = _Outlet(asyncio.get_running_loop())
        self._enter_warm(outlet, prefix)
        end: AnyEvent | None = None
        try:
            while not isinstance(end, Warmed | Failed):
                end = (await outlet.take())[-1]
        finally:
            self._leave(prefix.prepared.request.request_id, ended=end is not None)
        if isinstance(end, Failed):
            raise end.error
        return end

    def drop_window(self, window_id: str) -> None:
        with self._lock:
            if window_id in self._windows:
                self._windows.remove(window_id)
                self._link.send(DropWindow(window_id))

    def _compile_ahead(self, grammar: str) -> None:
        if self._status == "ready":
            self._link.send(Compile(grammar))

    def _enter(self, outlet: _Outlet, prepared: PreparedRequest) -> None:
        with self._lock:
            self._check_ready()
            if len(self._queued) >= self._settings.queue_capacity:
                self._refused += 1
                raise QueueFull(
                    f"{len(self._queued)} requests wait already, which is the limit; try again soon",
                    retry_after_s=RETRY_S,
                )
            self._admit(outlet, prepared)
            self._queued.add(prepared.request.request_id)
            self._link.send(Submit(prepared, self._clock.monotonic_s()))

    def _enter_warm(self, outlet: _Outlet, prefix: WindowPrefix) -> None:
        with self._lock:
            self._check_ready()
            limit = most_warms(self._settings)
            if len(self._warming) >= limit:
                raise WindowLimitReached(
                    f"{len(self._warming)} prefixes of windows are being made, which is the limit"
                    f" with {self._settings.n_windows} windows: wait for one to end, or raise"
                    " n_windows (--max-windows)"
                )
            self._admit(outlet, prefix.prepared)
            self._warming.add(prefix.prepared.request.request_id)
            self._windows.add(prefix.window_id)
            self._link.send(Warm(prefix, self._clock.monotonic_s()))

    def _admit(self, outlet: _Outlet, prepared: PreparedRequest) -> None:
        request_id = prepared.request.request_id
        if request_id in self._outlets:
            raise ValueError(f"request id {request_id} is in use: ids are for one request each")
        self._outlets[request_id] = outlet
        self._desk.enter(prepared)

    def _leave(self, request_id: str, *, ended: bool) -> None:
        with self._lock:
            known = self._outlets.pop(request_id, None) is not None
            if known and not ended and self._status == "ready":
                self._link.send(Abort(request_id))

    def _check_ready(self) -> None:
        model_id = self.model.model_id
        if self._status == "ready":
            return
        if self._failure is None:
            raise ModelUnavailable(
                f"the model {model_id} is {self._status}; try again soon",
                retry_after_s=self.retry_after_s(),
            )
        if self._status == "failed":
            raise ModelUnavailable(f"the model {model_id} failed: {self._failure.message}")
        # Of now: the failure itself says how long it was when the engine ended.
        raise ModelUnavailable(self._failure.message, retry_after_s=self.retry_after_s())

    # the link's thread: `link.Listener`

    def take(self, message: FromEngine) -> None:
        match message:
            case Turned(events, stats):
                if stats is not None:  # before the events: who sees an end sees them without it
                    self._stats = stats
                self._deliver(events)
            case Fetch() | DropFetch() | Freed():
                self._desk.take(message)
            case Released(request_ids):
                self._desk.take(message)
                self._release(request_ids)
            case LeftQueue(request_ids):
                with self._lock:
                    self._queued.difference_update(request_ids)
            case Opened(startup_ms):
                self._open(startup_ms)
            case Pong() | OpenFailed():
                raise AssertionError(f"{message} is for the link")
            case _:
                assert_never(message)

    def down(self, error: LiveEdgeError, status: EngineStatus) -> None:
        """Nothing enters any more, and everything that entered ends."""
        with self._lock:
            self._status, self._failure = status, error
            n_lost = 0
            for outlet in self._outlets.values():
                if not outlet.ended:
                    n_lost += 1
                    self._put(outlet, [Failed(error=error)])
            self._queued.clear()
            self._warming.clear()
            self._windows.clear()
            lost = replace(self._stats, failed=self._stats.failed + n_lost)
            self._before = _sum(self._before, _counters(lost))
            self._stats = EngineStats(slots_total=self._settings.n_slots)
            if status == "loading":
                self._settled.clear()
            else:
                self._settled.set()
        self._desk.reset()

    def _open(self, startup_ms: Mapping[str, float]) -> None:
        with self._lock:
            self._startup_ms = {**self._front.startup_ms, **startup_ms}
            self._n_starts += 1
            self._status, self._failure = "ready", None
            self._settled.set()

    def _release(self, request_ids: Iterable[str]) -> None:
        with self._lock:
            self._warming.difference_update(request_ids)

    def _deliver(self, events: tuple[tuple[str, AnyEvent], ...]) -> None:
        """Hand events to their event loops."""
        for request_id, group in groupby(events, key=lambda item: item[0]):
            outlet = self._outlets.get(request_id)
            if outlet is not None and not self._put(outlet, [event for _, event in group]):
                log.warning("an event loop was closed before its request ended")
                self._leave(request_id, ended=False)

    def _put(self, outlet: _Outlet, events: list[AnyEvent]) -> bool:
        """False where nobody can listen any more."""
        if outlet.loop.is_closed():
            return False
        outlet.ended = outlet.ended or isinstance(events[-1], Finished | Failed | Warmed)
        try:
            outlet.loop.call_soon_threadsafe(outlet.put, events)
        except RuntimeError:  # closed since the line above
            return False
        return True


def _sum(before: EngineStats, now: EngineStats) -> EngineStats:
    """Gauges of now, counters of both."""
    sums = {name: getattr(before, name) + getattr(now, name) for name in COUNTERS}
    return replace(now, **sums)


def _counters(stats: EngineStats) -> EngineStats:
    return EngineStats(**{name: getattr(stats, name) for name in COUNTERS})


def load_engine(
    folder: Path,
    *,
    settings: EngineSettings,
    clock: Clock,
    inproc: bool = True,
    patience: Patience | None = None,
    nursery: Nursery | None = None,
) -> EngineClient:
    """Start an engine for a checkpoint folder, in a thread or in a process of its own. Prompts can
    be prepared at once; torch and the weights come later, see `EngineClient.ready`.

    A process that waits in `nursery` becomes the engine. Raises CheckpointInvalid or SettingsInvalid
    for what can be seen without the weights.
    """
    front = Front(folder, settings, clock)
    engine = Engine(
        folder=folder, settings=front.settings, model_id=front.model.model_id, clock=clock
    )
    link: Link
    if inproc:
        link = ThreadLink(engine, vocabulary=front.builder.vocabulary)
    else:
        link = ProcessLink(engine, patience=patience or Patience(), nursery=nursery or Nursery())
    return EngineClient(front, link, clock=clock)

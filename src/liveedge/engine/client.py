"""The engine in this process: an async face before the engine thread.

Threads  `generate` runs in any event loop; the engine thread calls `deliver` and `left_queue`.
Invariants
1. Every request that entered gets exactly one end, even when the engine thread crashes or stops.
2. At most `queue_capacity` requests wait for a slot; one more is refused before its first event.
3. Messages cannot overflow the inbox: each kind is bounded by what may be alive at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from liveedge.core.clock import Clock
from liveedge.core.errors import InternalError, LiveEdgeError, ModelUnavailable, QueueFull
from liveedge.core.mailbox import Mailbox
from liveedge.core.tasks import OwnedThread
from liveedge.engine.interface import (
    EngineSettings,
    EngineStats,
    EngineStatus,
    ModelInfo,
    PreparedRequest,
)
from liveedge.engine.loop import Abort, EngineInput, EngineLoop, Loaded, Stop, Submit
from liveedge.engine.plan import LoadJob
from liveedge.engine.prepare import Preparer
from liveedge.engine.request import Event, Failed, Finished, GenerateRequest
from liveedge.engine.scheduler import Scheduler
from liveedge.engine.start import Opening, Parts

log = logging.getLogger("liveedge.engine")

STOP_TIMEOUT_S = 10.0


@dataclass(slots=True, eq=False)
class _Outlet:
    """Where the events of one request go. At most one event per token, plus the end."""

    loop: asyncio.AbstractEventLoop
    events: list[Event] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False  # an end was sent; engine thread only

    def put(self, events: list[Event]) -> None:
        """On the event loop's thread."""
        self.events += events
        self.arrived.set()

    async def take(self) -> list[Event]:
        await self.arrived.wait()
        self.arrived.clear()
        events, self.events = self.events, []
        return events


class EngineClient:
    """See `interface.Engine`. Made by `load_engine`."""

    def __init__(self, opening: Opening, *, settings: EngineSettings, clock: Clock) -> None:
        self._opening = opening
        self._settings = settings
        self._clock = clock
        self._preparer = Preparer(
            opening.builder,
            model=opening.model,
            max_media_tokens=opening.sizing.feature_rows,
            schemas=opening.schemas,
        )
        # A waiting request may have one Submit and one Abort here, a running one an Abort.
        bound = 2 * settings.queue_capacity + settings.n_slots
        n_loads = opening.sizing.limits.max_loading + settings.load_threads
        self._inbox: Mailbox[EngineInput] = Mailbox(bound + n_loads + 1)
        self._lock = threading.Lock()  # over the four below
        self._status: EngineStatus = "loading"
        self._failure: LiveEdgeError | None = None
        self._outlets: dict[str, _Outlet] = {}
        self._queued: set[str] = set()
        self._settled = threading.Event()  # no longer loading
        self._refused = 0
        self._stats = EngineStats(slots_total=settings.n_slots)
        self._thread = OwnedThread("liveedge-engine", self._run)
        self._thread.start()

    # any thread

    @property
    def model(self) -> ModelInfo:
        return self._opening.model

    def status(self) -> EngineStatus:
        return self._status

    async def ready(self) -> None:
        await asyncio.to_thread(self._settled.wait)
        if self._failure is not None and self._status == "failed":
            raise self._failure
        self._check_ready()

    def startup_ms(self) -> Mapping[str, float]:
        return dict(self._opening.startup_ms)

    def check_schema(self, schema: Mapping[str, Any]) -> None:
        self._opening.schemas.check(schema)

    def prepare(self, request: GenerateRequest) -> PreparedRequest:
        return self._preparer.prepare(request)

    def stats(self) -> EngineStats:
        return replace(self._stats, queue_depth=len(self._queued), refused=self._refused)

    def close(self) -> None:
        self._inbox.offer(Stop())
        if not self._thread.stop(STOP_TIMEOUT_S):
            log.error("the engine thread did not end within %.0f s", STOP_TIMEOUT_S)

    async def generate(self, prepared: PreparedRequest) -> AsyncGenerator[Event, None]:
        request_id = prepared.request.request_id
        outlet = _Outlet(asyncio.get_running_loop())
        self._enter(request_id, outlet, prepared)
        ended = False
        try:
            while not ended:
                for event in await outlet.take():
                    ended = isinstance(event, Finished | Failed)
                    yield event
        finally:
            self._leave(request_id, ended=ended)

    def _enter(self, request_id: str, outlet: _Outlet, prepared: PreparedRequest) -> None:
        with self._lock:
            self._check_ready()
            if request_id in self._outlets:
                raise ValueError(f"request id {request_id} is in use: ids are for one request each")
            if len(self._queued) >= self._settings.queue_capacity:
                self._refused += 1
                raise QueueFull(
                    f"{len(self._queued)} requests wait already, which is the limit; try again soon",
                    retry_after_s=1.0,
                )
            self._queued.add(request_id)
            self._outlets[request_id] = outlet
            self._send(Submit(prepared, self._clock.monotonic_s()))

    def _leave(self, request_id: str, *, ended: bool) -> None:
        with self._lock:
            known = self._outlets.pop(request_id, None) is not None
            if known and not ended and self._status == "ready":
                self._send(Abort(request_id))

    def _send(self, message: EngineInput) -> None:
        accepted = self._inbox.offer(message)
        assert accepted, f"the inbox overflowed at {self._inbox.capacity}"  # invariant 3

    def _check_ready(self) -> None:
        model_id = self.model.model_id
        if self._failure is not None and self._status == "failed":
            raise ModelUnavailable(f"the model {model_id} failed: {self._failure.message}")
        if self._status != "ready":
            raise ModelUnavailable(
                f"the model {model_id} is {self._status}; try again soon", retry_after_s=1.0
            )

    # engine thread

    def show(self, scheduler: Scheduler) -> None:
        """Publish the gauges, so that who sees an end sees them without it."""
        self._stats = scheduler.stats(row_bytes=self._opening.row_bytes)

    def deliver(self, events: list[tuple[str, Event]]) -> None:
        """Hand events to their event loops."""
        for request_id, group in groupby(events, key=lambda item: item[0]):
            outlet = self._outlets.get(request_id)
            if outlet is not None and not self._put(outlet, [event for _, event in group]):
                log.warning("an event loop was closed before its request ended")
                self._outlets.pop(request_id, None)
                self._send(Abort(request_id))

    def _put(self, outlet: _Outlet, events: list[Event]) -> bool:
        """False where nobody can listen any more."""
        if outlet.loop.is_closed():
            return False
        outlet.ended = outlet.ended or isinstance(events[-1], Finished | Failed)
        try:
            outlet.loop.call_soon_threadsafe(outlet.put, events)
        except RuntimeError:  # closed since the line above
            return False
        return True

    def left_queue(self, request_ids: Iterable[str]) -> None:
        with self._lock:
            self._queued.difference_update(request_ids)

    def _run(self, stopping: threading.Event) -> None:
        error: LiveEdgeError = ModelUnavailable("the engine was stopped")
        status: EngineStatus = "closed"
        parts: Parts | None = None
        try:
            parts = self._opening.open(self._take_load)
            self._become_ready()
            self._loop(parts).run()
        except LiveEdgeError as failure:
            status, error = "failed", failure
            log.error("the engine cannot run: %s", failure)  # noqa: TRY400  a user's mistake
        except BaseException:
            status, error = "failed", InternalError("the engine failed")
            raise  # OwnedThread reports it
        finally:
            self._end_all(status, error)
            if parts is not None:
                parts.loader.close()

    def _loop(self, parts: Parts) -> EngineLoop:
        return EngineLoop(
            scheduler=parts.scheduler,
            runner=parts.runner,
            loader=parts.loader,
            inbox=self._inbox,
            outside=self,
            clock=self._clock,
        )

    def _take_load(self, job: LoadJob, outcome: object | LiveEdgeError) -> None:
        self._send(Loaded(job, outcome))  # on a worker thread

    def _become_ready(self) -> None:
        with self._lock:
            self._status = "ready"
        self._settled.set()

    def _end_all(self, status: EngineStatus, error: LiveEdgeError) -> None:
        """Nothing enters any more, and everything that entered ends."""
        with self._lock:
            self._status, self._failure = status, error
            for outlet in self._outlets.values():
                if not outlet.ended:
                    self._put(outlet, [Failed(error=error)])
            self._queued.clear()
        self._stats = EngineStats(slots_total=self._settings.n_slots)
        self._settled.set()


def load_engine(folder: Path, *, settings: EngineSettings, clock: Clock) -> EngineClient:
    """Start an engine for a checkpoint folder. Prompts can be prepared at once; the weights are
    read on the engine thread, see `EngineClient.ready`.

    Raises CheckpointInvalid or SettingsInvalid for what can be seen without the weights.
    """
    return EngineClient(Opening(folder, settings, clock), settings=settings, clock=clock)

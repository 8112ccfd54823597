"""Keeps one window warm: looks at the stream when a tick has passed, and has the engine follow.

Owns    the window's frames and counters, and the tasks that watch and warm.
Thread  the event loop; prompts are made in workers.
Never   queues: while an update runs, newer frames replace each other, and the newest come next.
        An update that runs is let finish, so a device that is slower than the ticks moves on too.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from liveedge.core.clock import Clock
from liveedge.core.errors import FrameNotYetProduced, LiveEdgeError, ModelUnavailable
from liveedge.core.tasks import TaskSet
from liveedge.engine.interface import Engine, PreparedRequest, Warmed, WindowPrefix
from liveedge.engine.request import GenerateRequest
from liveedge.frames.snapshot import Snapshot
from liveedge.frames.store import FrameStore
from liveedge.service.lookup import Found, frames_of
from liveedge.service.models import ModelHost
from liveedge.service.prompt import Media, make_prompt
from liveedge.service.room import check_room
from liveedge.service.view import WindowState
from liveedge.service.windows_plan import (
    Change,
    WindowPlan,
    next_changes,
    next_ticks,
    resolve_window,
)
from liveedge.service.workers import Workers

log = logging.getLogger("liveedge.windows")

WAIT_S = 60.0  # for a frame, before looking again
NEAR_MS = 100  # of stream time before a tick: from here on every frame is looked at
COST_OVER_S = 10.0
RETRY_S = 0.2  # an engine that was there and refused is not asked again before
FAILED_RETRY_S = 5.0  # one that could not be loaded
MAX_PAUSE_S = 30.0  # between updates that fail

Picked: TypeAlias = tuple[tuple[int, ...], ...]  # frame indices of each reference


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmFrames:
    """What the engine holds for a window."""

    found: tuple[Found, ...]
    n_starts: int  # of the engine: another start knows nothing of it
    n_tokens: int
    n_before_media: int  # of these, before the first picture or frame
    at_ms: int  # wall clock

    @property
    def newest_arrived_s(self) -> float:
        return max(one.picks[-1].arrived_s for one in self.found)

    @property
    def n_frames(self) -> int:
        return sum(len(one.picks) for one in self.found)


class CostMeter:
    """Time of the device over the last seconds. An update that took long counts where it ran."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._spans: deque[tuple[float, float, float]] = deque(maxlen=1024)  # from, to, busy

    def add(self, from_s: float, to_s: float, *, busy_s: float) -> None:
        self._spans.append((from_s, to_s, busy_s))

    def ms_per_s(self, now_s: float) -> float:
        since_s = max(self._began_s, now_s - COST_OVER_S)
        while self._spans and self._spans[0][1] < since_s:
            self._spans.popleft()
        busy_s = sum(
            busy_s * min(1.0, (to_s - since_s) / max(to_s - from_s, 1e-9))
            for from_s, to_s, busy_s in self._spans
        )
        return busy_s * 1000 / max(now_s - since_s, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperTools:
    """What all keepers share."""

    clock: Clock
    models: ModelHost
    prompts: Workers
    tasks: TaskSet


class Keeper:
    """One window, from the first tick or `poke` on, until `stop`."""

    def __init__(
        self, plan: WindowPlan, stores: Mapping[str, FrameStore], *, tools: KeeperTools
    ) -> None:
        self.window_id = uuid.uuid4().hex
        self.plan = plan
        self.warm: WarmFrames | None = None
        self.reason: str | None = None
        self.updates = 0
        self.superseded = 0
        self.errors: Counter[str] = Counter()
        self._stores = {stream_id: stores[stream_id] for stream_id in plan.stream_ids}
        self._tools = tools
        self._wanted: tuple[Found, ...] | None = None
        self._n_behind = 0  # changes of the frames that no update has reached yet
        self._n_failures = 0  # of updates, in a row
        self._has_looked = False
        self._wake = asyncio.Event()  # look again, whatever the tick
        self._running: asyncio.Task[None] | None = None
        self._running_for: tuple[Found, ...] | None = None
        self._costs = CostMeter(tools.clock.monotonic_s())
        self._watching = tools.tasks.start(self._watch(), name=f"watch {self.window_id}")

    # ── for the registry ──

    def stop(self) -> None:
        """End the tasks, and give the engine its slot back."""
        for task in (self._watching, self._running):
            if task is not None:
                task.cancel()
        engine = self._tools.models.engine
        if engine is not None:
            engine.drop_window(self.window_id)

    def poke(self) -> None:
        """Begin now, where nothing was done yet."""
        if not self._has_looked:
            self._wake.set()

    def compare_start(self, n_starts: int) -> None:
        """Begin anew if the engine that was warm is not the one that runs."""
        if self.warm is not None and self.warm.n_starts != n_starts:
            self._rewarm()

    @property
    def state(self) -> WindowState:
        if self.warm is None:
            return "warming" if self.reason is None else "failed"
        has_failed = self.reason is not None and not self._is_updating
        return "stale" if has_failed or self._n_behind > 1 else "warm"

    def cost_ms_per_s(self) -> float:
        """Milliseconds of the device per second, lately."""
        return self._costs.ms_per_s(self._tools.clock.monotonic_s())

    # ── looking ──

    async def _watch(self) -> None:
        changes = next_ticks(self.plan.references, self._snapshots())
        while True:
            await self._until_changed(changes)
            self._wake.clear()
            self._has_looked = True
            changes = self._look()

    async def _until_changed(self, changes: Sequence[Change]) -> None:
        """Return once a frame of one of the streams passed what it waits for, or when woken."""
        tasks = TaskSet("window")
        waits = [
            tasks.start(self._until_passed(stream_id, changes), name=stream_id)
            for stream_id in self._stores
        ]
        waits.append(tasks.start(self._until_woken(), name="wake"))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.close()

    async def _until_woken(self) -> None:
        await self._wake.wait()

    async def _until_passed(self, stream_id: str, changes: Sequence[Change]) -> None:
        ours = [change for change in changes if change.stream_id == stream_id]
        store, seen = self._stores[stream_id], None
        while True:
            frame = await store.wait_newer(seen, WAIT_S)
            if frame is None:
                await self._tools.clock.sleep(RETRY_S)  # silent, or ended: then this task ends soon
                continue
            time_ms, seen = frame.stream_time_ms, frame.index
            if any(change.has_come(time_ms=time_ms, index=seen) for change in ours):
                return
            await self._rest(ours, time_ms)

    async def _rest(self, changes: Sequence[Change], time_ms: int) -> None:
        """Half the way to the next change without a look at any frame: cameras are fast."""
        left_ms = min((change.at_ms - time_ms for change in changes), default=0)
        if left_ms > NEAR_MS and all(change.at_index is None for change in changes):
            await self._tools.clock.sleep(min(left_ms, 60_000) / 2000)

    def _snapshots(self) -> dict[str, Snapshot]:
        return {stream_id: store.snapshot() for stream_id, store in self._stores.items()}

    def _look(self) -> tuple[Change, ...]:
        """Find the newest frames, have them warmed if they are others, and say when to look again."""
        references = self.plan.references
        snapshots = self._snapshots()
        try:
            resolved = resolve_window(references, snapshots)
            check_room(references, resolved, self._engine().model)
        except FrameNotYetProduced:  # the stream has only begun
            return next_ticks(references, snapshots)
        except LiveEdgeError as error:
            # An update that waits for the engine to restart has counted it, and begins anew then.
            if not (isinstance(error, ModelUnavailable) and self._is_updating):
                self._failed(error)
                self._wanted = None  # so that the next tick tries again
            return next_ticks(references, snapshots)
        found = tuple(map(frames_of, resolved))
        if self._wanted is None or _picked(found) != _picked(self._wanted):
            self._want(found)
        return next_changes(references, found, snapshots)

    def _want(self, found: tuple[Found, ...]) -> None:
        self._n_behind += 1
        has_waited = self._wanted is not None and self._wanted is not self._running_for
        self.superseded += self._is_updating and has_waited
        self._wanted = found
        if not self._is_updating:
            self._launch(found)

    # ── warming ──

    @property
    def _is_updating(self) -> bool:
        return self._running is not None and not self._running.done()

    def _rewarm(self) -> None:
        """The engine has forgotten everything: find the newest frames and warm them."""
        self.warm = self._wanted = None
        self._wake.set()

    def _launch(self, found: tuple[Found, ...]) -> None:
        self._running_for = found
        self._running = self._tools.tasks.start(self._update(found), name=f"warm {self.window_id}")

    async def _update(self, found: tuple[Found, ...]) -> None:
        """One update, and the next one where newer frames came meanwhile."""
        try:
            await self._warmed(found)
        except ModelUnavailable as error:
            self._failed(error)
            await self._until_ready()
            self._running = None
            self._rewarm()
            return
        except LiveEdgeError as error:
            self._failed(error)
            self._n_failures += 1
            await self._tools.clock.sleep(_pause_s(self._n_failures))
            if self._wanted is found:
                self._wanted = None  # so that the next tick tries again
        else:
            self._n_failures = 0
        self._running = None
        if self._wanted is not None and _picked(self._wanted) != _picked(found):
            self._launch(self._wanted)

    async def _warmed(self, found: tuple[Found, ...]) -> None:
        clock, engine = self._tools.clock, self._engine()
        n_starts = engine.n_starts
        prepared = await self._tools.prompts.run(
            lambda: prefix_of(engine, self.plan, found, self._stores)
        )
        began_s = clock.monotonic_s()
        warmed = await engine.warm(WindowPrefix(window_id=self.window_id, prepared=prepared))
        self._costs.add(began_s, clock.monotonic_s(), busy_s=warmed.busy_s)
        if warmed.superseded:
            self.superseded += 1
            return
        n_before_media = prepared.groups[0].start
        self._record(found, warmed, n_before_media=n_before_media, n_starts=n_starts)

    def _record(
        self, found: tuple[Found, ...], warmed: Warmed, *, n_before_media: int, n_starts: int
    ) -> None:
        self.updates += 1
        self.reason = None
        self._n_behind = 0 if self._wanted is found else 1
        self.warm = WarmFrames(
            found=found,
            n_starts=n_starts,
            n_tokens=warmed.n_tokens,
            n_before_media=n_before_media,
            at_ms=self._tools.clock.wall_ms(),
        )

    def _engine(self) -> Engine:
        return self._tools.models.require(self.plan.key.model_id)

    async def _until_ready(self) -> None:
        """Wait for an engine that restarts, or a while for one that has failed."""
        self.warm = None
        await self._tools.clock.sleep(RETRY_S)
        try:
            await self._tools.models.ready()
        except LiveEdgeError as error:
            self._failed(error)
            await self._tools.clock.sleep(FAILED_RETRY_S)

    def _failed(self, error: LiveEdgeError) -> None:
        self.errors[error.code] += 1
        self.reason = error.message
        log.debug("window %s: %s", self.window_id, error.message)


def prefix_of(
    engine: Engine,
    plan: WindowPlan,
    found: Sequence[Found],
    stores: Mapping[str, FrameStore],
) -> PreparedRequest:
    """The prompt of a window with these frames. Milliseconds, for a worker; loads no frame.

    Raises what `Engine.prepare_window` raises.
    """
    places = (item.where for item in plan.references)
    media = Media(
        tenant=plan.key.tenant,
        found=dict(zip(places, found, strict=True)),
        uploaded={},
        load=lambda stream_id, index: stores[stream_id].load(index),
        load_segment=lambda stream_id, indices: stores[stream_id].segment(indices).load,
        is_exact=lambda stream_id, index: stores[stream_id].is_exact(index),
    )
    prompt = make_prompt(plan.turns, plan.parts, media)
    request = GenerateRequest(
        request_id=uuid.uuid4().hex,
        messages=prompt.messages,
        tools=plan.key.tools,
        tenant=plan.key.tenant,
        priority="batch",
    )
    return engine.prepare_window(request)


def _pause_s(n_failures: int) -> float:
    """The next tick tries again after one failure; what fails again and again costs little."""
    return 0.0 if n_failures <= 1 else min(MAX_PAUSE_S, 2.0 ** (n_failures - 2))


def _picked(found: Sequence[Found]) -> Picked:
    return tuple(tuple(pick.index for pick in one.picks) for one in found)

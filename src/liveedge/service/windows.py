"""The warm windows: which there are, how long, and whose.

Owns    every window of every stream, and the tasks that keep them warm.
Thread  the event loop. What a question pays here is microseconds.
Never   tells the text of a window, displaces an explicit window for an automatic one, or refuses a
        question: without room for its window it is answered all the same.

Invariants
1. At most `max_windows` windows, at most `max_windows_per_tenant` of one tenant.
2. No two windows with the same key, but for explicit ones under several names.
3. An automatic window ends `ttl_s` after its last use, an explicit one when it is deleted, and both
   with a stream of theirs.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Literal

from liveedge.core.clock import Clock
from liveedge.core.errors import (
    ModelVideoUnsupported,
    RequestInvalid,
    StreamError,
    WindowLimitReached,
    WindowNotFound,
)
from liveedge.core.tasks import TaskSet
from liveedge.engine.interface import Engine, PreparedRequest
from liveedge.frames.refs import Anchor, SegmentRef
from liveedge.frames.store import FrameStore
from liveedge.service.lookup import Found, is_live
from liveedge.service.models import ModelHost
from liveedge.service.parts import Part, Reference
from liveedge.service.question import Question, TextContent, Turn
from liveedge.service.room import check_room
from liveedge.service.streams import Streams
from liveedge.service.tools import offered
from liveedge.service.view import WindowView
from liveedge.service.window_keeper import Keeper, KeeperTools, prefix_of
from liveedge.service.windows_plan import (
    PICTURE_FPS,
    WindowKey,
    WindowPlan,
    full_segment,
    plan_window,
    prompt_id,
    resolve_window,
)
from liveedge.service.workers import Workers

MIND_EVERY_S = 0.25  # how soon a restarted engine is noticed between two ticks
AUTO_PREFIX = "auto-"
MAX_NAME_CHARS = 64
PLACE = "the window"  # names its one media part in errors

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """How many windows there may be, and how long unused ones stay."""

    max_windows: int = 4  # what the engine has slots for; 0: none
    max_windows_per_tenant: int | None = None  # None: as many as there are
    ttl_s: float = 30.0
    thread_ttl_s: float = 120.0  # of questions with a thread_id: more of them are to come


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec:
    """An explicit window as asked for."""

    model: str
    seconds: float
    max_fps: Fraction
    max_pixels: int | None = None
    system: str | None = None


@dataclass(slots=True, eq=False)
class _Window:
    """One entry of the registry."""

    name: str
    kind: Literal["auto", "explicit"]
    keeper: Keeper
    used_s: float  # monotonic
    ends_s: float  # monotonic; of an automatic one
    hits: int = 0

    @property
    def key(self) -> WindowKey:
        return self.keeper.plan.key

    @property
    def tenant(self) -> str:
        return self.keeper.plan.key.tenant


class Windows:
    """The registry of all windows."""

    def __init__(
        self,
        *,
        clock: Clock,
        models: ModelHost,
        streams: Streams,
        prompts: Workers,
        limits: WindowLimits,
    ) -> None:
        self.limits = limits
        self.displaced = 0  # automatic windows that made room for another
        self.expired = 0
        self.refused = 0  # automatic windows that found no room
        self._clock = clock
        self._models = models
        self._streams = streams
        self._windows: list[_Window] = []  # oldest first
        self._secret = secrets.token_bytes(16)  # of the prompt ids
        self._tasks = TaskSet("windows")
        self._minder: asyncio.Task[None] | None = None
        self._tools = KeeperTools(clock=clock, models=models, prompts=prompts, tasks=self._tasks)
        streams.on_end(self._stream_ended)

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def n_explicit(self) -> int:
        return sum(window.kind == "explicit" for window in self._windows)

    async def close(self) -> None:
        """End all windows."""
        for window in list(self._windows):
            self._remove(window)
        await self._tasks.close()

    # ── questions ──

    def of_question(self, question: Question, parts: Sequence[Sequence[Part]]) -> WindowUse:
        """The windows that a question touches; nothing happens before they are held."""
        if self.limits.max_windows == 0:
            return WindowUse(self, None, None, ttl_s=0.0)

        tools = offered(question.tools)

        def plan(n_media: int | None) -> WindowPlan | None:
            return plan_window(
                (question.tenant, self._models.model_id),
                question.turns,
                parts,
                max_age_ms=question.max_age_ms,
                n_media=n_media,
                tools=tools,
            )

        has_explicit = any(
            window.kind == "explicit" and window.tenant == question.tenant
            for window in self._windows
        )
        ttl_s = self.limits.ttl_s if question.thread_id is None else self.limits.thread_ttl_s
        own = plan(None)
        has_more = own is None or len(own.references) > 1
        return WindowUse(self, own, plan(1) if has_explicit and has_more else None, ttl_s=ttl_s)

    def find(self, key: WindowKey) -> _Window | None:
        """The window of this key; an explicit one where there are several."""
        same = [window for window in self._windows if window.key == key]
        return min(same, key=lambda window: window.kind == "auto", default=None)

    def touch(
        self, plan: WindowPlan, stores: Mapping[str, FrameStore], *, ttl_s: float
    ) -> _Window | None:
        """The window of a question, made if it is new; None where there is no room for it."""
        window = self.find(plan.key)
        if window is None:
            if not self._make_room(plan.key.tenant):
                self.refused += 1
                return None
            name = AUTO_PREFIX + uuid.uuid4().hex[:8]
            window = self._add(name, "auto", plan, stores)
        self.renew(window, ttl_s=ttl_s)
        return window

    def renew(self, window: _Window, *, ttl_s: float) -> None:
        """It is used now."""
        window.used_s = self._clock.monotonic_s()
        window.ends_s = max(window.ends_s, window.used_s + ttl_s)

    def warm_frames(self, key: WindowKey) -> tuple[Found, ...] | None:
        """The frames of a window that the engine holds now."""
        window, engine = self.find(key), self._models.engine
        warm = None if window is None else window.keeper.warm
        if warm is None or engine is None or warm.n_starts != engine.n_starts:
            return None
        return warm.found

    # ── explicit windows ──

    async def put(
        self, tenant: str, stream_id: str, name: str, spec: WindowSpec
    ) -> tuple[WindowView, bool]:
        """Keep a window warm under this name; True where it was not there before.

        Raises RequestInvalid, ModelNotFound, ModelUnavailable, StreamNotFound,
        ModelVideoUnsupported, ContextLengthExceeded or WindowLimitReached.
        """
        _check_name(name)
        engine = self._models.require(spec.model)
        store = self._streams.own_store(tenant, stream_id)
        plan = self._explicit_plan(tenant, stream_id, spec, engine, store)
        await self._check_fits(engine, plan, spec, store)
        self._streams.own_store(tenant, stream_id)  # still
        before = self._named(tenant, stream_id, name)
        if before is not None and before.key == plan.key:
            return self._view(before), False
        if before is not None:
            self._remove(before)
        window = self.find(plan.key)
        if window is not None and window.kind == "auto":
            window.name, window.kind = name, "explicit"  # and stays as warm as it is
        else:
            if not self._make_room(tenant):
                raise WindowLimitReached(self._full(tenant))
            window = self._add(name, "explicit", plan, {stream_id: store})
        window.keeper.poke()
        return self._view(window), before is None

    def view(self, tenant: str, stream_id: str, name: str) -> WindowView:
        """One window of the tenant's stream."""
        return self._view(self._require(tenant, stream_id, name))

    def delete(self, tenant: str, stream_id: str, name: str) -> None:
        """End a window."""
        self._remove(self._require(tenant, stream_id, name))

    def views(self, tenant: str, stream_id: str) -> tuple[WindowView, ...]:
        """The tenant's windows that look at a stream, oldest first."""
        return tuple(
            self._view(window)
            for window in self._windows
            if window.tenant == tenant and stream_id in window.keeper.plan.stream_ids
        )

    def _require(self, tenant: str, stream_id: str, name: str) -> _Window:
        self._streams.own_store(tenant, stream_id)
        window = self._named(tenant, stream_id, name)
        if window is None:
            raise WindowNotFound(
                f"stream {stream_id} has no window {name[:MAX_NAME_CHARS]!r};"
                f" PUT /streams/{stream_id}/windows/{{name}} makes one"
            )
        return window

    def _named(self, tenant: str, stream_id: str, name: str) -> _Window | None:
        for window in self._windows:
            is_here = window.tenant == tenant and stream_id in window.keeper.plan.stream_ids
            if is_here and window.name == name:
                return window
        return None

    def _explicit_plan(
        self, tenant: str, stream_id: str, spec: WindowSpec, engine: Engine, store: FrameStore
    ) -> WindowPlan:
        model = engine.model
        if not model.supports_video:
            raise ModelVideoUnsupported(
                f"{model.model_id} takes pictures only, and a window is a segment of video"
            )
        turns, parts = _explicit_turns(stream_id, spec, retention_s=store.limits.retention_s)
        plan = plan_window((tenant, self._models.model_id), turns, parts, max_age_ms=None)
        assert plan is not None, "a segment at the live edge makes a window"
        snapshot = store.snapshot()
        try:
            resolved = resolve_window(plan.references, {stream_id: snapshot})
        except StreamError:  # no frame yet, or none now: the first update will tell
            return plan
        check_room(plan.references, resolved, model)
        return plan

    async def _check_fits(
        self, engine: Engine, plan: WindowPlan, spec: WindowSpec, store: FrameStore
    ) -> None:
        """Refuse what could never be warm, also while the stream is younger than the window."""
        newest = store.latest
        if newest is None:  # sizes are not known yet: the first update will tell
            return
        n_frames = min(math.ceil(spec.seconds * spec.max_fps), engine.model.max_model_len) + 1
        found = (full_segment(plan.references[0].ref.stream_id, newest, n_frames, spec.max_fps),)
        await self._tools.prompts.run(
            partial(prefix_of, engine, plan, found, {store.stream_id: store})
        )

    # ── inside ──

    def _add(
        self,
        name: str,
        kind: Literal["auto", "explicit"],
        plan: WindowPlan,
        stores: Mapping[str, FrameStore],
    ) -> _Window:
        now_s = self._clock.monotonic_s()
        keeper = Keeper(plan, stores, tools=self._tools)
        window = _Window(name, kind, keeper, used_s=now_s, ends_s=now_s)
        self._windows.append(window)
        if self._minder is None:
            self._minder = self._tasks.start(self._mind(), name="minder")
        return window

    def _remove(self, window: _Window) -> None:
        if window in self._windows:
            self._windows.remove(window)
            window.keeper.stop()

    def _make_room(self, tenant: str) -> bool:
        """Room for one more of the tenant; the automatic window whose last use is oldest makes it."""
        own = [window for window in self._windows if window.tenant == tenant]
        limits = self.limits
        own_limit = limits.max_windows_per_tenant
        if own_limit is not None and len(own) >= own_limit and not self._displace(own):
            return False
        return len(self._windows) < limits.max_windows or self._displace(self._windows)

    def _displace(self, among: Sequence[_Window]) -> bool:
        automatic = [window for window in among if window.kind == "auto"]
        if not automatic:
            return False
        self.displaced += 1
        self._remove(min(automatic, key=lambda window: window.used_s))
        return True

    def _full(self, tenant: str) -> str:
        own = sum(window.tenant == tenant for window in self._windows)
        own_limit = self.limits.max_windows_per_tenant
        if own_limit is not None and own >= own_limit:
            return (
                f"this key has {own} explicit windows, its limit (max_windows_per_key);"
                " delete one first"
            )
        return (
            f"the server has {len(self._windows)} explicit windows, its limit (max_windows);"
            " delete one first"
        )

    def _stream_ended(self, stream_id: str) -> None:
        for window in list(self._windows):
            if stream_id in window.keeper.plan.stream_ids:
                self._remove(window)

    async def _mind(self) -> None:
        """End what is not used any more, and notice an engine that was restarted."""
        while self._windows:
            await self._clock.sleep(MIND_EVERY_S)
            now_s = self._clock.monotonic_s()
            for window in list(self._windows):
                if window.kind == "auto" and window.ends_s <= now_s:
                    self.expired += 1
                    self._remove(window)
            engine = self._models.engine
            if engine is not None:
                for window in self._windows:
                    window.keeper.compare_start(engine.n_starts)
        self._minder = None

    def _view(self, window: _Window) -> WindowView:
        keeper = window.keeper
        warm = keeper.warm
        live = next(item.ref for item in keeper.plan.references if is_live(item.ref))
        is_segment = isinstance(live, SegmentRef)
        start = live.start if isinstance(live, SegmentRef) else live.anchor
        counts_back = is_segment and start.kind == "offset_ms" and start.value < 0
        now_s = self._clock.monotonic_s()
        return WindowView(
            name=window.name,
            kind=window.kind,
            model=window.key.model_id,
            seconds=-start.value / 1000 if counts_back else None,
            max_fps=float(live.max_fps if isinstance(live, SegmentRef) else PICTURE_FPS),
            max_pixels=live.max_pixels,
            frames=0 if warm is None else warm.n_frames,
            tokens=0 if warm is None else warm.n_tokens,
            prompt_id=prompt_id(window.key, secret=self._secret),
            prompt_tokens_before_media=None if warm is None else warm.n_before_media,
            state=keeper.state,
            reason=keeper.reason,
            age_ms=None if warm is None else round((now_s - warm.newest_arrived_s) * 1000),
            warmed_at_ms=None if warm is None else warm.at_ms,
            hits=window.hits,
            updates=keeper.updates,
            superseded=keeper.superseded,
            errors=dict(keeper.errors),
            cost_ms_per_s=round(keeper.cost_ms_per_s(), 2),
        )


class WindowUse:
    """The windows of one question: its own, and an explicit one that its prompt begins with."""

    def __init__(
        self,
        windows: Windows,
        plan: WindowPlan | None,
        head: WindowPlan | None,
        *,
        ttl_s: float,
    ) -> None:
        self._windows = windows
        self._plan = plan
        self._head = head
        self._ttl_s = ttl_s
        self._held: list[_Window] = []
        self._stores: Mapping[str, FrameStore] = {}

    def warm_frames(self) -> Sequence[Found] | None:
        """The frames of the question's references that cost nothing."""
        return None if self._plan is None else self._windows.warm_frames(self._plan.key)

    @contextmanager
    def held(self, stores: Mapping[str, FrameStore]) -> Iterator[None]:
        """The windows are used from now on. A new one begins when the block ends: what the answer
        computes is there for it to build on, and the answer does not wait for its window."""
        self._stores = stores
        own = None if self._plan is None else self._windows.find(self._plan.key)
        head = None if self._head is None else self._windows.find(self._head.key)
        self._held = [window for window in dict.fromkeys((own, head)) if window is not None]
        for window in self._held:
            self._windows.renew(window, ttl_s=self._ttl_s)
        try:
            yield
        finally:
            for window in self._held:
                self._windows.renew(window, ttl_s=self._ttl_s)
                window.keeper.poke()

    def accepted(self) -> None:
        """The prompt fits: only now a new window may be made, and displace another one."""
        if self._plan is None:
            return
        own = self._windows.touch(self._plan, self._stores, ttl_s=self._ttl_s)
        if own is not None and own not in self._held:
            self._held.insert(0, own)

    def answered(self, prepared: PreparedRequest, *, cached_tokens: int) -> None:
        """Count a hit where frames were reused, not only words before them."""
        if prepared.groups and cached_tokens > prepared.groups[0].start:
            for window in self._held:
                window.hits += 1


def _check_name(name: str) -> None:
    if len(name) <= MAX_NAME_CHARS and _NAME.fullmatch(name) and not name.startswith(AUTO_PREFIX):
        return
    raise RequestInvalid(
        f"{name[:MAX_NAME_CHARS]!r} is no name for a window; use up to {MAX_NAME_CHARS} letters,"
        f" digits, dots, dashes and underscores, not beginning with {AUTO_PREFIX} (the server's own)",
        loc=("path", "name"),
    )


def _explicit_turns(
    stream_id: str, spec: WindowSpec, *, retention_s: float
) -> tuple[tuple[Turn, ...], tuple[tuple[Part, ...], ...]]:
    """The messages with which a question begins that hits the window."""
    span_ms = round(min(spec.seconds, retention_s + 1) * 1000)  # 1e308 s would be infinite
    if not 0 < span_ms <= retention_s * 1000:
        raise RequestInvalid(
            f"seconds is {spec.seconds:g}; it must be above 0 and at most {retention_s:g}, which is"
            " how long frames are kept",
            loc=("body", "seconds"),
        )
    ref = SegmentRef(
        stream_id=stream_id,
        start=Anchor("offset_ms", -span_ms),
        max_fps=spec.max_fps,
        edge="grid",
        max_pixels=spec.max_pixels,
    )
    media = Turn(role="user", content=())
    reference = Reference(PLACE, ref)
    if not spec.system:
        return (media,), ((reference,),)
    system = TextContent(spec.system)
    return (Turn(role="system", content=(system,)), media), ((system,), (reference,))

"""One standing question: asked every so often, or when the picture has changed.

Owns    the moments at which it is asked, its counters and the log of its events.
Thread  the event loop.
Never   has two questions in flight, or one that waits: a moment at which it cannot ask is skipped,
        counted and told. Never ends in silence: the last event is `ended`, with the reason.

A failure makes it silent for a growing time, a refusal because others come first for as long as it
says (`service.watch_backoff`). Frames that are older than
their bound are waited for here, so that what it skips is called by its name.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from liveedge.core.clock import Clock
from liveedge.core.errors import (
    FrameEvicted,
    FrameStale,
    InternalError,
    LiveEdgeError,
    QueueFull,
    RateLimited,
    StreamNotFound,
)
from liveedge.core.tasks import TaskSet
from liveedge.engine.form.forms import JsonForm
from liveedge.frames.store import FrameStore
from liveedge.service.change import ChangeDetector, ChangeRule, Thumbnail
from liveedge.service.limits import Budget
from liveedge.service.question import (
    AnsweredBy,
    Answers,
    ChoiceEnd,
    Question,
    Report,
    TextDelta,
)
from liveedge.service.thumbnails import Thumbnails
from liveedge.service.watch_backoff import back_off_s, come_back_s
from liveedge.service.watch_events import (
    SKIP_REASONS,
    EncodeEvent,
    EndedEvent,
    EndedReason,
    ErrorEvent,
    ResultEvent,
    SkippedEvent,
    SkipReason,
    Trigger,
    WatchEvent,
    WatchView,
)
from liveedge.service.watch_log import Logged, WatchLog

LOOK_EVERY_S = 0.1  # at most, at a stream whose changes are watched
PATIENCE_S = 1.0  # between two looks at a stream from which nothing comes
# Of each reason one event in so many seconds; the rest is counted in the next one.
TELL_SKIPPED_S: Mapping[SkipReason, float] = {"busy": 1.0, "stale": 5.0, "unchanged": 10.0}
MAX_EVENTS = 256  # in the log of a watch
MAX_EVENT_BYTES = 256 << 10
MAX_LISTENERS = 8  # of one watch
MAX_TEXT_CHARS = 128 << 10  # of an answer: another server's may have no end

Phase: TypeAlias = Literal["idle", "waiting", "asking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSpec:
    """What was asked for. Exactly one of `every_s` and `change`."""

    question: Question  # asked again and again
    every_s: float | None = None
    change: ChangeRule | None = None
    until_ms: int | None = None  # wall clock
    max_results: int | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """A reference to the live edge: how old its newest frame may be."""

    store: FrameStore
    bound_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTools:
    """What all watches share."""

    clock: Clock
    answers: Answers
    thumbnails: Thumbnails
    encode: EncodeEvent
    chance: random.Random
    events: Counter[str]  # of all watches, by kind
    skipped: Counter[str]  # by reason
    slow: Counter[str]  # listeners that were ended, by why
    max_events: int = MAX_EVENTS
    max_event_bytes: int = MAX_EVENT_BYTES


@dataclass(frozen=True, slots=True)
class Missed:
    """Events `first` to `last` are not kept any more."""

    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class Watch:
    """A watch from its beginning to the end of its tombstone."""

    def __init__(
        self,
        watch_id: str,
        spec: WatchSpec,
        *,
        stream_ids: tuple[str, ...],
        live: tuple[Live, ...],
        tools: WatchTools,
    ) -> None:
        assert (spec.every_s is None) != (spec.change is None), "one of the two"
        assert live, "a watch looks at something"
        self.id = watch_id
        self.tenant = spec.question.tenant
        caller = spec.question.caller
        self.key_id = None if caller is None else caller.key_id
        self.stream_ids = stream_ids
        self.ended_s: float | None = None  # monotonic
        self.end_reason: EndedReason | None = None
        self.noticed_s = tools.clock.monotonic_s()  # somebody listened or looked
        self.listeners = Budget(MAX_LISTENERS, what="listeners of this watch")
        self._spec = spec
        self._live = live
        self._tools = tools
        self._clock = tools.clock
        self._log = WatchLog(max_events=tools.max_events, max_bytes=tools.max_event_bytes)
        self._news: set[asyncio.Event] = set()  # one per listener that reads
        self._tasks = TaskSet(f"watch {watch_id}")
        self._detector = None if spec.change is None else ChangeDetector(spec.change)
        self._phase: Phase = "idle"
        self._answered_index: dict[str, int] = {}  # by stream: newest frame that was answered about
        self._created_at_ms = tools.clock.wall_ms()
        self._ended_at_ms: int | None = None
        self._n_asked = 0
        self._n_answered = 0
        self._n_backed_off = 0
        self._skipped: Counter[SkipReason] = Counter()
        self._untold: Counter[SkipReason] = Counter()
        self._told_s: dict[SkipReason, float] = {}
        self._errors: Counter[str] = Counter()
        self._n_failures = 0  # in a row
        self._silent_until_s = 0.0
        self._last_result: ResultEvent | None = None
        self._last_error: ErrorEvent | None = None

    # ── life ──

    def start(self) -> None:
        """Ask for the first time, now."""
        self._tasks.start(self._run(), name="run")
        if self._spec.until_ms is not None:
            self._tasks.start(self._end_at(self._spec.until_ms), name="until")

    def end(self, reason: EndedReason) -> None:
        """Tell the listeners and stop, in the middle of a question too. Once."""
        if self.end_reason is not None:
            return
        self.end_reason = reason
        self.ended_s = self._clock.monotonic_s()
        self._ended_at_ms = self._clock.wall_ms()
        self._emit(EndedEvent(at_ms=self._ended_at_ms, reason=reason))
        self._tasks.cancel()

    async def closed(self) -> None:
        """Return once nothing of it runs any more."""
        await self._tasks.wait()

    # ── listeners ──

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hold one of the places. Raises QueueFull."""
        with self.listeners.hold():
            try:
                yield
            finally:
                self.noticed_s = self._clock.monotonic_s()

    @property
    def last_event_id(self) -> int:
        return self._log.last_id

    async def events(self, last_id: int) -> AsyncGenerator[Logged | Missed, None]:
        """What comes after `last_id`, up to the end of the watch. Ends early for a reader whose next
        event was dropped from the log before it read it."""
        news = asyncio.Event()
        self._news.add(news)
        try:
            gap = Missed(last_id + 1, self._log.first_id - 1)
            if gap.count > 0:
                last_id = gap.last
                yield gap
            while True:
                news.clear()
                found = self._log.after(last_id, at_most=1)
                if found.missed:
                    self._tools.slow["slow"] += 1
                    return
                if found.events:
                    last_id = found.events[0].id
                    yield found.events[0]
                elif self.end_reason is not None:
                    return
                else:
                    await news.wait()
        finally:
            self._news.discard(news)

    # ── what is told ──

    def view(self, *, ttl_s: float) -> WatchView:
        """`ttl_s` is how long it goes on without anybody who listens or looks."""
        spec, detector = self._spec, self._detector
        is_noticed = self.end_reason is not None or self.listeners.used > 0
        left_s = self.noticed_s + ttl_s - self._clock.monotonic_s()
        rule = spec.change
        return WatchView(
            id=self.id,
            state="active" if self.end_reason is None else "ended",
            model=spec.question.model,
            streams=self.stream_ids,
            every_ms=None if spec.every_s is None else round(spec.every_s * 1000),
            on=None if rule is None else "change",
            change_threshold=None if rule is None else rule.threshold,
            debounce_ms=None if rule is None else round(rule.debounce_s * 1000),
            min_interval_ms=None if rule is None else round(rule.min_interval_s * 1000),
            max_age_ms=spec.question.max_age_ms,
            priority=spec.question.priority,
            until=spec.until_ms,
            max_results=spec.max_results,
            created_at_ms=self._created_at_ms,
            ended_at_ms=self._ended_at_ms,
            end_reason=self.end_reason,
            expires_at_ms=None if is_noticed else self._clock.wall_ms() + round(left_s * 1000),
            asked=self._n_asked,
            answered=self._n_answered,
            skipped={reason: self._skipped[reason] for reason in SKIP_REASONS},
            errors=dict(self._errors),
            backed_off=self._n_backed_off,
            change_score=None if detector is None else round(detector.score, 3),
            last_event_id=self._log.last_id,
            dropped_events=self._log.dropped,
            listeners=self.listeners.used,
            is_asking=self._phase == "asking",
            last_result=self._last_result,
            last_error=self._last_error,
        )

    def _emit(self, event: WatchEvent) -> None:
        self._tools.events[event.kind] += 1
        n_dropped = self._log.dropped
        self._log.append(event.kind, self._tools.encode(self.id, event))
        self._tools.events["dropped"] += self._log.dropped - n_dropped
        for news in self._news:
            news.set()

    def _skip(self, reason: SkipReason) -> None:
        self._skipped[reason] += 1
        self._untold[reason] += 1
        self._tools.skipped[reason] += 1
        now_s = self._clock.monotonic_s()
        told_s = self._told_s.get(reason)
        if told_s is not None and now_s - told_s < TELL_SKIPPED_S[reason]:
            return
        self._told_s[reason] = now_s
        count = self._untold.pop(reason)
        self._emit(SkippedEvent(at_ms=self._clock.wall_ms(), reason=reason, count=count))

    # ── when ──

    async def _run(self) -> None:
        try:
            if self._detector is not None:
                await self._follow_changes(self._detector)
            else:
                await self._tick_for_ever(self._spec.every_s or 1.0)
        finally:
            self.end("failed")  # does nothing where it has ended

    async def _end_at(self, until_ms: int) -> None:
        await self._clock.sleep((until_ms - self._clock.wall_ms()) / 1000)
        self.end("until")

    async def _tick_for_ever(self, every_s: float) -> None:
        began_s, n = self._clock.monotonic_s(), 0
        while True:
            self._tick()
            # On a grid, so that ticks do not drift; those that a busy machine missed are left out.
            n = max(n + 1, int((self._clock.monotonic_s() - began_s) / every_s))
            await self._clock.sleep(began_s + n * every_s - self._clock.monotonic_s())

    def _tick(self) -> None:
        if not self._may_ask():
            return
        if not self._has_news():
            self._skip("unchanged")
            return
        self._ask_now("every" if self._n_answered else "first")

    async def _follow_changes(self, detector: ChangeDetector) -> None:
        live = self._live[0]
        seen: int | None = None
        while True:
            begun_s = self._clock.monotonic_s()
            due_in_s = detector.due_in_s(begun_s) or PATIENCE_S
            frame = await live.store.wait_newer(seen, min(due_in_s, PATIENCE_S))
            if frame is not None:
                seen = frame.index
                picture = await self._tools.thumbnails.of(live.store.stream_id, frame)
                detector.look(picture, self._clock.monotonic_s())
            if seen is None or (frame is None and not self._is_fresh(live)):
                self._skip("stale")
            else:
                self._consider(detector)
            left_s = begun_s + LOOK_EVERY_S - self._clock.monotonic_s()
            await self._clock.sleep(max(left_s, 0.0))

    def _consider(self, detector: ChangeDetector) -> None:
        now_s = self._clock.monotonic_s()
        due_in_s = detector.due_in_s(now_s)
        if due_in_s is not None and due_in_s <= 0:
            if self._may_ask():
                detector.asked(now_s)
                self._ask_now("change" if self._n_answered else "first")
        elif not detector.is_changed:
            self._skip("unchanged")

    def _may_ask(self) -> bool:
        """Whether a question can be asked at this moment, which is else skipped."""
        if self._phase != "idle":
            self._skip("busy" if self._phase == "asking" else "stale")
            return False
        if self._clock.monotonic_s() < self._silent_until_s:
            self._n_backed_off += 1
            return False
        return True

    def _has_news(self) -> bool:
        """Whether a frame has come since the last answer, in any of the streams."""
        for live in self._live:
            newest, known = live.store.latest, self._answered_index.get(live.store.stream_id)
            if newest is None or known is None or newest.index > known:
                return True
        return False

    def _is_fresh(self, live: Live) -> bool:
        newest = live.store.latest
        if newest is None:
            return False
        age_s = self._clock.monotonic_s() - newest.arrived_s
        return live.bound_s is None or age_s <= live.bound_s

    # ── asking ──

    def _ask_now(self, trigger: Trigger) -> None:
        self._phase = "waiting"
        self._tasks.start(self._ask(trigger), name="ask")

    async def _ask(self, trigger: Trigger) -> None:
        failure: LiveEdgeError | None = InternalError("internal error; the server's log says more")
        try:
            await self._until_fresh()
            self._phase = "asking"
            self._n_asked += 1
            await self._answer(trigger)
            failure = None
        except FrameStale:  # between the look at the streams and the first token
            failure = None
            self._skip("stale")
        except (QueueFull, RateLimited) as error:  # others come first: no failure of this watch
            failure = None
            self._give_way(error)
        except LiveEdgeError as error:
            failure = error
        finally:
            self._phase = "idle"
            if self.end_reason is None and failure is not None:
                self._fail(failure)

    async def _until_fresh(self) -> None:
        """Wait until every stream has a frame inside its bound."""
        while late := next((live for live in self._live if not self._is_fresh(live)), None):
            newest = late.store.latest
            known = None if newest is None else newest.index
            newer = await late.store.wait_newer(known, PATIENCE_S)
            if newer is None:
                await self._clock.sleep(LOOK_EVERY_S)  # also where the stream has just ended

    async def _answer(self, trigger: Trigger) -> None:
        detector = self._detector
        question = replace(self._spec.question, request_id=f"{self.id}-{self._n_asked}")
        score = None if detector is None or trigger == "first" else round(detector.score, 3)
        asked_about = None if detector is None else detector.newest
        text, is_cut = "", False
        model = question.model
        end: ChoiceEnd | None = None
        async with aclosing(self._tools.answers.answer(question)) as events:
            async for event in events:
                match event:
                    case TextDelta() if not is_cut:
                        text += event.text
                        is_cut = len(text) > MAX_TEXT_CHARS
                    case ChoiceEnd():
                        end = event
                    case AnsweredBy():
                        model = event.model
                    case _:
                        pass  # too long; or tools, which are refused when the watch is made
        assert end is not None, "every choice ends"
        if detector is not None:
            picture = await self._picture(end.report, asked_about)
            detector.answered(picture, self._clock.monotonic_s())
        self._succeed(
            ResultEvent(
                at_ms=self._clock.wall_ms(),
                number=self._n_answered + 1,
                trigger=trigger,
                change_score=score,
                text=text[:MAX_TEXT_CHARS],
                model=model,
                is_json=isinstance(question.form, JsonForm),
                finish_reason="length" if is_cut else end.reason,
                report=end.report,
            )
        )

    async def _picture(self, report: Report, asked_about: Thumbnail | None) -> Thumbnail:
        """Of the newest frame that the answer rests on, in the stream whose changes are watched."""
        store = self._live[0].store
        index = _newest_index(report).get(store.stream_id)
        try:
            if index is not None:
                return await self._tools.thumbnails.at(store, index)
        except (FrameEvicted, StreamNotFound):  # gone meanwhile
            pass
        assert asked_about is not None, "a question is asked about a picture"
        return asked_about

    def _succeed(self, result: ResultEvent) -> None:
        self._answered_index |= _newest_index(result.report)
        self._n_answered = result.number
        self._n_failures = 0
        self._last_result = result
        self._emit(result)
        if self._n_answered == self._spec.max_results:
            self.end("max_results")

    def _give_way(self, error: LiveEdgeError) -> None:
        """Skip this moment, and those before the time at which there may be room."""
        wait_s = come_back_s(error.retry_after_s, chance=self._tools.chance.random())
        self._silent_until_s = self._clock.monotonic_s() + wait_s
        self._skip("busy")

    def _fail(self, error: LiveEdgeError) -> None:
        self._n_failures += 1
        self._errors[error.code] += 1
        wait_s = back_off_s(
            self._n_failures,
            every_s=self._spec.every_s or 0.0,
            retry_after_s=error.retry_after_s,
            chance=self._tools.chance.random(),
        )
        self._silent_until_s = self._clock.monotonic_s() + wait_s
        now_ms = self._clock.wall_ms()
        self._last_error = ErrorEvent(
            at_ms=now_ms,
            error=error,
            in_a_row=self._n_failures,
            retry_at_ms=now_ms + round(wait_s * 1000),
        )
        self._emit(self._last_error)


def _newest_index(report: Report) -> dict[str, int]:
    """By stream: the newest frame that an answer rests on."""
    newest: dict[str, int] = {}
    for frame in report.frames:
        if frame.stream_id is not None and frame.frame_index is not None:
            before = newest.get(frame.stream_id, -1)
            newest[frame.stream_id] = max(before, frame.frame_index)
    return newest

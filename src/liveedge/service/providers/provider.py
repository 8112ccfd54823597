"""Questions that a provider answers: the path of `service.ask`, with another server at its end.

1. the provider is not known to be away          `breaker`
2. to 6. as our own model's                       `service.gather`, `service.limits`
7. frames become pictures or a clip, in a worker  `pictures`
8. the provider is asked, and asked again where that may help: never after the first token, never
   past the deadline or the age of the evidence, and within a budget (`retries`)

Leaving `answer` early, or cancelling it, closes the connection to the provider.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from liveedge.core.clock import Clock
from liveedge.core.errors import (
    ContextLengthExceeded,
    FrameStale,
    LiveEdgeError,
    ModelUnavailable,
    ProviderSafetyBlock,
    UpstreamError,
    UpstreamHttpError,
    UpstreamRequestFailed,
    UpstreamTimeout,
)
from liveedge.frames.resolve import Pick
from liveedge.service.gather import Gathered, Gatherer
from liveedge.service.limits import Budget
from liveedge.service.lookup import Resolved
from liveedge.service.models import ModelEntry
from liveedge.service.parts import Part, Reference
from liveedge.service.prompt import Media, Prompt, make_prompt
from liveedge.service.providers.availability import Availability
from liveedge.service.providers.breaker import Breaker, State
from liveedge.service.providers.config import ProviderConfig
from liveedge.service.providers.patience import Patience
from liveedge.service.providers.pictures import Encoder
from liveedge.service.providers.retries import RetryBudget, delay_s
from liveedge.service.providers.upstream import Upstream
from liveedge.service.providers.wire import Malformed, Reader
from liveedge.service.question import (
    AnswerEvent,
    ChoiceEnd,
    FrameUse,
    Question,
    Report,
    TextContent,
)
from liveedge.service.workers import Workers

log = logging.getLogger("liveedge.providers")

MAX_PARTS = 4096  # and messages: of a question, whatever they say
ENCODING = "the encoding of the frames for the provider"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderParts:
    """What all providers share with the rest of the server."""

    clock: Clock
    gatherer: Gatherer
    workers: Workers  # encoding of frames
    in_progress: Budget  # questions, those of our own model too
    elsewhere: Budget  # of them, those of all providers: slow ones leave room for our own model
    held_bytes: Budget  # decoded uploads and encoded frames
    timeout_ms: int
    rng: random.Random


@dataclass(slots=True, kw_only=True)
class _Course:
    """When things happened to one question, monotonic."""

    admitted_s: float
    deadline_s: float
    fresh_until_s: float | None = None
    resolved_s: float = 0.0
    submitted_s: float = 0.0
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the provider is shown, without a pixel of it."""

    frames: tuple[FrameUse, ...]
    evidence_at_ms: int | None
    arrived_s: float | None  # of that evidence, monotonic
    n_broken: int


class Provider:
    """Answers questions with the models of one provider."""

    def __init__(self, config: ProviderConfig, upstream: Upstream, parts: ProviderParts) -> None:
        self.config = config
        self.name = config.name
        self.outcomes: Counter[str] = Counter()  # of requests to it, by `catalog.OUTCOMES`
        self.connections = Budget(config.max_connections, what=f"requests to {config.name}")
        self.breaker = Breaker()
        self._upstream = upstream
        self._parts = parts
        self._clock = parts.clock
        self.retries = RetryBudget(now_s=self._clock.monotonic_s())
        self.availability = Availability(upstream.models, clock=parts.clock)
        self._created_s = self._clock.wall_ms() // 1000

    # ── what there is ──

    @property
    def state(self) -> State:
        return self.breaker.state(self._clock.monotonic_s())

    def entries(self) -> tuple[ModelEntry, ...]:
        """Its models for `GET /models`, as far as known."""
        listed = self.availability.listed
        names = self.config.models or tuple(name for name in listed if "/" not in name)
        is_there = self.availability.is_up and self.state != "open"
        return tuple(self._entry(name, is_there=is_there) for name in names)

    def _entry(self, name: str, *, is_there: bool) -> ModelEntry:
        listed = self.availability.listed.get(name)
        is_ready = is_there and (listed is None or listed.is_ready)
        return ModelEntry(
            id=name,
            created_s=self._created_s,
            status="ready" if is_ready else "unavailable",
            max_model_len=None if listed is None else listed.max_model_len,
            modalities=None,
            owned_by=self.name,
        )

    async def close(self) -> None:
        await self.availability.close()

    # ── questions ──

    async def answer(self, question: Question) -> AsyncGenerator[AnswerEvent, None]:
        """As `Asker.answer`."""
        admitted_s = question.admitted_s or self._clock.monotonic_s()
        timeout_ms = question.timeout_ms or self._parts.timeout_ms
        course = _Course(admitted_s=admitted_s, deadline_s=admitted_s + timeout_ms / 1000)
        self._require_open()
        self._check_amounts(question)
        parts = self._parts.gatherer.parts(_as_far_as_passed_on(question))
        gathered = await self._parts.gatherer.frames(
            question, parts, deadline_s=course.deadline_s, admit=self._admit
        )
        course.fresh_until_s = gathered.fresh_until_s
        with (
            self._parts.in_progress.hold(),
            self._parts.elsewhere.hold(),
            self.connections.hold(),
            self._parts.held_bytes.growing() as held,
        ):
            seen, body = await self._prepare(question, parts, gathered, course)
            held.add(len(body))
            events = self._events(question, seen, body, course)
            async with aclosing(events):
                async for event in events:
                    yield event

    async def check(self, question: Question) -> Sequence[Reference]:
        """As `Asker.check`."""
        self._require_open()
        self._check_amounts(question)
        parts = self._parts.gatherer.parts(_as_far_as_passed_on(question))
        return self._parts.gatherer.check(question, parts)

    def _require_open(self) -> None:
        now_s = self._clock.monotonic_s()
        if self.breaker.is_shut(now_s):
            raise self._away(now_s)

    def _away(self, now_s: float) -> ModelUnavailable:
        retry_after_s = self.breaker.retry_after_s(now_s)
        return ModelUnavailable(
            f"the provider {self.name} failed several times in a row and is left alone for a moment;"
            f" retry in {retry_after_s:.0f} s",
            retry_after_s=retry_after_s,
        )

    def _check_amounts(self, question: Question) -> None:
        n_parts = sum(len(turn.content) for turn in question.turns)
        if max(n_parts, len(question.turns)) > MAX_PARTS:
            raise ContextLengthExceeded(
                f"the question has {len(question.turns)} messages with {n_parts} parts, a provider is"
                f" sent at most {MAX_PARTS}: send fewer"
            )
        n_media = sum(not isinstance(c, TextContent) for t in question.turns for c in t.content)
        self._require_few(n_media)

    def _admit(self, references: Sequence[Reference], resolved: Sequence[Resolved]) -> None:
        self._require_few(sum(1 if isinstance(r, Pick) else r.n_frames for r in resolved))

    def _require_few(self, n_frames: int) -> None:
        most = self.config.max_frames
        if n_frames > most:
            raise ContextLengthExceeded(
                f"the question has {n_frames} frames, and the provider {self.name} is sent at most"
                f" {most} (max_frames): ask for less time, or lower max_fps"
            )

    async def _prepare(
        self,
        question: Question,
        parts: Sequence[Sequence[Part]],
        gathered: Gathered,
        course: _Course,
    ) -> tuple[_Seen, bytes]:
        """Decoded uploads are let go with the pixels: a slow provider holds none of them."""
        tenant, deadline_s = question.tenant, course.deadline_s
        gatherer, stopping = self._parts.gatherer, threading.Event()
        with self._parts.held_bytes.growing() as decoded:
            async with gatherer.fetched(parts, tenant=tenant, deadline_s=deadline_s) as fetched:
                uploaded = await gatherer.decode(
                    parts, decoded, fetched=fetched, deadline_s=deadline_s
                )
            course.resolved_s = self._clock.monotonic_s()
            media = gathered.media(tenant, uploaded)
            try:
                made = await self._parts.workers.run_until(
                    partial(self._encode, question, parts, media, stopping),
                    deadline_s=deadline_s,
                    clock=self._clock,
                    what=ENCODING,
                )
            finally:
                stopping.set()
        course.submitted_s = self._clock.monotonic_s()
        return made

    def _encode(
        self,
        question: Question,
        parts: Sequence[Sequence[Part]],
        media: Media,
        stopping: threading.Event,
    ) -> tuple[_Seen, bytes]:
        prompt = make_prompt(question.turns, parts, media)
        self._require_few(len(prompt.shown))  # an uploaded clip has more than one
        return _seen(prompt), Encoder(self.config, stopping).body(question, prompt)

    # ── asking it ──

    async def _events(
        self, question: Question, seen: _Seen, body: bytes, course: _Course
    ) -> AsyncGenerator[AnswerEvent, None]:
        self.retries.request_made()
        async with Patience(
            clock=self._clock,
            provider=self.name,
            deadline_s=course.deadline_s,
            silence_s=self.config.silence_s,
            fresh_until_s=course.fresh_until_s,
        ) as patience:
            attempt = 0
            while True:
                async with aclosing(self._attempt(question, seen, body, course, patience)) as run:
                    try:
                        first = await anext(run)
                    except UpstreamError as error:
                        wait_s = self._retry_in_s(error, attempt, patience)
                        if wait_s is None:
                            raise
                    else:
                        yield first
                        async for event in run:
                            yield event
                        return
                attempt += 1
                await self._clock.sleep(wait_s)

    def _retry_in_s(self, error: UpstreamError, attempt: int, patience: Patience) -> float | None:
        """When to ask again after a failure before the first token; None: not at all."""
        if not error.may_retry or attempt >= self.config.retries:
            return None
        now_s = self._clock.monotonic_s()
        wait_s = delay_s(
            attempt,
            asked_s=error.retry_after_s,
            limits=self.retries.limits,
            rng=self._parts.rng,
        )
        if wait_s >= patience.left_s() or self.breaker.is_shut(now_s):
            return None
        return wait_s if self.retries.take(now_s) else None

    async def _attempt(
        self,
        question: Question,
        seen: _Seen,
        body: bytes,
        course: _Course,
        patience: Patience,
    ) -> AsyncGenerator[AnswerEvent, None]:
        """One request: its events, first the one with the first token."""
        now_s = self._clock.monotonic_s()
        if not self.breaker.enter(now_s):
            raise self._away(now_s)
        reader = Reader(question.n)
        with self._recorded(patience):
            async with aclosing(self._upstream.ask(body, patience)) as pieces:
                async for piece in pieces:
                    for event in self._read(reader, piece):
                        self._note_first_token(course, patience)
                        yield event
            if reader.is_blocked:
                raise ProviderSafetyBlock(
                    f"the provider {self.name} answers nothing to this: content_filter",
                    upstream={
                        "provider": self.name,
                        "status": 200,
                        "body": "",
                        "rate_limits": {},
                    },
                )
            reasons = reader.reasons
            if reasons is None:
                raise self._upstream.no_answer(
                    "its answer ended in the middle", may_retry=not reader.has_begun
                )
            self._note_first_token(course, patience)  # of an answer without a word, its end
        for choice, reason in enumerate(reasons):
            report = self._report(choice, reader, question, seen, course)
            yield ChoiceEnd(choice=choice, reason=reason, report=report)

    def _read(self, reader: Reader, piece: object) -> Sequence[AnswerEvent]:
        try:
            return reader.read(piece)
        except Malformed as error:
            raise self._upstream.no_answer(str(error)) from error

    def _note_first_token(self, course: _Course, patience: Patience) -> None:
        if course.first_token_s is None:
            patience.first_token()
            course.first_token_s = self._clock.monotonic_s()
            self.breaker.succeeded()

    @contextmanager
    def _recorded(self, patience: Patience) -> Iterator[None]:
        """Count how a request ended, and let the breaker know. Entered once it let us through."""
        outcome = "left"
        try:
            yield
            outcome = "ok"
        except LiveEdgeError as error:
            outcome = _outcome(error)
            raise
        finally:
            self.outcomes[outcome] += 1
            # A client with a short deadline must not have the provider left alone for others.
            if outcome in ("http_5xx", "failed") or (outcome == "timeout" and patience.was_silent):
                self._failed()
            elif outcome in ("ok", "http_4xx", "blocked"):
                self.breaker.succeeded()
            else:
                self.breaker.abandoned()

    def _failed(self) -> None:
        n_opened = self.breaker.n_opened
        now_s = self._clock.monotonic_s()
        self.breaker.failed(now_s)
        if self.breaker.n_opened > n_opened:
            log.warning(
                "the provider %s fails: it is left alone for %.0f s",
                self.name,
                self.breaker.retry_after_s(now_s),
            )

    def _report(
        self, choice: int, reader: Reader, question: Question, seen: _Seen, course: _Course
    ) -> Report:
        """The provider counts all choices together: the first one has their tokens."""
        now_s = self._clock.monotonic_s()
        first_s = course.first_token_s or now_s
        age_ms = None
        if seen.arrived_s is not None:
            age_ms = round((first_s - seen.arrived_s) * 1000)
        spent = reader.spent
        return Report(
            prompt_tokens=spent.prompt_tokens,
            completion_tokens=spent.completion_tokens if choice == 0 else 0,
            cached_tokens=min(spent.cached_tokens, spent.prompt_tokens),
            image_tokens=spent.image_tokens,
            frames=seen.frames,
            evidence_at_ms=seen.evidence_at_ms,
            age_ms=age_ms,
            timings_ms=_timings_ms(course, first_s=first_s, now_s=now_s),
            corrupt_frames=seen.n_broken,
            thread_id=question.thread_id,
            provider=self.name,
        )


def _seen(prompt: Prompt) -> _Seen:
    newest = prompt.newest
    return _Seen(
        frames=tuple(shown.used(n_tokens=0, warm=False) for shown in prompt.shown),
        evidence_at_ms=None if newest is None else newest.captured_at_ms,
        arrived_s=None if newest is None else newest.arrived_s,
        n_broken=prompt.n_broken,
    )


def _as_far_as_passed_on(question: Question) -> Question:
    """What our own model cannot honour the provider may: it is told as it was sent."""
    left = [name for name in question.unsupported if name.partition(".")[0] not in question.sent]
    return replace(question, unsupported=tuple(left))


def _outcome(error: LiveEdgeError) -> str:
    if isinstance(error, UpstreamHttpError):
        if error.status == 429:
            return "http_429"
        return "http_4xx" if 400 <= error.status < 500 else "http_5xx"
    return next((name for kind, name in _ENDS if isinstance(error, kind)), "left")


_ENDS: tuple[tuple[type[LiveEdgeError], str], ...] = (
    (ProviderSafetyBlock, "blocked"),
    (UpstreamTimeout, "timeout"),
    (FrameStale, "timeout"),
    (UpstreamRequestFailed, "failed"),
)


def _timings_ms(course: _Course, *, first_s: float, now_s: float) -> Mapping[str, float]:
    values = {
        "resolve": course.resolved_s - course.admitted_s,
        "preprocess": course.submitted_s - course.resolved_s,
        "first_token": first_s - course.admitted_s,
        "decode": now_s - first_s,
        "total": now_s - course.admitted_s,
    }
    return {stage: round(seconds * 1000, 2) for stage, seconds in values.items()}

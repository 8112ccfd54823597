"""From a question to its answer: the path of a question, in the order of the checks.

1. the model is there                                  `service.models`
2. the parts are well-formed                           `service.gather`, `service.parts`
3. the streams exist and belong to the tenant, and the region is ours
                                                       `service.gather`
4. the references become frames, fresh enough, few     `service.lookup`, `service.room`;
   frames of a warm window, where the bounds allow it  `service.windows`
5. there is room for one more question                 `service.limits`
   remote media are fetched                            `service.remote`
   it would not wait too long for others               `service.queueing`
6. uploads are decoded                                 `service.uploads`
7. the prompt is made, counted and checked             `service.prompt`, engine `prepare`
8. the engine answers; what fails up to the first token fails before the first event

Leaving `answer` early, or cancelling it, ends the work in every one of these phases.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeGuard

from liveedge.core.clock import Clock
from liveedge.core.errors import FrameStale, ModelVideoUnsupported
from liveedge.engine.interface import Engine, PreparedRequest
from liveedge.engine.request import (
    Delta,
    Failed,
    Finished,
    GenerateRequest,
    SamplingParams,
)
from liveedge.frames.refs import SegmentRef
from liveedge.service.backlog import Backlog
from liveedge.service.gather import Gathered, Gatherer, uploads_of
from liveedge.service.limits import Budget
from liveedge.service.lookup import Found, Resolved
from liveedge.service.merge import merged
from liveedge.service.models import ModelHost
from liveedge.service.parts import Part, Reference, Upload
from liveedge.service.prompt import Media, Prompt, make_prompt
from liveedge.service.question import AnswerEvent, ChoiceEnd, Question, Report, TextDelta
from liveedge.service.queueing import Queueing, Shape, shape_of
from liveedge.service.remote import Fetches, RemoteMedia
from liveedge.service.room import check_room
from liveedge.service.tools import CallSplitter, form_of, offered
from liveedge.service.windows import Windows, WindowUse
from liveedge.service.workers import Workers

LONG_PROMPT_CHARS = 32_768  # about ten milliseconds to count


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSettings:
    """What is not in the question."""

    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AskResources:
    """What all questions share."""

    prompts: Workers
    long_prompts: Workers  # apart from them: a text of many pages takes a second to count
    schemas: Workers  # apart from the prompts: see `Engine.check_form`
    uploads: Workers  # apart from the prompts: a clip may take seconds to decode
    in_progress: Budget  # questions
    queueing: Queueing  # how long one may wait for others
    decoded_bytes: Budget  # of uploads
    backlog: Backlog  # of uploads
    remote: RemoteMedia | None = None  # None: no remote media are fetched


@dataclass(slots=True, kw_only=True)
class _Course:
    """When things happened to one question, monotonic."""

    admitted_s: float
    deadline_s: float
    windows: WindowUse
    fresh_until_s: float | None = None  # no first token by then: its evidence is too old
    submitted_s: float = 0.0
    began: Callable[[], None] = lambda: None  # the first token is there
    first_token_s: dict[int, float] = field(default_factory=dict)  # by choice


def random_call_id() -> str:
    """Of a call in an answer; clients send it back with the result."""
    return f"call_{uuid.uuid4().hex[:24]}"


class Asker:
    """Answers questions."""

    def __init__(
        self,
        *,
        clock: Clock,
        models: ModelHost,
        gatherer: Gatherer,
        windows: Windows,
        resources: AskResources,
        settings: AskSettings,
        new_call_id: Callable[[], str] = random_call_id,
    ) -> None:
        self._clock = clock
        self._models = models
        self._windows = windows
        self._resources = resources
        self._settings = settings
        self._gatherer = gatherer
        self._new_call_id = new_call_id

    async def answer(self, question: Question) -> AsyncGenerator[AnswerEvent, None]:
        """Text of each choice as it comes, and each choice's end. Hold it with `aclosing`."""
        engine, parts, course = self._begin(question)
        gathered = await self._look_up(question, parts, course, engine)
        with self._resources.in_progress.hold(), course.windows.held(gathered.stores):
            if any(upload.is_remote for upload in uploads_of(parts)):
                self._resources.queueing.require_room(question.priority, tenant=question.tenant)
            # Before it is in the line: what other servers take is no work that others wait for.
            async with self._gatherer.fetched(
                parts, tenant=question.tenant, deadline_s=course.deadline_s
            ) as fetched:
                events = self._in_line(engine, question, parts, gathered, fetched, course)
                async with aclosing(events):
                    async for event in events:
                        yield event

    async def _in_line(
        self,
        engine: Engine,
        question: Question,
        parts: Sequence[Sequence[Part]],
        gathered: Gathered,
        fetched: Fetches,
        course: _Course,
    ) -> AsyncGenerator[AnswerEvent, None]:
        with (
            self._resources.queueing.place(
                _shape(question, parts, gathered.found), question.priority, tenant=question.tenant
            ) as course.began,
            self._resources.decoded_bytes.growing() as decoded,
        ):
            uploaded = await self._gatherer.decode(
                parts, decoded, fetched=fetched, deadline_s=course.deadline_s
            )
            media = gathered.media(question.tenant, uploaded)
            prompt, prepared = await self._prepare(engine, question, parts, media, course)
            course.windows.accepted()
            calls = CallSplitter(question, new_id=self._new_call_id)
            async with aclosing(self._events(engine, prepared, question, prompt, course)) as events:
                async for event in events:
                    for part in calls.split(event):
                        yield part

    async def check(self, question: Question) -> Sequence[Reference]:
        """Raise what `answer` would raise before it looks for frames, and return the references:
        for questions that are to be asked later."""
        engine, parts, course = self._begin(question)
        references = self._gatherer.check(question, parts)
        if not engine.model.supports_video:
            _refuse_video(parts, engine)
        await self._check_form(engine, question, course)
        return references

    def _begin(self, question: Question) -> tuple[Engine, tuple[tuple[Part, ...], ...], _Course]:
        """The checks that need no stream."""
        now_s = question.admitted_s or self._clock.monotonic_s()
        timeout_ms = question.timeout_ms or self._settings.timeout_ms
        engine = self._models.require(question.model)
        engine.model.check_amounts(
            n_messages=len(question.turns),
            n_parts=sum(len(turn.content) for turn in question.turns),
        )
        parts = self._gatherer.parts(question)
        windows = self._windows.of_question(question, parts)
        course = _Course(
            admitted_s=now_s,
            deadline_s=now_s + timeout_ms / 1000,
            windows=windows,
        )
        return engine, parts, course

    async def _look_up(
        self,
        question: Question,
        parts: Sequence[Sequence[Part]],
        course: _Course,
        engine: Engine,
    ) -> Gathered:
        def admit(references: Sequence[Reference], resolved: Sequence[Resolved]) -> None:
            if not engine.model.supports_video:
                _refuse_video(parts, engine)
            check_room(references, resolved, engine.model)

        gathered = await self._gatherer.frames(
            question,
            parts,
            deadline_s=course.deadline_s,
            admit=admit,
            # Before frames are chosen: they would grow old while a new form is checked.
            check=partial(self._check_form, engine, question, course),
            warm=course.windows.warm_frames,
        )
        course.fresh_until_s = gathered.fresh_until_s
        return gathered

    async def _prepare(
        self,
        engine: Engine,
        question: Question,
        parts: Sequence[Sequence[Part]],
        media: Media,
        course: _Course,
    ) -> tuple[Prompt, PreparedRequest]:
        form = form_of(question)

        def work() -> tuple[Prompt, PreparedRequest]:
            prompt = make_prompt(question.turns, parts, media)
            request = GenerateRequest(
                request_id=uuid.uuid4().hex,  # ours: a client may use its own for several at once
                messages=prompt.messages,
                tools=offered(question.tools),
                tenant=question.tenant,
                sampling=question.sampling,
                form=form,
                priority=question.priority,
                deadline_s=course.deadline_s,
                fresh_until_s=course.fresh_until_s,
            )
            return prompt, engine.prepare(request)

        resources = self._resources
        is_long = question.n_chars > LONG_PROMPT_CHARS
        workers = resources.long_prompts if is_long else resources.prompts
        made = await workers.run_until(
            work,
            deadline_s=course.deadline_s,
            clock=self._clock,
            what="the preparation of the prompt",
        )
        course.submitted_s = self._clock.monotonic_s()
        return made

    async def _check_form(self, engine: Engine, question: Question, course: _Course) -> None:
        """Apart from the prompts: a new form may take seconds, and nobody else waits for it."""
        form = form_of(question)
        if form is None:
            return
        await self._resources.schemas.run_until(
            partial(engine.check_form, form),
            deadline_s=course.deadline_s,
            clock=self._clock,
            what=f"the check of the {form.kind}",
        )

    async def _events(
        self,
        engine: Engine,
        prepared: PreparedRequest,
        question: Question,
        prompt: Prompt,
        course: _Course,
    ) -> AsyncGenerator[AnswerEvent, None]:
        runs = [engine.generate(one) for one in _choices(prepared, question.n)]
        async with aclosing(merged(runs)) as events:
            async for choice, event in events:
                match event:
                    case Delta():
                        self._note_first_token(choice, course)
                        yield TextDelta(choice=choice, text=event.text, logprobs=event.logprobs)
                    case Finished():
                        if choice == 0:
                            cached_tokens = event.usage.cached_tokens
                            course.windows.answered(prepared, cached_tokens=cached_tokens)
                        report = self._report(choice, event, question, prompt, course)
                        yield ChoiceEnd(choice=choice, reason=event.reason, report=report)
                    case Failed():
                        raise event.error

    def _note_first_token(self, choice: int, course: _Course) -> None:
        """Raise FrameStale if it came too late; the engine's own check does not know the way here."""
        if choice in course.first_token_s:
            return
        course.began()
        now_s = course.first_token_s[choice] = self._clock.monotonic_s()
        if course.fresh_until_s is not None and now_s > course.fresh_until_s:
            raise FrameStale(
                "the newest frame used became older than max_age_ms before the first token;"
                " ask again, or raise max_age_ms"
            )

    def _report(
        self,
        choice: int,
        end: Finished,
        question: Question,
        prompt: Prompt,
        course: _Course,
    ) -> Report:
        now_s = self._clock.monotonic_s()
        first_s = course.first_token_s.get(choice, now_s)
        newest = prompt.newest
        age_ms = None
        if newest is not None and newest.arrived_s is not None:
            age_ms = round((first_s - newest.arrived_s) * 1000)
        return Report(
            prompt_tokens=end.usage.prompt_tokens,
            completion_tokens=end.usage.completion_tokens,
            cached_tokens=end.usage.cached_tokens,
            image_tokens=end.usage.image_tokens,
            frames=prompt.uses(end.usage.media),
            evidence_at_ms=None if newest is None else newest.captured_at_ms,
            age_ms=age_ms,
            timings_ms=_timings_ms(end, course, first_s=first_s, now_s=now_s),
            corrupt_frames=prompt.n_broken,
            thread_id=question.thread_id,
        )


def _shape(
    question: Question, parts: Sequence[Sequence[Part]], found: Mapping[str, Found]
) -> Shape:
    """What the question will cost depends on."""
    return shape_of(
        n_uploads=sum(1 for _ in uploads_of(parts)),
        n_frames=sum(len(one.picks) for one in found.values()),
        n_chars=question.n_chars,
    )


def _refuse_video(parts: Sequence[Sequence[Part]], engine: Engine) -> None:
    for part in (part for turn in parts for part in turn):
        if _is_video(part):
            raise ModelVideoUnsupported(
                f"{part.where} is a video, and {engine.model.model_id} takes pictures only;"
                " use image_url"
            )


def _is_video(part: Part) -> TypeGuard[Reference | Upload]:
    if isinstance(part, Upload):
        return part.kind == "video"
    return isinstance(part, Reference) and isinstance(part.ref, SegmentRef)


def _choices(prepared: PreparedRequest, n: int) -> list[PreparedRequest]:
    """One run per choice; with a seed each choice has its own, so that they differ."""
    return [prepared] if n == 1 else [_choice(prepared, i) for i in range(n)]


def _choice(prepared: PreparedRequest, i: int) -> PreparedRequest:
    request = prepared.request
    sampling: SamplingParams = request.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=sampling.seed + i)
    run = replace(request, request_id=f"{request.request_id}-{i}", sampling=sampling)
    return replace(prepared, request=run)


def _timings_ms(
    end: Finished, course: _Course, *, first_s: float, now_s: float
) -> dict[str, float]:
    spent = end.timings
    values = {
        "resolve": (course.submitted_s - course.admitted_s) * 1000,
        "queue": spent.queue_ms,
        "preprocess": spent.preprocess_ms,
        "encode": spent.encode_ms,
        "prefill": spent.prefill_ms,
        "first_token": (first_s - course.admitted_s) * 1000,
        "decode": spent.decode_ms,
        "total": (now_s - course.admitted_s) * 1000,
    }
    return {stage: round(ms, 2) for stage, ms in values.items()}

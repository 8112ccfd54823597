"""An engine without a model: answers what the test says and keeps every promise of the real one.

Deltas and then exactly one end, cancellation in every phase, a bounded queue, deadlines, freshness,
warm frames and windows, reused prefixes, timings and restarts. `tests/contract/test_engine.py` runs
on this and on the real engine.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.core.clock import Clock
from liveedge.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    FrameStale,
    InternalError,
    LiveEdgeError,
    ModelUnavailable,
    ModelVideoUnsupported,
    QueueFull,
    WindowLimitReached,
)
from liveedge.core.tasks import TaskSet
from liveedge.engine.decide.detokenizer import TextStream
from liveedge.engine.decide.prefix import common_prefix, prompt_identity
from liveedge.engine.form.forms import AnswerForm
from liveedge.engine.interface import (
    EngineStats,
    EngineStatus,
    FeatureGroup,
    ModelInfo,
    PreparedRequest,
    Warmed,
    WindowPrefix,
)
from liveedge.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    FrameInput,
    GenerateRequest,
    ImagePart,
    MediaUse,
    TextPart,
    Timings,
    TokenLogprob,
    Usage,
    VideoPart,
)

Phase: TypeAlias = Literal["queue", "load", "encode", "prefill", "decode", "warm"]
# Of a request, in order. An update of a window has one phase of its own, "warm".
PHASES: tuple[Phase, ...] = ("queue", "load", "encode", "prefill", "decode")

FAKE_MODEL = ModelInfo(
    model_id="liveedge/fake",
    max_model_len=4096,
    supports_video=True,
    image_max_pixels=1 << 20,
    video_max_pixels=1 << 18,
    token_px=32,
)


@dataclass(slots=True)
class _Run:
    """Where the time of one request went."""

    admitted_s: float
    n_crashes: int  # of the engine when the request entered
    marks: dict[str, float] = field(default_factory=dict)
    first_token_s: float | None = None


@dataclass(slots=True, eq=False)
class _Update:
    """One call of `warm` in progress."""

    is_over: asyncio.Event = field(default_factory=asyncio.Event)  # a newer one, or no window
    error: LiveEdgeError | None = None


@dataclass(slots=True, eq=False)
class _Window:
    """A slot of a warm window."""

    newest: _Update | None = None
    identity: NDArray[np.int64] | None = None  # what is resident


class FakeEngine:
    """Scripted answers behind the `Engine` protocol. A word of the answer is a token.

    `answer` is a text, or a function of the request that returns a text or raises a LiveEdgeError.
    `hold(phase)` stops every request at the entrance of that phase until `release(phase)`.
    `requests` lists what was generated, `loaded` the keys whose pixels were fetched, `warmed` the
    prefixes that became resident, with their window. `crash` and `restart` are those of the process.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        answer: str | Callable[[GenerateRequest], str] = "It is a test.",
        model: ModelInfo = FAKE_MODEL,
        n_slots: int = 4,
        n_windows: int = 4,
        queue_capacity: int = 8,
        token_s: float = 0.0,
    ) -> None:
        self.requests: list[GenerateRequest] = []
        self.loaded: list[str] = []
        self.warmed: list[WindowPrefix] = []
        self.warm_s = 0.0  # what an update of a window takes
        self.back_off_s = 1.0  # what clients are told while it is not ready
        self.answer = answer
        self._clock = clock
        self._model = model
        self._token_s = token_s
        self._n_windows = n_windows
        self._windows: dict[str, _Window] = {}
        self._n_starts = 1
        self._n_crashes = 0
        self._restarted: asyncio.Event | None = None  # while the process is down
        self._status: EngineStatus = "ready"
        self._capacity = queue_capacity
        self._slots = asyncio.Semaphore(n_slots)
        self._gates: dict[Phase, asyncio.Event] = {}
        self._features: set[str] = set()
        self._residents: list[NDArray[np.int64]] = []
        self._stats = EngineStats(slots_total=n_slots)

    # what a test does

    def hold(self, phase: Phase) -> None:
        self._gates[phase] = asyncio.Event()

    def release(self, phase: Phase) -> None:
        self._gates.pop(phase).set()

    def set_status(self, status: EngineStatus) -> None:
        self._status = status

    def crash(self) -> None:
        """The process dies: everything in progress fails, everything resident is lost."""
        self._status = "loading"
        self._restarted = asyncio.Event()
        self._n_crashes += 1
        self._features.clear()
        self._residents.clear()
        self._end_updates(ModelUnavailable("the engine stopped unexpectedly and restarts"))
        self._open_gates()

    def restart(self) -> None:
        """The process is back and answers."""
        assert self._restarted is not None, "only what crashed restarts"
        self._status = "ready"
        self._n_starts += 1
        self._restarted.set()
        self._restarted = None

    # what the service sees

    @property
    def model(self) -> ModelInfo:
        return self._model

    def status(self) -> EngineStatus:
        return self._status

    @property
    def n_starts(self) -> int:
        return self._n_starts

    def retry_after_s(self) -> float:
        return self.back_off_s

    async def ready(self) -> None:
        if self._restarted is not None:
            await self._restarted.wait()
        if self._status != "ready":
            raise ModelUnavailable(f"the model {self._model.model_id} is {self._status}")

    def startup_ms(self) -> Mapping[str, float]:
        return {"weights": 0.0}

    def stats(self) -> EngineStats:
        return self._stats

    def close(self) -> None:
        self._status = "closed"
        self._end_updates(ModelUnavailable("the engine is stopping"))
        self._open_gates()

    def _open_gates(self) -> None:
        for gate in self._gates.values():
            gate.set()

    def check_form(self, form: AnswerForm) -> None:
        """Takes every form."""

    def prepare(self, request: GenerateRequest) -> PreparedRequest:
        ids: list[int] = []
        groups: list[FeatureGroup] = []
        for tool in request.tools:
            ids += _word_ids(json.dumps(tool))
        for message in request.messages:
            ids += _word_ids(f"<{message.role}>")
            for part in message.content:
                self._expand(part, ids, groups)
        self._check_fits(len(ids), groups)
        prompt = np.array(ids, dtype=np.int64)
        return PreparedRequest(
            request=request,
            ids=prompt,
            positions=np.broadcast_to(np.arange(len(ids), dtype=np.int64), (3, len(ids))),
            position_delta=0,
            identity=prompt_identity(
                prompt, [(g.start, g.n_tokens, g.key) for g in groups], tenant=request.tenant
            ),
            groups=tuple(groups),
            image_tokens=sum(g.n_tokens for g in groups),
            max_new_tokens=min(request.sampling.max_tokens, self._model.max_model_len - len(ids)),
        )

    def prepare_window(self, request: GenerateRequest) -> PreparedRequest:
        whole = self.prepare(request)
        if not whole.groups:
            raise ValueError("a window without media: at least one message must have some")
        stop = whole.groups[-1].stop
        return replace(
            whole,
            ids=whole.ids[:stop],
            positions=whole.positions[:, :stop],
            identity=whole.identity[:stop],
        )

    async def warm(self, prefix: WindowPrefix) -> Warmed:
        self._require_ready()
        window = self._window(prefix.window_id)
        if window.newest is not None:
            window.newest.is_over.set()
        mine = window.newest = _Update()
        tasks = TaskSet("fake-engine")
        work = tasks.start(self._update(prefix, window), name=f"warm {prefix.window_id}")
        over = tasks.start(mine.is_over.wait(), name="superseded")
        try:
            await asyncio.wait((work, over), return_when=asyncio.FIRST_COMPLETED)
            if mine.error is not None:
                raise mine.error
            if mine.is_over.is_set():
                self._count(warm_superseded=1)
                n_tokens = prefix.prepared.n_tokens
                return Warmed(
                    superseded=True, n_tokens=n_tokens, n_prefilled=0, n_encoded=0, busy_s=0.0
                )
            return work.result()
        finally:
            if window.newest is mine:
                window.newest = None
            await tasks.close()

    def drop_window(self, window_id: str) -> None:
        window = self._windows.pop(window_id, None)
        if window is None:
            return
        self._count(windows=-1)
        if window.newest is not None:
            window.newest.is_over.set()

    def _window(self, window_id: str) -> _Window:
        if window_id not in self._windows:
            if len(self._windows) >= self._n_windows:
                raise WindowLimitReached(
                    f"all {self._n_windows} windows of the engine are in use: drop one first"
                )
            self._windows[window_id] = _Window()
            self._count(windows=1)
        return self._windows[window_id]

    def _end_updates(self, error: LiveEdgeError) -> None:
        windows, self._windows = self._windows, {}
        self._count(windows=-len(windows))
        for window in windows.values():
            if window.newest is not None:
                window.newest.error = error
                window.newest.is_over.set()

    async def _update(self, prefix: WindowPrefix, window: _Window) -> Warmed:
        prepared = prefix.prepared
        gate = self._gates.get("warm")
        if gate is not None:
            await gate.wait()
        cold = [group for group in prepared.groups if group.key not in self._features]
        for group in cold:
            await self._load_group(group)
        await self._clock.sleep(self.warm_s)
        self._features.update(group.key for group in prepared.groups)
        n_prefilled = prepared.n_tokens - self._n_resident(prepared.identity)
        window.identity = prepared.identity
        self.warmed.append(prefix)
        self._count(
            warm_updates=1,
            warm_encoded=len(cold),
            warm_prefilled=n_prefilled,
            warm_busy_s=self.warm_s,
        )
        return Warmed(
            superseded=False,
            n_tokens=prepared.n_tokens,
            n_prefilled=n_prefilled,
            n_encoded=len(cold),
            busy_s=self.warm_s,
        )

    def _expand(
        self, part: TextPart | ImagePart | VideoPart, ids: list[int], groups: list[FeatureGroup]
    ) -> None:
        if isinstance(part, TextPart):
            ids += _word_ids(part.text)
        elif isinstance(part, ImagePart):
            self._add_group((part.frame,), part.max_pixels, ids, groups)
        else:
            if not self._model.supports_video:
                raise ModelVideoUnsupported(f"{self._model.model_id} takes pictures only")
            for i in range(0, len(part.frames), 2):
                self._add_group(part.frames[i : i + 2], part.max_pixels, ids, groups)

    def _add_group(
        self,
        frames: Sequence[FrameInput],
        max_pixels: int | None,
        ids: list[int],
        groups: list[FeatureGroup],
    ) -> None:
        px = self._model.token_px
        first = frames[0]
        area = min(first.width * first.height, max_pixels or self._model.video_max_pixels)
        n_tokens = max(1, area // (px * px))
        key = "|".join(f.key for f in frames) + f"@{n_tokens}"
        group = FeatureGroup(
            key=key,
            frames=tuple(frames),
            height=first.height,
            width=first.width,
            start=len(ids),
            n_tokens=n_tokens,
        )
        groups.append(group)
        ids += [0] * n_tokens

    def _check_fits(self, n_tokens: int, groups: Sequence[FeatureGroup]) -> None:
        limit = self._model.max_model_len
        if n_tokens >= limit:
            media = sum(g.n_tokens for g in groups)
            raise ContextLengthExceeded(
                f"the prompt has {n_tokens} tokens ({media} of media), {self._model.model_id} "
                f"takes {limit - 1}: use fewer or smaller frames"
            )

    async def generate(self, prepared: PreparedRequest) -> AsyncGenerator[Event, None]:
        self._require_ready()
        if self._stats.queue_depth >= self._capacity:
            self._count(refused=1)
            raise QueueFull(f"{self._capacity} requests wait already", retry_after_s=1.0)
        run = _Run(admitted_s=self._clock.monotonic_s(), n_crashes=self._n_crashes)
        self.requests.append(prepared.request)
        ended = False
        try:
            async with aclosing(self._events(prepared, run)) as events:
                async for event in events:
                    ended = isinstance(event, Finished | Failed)
                    if ended:
                        name = "finished" if isinstance(event, Finished) else "failed"
                        self._count(**{name: 1})
                    yield event
        finally:
            if not ended:
                self._count(cancelled=1)

    def _require_ready(self) -> None:
        if self._status != "ready":
            raise ModelUnavailable(
                f"the model {self._model.model_id} is {self._status}",
                retry_after_s=self.back_off_s,
            )

    async def _events(self, prepared: PreparedRequest, run: _Run) -> AsyncGenerator[Event, None]:
        try:
            async with aclosing(self._run(prepared, run)) as events:
                async for event in events:
                    yield event
        except LiveEdgeError as error:
            yield Failed(error=error)

    async def _run(self, prepared: PreparedRequest, run: _Run) -> AsyncGenerator[Event, None]:
        await self._wait_for_slot(prepared, run)
        self._count(running=1, slots_used=1)
        try:
            run.marks["queue"] = self._clock.monotonic_s()
            media = await self._load(prepared, run)
            async with aclosing(self._decode(prepared, run, media)) as events:
                async for event in events:
                    yield event
        finally:
            self._count(running=-1, slots_used=-1)
            self._slots.release()

    async def _wait_for_slot(self, prepared: PreparedRequest, run: _Run) -> None:
        self._count(queue_depth=1)
        try:
            await self._phase("queue", prepared, run)
            await self._slots.acquire()
        finally:
            self._count(queue_depth=-1)

    async def _phase(self, phase: Phase, prepared: PreparedRequest, run: _Run) -> None:
        """Stop here while the test holds this phase, then check what may have changed meanwhile."""
        gate = self._gates.get(phase)
        if gate is not None:
            await gate.wait()
        if self._status == "closed":
            raise ModelUnavailable("the engine is stopping")
        if run.n_crashes != self._n_crashes:
            raise ModelUnavailable("the engine stopped unexpectedly and restarts")
        deadline_s = prepared.request.deadline_s
        if deadline_s is not None and self._clock.monotonic_s() >= deadline_s:
            raise DeadlineExceeded(f"the deadline passed in phase {phase}")
        if run.first_token_s is None:
            self._check_fresh(prepared.request)

    def _check_fresh(self, request: GenerateRequest) -> None:
        fresh_until_s = request.fresh_until_s
        if fresh_until_s is not None and self._clock.monotonic_s() > fresh_until_s:
            self._count(stale=1)
            raise FrameStale(
                "the newest frame became older than max_age_ms before the first token;"
                " ask again, or raise max_age_ms"
            )

    async def _load(self, prepared: PreparedRequest, run: _Run) -> tuple[MediaUse, ...]:
        await self._phase("load", prepared, run)
        media: list[MediaUse] = []
        for group in prepared.groups:
            warm = group.key in self._features
            if not warm:
                await self._load_group(group)
            for i, frame in enumerate(_distinct(group.frames)):
                n_tokens = 0 if i else group.n_tokens
                media.append(MediaUse(key=frame.key, n_tokens=n_tokens, warm=warm))
        run.marks["load"] = self._clock.monotonic_s()
        await self._phase("encode", prepared, run)
        self._features.update(group.key for group in prepared.groups)
        return tuple(media)

    async def _load_group(self, group: FeatureGroup) -> None:
        for frame in _distinct(group.frames):
            try:
                pixels = await asyncio.to_thread(frame.load)
            except LiveEdgeError:
                raise
            except Exception as error:
                raise InternalError("a frame could not be loaded") from error
            assert pixels.shape == (frame.height, frame.width, 3), (pixels.shape, frame)
            self.loaded.append(frame.key)

    async def _decode(
        self, prepared: PreparedRequest, run: _Run, media: tuple[MediaUse, ...]
    ) -> AsyncGenerator[Event, None]:
        await self._phase("prefill", prepared, run)
        cached = self._reuse(prepared)
        request = prepared.request
        answer = self.answer if isinstance(self.answer, str) else self.answer(request)
        tokens = re.findall(r"\s*\S+", answer)
        stream = TextStream(request.sampling.stop)
        n_sent = 0
        for token in tokens[: prepared.max_new_tokens]:
            await self._next_token(prepared, run)
            n_sent += 1
            yield Delta(
                text=stream.push(token.encode()), n_tokens=1, logprobs=_logprobs(request, token)
            )
            if stream.stopped:
                break
        if rest := stream.finish():
            yield Delta(text=rest, n_tokens=0)
        usage = Usage(
            prompt_tokens=prepared.n_tokens,
            completion_tokens=n_sent,
            image_tokens=prepared.image_tokens,
            cached_tokens=cached,
            media=media,
        )
        done = stream.stopped or n_sent == len(tokens)
        yield Finished(reason="stop" if done else "length", usage=usage, timings=self._timings(run))

    def _reuse(self, prepared: PreparedRequest) -> int:
        cached = self._n_resident(prepared.identity[:-1])
        self._residents = [*self._residents[-7:], prepared.identity]
        return cached

    def _n_resident(self, identity: NDArray[np.int64]) -> int:
        """How much of the prompt is resident, in a window or in the slot of an answer."""
        windows = [w.identity for w in self._windows.values() if w.identity is not None]
        known = [*self._residents, *windows]
        return max((common_prefix(one, identity) for one in known), default=0)

    async def _next_token(self, prepared: PreparedRequest, run: _Run) -> None:
        await self._clock.sleep(self._token_s)
        if run.first_token_s is None:
            self._check_fresh(prepared.request)
            run.first_token_s = self._clock.monotonic_s()
        else:
            await self._phase("decode", prepared, run)

    def _timings(self, run: _Run) -> Timings:
        now_s = self._clock.monotonic_s()
        first_s = run.first_token_s or now_s
        queue_s = run.marks["queue"]
        load_s = run.marks["load"]
        return Timings(
            queue_ms=(queue_s - run.admitted_s) * 1000,
            preprocess_ms=(load_s - queue_s) * 1000,
            prefill_ms=(first_s - load_s) * 1000,
            first_token_ms=(first_s - run.admitted_s) * 1000,
            decode_ms=(now_s - first_s) * 1000,
            total_ms=(now_s - run.admitted_s) * 1000,
        )

    def _count(self, **changes: float) -> None:
        self._stats = replace(
            self._stats, **{name: getattr(self._stats, name) + n for name, n in changes.items()}
        )


def _word_ids(text: str) -> list[int]:
    """A stable positive id per word."""
    return [1 + int.from_bytes(word.encode()[:6], "little") + len(word) for word in text.split()]


def _distinct(frames: Sequence[FrameInput]) -> list[FrameInput]:
    return list({frame.key: frame for frame in frames}.values())


def _logprobs(request: GenerateRequest, token: str) -> tuple[TokenLogprob, ...]:
    if not request.sampling.logprobs:
        return ()
    top = ((token, token.encode(), 0.0),) * min(1, request.sampling.top_logprobs)
    return (TokenLogprob(token=token, token_bytes=token.encode(), logprob=0.0, top=top),)

"""The engine's loop on the test's own thread: real parts, no event loop, every token recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.core.clock import SystemClock
from liveedge.core.errors import LiveEdgeError
from liveedge.core.mailbox import Mailbox
from liveedge.engine.compute.runner import Runner
from liveedge.engine.decide.encoder_cache import EncoderCache
from liveedge.engine.decide.plan import (
    Compared,
    DecodeBatch,
    EncodeBatch,
    LoadJob,
    PrefillChunk,
    Sampled,
)
from liveedge.engine.decide.scheduler import Scheduler
from liveedge.engine.decide.slots import Copy, SlotTable
from liveedge.engine.form.forms import JsonForm
from liveedge.engine.form.schema_gate import SchemaGate
from liveedge.engine.front import Front
from liveedge.engine.interface import (
    EngineSettings,
    EngineStats,
    PreparedRequest,
    Warmed,
    WindowPrefix,
)
from liveedge.engine.prepare import Preparer
from liveedge.engine.process.desk import Desk
from liveedge.engine.process.intake import Intake, Preprocess
from liveedge.engine.process.loop import EngineLoop
from liveedge.engine.process.messages import (
    Abort,
    DropWindow,
    EngineInput,
    Loaded,
    Ping,
    Released,
    Stop,
    Submit,
    Warm,
)
from liveedge.engine.process.start import AnswerVocabulary, Opening
from liveedge.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    FrameInput,
    GenerateRequest,
    ImagePart,
    Message,
    SamplingParams,
    TextPart,
    VideoPart,
)
from tests.reference import Clip

Content: TypeAlias = Sequence[str | tuple[str, Clip]]  # texts and named media

# Keeps a random model talking: no answer ends before max_tokens.
ENDLESS: dict[str, Any] = {
    "type": "object",
    "properties": {"story": {"type": "string", "minLength": 5000}},
    "required": ["story"],
}

FEATURES = 1 << 20  # bytes; small, so that tests start at once


@dataclass
class Answer:
    """Everything that one request got."""

    tokens: list[int] = field(default_factory=list)  # as sampled, the end token included
    logprobs: list[float] = field(default_factory=list)
    top: list[dict[int, float]] = field(default_factory=list)  # the most probable of each step
    events: list[Event | Warmed] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))

    @property
    def end(self) -> Event | Warmed:
        assert isinstance(self.events[-1], Finished | Failed | Warmed)
        return self.events[-1]

    @property
    def warmed(self) -> Warmed:
        assert isinstance(self.end, Warmed), self.end
        return self.end

    @property
    def finished(self) -> Finished:
        assert isinstance(self.end, Finished), self.end
        return self.end

    @property
    def failed(self) -> Failed:
        assert isinstance(self.end, Failed), self.end
        return self.end


class RecordingRunner:
    """Passes everything on and remembers what was sampled and encoded; fails where it is told to."""

    def __init__(self, inner: Runner, answers: dict[str, Answer]) -> None:
        self._inner = inner
        self._answers = answers
        self.encoded: list[str] = []
        self.batches: list[int] = []
        self.prefilled: dict[str, int] = {}  # tokens in the slot, by request
        self.n_prefilled: Counter[str] = Counter()  # tokens computed, by request
        self.passes: list[dict[str, int]] = []  # tokens of each piece of each pass
        self.compared: list[Compared] = []
        self.n_copies = 0
        self.broken: dict[str, Exception] = {}  # name of a method: what it raises
        self.spoilt: dict[str, LiveEdgeError] = {}  # a request: what it gets for its next token

    def _enter(self, method: str) -> None:
        if method in self.broken:
            raise self.broken[method]

    def copy(self, copy: Copy) -> None:
        self._enter("copy")
        self.n_copies += 1
        self._inner.copy(copy)

    def encode(self, batch: EncodeBatch) -> None:
        self._enter("encode")
        self._inner.encode(batch)
        self.encoded += batch.keys

    def prefill(
        self, chunks: Sequence[PrefillChunk]
    ) -> list[Sampled | Compared | LiveEdgeError | None]:
        self._enter("prefill")
        found = self._inner.prefill(chunks)
        self.passes.append({chunk.request_id: len(chunk.ids) for chunk in chunks})
        for chunk, outcome in zip(chunks, found, strict=True):
            self.prefilled[chunk.request_id] = chunk.stop
            self.n_prefilled[chunk.request_id] += len(chunk.ids)
            if isinstance(outcome, Sampled):
                self._record(chunk.request_id, outcome)
            elif isinstance(outcome, Compared):
                self.compared.append(outcome)
        return found

    def decode(self, batch: DecodeBatch) -> list[Sampled | LiveEdgeError]:
        self._enter("decode")
        self.batches.append(len(batch.request_ids))
        sampled = self._inner.decode(batch)
        for row, request_id in enumerate(batch.request_ids):
            token = self.spoilt.get(request_id, sampled[row])
            sampled[row] = token
            if isinstance(token, Sampled):
                self._record(request_id, token)
        return sampled

    def forget(self, request_ids: Iterable[str]) -> None:
        self._inner.forget(request_ids)

    def _record(self, request_id: str, sampled: Sampled) -> None:
        answer = self._answers[request_id]
        answer.tokens.append(sampled.token)
        answer.logprobs.append(sampled.logprob)
        answer.top.append(dict(sampled.top))


class HandLoader:
    """Loads when the test says so, or at once, on the test's thread: never by chance."""

    at_once = False

    def __init__(self, preprocess: Preprocess, accept: Callable[[EngineInput], None]) -> None:
        self.jobs: list[LoadJob] = []
        self._preprocess = preprocess
        self._accept = accept

    def submit(self, jobs: Iterable[LoadJob]) -> None:
        self.jobs += jobs
        if self.at_once:
            self.load()

    def drop(self, jobs: Sequence[LoadJob]) -> None:
        self.jobs = [job for job in self.jobs if job not in jobs]

    def load(self) -> None:
        """Do everything that waits."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            pixels = [frame.load() for frame in job.group.frames]
            size = (job.group.height, job.group.width)
            self._accept(Loaded(job, self._preprocess(pixels, size=size)))


class LocalEngine:
    """One engine that keeps its slots and caches from one `run` to the next.

    With `by_hand` nothing is loaded until `loads.load()`, or all at once with `loads.at_once`.
    """

    def __init__(self, folder: Path, *, by_hand: bool = False, **settings: Any) -> None:
        asked: dict[str, Any] = {"n_slots": 4, "encoder_cache_bytes": FEATURES, "device": "cpu"}
        self.clock = SystemClock()
        self.front = Front(folder, EngineSettings(**(asked | settings)), self.clock)
        self.inbox: Mailbox[EngineInput] = Mailbox(10_000)
        self.answers: dict[str, Answer] = {}
        self.stats = EngineStats()
        self.waiting: set[str] = set()
        self.released_ids: list[str] = []
        self.pongs: list[int] = []
        self.turns = 0
        self._later: list[tuple[int, Callable[[], None]]] = []
        opening = Opening(
            folder, self.front.settings, self.clock, vocabulary=self.front.builder.vocabulary
        )
        self.parts = opening.open()
        self.loads = HandLoader(self.parts.preprocess, self._accept)
        self.desk = Desk(send=lambda found: self.intake.take(found), n_threads=2, room=None)
        self.intake = Intake(
            preprocess=self.parts.preprocess, n_threads=2, send=self.desk.take, done=self._accept
        )
        self.intake.start()
        self.runner = RecordingRunner(self.parts.runner, self.answers)
        self.preparer = Preparer(
            self.front.builder,
            model=self.front.model,
            max_media_tokens=self.front.sizing.feature_rows,
            schemas=SchemaGate(self.parts.compiler.compile),
        )
        self.loop = self._loop(self.parts.scheduler, by_hand=by_hand)

    def _loop(self, scheduler: Scheduler, *, by_hand: bool = False) -> EngineLoop:
        return EngineLoop(
            scheduler=scheduler,
            runner=self.runner,
            loader=self.loads if by_hand else self.intake,
            inbox=self.inbox,
            outside=self,
            clock=self.clock,
        )

    def forget(self) -> None:
        """Everything that could be reused: what comes next is computed cold."""
        sizing = self.front.sizing
        scheduler = Scheduler(
            slots=SlotTable(n_slots=sizing.n_slots, max_len=sizing.max_model_len),
            cache=EncoderCache(n_rows=sizing.feature_rows),
            limits=sizing.limits,
            vocabulary=AnswerVocabulary(self.front.builder.vocabulary),
        )
        self.loop = self._loop(scheduler)

    def _accept(self, message: EngineInput) -> None:
        assert self.inbox.offer(message)

    def abort(self, request_id: str) -> None:
        self.waiting.discard(request_id)
        self._accept(Abort(request_id))

    def turn(self) -> None:
        """Take in what came and do one turn, as the engine thread would."""
        self.loop.read_inbox()
        self.loop.turn()

    def submit(self, prepared: PreparedRequest) -> None:
        self.answers[prepared.request.request_id] = Answer()
        self.waiting.add(prepared.request.request_id)
        self.desk.enter(prepared)
        self._accept(Submit(prepared, self.clock.monotonic_s()))

    def warm(self, prefix: WindowPrefix) -> None:
        self.answers[prefix.prepared.request.request_id] = Answer()
        self.waiting.add(prefix.prepared.request.request_id)
        self.desk.enter(prefix.prepared)
        self._accept(Warm(prefix, self.clock.monotonic_s()))

    def warm_up(self, window_id: str, prepared: PreparedRequest) -> Warmed:
        """Bring a window up to date and wait for it."""
        self.warm(WindowPrefix(window_id=window_id, prepared=prepared))
        self.settle()
        return self.answers[prepared.request.request_id].warmed

    def drop_window(self, window_id: str) -> None:
        self._accept(DropWindow(window_id))

    def ping(self, number: int) -> None:
        self._accept(Ping(number))

    def at_turn(self, turn: int, action: Callable[[], None]) -> None:
        """Do something between two turns of the next run."""
        self._later.append((self.turns + turn, action))

    def run(self, *prepared: PreparedRequest) -> list[Answer]:
        """Submit these together and turn until everything ended."""
        for item in prepared:
            self.submit(item)
        self.loop.run()
        return [self.answers[item.request.request_id] for item in prepared]

    def settle(self) -> None:
        """Turn until everything is done, background work too."""
        while self.desk.n_live or self._later:
            self.loop.read_inbox()
            if not self.loop.turn() and self.desk.n_live:
                self.inbox.wait(0.05)

    def ask(self, prepared: PreparedRequest) -> Answer:
        return self.run(prepared)[0]

    def close(self) -> None:
        self.intake.close()
        self.desk.close()

    # Outside

    def show(self, scheduler: Scheduler) -> None:
        self.stats = scheduler.stats(row_bytes=self.parts.row_bytes)
        self.turns += 1
        due = [action for turn, action in self._later if turn <= self.turns]
        self._later = [(turn, action) for turn, action in self._later if turn > self.turns]
        for action in due:
            action()

    def left_queue(self, request_ids: Iterable[str]) -> None:
        pass

    def released(self, request_ids: Iterable[str]) -> None:
        ids = tuple(request_ids)
        self.desk.take(Released(ids))
        self.released_ids += ids

    def pong(self, number: int) -> None:
        self.pongs.append(number)

    def deliver(self, events: list[tuple[str, Event | Warmed]]) -> None:
        for request_id, event in events:
            self.answers[request_id].events.append(event)
            if isinstance(event, Finished | Failed | Warmed):
                self.waiting.discard(request_id)
        if events and not self.waiting and not self._later:
            self._accept(Stop())


def frame(key: str, pixels: NDArray[np.uint8], time_s: float = 0.0) -> FrameInput:
    height, width = pixels.shape[:2]
    return FrameInput(key=key, width=width, height=height, load=lambda: pixels, time_s=time_s)


def media_part(media: Clip, name: str) -> ImagePart | VideoPart:
    """A reference clip as the engine gets it; an odd last frame is doubled."""
    if media.times_s is None:
        return ImagePart(frame=frame(name, media.frames[0]))
    frames = [
        frame(f"{name}-{i}", pixels, time_s)
        for i, (pixels, time_s) in enumerate(zip(media.frames, media.times_s, strict=True))
    ]
    return VideoPart(frames=tuple(frames + frames[-1:] * (len(frames) % 2)))


def question(
    request_id: str,
    content: Content,
    *,
    deadline_s: float | None = None,
    json_schema: dict[str, object] | None = None,
    **sampling: Any,
) -> GenerateRequest:
    """A user's message of texts and (name, clip) pairs."""
    parts = [TextPart(c) if isinstance(c, str) else media_part(c[1], c[0]) for c in content]
    return GenerateRequest(
        request_id=request_id,
        messages=(Message(role="user", content=tuple(parts)),),
        sampling=SamplingParams(**sampling),
        deadline_s=deadline_s,
        form=None if json_schema is None else JsonForm(json_schema),
    )

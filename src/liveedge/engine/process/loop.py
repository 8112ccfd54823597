"""The engine thread: turns of decide, compute, record.

Owns    scheduler and runner; hands work to the loader and reads everything from the inbox.
Thread  `liveedge-engine`; other threads put messages into the inbox and do nothing else.
Never   awaits, and never lets an exception of one request reach another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from functools import partial
from typing import Protocol, TypeVar, assert_never

from liveedge.core.clock import Clock
from liveedge.core.errors import InternalError, LiveEdgeError
from liveedge.core.mailbox import Mailbox
from liveedge.engine.compute.runner import Runner
from liveedge.engine.decide.plan import (
    Compared,
    DecodeBatch,
    EncodeBatch,
    LoadJob,
    Plan,
    PrefillChunk,
    SlotCopy,
    StepResult,
)
from liveedge.engine.decide.scheduler import Scheduler
from liveedge.engine.interface import Warmed
from liveedge.engine.process.messages import (
    Abort,
    DropWindow,
    EngineInput,
    Loaded,
    Ping,
    Stop,
    Submit,
    Warm,
)
from liveedge.engine.request import Event

log = logging.getLogger("liveedge.engine")

MAX_IDLE_S = 30.0
T = TypeVar("T")


class Workers(Protocol):
    """Who loads and preprocesses groups, and answers each with a `Loaded` in the inbox."""

    def submit(self, jobs: Iterable[LoadJob]) -> None: ...

    def drop(self, jobs: Sequence[LoadJob]) -> None: ...


class Outside(Protocol):
    """What the loop tells the rest of the process. Called on the engine thread."""

    def show(self, scheduler: Scheduler) -> None:
        """The gauges after a turn, before its events."""
        ...

    def deliver(self, events: list[tuple[str, Event | Warmed]]) -> None: ...

    def left_queue(self, request_ids: Iterable[str]) -> None:
        """These hold a slot now or ended; ids may repeat."""
        ...

    def released(self, request_ids: Iterable[str]) -> None:
        """The frames of these are needed no more. Every request and every prefix comes here once:
        with or after its end, later where the answer is still being verified."""
        ...

    def pong(self, number: int) -> None:
        """The answer to a `Ping`, between two turns."""
        ...


class EngineLoop:
    """Runs turns until it is told to stop."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        loader: Workers,
        inbox: Mailbox[EngineInput],
        outside: Outside,
        clock: Clock,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._loader = loader
        self._inbox = inbox
        self._outside = outside
        self._clock = clock

    def run(self) -> None:
        """Turn after turn until a Stop arrives; sleeps while there is nothing to compute."""
        going = True
        while going:
            going = self.read_inbox()
            if not self.turn() and going:
                self._inbox.wait(self._idle_s())

    def turn(self) -> bool:
        """Decide, compute, record, tell; False when there was nothing to compute."""
        plan = self._scheduler.plan(now_s=self._clock.monotonic_s())
        self._hand_over(plan)
        if plan.computes:
            result = self._execute(plan)
            self._scheduler.commit(plan, result, now_s=self._clock.monotonic_s())
        self._outside.show(self._scheduler)
        self._outside.deliver(self._scheduler.take_events())
        return plan.computes

    def read_inbox(self) -> bool:
        """Take in every message; False when one is a Stop."""
        going = True
        for message in self._inbox.drain():
            match message:
                case Submit(prepared, now_s):
                    self._scheduler.submit(prepared, now_s=now_s)
                case Abort(request_id):
                    self._scheduler.abort(request_id)
                case Loaded(job, outcome):
                    self._take_load(job, outcome)
                case Warm(prefix, now_s):
                    self._scheduler.warm(prefix, now_s=now_s)
                case DropWindow(window_id):
                    self._scheduler.drop_window(window_id)
                case Ping(number):
                    self._outside.pong(number)
                case Stop():
                    going = False
                case _:
                    assert_never(message)
        return going

    def _take_load(self, job: LoadJob, outcome: object | LiveEdgeError) -> None:
        if isinstance(outcome, LiveEdgeError):
            self._scheduler.load_failed(job, outcome)
        else:
            self._scheduler.loaded(job, outcome, now_s=self._clock.monotonic_s())

    def _hand_over(self, plan: Plan) -> None:
        self._loader.drop(plan.dropped)
        self._loader.submit(plan.loads)
        self._runner.forget(plan.ended)
        self._outside.left_queue((*plan.admitted, *plan.ended))
        self._outside.released(plan.ended)

    def _idle_s(self) -> float:
        deadline_s = self._scheduler.next_deadline_s()
        if deadline_s is None:
            return MAX_IDLE_S
        return min(MAX_IDLE_S, max(0.001, deadline_s - self._clock.monotonic_s()))

    # compute

    def _execute(self, plan: Plan) -> StepResult:
        """Do the parts of a plan in order; a part that fails fails its own requests."""
        result = StepResult()
        if plan.decode is not None:
            self._decode(plan.decode, result)
        self._copy(plan, result)
        if plan.encode is not None:
            self._encode(plan.encode, result)
        chunks = [chunk for chunk in plan.prefills if chunk.request_id not in result.failed]
        if chunks:
            self._prefill(chunks, result)
        return result

    def _decode(self, batch: DecodeBatch, result: StepResult) -> None:
        started_s = self._clock.monotonic_s()
        tokens = self._guard(partial(self._runner.decode, batch))
        result.decode_s = self._clock.monotonic_s() - started_s
        if isinstance(tokens, LiveEdgeError):
            result.failed |= dict.fromkeys(batch.request_ids, tokens)
            return
        for request_id, token in zip(batch.request_ids, tokens, strict=True):
            if isinstance(token, LiveEdgeError):
                result.failed[request_id] = token
            else:
                result.sampled[request_id] = token

    def _copy(self, plan: Plan, result: StepResult) -> None:
        lost = _lost_slots(plan.decode, result.failed)
        for number, item in enumerate(plan.copies):
            copied = self._copy_one(item, lost)
            if isinstance(copied, LiveEdgeError):
                # Later copies may start from this one's target: none of them is trusted.
                result.failed |= {other.request_id: copied for other in plan.copies[number:]}
                break

    def _copy_one(self, item: SlotCopy, lost: AbstractSet[int]) -> LiveEdgeError | None:
        if item.copy.source in lost:
            return InternalError("the memory that this request builds on was lost")
        return self._guard(partial(self._runner.copy, item.copy))

    def _encode(self, batch: EncodeBatch, result: StepResult) -> None:
        started_s = self._clock.monotonic_s()
        done = self._guard(partial(self._runner.encode, batch))
        if isinstance(done, LiveEdgeError):
            result.encode_failed = dict.fromkeys(batch.keys, done)
        else:
            result.encoded = batch.keys
        result.encode_s = self._clock.monotonic_s() - started_s

    def _prefill(self, chunks: Sequence[PrefillChunk], result: StepResult) -> None:
        started_s = self._clock.monotonic_s()
        found = self._guard(partial(self._runner.prefill, chunks))
        result.prefill_s = self._clock.monotonic_s() - started_s
        if isinstance(found, LiveEdgeError):
            result.failed |= dict.fromkeys((chunk.request_id for chunk in chunks), found)
            return
        for chunk, outcome in zip(chunks, found, strict=True):
            if isinstance(outcome, LiveEdgeError):
                result.failed[chunk.request_id] = outcome
            elif isinstance(outcome, Compared):
                result.compared[chunk.request_id] = outcome
            elif outcome is not None:
                result.sampled[chunk.request_id] = outcome

    def _guard(self, part: Callable[[], T]) -> T | LiveEdgeError:
        try:
            return part()
        except LiveEdgeError as error:
            return error
        except Exception:
            log.exception("a part of an engine step failed")
            return InternalError("the model failed on this request")


def _lost_slots(batch: DecodeBatch | None, failed: Mapping[str, LiveEdgeError]) -> AbstractSet[int]:
    """Slots whose owners failed in this step: what lies in them is not trusted."""
    if batch is None or not failed:
        return frozenset()
    pairs = zip(batch.slots.tolist(), batch.request_ids, strict=True)
    return frozenset(slot for slot, request_id in pairs if request_id in failed)

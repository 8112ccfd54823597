"""The engine thread: turns of decide, compute, record.

Owns    scheduler and runner; hands work to the loader and reads everything from the inbox.
Thread  `liveedge-engine`; other threads put messages into the inbox and do nothing else.
Never   awaits, and never lets an exception of one request reach another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, TypeVar, assert_never

from liveedge.core.clock import Clock
from liveedge.core.errors import InternalError, LiveEdgeError
from liveedge.core.mailbox import Mailbox
from liveedge.engine.interface import PreparedRequest
from liveedge.engine.plan import EncodeBatch, LoadJob, Plan, StepResult
from liveedge.engine.request import Event
from liveedge.engine.runner import Runner
from liveedge.engine.scheduler import Scheduler

log = logging.getLogger("liveedge.engine")

MAX_IDLE_S = 30.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Submit:
    """A client asks."""

    prepared: PreparedRequest
    now_s: float


@dataclass(frozen=True, slots=True)
class Abort:
    """A client left."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker is done with a group."""

    job: LoadJob
    outcome: object | LiveEdgeError


@dataclass(frozen=True, slots=True)
class Stop:
    """The engine ends after this turn."""


EngineInput: TypeAlias = Submit | Abort | Loaded | Stop


class Workers(Protocol):
    """Who loads and preprocesses groups, and answers each with a `Loaded` in the inbox."""

    def submit(self, jobs: Iterable[LoadJob]) -> None: ...

    def drop(self, jobs: Sequence[LoadJob]) -> None: ...


class Outside(Protocol):
    """What the loop tells the rest of the process. Called on the engine thread."""

    def show(self, scheduler: Scheduler) -> None:
        """The gauges after a turn, before its events."""
        ...

    def deliver(self, events: list[tuple[str, Event]]) -> None: ...

    def left_queue(self, request_ids: Iterable[str]) -> None:
        """These hold a slot now or ended; ids may repeat."""
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

    def _idle_s(self) -> float:
        deadline_s = self._scheduler.next_deadline_s()
        if deadline_s is None:
            return MAX_IDLE_S
        return min(MAX_IDLE_S, max(0.001, deadline_s - self._clock.monotonic_s()))

    # compute

    def _execute(self, plan: Plan) -> StepResult:
        """Do the parts of a plan in order; a part that fails fails its own requests."""
        result = StepResult()
        for item in plan.copies:
            copied = self._guard(partial(self._runner.copy, item.copy))
            if isinstance(copied, LiveEdgeError):
                # Later copies may start from this one's target: none of them is trusted.
                result.failed |= {other.request_id: copied for other in plan.copies}
                break
        if plan.encode is not None:
            self._encode(plan.encode, result)
        self._prefill(plan, result)
        self._decode(plan, result)
        return result

    def _encode(self, batch: EncodeBatch, result: StepResult) -> None:
        started_s = self._clock.monotonic_s()
        done = self._guard(partial(self._runner.encode, batch))
        if isinstance(done, LiveEdgeError):
            result.encode_failed = dict.fromkeys(batch.keys, done)
        else:
            result.encoded = batch.keys
        result.encode_s = self._clock.monotonic_s() - started_s

    def _prefill(self, plan: Plan, result: StepResult) -> None:
        for chunk in plan.prefills:
            if chunk.request_id in result.failed:
                continue
            started_s = self._clock.monotonic_s()
            token = self._guard(partial(self._runner.prefill, chunk))
            if isinstance(token, LiveEdgeError):
                result.failed[chunk.request_id] = token
            elif token is not None:
                result.sampled[chunk.request_id] = token
            result.prefill_s[chunk.request_id] = self._clock.monotonic_s() - started_s

    def _decode(self, plan: Plan, result: StepResult) -> None:
        batch = plan.decode
        if batch is None:
            return
        tokens = self._guard(partial(self._runner.decode, batch))
        if isinstance(tokens, LiveEdgeError):
            result.failed |= dict.fromkeys(batch.request_ids, tokens)
            return
        for request_id, token in zip(batch.request_ids, tokens, strict=True):
            if isinstance(token, LiveEdgeError):
                result.failed[request_id] = token
            else:
                result.sampled[request_id] = token

    def _guard(self, part: Callable[[], T]) -> T | LiveEdgeError:
        try:
            return part()
        except LiveEdgeError as error:
            return error
        except Exception:
            log.exception("a part of an engine step failed")
            return InternalError("the model failed on this request")

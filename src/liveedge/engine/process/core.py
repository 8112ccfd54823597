"""The engine's half of the link: takes messages in, runs the loop, tells what came of it.

The same in a thread and in a process of its own; only how messages travel differs.
Threads  `take` is called by the link's thread, `run` is the engine thread; `Grammars` has its own.
Never    compiles a grammar on the engine thread, or lets a message of one kind block another.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from liveedge.core.clock import Clock
from liveedge.core.errors import LiveEdgeError
from liveedge.core.mailbox import Mailbox
from liveedge.core.tasks import OwnedThread
from liveedge.engine.decide.scheduler import Scheduler
from liveedge.engine.form.grammar import GrammarCompiler
from liveedge.engine.form.schema import written
from liveedge.engine.interface import EngineSettings, EngineStats, Warmed
from liveedge.engine.process.intake import Intake
from liveedge.engine.process.loop import EngineLoop
from liveedge.engine.process.messages import (
    Abort,
    Compile,
    DropWindow,
    EngineInput,
    Fetched,
    FromEngine,
    LeftQueue,
    Ping,
    Pong,
    Released,
    Stop,
    Submit,
    ToEngine,
    Turned,
    Warm,
    most_messages,
)
from liveedge.engine.process.start import Parts, set_threads
from liveedge.engine.request import Event, Failed, Finished

log = logging.getLogger("liveedge.engine")

STATS_EVERY_S = 0.1  # while nothing ends; with every end they are exact
MAX_HINTS = 32  # grammars to compile ahead; one more is compiled with its request


class EngineCore:
    """One engine from the moment its parts are there."""

    def __init__(
        self,
        parts: Parts,
        *,
        settings: EngineSettings,
        send: Callable[[FromEngine], None],
        clock: Clock,
        memory: NDArray[np.uint8] | None = None,
        first_ticket: int = 1,
    ) -> None:
        self._parts = parts
        self._send = send
        self._clock = clock
        self._stats = EngineStats()
        self._stats_s = 0.0  # when they were sent
        self._scheduler = parts.scheduler
        n_loads = parts.max_loading + settings.load_threads
        self._inbox: Mailbox[EngineInput] = Mailbox(most_messages(settings) + n_loads)
        self._grammars = Grammars(parts.compiler, accept=self._accept)
        self._intake = Intake(
            preprocess=parts.preprocess,
            n_threads=settings.load_threads,
            send=send,
            done=self._accept,
            memory=memory,
            first_ticket=first_ticket,
            begin=partial(set_threads, 1),  # of that worker alone: the engine thread keeps its own
        )
        self._loop = EngineLoop(
            scheduler=parts.scheduler,
            runner=parts.runner,
            loader=self._intake,
            inbox=self._inbox,
            outside=self,
            clock=clock,
        )

    def start(self) -> None:
        """Begin the workers; messages may come from now on."""
        self._intake.start()
        self._grammars.start()

    def run(self) -> None:
        """Turn until a Stop arrives, on the calling thread."""
        try:
            self._loop.run()
        finally:
            self._intake.close()
            self._grammars.close()
            self._parts.runner.close()  # its threads; in the server's process they would stay

    def take(self, message: ToEngine) -> None:
        """Any message from the other half; never blocks."""
        match message:
            case Submit():
                if message.prepared.request.form is None:
                    self._accept(message)
                else:
                    self._grammars.take(message)
            case Abort():
                self._grammars.abort(message)
            case Fetched():
                self._intake.take(message)
            case Compile():
                self._grammars.take(message)
            case Warm() | DropWindow() | Ping() | Stop():
                self._accept(message)
            case _:
                assert_never(message)

    def _accept(self, message: EngineInput) -> None:
        accepted = self._inbox.offer(message)
        assert accepted, f"the inbox overflowed at {self._inbox.capacity}"

    # `loop.Outside`, on the engine thread

    def show(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def deliver(self, events: list[tuple[str, Event | Warmed]]) -> None:
        """One message for everything that a turn brought."""
        stats = self._news(events)
        if events or stats is not None:
            self._send(Turned(tuple(events), stats))

    def left_queue(self, request_ids: Iterable[str]) -> None:
        if ids := tuple(request_ids):
            self._send(LeftQueue(ids))

    def released(self, request_ids: Iterable[str]) -> None:
        if ids := tuple(request_ids):
            self._send(Released(ids))

    def pong(self, number: int) -> None:
        self._send(Pong(number))

    def _news(self, events: list[tuple[str, Event | Warmed]]) -> EngineStats | None:
        """The gauges if somebody may look at them now: at an end, or when nothing was said."""
        now_s = self._clock.monotonic_s()
        ends = any(isinstance(event, Finished | Failed | Warmed) for _, event in events)
        if events and not ends and now_s - self._stats_s < STATS_EVERY_S:
            return None
        stats = self._scheduler.stats(row_bytes=self._parts.row_bytes)
        if stats == self._stats:
            return None
        self._stats, self._stats_s = stats, now_s
        return stats


_Job: TypeAlias = Submit | Compile


class Grammars:
    """Compiles the forms of requests before the engine thread sees them.

    Thread   `liveedge-grammars`; requests pass in the order in which they came.
    Bound    requests: by what may be alive at once. Hints: MAX_HINTS, then they are left out, and
             counted.
    """

    def __init__(
        self, compiler: GrammarCompiler, *, accept: Callable[[Submit | Abort], None]
    ) -> None:
        self.n_left_out = 0
        self._compiler = compiler
        self._accept = accept
        self._lock = threading.Condition()  # over the three below
        self._jobs: deque[_Job] = deque()
        self._held: set[str] = set()  # requests that have not passed yet
        self._aborted: set[str] = set()  # of these
        self._thread = OwnedThread("liveedge-grammars", self._work)

    def start(self) -> None:
        self._thread.start()

    def take(self, job: _Job) -> None:
        with self._lock:
            if isinstance(job, Submit):
                self._held.add(job.prepared.request.request_id)
            elif len(self._jobs) >= MAX_HINTS:
                self.n_left_out += 1
                return
            self._jobs.append(job)
            self._lock.notify()

    def abort(self, message: Abort) -> None:
        """Never before the request itself."""
        with self._lock:
            if message.request_id in self._held:
                self._aborted.add(message.request_id)
                return
        self._accept(message)

    def close(self) -> None:
        with self._lock:
            self._thread.stopping.set()
            self._lock.notify_all()
        self._thread.stop()

    def _work(self, stopping: threading.Event) -> None:
        while (job := self._next(stopping)) is not None:
            if isinstance(job, Compile):
                self._compile(job.grammar)
            else:
                self._pass(job)

    def _next(self, stopping: threading.Event) -> _Job | None:
        with self._lock:
            self._lock.wait_for(lambda: self._jobs or stopping.is_set())
            return None if stopping.is_set() else self._jobs.popleft()

    def _pass(self, submit: Submit) -> None:
        request = submit.prepared.request
        assert request.form is not None
        try:
            self._compile(written(request.form))
        except LiveEdgeError:
            log.debug("a form is refused when its request begins")  # by the runner, to it alone
        with self._lock:
            self._held.discard(request.request_id)
            aborted = request.request_id in self._aborted
            self._aborted.discard(request.request_id)
            self._accept(submit)
        if aborted:
            self._accept(Abort(request.request_id))

    def _compile(self, grammar: str) -> None:
        try:
            self._compiler.compile(grammar)
        except LiveEdgeError as error:
            log.debug("a grammar cannot be compiled: %s", error)
        except Exception:  # the library's; its request meets the same again, alone
            log.exception("a grammar cannot be compiled")

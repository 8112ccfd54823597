"""The load of one step: an open loop that waits for no answer, or a closed one of workers.

Owns    the order of requests, and the end of every request of its step.
Thread  the event loop's.
Never   skips an arrival: one that comes late is sent late, and its record says so; one beyond
        `load.max_in_flight` is `not_sent`.

What the generator itself does wrong is measured too (`Own`): a step in which it was late, stalled or
out of CPU says nothing about the server.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from liveedge.bench.asking import Asker, Planned
from liveedge.bench.interfaces import MediaSource, Prepared
from liveedge.bench.record import Record
from liveedge.bench.scenario import Scenario
from liveedge.bench.schedule import Step, arrivals
from liveedge.bench.stats import percentile
from liveedge.core.clock import Clock
from liveedge.core.tasks import TaskSet

FAILURE_PAUSE_S = 0.1  # of a closed loop's worker: what is refused at once is not asked in a spin
PROBE_S = 0.02  # how often the event loop's punctuality is looked at
STALL_S = 0.05  # a look that comes later than this counts as a stall


def process_cpu_s() -> float:
    """CPU seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfLook:
    """How the generator looks at itself."""

    cpu_s: Callable[[], float] = process_cpu_s
    every_s: float = PROBE_S


@dataclass(slots=True)
class StepRun:
    """What a step left: its records in the order of their index, and the media of each request."""

    step: Step
    begun_s: float
    n_due: int = 0
    records: list[Record] = field(default_factory=list)
    notes: dict[int, Prepared] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)  # a `generator` line of samples.jsonl


class Generator:
    """Sends the requests of one run, step after step. `on_record` hears of each as it ends."""

    def __init__(
        self,
        *,
        scenario: Scenario,
        asker: Asker,
        source: MediaSource,
        clock: Clock,
        on_record: Callable[[Record], None],
        look: SelfLook = SelfLook(),
    ) -> None:
        self._load = scenario.load
        self._asker = asker
        self._source = source
        self._clock = clock
        self._on_record = on_record
        self._look = look

    async def run(self, step: Step) -> StepRun:
        """Warm-up and measured time of a step, then wait until everything sent has ended."""
        run = StepRun(step, self._asker.now_s())
        loop = self._closed if step.concurrency is not None else self._open
        watch = _Watch(self._clock, self._look)
        try:
            open_ = await loop(run, watch)
            own = watch.row(self._asker.now_s() - run.begun_s)
            if open_:  # `wait`, since `gather` cancels what it waits for: a record would be lost
                await asyncio.wait(open_)
        finally:
            await watch.close()
        if lost := run.n_due - len(run.records):
            raise RuntimeError(f"{lost} requests of step {step.step} left no record: see the log")
        run.records.sort(key=lambda record: record.index)
        run.own = _own_row(run, own, self._load.max_in_flight)
        pool = self._asker.pool  # of the run so far
        run.own |= {"connections_made": pool.n_made, "connections_dropped": pool.n_dropped}
        return run

    async def _open(self, run: StepRun, watch: _Watch) -> list[asyncio.Future[Record]]:
        random = Random(f"arrivals {self._load.seed} {run.step.repeat} {run.step.step}")
        sent: list[asyncio.Future[Record]] = []
        for offset_s in arrivals(self._load, run.step, random):
            due_s = run.begun_s + offset_s
            # Also where it is late already: between two sends, answers are read.
            await self._clock.sleep(max(0.0, due_s - self._asker.now_s()))
            if ended := self._send(run, self._planned(run, due_s), watch):
                sent.append(ended)
        await self._clock.sleep(max(0.0, run.begun_s + run.step.seconds - self._asker.now_s()))
        return sent

    async def _closed(self, run: StepRun, watch: _Watch) -> list[asyncio.Future[Record]]:
        workers = TaskSet("workers")
        assert run.step.concurrency is not None
        tasks = [
            workers.start(self._worker(run, watch), name=str(worker))
            for worker in range(run.step.concurrency)
        ]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await workers.close()
        for task in ended:
            task.result()  # raises what its camera raised
        return []

    async def _worker(self, run: StepRun, watch: _Watch) -> None:
        ends_s = run.begun_s + run.step.seconds
        while (now_s := self._asker.now_s()) < ends_s:
            ended = self._send(run, self._planned(run, now_s), watch)
            # Shielded: where the worker is cancelled, the request still ends as a record.
            if ended is None or (await asyncio.shield(ended)).outcome != "ok":
                await self._clock.sleep(FAILURE_PAUSE_S)

    def _planned(self, run: StepRun, due_s: float) -> Planned:
        run.n_due += 1
        step = run.step
        warmup = due_s - run.begun_s < step.warmup_s
        index = self._asker.next_index()
        return Planned(index=index, due_s=due_s, repeat=step.repeat, step=step.step, warmup=warmup)

    def _send(self, run: StepRun, planned: Planned, watch: _Watch) -> asyncio.Future[Record] | None:
        """Send it now, whatever else is open; None where too much is."""
        limit = self._load.max_in_flight
        if self._asker.n_open >= limit:
            reason = f"{limit} requests were open (load.max_in_flight)"
            self._ended(run, self._asker.not_sent(planned, reason))
            return None
        prepared = self._source.prepare(planned.index)
        # Without the media: a thousand requests with pictures are hundreds of megabytes.
        run.notes[planned.index] = replace(prepared, content=())
        ended = self._asker.begin(planned, prepared)
        ended.add_done_callback(lambda done: self._ended(run, done.result()))
        watch.saw(self._asker.n_open)
        return ended

    def _ended(self, run: StepRun, record: Record) -> None:
        run.records.append(record)
        self._on_record(record)


class _Watch:
    """The generator's own behaviour while it sends: CPU, punctuality of its loop, what was open."""

    def __init__(self, clock: Clock, look: SelfLook) -> None:
        self._clock = clock
        self._look = look
        self._cpu_begun_s = look.cpu_s()
        self._most_open = 0
        self._late_s: list[float] = []  # of the loop, at each look
        self._stalled_s = 0.0
        self._n_stalls = 0
        self._tasks = TaskSet("watch")
        self._tasks.start(self._watch(), name="punctuality")

    async def close(self) -> None:
        await self._tasks.close()

    def saw(self, n_open: int) -> None:
        self._most_open = max(self._most_open, n_open)

    def row(self, seconds: float) -> dict[str, Any]:
        cpu_s = self._look.cpu_s() - self._cpu_begun_s
        return {
            "seconds": seconds,
            "cpu_share": cpu_s / seconds if seconds > 0 else 0.0,  # of one core
            "max_in_flight": self._most_open,
            "loop_late_ms_p99": 1000 * percentile(self._late_s or (0.0,), 99),
            "loop_stall_ms_max": 1000 * max(self._late_s, default=0.0),
            "n_loop_stalls": self._n_stalls,
            "loop_stalled_s": self._stalled_s,  # all of them
        }

    async def _watch(self) -> None:
        while True:
            begun_s = self._clock.monotonic_s()
            await self._clock.sleep(self._look.every_s)
            late_s = self._clock.monotonic_s() - begun_s - self._look.every_s
            self._late_s.append(late_s)
            if late_s > STALL_S:
                self._n_stalls += 1
                self._stalled_s += late_s


def _own_row(run: StepRun, own: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """A line of samples.jsonl."""
    late_s = [one.sent_s - one.due_s for one in run.records if one.sent_s is not None]
    return {
        "kind": "generator",
        "at_s": run.begun_s + own["seconds"],
        "repeat": run.step.repeat,
        "step": run.step.step,
        "begun_s": run.begun_s,
        **own,
        "in_flight_limit": limit,
        "n_not_sent": sum(one.outcome == "not_sent" for one in run.records),
        "n_sent": len(late_s),
        "lateness_ms_max": max(late_s, default=0.0) * 1000,
    }

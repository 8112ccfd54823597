"""One run of a scenario into its folder: sources, warm-up, steps, judgement, figures, report.

Owns    the folder's files up to the summary, and the order of everything that a run does.
Thread  the event loop's.
Never   keeps what has ended to itself: each record is written when it ends, and again, with what is
        true, after its step. A run that breaks or is killed leaves all that it had.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol, TypeAlias

from liveedge.bench.asking import Asker
from liveedge.bench.connections import Dial
from liveedge.bench.generator import Generator, SelfLook, StepRun
from liveedge.bench.interfaces import MediaSource
from liveedge.bench.record import Record, measured
from liveedge.bench.result import (
    ENVIRONMENT,
    HALVES,
    RECORDS,
    SAMPLES,
    SCENARIO,
    SUMMARY,
    UNJUDGED,
    ResultFolder,
    Summary,
    writing,
)
from liveedge.bench.scenario import Scenario
from liveedge.bench.schedule import steps
from liveedge.bench.stats import percentile
from liveedge.core.clock import Clock


class Sampler(Protocol):
    """Looks at server and machine beside the run."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Probe(Protocol):
    """Asks a few requests before the first step, one after the other; gives rows of samples.jsonl."""

    async def __call__(self, asker: Asker, source: MediaSource) -> Sequence[Mapping[str, Any]]: ...


class Refused(Exception):
    """The target takes no question of this scenario; the text says what it said."""


# Statuses by which a request is refused for what it is, not for the moment at which it comes.
FOR_GOOD = (400, 401, 403, 404, 405, 413, 415, 422)
Keep: TypeAlias = Callable[[Mapping[str, Any]], None]  # of a row of samples.jsonl; any thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run is made of."""

    source: MediaSource
    sampler: Callable[[Keep, float], Sampler]  # gets the clock's moment that is 0 in the records
    environment: Callable[[], Awaitable[Mapping[str, Any]]]  # before the run
    environment_after: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
    summarise: Callable[[ResultFolder], Summary]
    write_report: Callable[[ResultFolder], object]
    probe: Probe | None = None  # cold and warm apart
    say: Callable[[str], None] = lambda _line: None
    look: SelfLook = field(default_factory=SelfLook)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Who is asked, resolved."""

    model: str
    api_key: str | None = field(repr=False)
    dial: Dial


async def run_scenario(
    scenario: Scenario, folder: ResultFolder, *, target: Target, parts: Parts, clock: Clock
) -> Summary:
    """Run it whole; the folder exists and is empty. Raises Refused, and what the source or a helper
    raises."""
    folder.write(SCENARIO, scenario.as_json())
    environment = await parts.environment()
    folder.write(ENVIRONMENT, environment)
    samples = SampleLog(folder)
    begun_s = clock.monotonic_s()
    asker = Asker(
        scenario=scenario,
        model=target.model,
        api_key=target.api_key,
        dial=target.dial,
        clock=clock,
        begun_s=begun_s,
    )
    sampler = parts.sampler(samples.keep, begun_s)
    with RecordLog(folder) as records:  # the last to close: what is open ends in it
        async with _opened(scenario, asker, sampler, parts):
            await _measure(scenario, records, samples, asker, parts, clock)
    folder.write(ENVIRONMENT, await parts.environment_after(environment))
    summary = parts.summarise(folder)
    folder.write(SUMMARY, summary.as_json())
    parts.write_report(folder)
    return summary


@contextlib.asynccontextmanager
async def _opened(
    scenario: Scenario, asker: Asker, sampler: Sampler, parts: Parts
) -> AsyncIterator[None]:
    """Cameras and sampler; whatever happens, the cameras leave the server last."""
    try:
        parts.say(f"opening {scenario.sources.count} cameras ({scenario.sources.kind})")
        await parts.source.open()
        await sampler.start()
        try:
            yield
        finally:
            await sampler.stop()
    finally:
        await asker.close()
        await parts.source.close()


async def _measure(
    scenario: Scenario,
    records: RecordLog,
    samples: SampleLog,
    asker: Asker,
    parts: Parts,
    clock: Clock,
) -> None:
    if parts.probe is not None:
        parts.say("asking a few requests one by one: cold and warm")
        for row in await parts.probe(asker, parts.source):
            samples.keep(row)
            for line in lost_in_probe(row):
                parts.say(line)
            _fail_if_refused(scenario, row)
    generator = Generator(
        scenario=scenario,
        asker=asker,
        source=parts.source,
        clock=clock,
        on_record=records.ended,
        look=parts.look,
    )
    n_steps = scenario.n_steps * scenario.load.repeats
    for number, step in enumerate(steps(scenario.load)):
        if number:
            await clock.sleep(scenario.load.pause_s)
        run = await generator.run(step)
        samples.keep(run.own)
        sent = [record for record in run.records if record.index in run.notes]
        try:
            await parts.source.judge(sent, run.notes)
        finally:  # a step that was measured is kept, whatever became of the cameras
            records.judged(run.records)
        parts.say(f"step {number + 1}/{n_steps}: {told(run)}")


class SampleLog:
    """Lines of samples.jsonl, from the run and from the sampler's thread."""

    def __init__(self, folder: ResultFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        folder.append(SAMPLES, ())

    def keep(self, row: Mapping[str, Any]) -> None:
        with self._lock:  # a long line is written in pieces
            self._folder.append(SAMPLES, (row,))


class RecordLog:
    """Records on disk: as they end, and again once their step is judged."""

    def __init__(self, folder: ResultFolder) -> None:
        self._folder = folder
        self._unjudged: BinaryIO | None = None

    def __enter__(self) -> RecordLog:
        self._folder.append(RECORDS, ())
        path = self._folder.path / UNJUDGED
        with writing(path):
            self._unjudged = path.open("wb", buffering=0)
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._unjudged is not None
        empty = self._unjudged.tell() == 0
        self._unjudged.close()
        if empty:
            (self._folder.path / UNJUDGED).unlink()

    def ended(self, record: Record) -> None:
        """One line, not buffered: what has ended is not lost with the run."""
        assert self._unjudged is not None
        line = json.dumps(_row(record), ensure_ascii=False)  # `dump` takes three times as long
        with contextlib.suppress(OSError):  # a full disk ends the run in `judged`, not here
            self._unjudged.write(f"{line}\n".encode(errors=HALVES))

    def judged(self, records: Sequence[Record]) -> None:
        """The records of a step, whole now; they take the place of what `ended` wrote."""
        assert self._unjudged is not None
        self._folder.append(RECORDS, map(_row, records))
        with writing(self._folder.path / UNJUDGED):
            self._unjudged.seek(0)
            self._unjudged.truncate()


def _row(record: Record) -> dict[str, Any]:
    """`Record.as_json` without copying what it holds: it is written at once."""
    return {name: getattr(record, name) for name in record.__slots__}


def lost_in_probe(row: Mapping[str, Any]) -> Iterator[str]:
    """What went wrong before the first step, for who watches: it is likely to go on."""
    for record in row.get("records", ()):
        if record["outcome"] != "ok":
            what = f"{record['outcome']}: {record['status']} {record['code']}"
            yield f"{row['name']}: {what}: {record['message']}"


def _fail_if_refused(scenario: Scenario, row: Mapping[str, Any]) -> None:
    """Nothing is measured where the very first request is refused for what it is."""
    if not str(row.get("name")).startswith("first_request"):
        return
    for record in row.get("records", ()):
        if record["outcome"] == "refused" and record["status"] in FOR_GOOD:
            raise Refused(
                f"the first request was refused, as all would be: {record['status']}"
                f" {record['code']}: {record['message']}{_hint(scenario, record['status'])}"
            )


def _hint(scenario: Scenario, status: int) -> str:
    """The way out, where one is known."""
    if status in (401, 403):
        return f"; the key is read from the variable {scenario.target.api_key_env}"
    is_clip = any(one.media.frames > 1 and one.media.clip == "video" for one in scenario.shares)
    if scenario.target.delivery == "data" and is_clip:
        other = "avi" if scenario.target.video == "jpegs" else "jpegs"
        return (
            f"; clips went as target.video = {scenario.target.video!r}: try"
            f" --set target.video={other} or --set media.clip=images"
        )
    return ""


def told(run: StepRun) -> str:
    """A step in one line, for who watches."""
    records = list(measured(run.records))
    ok = [record for record in records if record.outcome == "ok"]
    step = run.step
    offered = (
        f"concurrency {step.concurrency}"
        if step.rate_per_s is None
        else f"offered {step.rate_per_s:g}/s"
    )
    ttft_s = [one.first_content_s - one.due_s for one in ok if one.first_content_s]
    first = f"p95 TTFT {1000 * percentile(ttft_s, 95):.0f} ms" if ttft_s else "p95 TTFT -"
    lost = Counter(_lost(one) for one in records if one.outcome != "ok")
    not_ok = f"{lost.total()} not ok"
    if lost:
        not_ok += f", most of them {lost.most_common(1)[0][0]}"
    late_ms, stall_ms = run.own["lateness_ms_max"], run.own["loop_stall_ms_max"]
    own = f"late {late_ms:.0f} ms, stall {stall_ms:.0f} ms, CPU {run.own['cpu_share']:.0%}"
    return f"{offered}: {len(records)} sent, {len(ok)} ok, {first}, {not_ok} (own: {own})"


def _lost(record: Record) -> str:
    """As `codes` of a summary has it: the status of what was refused, else how it ended."""
    first = str(record.status) if record.outcome == "refused" else record.outcome
    return first if record.code in ("", record.outcome) else f"{first} {record.code}"

"""Cameras as streams of the target: opened, kept alive, looked back at, ended.

Owns    the streams on the server, the process that publishes, the client of the stream routes.
The truth of an answer is that of the frames which it names; their pixels are read after each step.
Their time is that burned into them: by a process of ours, on this machine's clock, or, where the
server itself runs the simulator (`sim`), by its source on the server's clock. Neither is what the
server says about the frame; that the answer used the frames which it names, is.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from liveedge.bench.interfaces import Prepared
from liveedge.bench.record import Record
from liveedge.bench.scenario import Scenario, ScenarioInvalid
from liveedge.bench.sources.child import Child, Message
from liveedge.bench.sources.feeds import Job, asked_source, publishing, rtsp_publishing
from liveedge.bench.sources.grid import n_held
from liveedge.bench.sources.problems import Problems
from liveedge.bench.sources.references import Opened, Part, references
from liveedge.bench.sources.rotation import Rotation, Turn
from liveedge.bench.sources.sightings import Sightings
from liveedge.bench.sources.streams import SourceFailed, Streams
from liveedge.bench.sources.truth import Moment, Scene, is_correct, true_answer
from liveedge.core.clock import Clock
from liveedge.core.tasks import TaskSet

KEEPALIVE_EVERY_S = 60.0  # a lease is five minutes long
FILL_LIMIT_S = 40.0  # beyond the seconds of the longest clip: a publisher starts in a few seconds
POLL_S = 0.1
RETAINED_S = 540.0  # ten minutes on the server, less a margin


class StreamCameras:
    """A `MediaSource` for servers with streams."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        streams: Streams,
        scenes: Sequence[Scene],
        clock: Clock,
        chance: random.Random,
    ) -> None:
        _check(scenario)
        self.problems = Problems()
        self._scenario = scenario
        self._rotation = Rotation(scenario)
        self._streams = streams
        self._scenes = scenes
        self._clock = clock
        self._run_id = f"{chance.getrandbits(32):08x}"
        self._chance = chance
        self._tasks = TaskSet("bench-sources")
        self._making: asyncio.Task[SourceFailed | None] | None = None
        self._ids: list[str] = []
        self._children: list[Child] = []
        self._media: list[list[Sequence[Part]]] = []  # by share, by source
        self._sightings = Sightings(streams, max_published=_n_published(scenario))

    async def open(self) -> None:
        """Raises SourceFailed; nothing is left behind then."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    def prepare(self, index: int) -> Prepared:
        turn = self._rotation.at(index)
        return Prepared(
            content=[*self._media[turn.share][turn.source], {"type": "text", "text": turn.text}],
            question=turn.question,
            source=turn.source,
            share=self._scenario.shares[turn.share].name,
            thread_id=self._thread(turn),
        )

    async def judge(self, records: Sequence[Record], notes: Mapping[int, Prepared]) -> None:
        """Raises SourceFailed where a camera has ended by itself: what was measured is a still."""
        by_stream = {stream_id: n for n, stream_id in enumerate(self._ids)}
        answered = [r for r in records if r.outcome == "ok" and not r.warmup and r.frames]
        self._chance.shuffle(answered)
        await self._sightings.look(answered, by_stream)
        for record in answered:
            self._judge(record, by_stream)
        self._fail_if_ended()

    async def close(self) -> None:
        await self._tasks_over()
        children, self._children = self._children, []
        for child in children:
            await asyncio.to_thread(child.stop)
        ids, self._ids = self._ids, []
        for one in ids:
            try:
                await self._streams.delete(one)
            except SourceFailed as error:  # it ends by itself in five minutes
                self.problems.add(str(error))
        await self._streams.close()

    def report(self) -> dict[str, Any]:
        """What the cameras did, for `environment.json`."""
        unknown = sum(not scene.is_known for scene in self._scenes)
        return {"without_truth": unknown, **self._sightings.report(), **self.problems.report()}

    # ── opening ──

    async def _open(self) -> None:
        sources = self._scenario.sources
        if sources.kind == "rtsp":
            await self._publish_rtsp()
        for n in range(sources.count):
            # To its end also where the run is broken off: a stream that was made has to be known.
            self._making = self._tasks.start(self._make(n), name=f"create-{n}")
            failure = await asyncio.shield(self._making)
            if failure is not None:
                raise failure
        job = publishing(sources, self._streams, self._ids)
        if job is not None:
            self._start(*job)
        self._tasks.start(self._keep_alive(), name="keep-alive")
        opened = [await self._filled(one) for one in self._ids]
        self._media = [
            [references(one, share.media, fps=sources.fps) for one in opened]
            for share in self._scenario.shares
        ]

    async def _make(self, n: int) -> SourceFailed | None:
        """Why it could not be made, for who waits: in a task of its own it would be a crash."""
        try:
            created = await self._streams.create(asked_source(self._scenario.sources, n))
        except SourceFailed as error:
            return error
        self._ids.append(created["id"])
        return None

    async def _publish_rtsp(self) -> None:
        self._start(*rtsp_publishing(self._scenario.sources))
        limit_s = self._clock.monotonic_s() + FILL_LIMIT_S
        while self.problems.n_published < self._scenario.sources.count:
            self._fail_if_ended()
            if self._clock.monotonic_s() > limit_s:
                raise SourceFailed(
                    f"{self.problems.n_published} of {self._scenario.sources.count} cameras were"
                    f" published by RTSP within {FILL_LIMIT_S:g} s; {self.problems.newest}"
                )
            await self._clock.sleep(POLL_S)

    def _start(self, module: str, job: Job) -> None:
        self._children.append(Child(module, job, hear=self._hear))

    async def _filled(self, stream_id: str) -> Opened:
        """Wait until every question has its frames."""
        media, fps = [share.media for share in self._scenario.shares], self._scenario.sources.fps
        wanted = max(n_held(one, fps) for one in media)
        limit_s = self._clock.monotonic_s() + FILL_LIMIT_S + wanted / fps
        while (view := await self._streams.view(stream_id))["retained_frame_count"] < wanted:
            self._fail_if_ended()
            if self._clock.monotonic_s() > limit_s:
                health = view.get("health_reason") or view.get("health") or view.get("state")
                raise SourceFailed(
                    f"stream {stream_id} has {view['retained_frame_count']} of {wanted} frames after"
                    f" {FILL_LIMIT_S + wanted / fps:.0f} s: {health}"
                )
            await self._clock.sleep(POLL_S)
        return Opened(
            stream_id=stream_id,
            newest=view["last_frame_index"],
            stream_time_ms=view["stream_time_ms"],
        )

    # ── while it runs ──

    def _thread(self, turn: Turn) -> str | None:
        if self._scenario.shares[turn.share].threads == "fresh":
            return None
        return f"bench-{self._run_id}-{turn.share}-{turn.source}"

    def _hear(self, message: Message, _data: bytes) -> None:
        """In the thread that reads from the publisher."""
        if "index" in message:
            moment = Moment(
                number=message["number"], t_ms=message["t_ms"], wall_ms=message["wall_ms"]
            )
            self._sightings.published(message["source"], message["index"], moment)
        else:
            self.problems.hear(message)

    def _fail_if_ended(self) -> None:
        ended = [child.failure for child in self._children if child.failure is not None]
        reasons = [*ended, *self.problems.ended]
        if reasons:
            raise SourceFailed("; ".join(reasons))

    async def _keep_alive(self) -> None:
        while True:
            await self._clock.sleep(KEEPALIVE_EVERY_S)
            for one in list(self._ids):
                try:
                    await self._streams.keep_alive(one)
                except SourceFailed as error:  # the next one may reach it
                    self.problems.add(str(error))

    async def _tasks_over(self) -> None:
        if self._making is not None:
            await asyncio.wait((self._making,))
        await self._tasks.close()

    # ── afterwards ──

    def _judge(self, record: Record, by_stream: Mapping[str, int]) -> None:
        seen = [self._sightings.of(frame, by_stream) for frame in record.frames]
        moments = [moment for moment in seen if moment is not None]
        if moments and seen[-1] is not None:
            record.known_evidence_at_ms = float(max(moment.wall_ms for moment in moments))
        if len(moments) == len(seen):
            scene = self._scenes[record.source]
            record.truth = true_answer(scene, record.question, moments)
            record.correct = is_correct(record.question, record.text, record.truth)


def _check(scenario: Scenario) -> None:
    load = scenario.load
    step_s = load.warmup_s + load.duration_s + load.pause_s
    run_s = load.repeats * scenario.n_steps * step_s
    if run_s > RETAINED_S and any(share.media.repeats for share in scenario.shares):
        raise ScenarioInvalid(
            f"the run takes {run_s:.0f} s and media.repeats asks about its first frames, which a"
            f" server keeps for ten minutes: shorten it below {RETAINED_S:.0f} s"
        )


def _n_published(scenario: Scenario) -> int:
    return math.ceil(scenario.sources.count * scenario.sources.fps * RETAINED_S)

"""Cameras for servers without streams: the same frames, sent with each question as `data:` URLs.

A process of ours draws every frame ahead of its moment; it is sent only once that moment has come,
so that evidence is as old as that of a stream. Nothing is drawn or encoded between two requests.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from liveedge.bench.interfaces import Prepared
from liveedge.bench.record import Record
from liveedge.bench.scenario import Media, Scenario, ScenarioInvalid
from liveedge.bench.sources.child import Child, Message
from liveedge.bench.sources.feeds import pictures_job
from liveedge.bench.sources.grid import frames_of, is_one, n_held
from liveedge.bench.sources.problems import Problems
from liveedge.bench.sources.rotation import Rotation
from liveedge.bench.sources.shelf import Drawn, Shelf
from liveedge.bench.sources.streams import SourceFailed
from liveedge.bench.sources.truth import Moment, Scene, is_correct, true_answer
from liveedge.bench.sources.videos import avi_url, image_part, jpegs_url, video_part
from liveedge.core.clock import Clock

AHEAD_S = 2.0  # drawn before its moment: what a busy machine may lose without being late
BEHIND_S = 2.0  # kept beyond the longest clip
START_S = 1.5  # until the process draws
FILL_LIMIT_S = 40.0
POLL_S = 0.05
MAX_BYTES = 512 * 2**20


class UploadCameras:
    """A `MediaSource` whose frames travel with the questions."""

    def __init__(self, scenario: Scenario, *, scenes: Sequence[Scene], clock: Clock) -> None:
        _check(scenario)
        self.problems = Problems()
        self._scenario = scenario
        self._rotation = Rotation(scenario)
        self._scenes = scenes
        self._clock = clock
        self._media = [share.media for share in scenario.shares]
        self._fps = scenario.sources.fps
        self._held = max(n_held(media, self._fps) for media in self._media)
        self._shelf = Shelf(
            n_sources=scenario.sources.count,
            n_kept=self._held + math.ceil((AHEAD_S + BEHIND_S) * self._fps),
            keep_first=self._held if any(media.repeats for media in self._media) else 0,
        )
        self._start_ms = 0
        self._child: Child | None = None
        self._n_repeated = 0
        self._sent: dict[tuple[int, int], None] = {}  # frames that a request has had, newest last

    async def open(self) -> None:
        """Raises SourceFailed, and ScenarioInvalid where the frames need too much memory."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    def prepare(self, index: int) -> Prepared:
        turn = self._rotation.at(index)
        media = self._media[turn.share]
        frames = self._frames(turn.source, media)
        return Prepared(
            content=[*self._parts(frames, media), {"type": "text", "text": turn.text}],
            question=turn.question,
            source=turn.source,
            share=self._scenario.shares[turn.share].name,
            frames=[self._told(turn.source, frame) for frame in frames],
            note={"moments": [frame.moment for frame in frames]},
        )

    async def judge(self, records: Sequence[Record], notes: Mapping[int, Prepared]) -> None:
        """Raises SourceFailed where the process that draws has ended: what was sent are old frames."""
        for record in records:
            moments: Sequence[Moment] = notes[record.index].note["moments"]
            record.known_evidence_at_ms = float(moments[-1].wall_ms)
            if record.outcome == "ok" and not record.warmup:
                scene = self._scenes[record.source]
                record.truth = true_answer(scene, record.question, moments)
                record.correct = is_correct(record.question, record.text, record.truth)
        self._fail_if_ended()

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await asyncio.to_thread(child.stop)

    def report(self) -> dict[str, Any]:
        """What the cameras did, for `environment.json`."""
        held = {
            "frames_sent_again": self._n_repeated,
            "media_bytes": self._shelf.n_bytes,
            "without_truth": sum(not scene.is_known for scene in self._scenes),
        }
        return {**held, **self.problems.report()}

    async def _open(self) -> None:
        sources = self._scenario.sources
        module, job = pictures_job(sources)
        self._start_ms = self._clock.wall_ms() + round(START_S * 1000)
        fixed = all(media.repeats for media in self._media)
        pace = {"ahead_s": AHEAD_S, "limit": self._held if fixed else 0}
        self._child = Child(module, job | pace | {"start_ms": self._start_ms}, hear=self._hear)
        limit_s = self._clock.monotonic_s() + START_S + FILL_LIMIT_S + self._held / self._fps
        while not self._is_filled():
            self._fail_if_ended()
            if self._clock.monotonic_s() > limit_s:
                raise SourceFailed(
                    f"not every camera has drawn {self._held} frames in time; this machine is too"
                    f" slow for {sources.count} of {sources.fps:g} frames per second: set sources.count or"
                    " sources.fps lower"
                )
            await self._clock.sleep(POLL_S)
        self._refuse_too_much()

    def _is_filled(self) -> bool:
        newest = (
            self._newest() if any(not media.repeats for media in self._media) else self._held - 1
        )
        return newest >= self._held - 1 and self._shelf.has_frame(newest)

    def _refuse_too_much(self) -> None:
        wanted_bytes = self._shelf.full_bytes()
        if wanted_bytes > MAX_BYTES:
            raise ScenarioInvalid(
                f"the frames that questions reach need {wanted_bytes >> 20} MB, the limit is"
                f" {MAX_BYTES >> 20} MB: fewer sources, smaller frames or shorter clips"
            )

    def _hear(self, message: Message, data: bytes) -> None:
        """In the thread that reads from the process."""
        if "frame" not in message:
            self.problems.hear(message)
            return
        width, height = message["size"]
        moment = Moment(number=message["number"], t_ms=message["t_ms"], wall_ms=message["wall_ms"])
        frame = Drawn(
            frame=message["frame"], moment=moment, base64=data.decode(), size=(width, height)
        )
        self._shelf.put(message["source"], frame)

    def _fail_if_ended(self) -> None:
        failure = None if self._child is None else self._child.failure
        if failure is not None:
            raise SourceFailed(failure)

    # ── between two requests ──

    def _newest(self) -> int:
        """The number of the frame whose moment has come last."""
        return math.floor((self._clock.wall_ms() - self._start_ms) * self._fps / 1000)

    def _frames(self, source: int, media: Media) -> list[Drawn]:
        newest = n_held(media, self._fps) - 1 if media.repeats else self._newest()
        return self._shelf.frames(source, frames_of(newest, media, self._fps))

    def _parts(self, frames: Sequence[Drawn], media: Media) -> list[dict[str, Any]]:
        quality = self._scenario.sources.jpeg_quality
        if is_one(media) or media.clip == "images":
            return [image_part(frame.base64, quality=quality) for frame in frames]
        if self._scenario.target.video == "jpegs":
            return [video_part(jpegs_url([frame.base64 for frame in frames]))]
        return [
            video_part(avi_url([frame.base64 for frame in frames], frames[0].size, media.max_fps))
        ]

    def _told(self, source: int, frame: Drawn) -> dict[str, Any]:
        """As the evidence of an answer names its frames; `repeated`: a request before had it too."""
        key = (source, frame.frame)
        is_repeated = key in self._sent
        self._n_repeated += is_repeated
        self._sent[key] = None
        if len(self._sent) > self._shelf.capacity:
            del self._sent[next(iter(self._sent))]
        width, height = frame.size
        return {
            "source": source,
            "frame_index": frame.frame,
            "captured_at_ms": frame.moment.wall_ms,
            "width": width,
            "height": height,
            "repeated": is_repeated,
        }


def _check(scenario: Scenario) -> None:
    media = [share.media for share in scenario.shares]
    if any(one.max_pixels for one in media):
        raise ScenarioInvalid(
            "media.max_pixels is for streams; with target.delivery 'data' frames are sent as the"
            " camera gives them: set sources.width and sources.height"
        )
    are_videos = any(not is_one(one) and one.clip == "video" for one in media)
    if are_videos and not scenario.sources.jpeg_quality:
        raise ScenarioInvalid(
            "a clip is sent as JPEGs: set sources.jpeg_quality above 0, or media.clip to 'images'"
        )

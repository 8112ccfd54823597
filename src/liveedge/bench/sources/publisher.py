"""The process that draws and encodes pictures: `python -m liveedge.bench.sources.publisher`.

Pushes them into streams, one thread per camera, each in the pace of its camera; or hands them to the
load generator ahead of their time, for servers without streams. A machine too slow for the rate
leaves frames out, and tells how many. It ends with its standard input.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from liveedge.bench.sources.pictures import Camera, encoded, media_type, sim_cameras
from liveedge.bench.sources.telling import read_job, tell, when_abandoned
from liveedge.core.clock import Clock, SystemClock
from liveedge.core.tasks import OwnedThread

PUSH_TIMEOUT_S = 10.0
ENDED = (httpx.codes.NOT_FOUND, httpx.codes.GONE)
JOIN_S = 5.0
CRASH_POLL_S = 0.5


class Work(Protocol):
    """One camera; it runs in a thread of its own."""

    @property
    def source(self) -> int: ...

    def run(self, stopping: threading.Event) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushing:
    """One camera that pushes into its stream."""

    source: int
    camera: Camera
    url: str
    quality: int
    http: httpx.Client
    clock: Clock

    def run(self, stopping: threading.Event) -> None:
        began_s, number, fps = self.clock.monotonic_s(), 0, self.camera.fps
        while not self.clock.wait(stopping, began_s + number / fps - self.clock.monotonic_s()):
            if not self._push(number):
                return
            due = int((self.clock.monotonic_s() - began_s) * fps)
            skipped = max(0, due - number - 1)
            if skipped:
                tell({"source": self.source, "skipped": skipped})
            number += 1 + skipped

    def _push(self, number: int) -> bool:
        """False once the stream has ended."""
        picture = self.camera.picture(number, self.clock.wall_ms())
        headers = {
            "Content-Type": media_type(self.quality),
            "X-Captured-At-Ms": str(picture.wall_ms),
        }
        data = encoded(picture.rgb, quality=self.quality)
        try:
            answer = self.http.post(self.url, content=data, headers=headers)
        except httpx.HTTPError as error:
            tell({"source": self.source, "failed": str(error) or type(error).__name__})
            return True
        if answer.status_code in ENDED:
            tell({"source": self.source, "ended": answer.text[:300]})
            return False
        if answer.is_error:
            tell({"source": self.source, "failed": f"{answer.status_code}: {answer.text[:300]}"})
            return True
        said = {"source": self.source, "index": answer.json()["frame_index"]}
        burned = {"number": picture.number, "t_ms": picture.t_ms, "wall_ms": picture.wall_ms}
        tell(said | burned)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One camera whose pictures are handed over ahead of their time: frame `n` is of the moment
    `start_ms` + n / fps, which is burned into it."""

    source: int
    camera: Camera
    start_ms: int
    ahead_s: float
    quality: int
    limit: int  # so many frames, and none of them left out; 0: for ever
    clock: Clock

    def run(self, stopping: threading.Event) -> None:
        number, fps = 0, self.camera.fps
        while not self.limit or number < self.limit:
            due_ms = self.start_ms + round(number * 1000 / fps)
            early_s = (due_ms - self.clock.wall_ms()) / 1000 - self.ahead_s
            if self.clock.wait(stopping, max(0.0, early_s)):
                return
            self._draw(number, due_ms)
            due = int((self.clock.wall_ms() - self.start_ms) * fps / 1000)
            skipped = 0 if self.limit else max(0, due - number - 1)
            if skipped:
                tell({"source": self.source, "skipped": skipped})
            number += 1 + skipped

    def _draw(self, number: int, due_ms: int) -> None:
        picture = self.camera.picture(number, due_ms)
        data = base64.b64encode(encoded(picture.rgb, quality=self.quality))
        height, width, _ = picture.rgb.shape
        burned = {"number": picture.number, "t_ms": picture.t_ms, "wall_ms": picture.wall_ms}
        tell({"source": self.source, "frame": number, **burned, "size": [width, height]}, data)


def serve(cameras: Iterable[Camera], job: dict[str, Any], clock: Clock) -> None:
    """Run every camera until the parent is gone. Blocks."""
    urls = job.get("urls")
    with httpx.Client(
        headers=job.get("headers", {}),
        timeout=PUSH_TIMEOUT_S,
        trust_env=not job.get("is_local", True),
    ) as http:
        works: list[Work] = [
            Pushing(source=n, camera=camera, url=urls[n], quality=job["quality"], http=http, clock=clock)
            if urls
            else Drawing(
                source=n,
                camera=camera,
                start_ms=job["start_ms"],
                ahead_s=job["ahead_s"],
                quality=job["quality"],
                limit=job["limit"],
                clock=clock,
            )
            for n, camera in enumerate(cameras)
        ]  # fmt: skip
        run_all(works)


def run_all(works: Sequence[Work]) -> None:
    """Every camera in a thread of its own, until the parent is gone. Blocks.

    Raises SystemExit where one crashed: the others would go on, and nobody would know.
    """
    threads = [OwnedThread(f"bench-camera-{work.source}", work.run) for work in works]
    over = threading.Event()
    when_abandoned(over.set)
    for thread in threads:
        thread.start()
    while not over.wait(CRASH_POLL_S):
        crashed = [thread for thread in threads if thread.error is not None]
        if crashed:
            raise SystemExit(f"{crashed[0].name} crashed: {crashed[0].error!r}")
    for thread in threads:
        thread.stopping.set()
    for thread in threads:
        thread.stop(JOIN_S)


def main() -> None:
    job = read_job()
    serve(sim_cameras(job), job, SystemClock())


if __name__ == "__main__":
    main()

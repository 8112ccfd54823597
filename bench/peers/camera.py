"""A camera of a liveedge server: pictures pushed into a stream at the pace of a real one.

The stream's clock follows arrival, so the pace is kept in real time. One thread does everything:
a question that takes longer than the time between two frames ends the program, since what would be
measured then is a queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import httpx

from peers.chat import Part

LATE_LIMIT_S = 0.6  # the stream's clock places a frame anew that is later than a second


class Camera:
    """One stream, from its creation to its end."""

    def __init__(
        self,
        http: httpx.Client,
        *,
        interval_s: float,
        now_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._http = http
        self._now_s = now_s
        self._sleep = sleep
        self._interval_s = interval_s
        self._due_s = 0.0  # of the first frame: the others are counted from there
        self._first_captured_ms = 0
        self.n_frames = 0
        created = http.post("/v1beta/streams", json={"source": {"type": "push"}})
        self._id = created.raise_for_status().json()["id"]

    def push(self, jpeg: bytes) -> float:
        """Wait until the next frame is due, push it; returns the milliseconds that this took."""
        if self.n_frames == 0:
            self._first_captured_ms = int(time.time() * 1000)
        else:
            self._wait()
        captured_ms = self._first_captured_ms + round(self.n_frames * self._interval_s * 1000)
        begun_s = self._now_s()
        self._http.post(
            f"/v1beta/streams/{self._id}/frames",
            content=jpeg,
            headers={"Content-Type": "image/jpeg", "X-Captured-At-Ms": str(captured_ms)},
        ).raise_for_status()
        done_s = self._now_s()
        if self.n_frames == 0:
            # When it arrived, the stream's clock began, at the latest now. A frame before its time
            # by that clock would lose its place on the grid of ticks.
            self._due_s = done_s
        self.n_frames += 1
        return (done_s - begun_s) * 1000

    def window(self, n_frames: int) -> list[Part]:
        """The newest frames, as the medium of a question.

        From half-way between two frames: the stream's clock may have drifted a little since.
        """
        back_ms = round((n_frames - 0.5) * self._interval_s * 1000)
        query = f"start_offset_ms=-{back_ms}&max_fps={1 / self._interval_s}"
        url = f"ovs://streams/{self._id}?{query}"
        return [{"type": "video_url", "video_url": {"url": url}}]

    def close(self) -> None:
        self._http.delete(f"/v1beta/streams/{self._id}").raise_for_status()

    def _wait(self) -> None:
        due_s = self._due_s + self.n_frames * self._interval_s
        left_s = due_s - self._now_s()
        if left_s < -LATE_LIMIT_S:
            raise SystemExit(
                f"frame {self.n_frames} is {-left_s:.1f} s late: questions take longer than the"
                f" {self._interval_s:g} s between frames; give a longer --interval-s"
            )
        self._sleep(max(0.0, left_s))


def fill(cameras: Sequence[Camera], clips: Sequence[Sequence[bytes]], n_frames: int) -> None:
    """The first frames of all cameras, side by side."""
    for index in range(n_frames):
        for camera, clip in zip(cameras, clips, strict=True):
            camera.push(clip[index])

"""Publishes simulated cameras to an RTSP server: `python -m liveedge.bench.sources.rtsp_publisher`.

H.264 over TCP without B-frames, a key frame per second, one thread per camera. A connection that
breaks is made again; what was drawn meanwhile is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
from av.container import OutputContainer
from av.video.stream import VideoStream

from liveedge.bench.sources.pictures import SimCamera, sim_cameras
from liveedge.bench.sources.publisher import run_all
from liveedge.bench.sources.telling import read_job, tell
from liveedge.core.clock import Clock, SystemClock

AGAIN_AFTER_S = 1.0
TIME_BASE = Fraction(1, 90_000)  # of RTP video


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """One camera and its place on the server."""

    source: int
    camera: SimCamera
    url: str
    size: tuple[int, int]
    clock: Clock

    def run(self, stopping: threading.Event) -> None:
        began_s = self.clock.monotonic_s()
        while not stopping.is_set():
            try:
                self._connected(began_s, stopping)
            except (av.FFmpegError, OSError) as error:
                # Never the URL: it may hold a password.
                tell({"source": self.source, "failed": f"RTSP: {error.strerror or error}"})
                self.clock.wait(stopping, AGAIN_AFTER_S)

    def _connected(self, began_s: float, stopping: threading.Event) -> None:
        fps, is_first = self.camera.fps, True
        number = int((self.clock.monotonic_s() - began_s) * fps)
        with self._opened() as (container, stream):
            while not self.clock.wait(stopping, began_s + number / fps - self.clock.monotonic_s()):
                self._send(number, container, stream)
                if is_first:
                    tell({"source": self.source, "published": True})
                is_first = False
                due = int((self.clock.monotonic_s() - began_s) * fps)
                if due > number + 1:
                    tell({"source": self.source, "skipped": due - number - 1})
                number = max(number + 1, due)

    def _send(self, number: int, container: OutputContainer, stream: VideoStream) -> None:
        picture = self.camera.picture(number, self.clock.wall_ms())
        frame = av.VideoFrame.from_ndarray(picture.rgb, format="rgb24").reformat(format="yuv420p")
        frame.pts, frame.time_base = round(number / self.camera.fps / TIME_BASE), TIME_BASE
        for packet in stream.encode(frame):
            container.mux(packet)

    @contextmanager
    def _opened(self) -> Iterator[tuple[OutputContainer, VideoStream]]:
        options = {"rtsp_transport": "tcp"}
        with av.open(self.url, "w", format="rtsp", options=options) as container:
            rate = Fraction(self.camera.fps).limit_denominator(1001)
            stream = container.add_stream("libx264", rate=rate)
            stream.width, stream.height = self.size
            stream.pix_fmt = "yuv420p"
            stream.options = {"preset": "ultrafast", "tune": "zerolatency", "crf": "20"}
            stream.codec_context.time_base = TIME_BASE
            stream.codec_context.gop_size = max(1, round(self.camera.fps))
            stream.codec_context.thread_count = 1
            yield container, stream


def main() -> None:
    job: dict[str, Any] = read_job()
    clock = SystemClock()
    size = (job["width"] & ~1, job["height"] & ~1)  # colour has half the resolution
    job |= {"width": size[0], "height": size[1]}
    run_all(
        [
            Sending(source=n, camera=camera, url=url, size=size, clock=clock)
            for n, (camera, url) in enumerate(zip(sim_cameras(job), job["urls"], strict=True))
        ]
    )


if __name__ == "__main__":
    main()

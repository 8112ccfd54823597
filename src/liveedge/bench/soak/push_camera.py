"""A camera that pushes: `python -m liveedge.bench.soak.push_camera URL STREAM SEED FPS SIZE SPEED`.

Posts a JPEG of the simulated workcell at each of its moments, until standard input closes. What is
refused is tried again with the next picture: a camera knows nothing better.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from dataclasses import dataclass

import httpx
from PIL import Image

from liveedge.core.clock import Clock, clock_at
from liveedge.core.tasks import OwnedThread
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell

STDIN = 0
JPEG_QUALITY = 90
TIMEOUT_S = 20.0
FORGET_EVERY_S = 10.0
GONE = (404, 410)


@dataclass(frozen=True, slots=True)
class Words:
    """The command line."""

    url: str
    stream_id: str
    seed: int
    fps: float
    size: tuple[int, int]
    speed: float


def parse(words: list[str]) -> Words:
    url, stream_id, seed, fps, size, speed = words
    width, height = size.split("x")
    return Words(url, stream_id, int(seed), float(fps), (int(width), int(height)), float(speed))


def end_with_stdin() -> None:
    """End this process where the one that started it has ended or closes the pipe."""

    def wait(_stopping: threading.Event) -> None:
        while os.read(STDIN, 4096):
            pass
        os._exit(0)

    OwnedThread("soak-stdin", wait).start()


def push(words: Words, clock: Clock, http: httpx.Client, stopping: threading.Event) -> None:
    """Until the stream has ended or `stopping`."""
    workcell = Workcell(words.seed)
    width, height = words.size
    renderer = Renderer(workcell, width=width, height=height)
    path = f"/v1beta/streams/{words.stream_id}/frames"
    began_s = clock.monotonic_s()
    number, forget_at_s = 0, FORGET_EVERY_S
    while not clock.wait(stopping, max(0.0, began_s + number / words.fps - clock.monotonic_s())):
        t_s = number / words.fps
        body = _jpeg(renderer, number, t_s, clock.wall_ms())
        try:
            status = http.post(
                path, content=body, headers={"Content-Type": "image/jpeg"}
            ).status_code
        except httpx.HTTPError:
            status = 0
        if status in GONE:
            return
        if t_s >= forget_at_s:
            workcell.forget_before(t_s)
            forget_at_s = t_s + FORGET_EVERY_S
        number = max(number + 1, int((clock.monotonic_s() - began_s) * words.fps))


def _jpeg(renderer: Renderer, number: int, t_s: float, wall_ms: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(renderer.render(number, t_s, wall_ms)).save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


def main() -> None:
    words = parse(sys.argv[1:])
    end_with_stdin()
    with httpx.Client(base_url=words.url, trust_env=False, timeout=TIMEOUT_S) as http:
        push(words, clock_at(words.speed), http, threading.Event())


if __name__ == "__main__":
    main()

"""What a camera costs and how late its pictures are, for every way they come.

    python bench/ingest.py --seconds 20 --runs 3

Cameras are processes of their own and send packets that were encoded beforehand (only the LiveKit SDK
encodes for itself), so that the machine is left to the server. Four measurements:

1. RTSP 720p30: processor time per frame of our whole server beside a bare PyAV loop that reads and
   decodes the same stream in the same seconds. `rtsp_ratio` is the median of the runs.
2. WHIP and LiveKit 720p30: processors per stream (`whip_cores`, `livekit_cores`), by thread.
3. Every kind of source: connecting, first frame, frames a second, and the delay from the camera's
   sending to the frame's being in the store, by the clock burned into the picture.
4. How many 720p30 streams fit until the p95 of that delay has grown by two frame periods. The
   cameras' own work is on the same machine: a real one carries more.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cameras.footage import Footage, Footages, Shape
from cameras.publisher import Publisher, Way
from cameras.rig import Rig
from cameras.rtsp_camera import RtspCamera
from cameras.scene import Failed, Shot, Span, Stage, wall_ms
from cameras.sources import SOURCES, Opened
from cameras.threads import spent_s
from machine import announce
from report import finish, table

HD = Shape(width=1280, height=720, crf=18)  # 3.3 Mbit/s as H.264
SMALL = Shape(n_frames=90)
SETTLE_S = 2.0
STEP_S = 4.0
GROWN_PERIODS = 2.0
SHOWN_SHARE = 0.005  # of a processor: threads below this are of no interest

BARE = """
import sys, time
import av
url, seconds = sys.argv[1], float(sys.argv[2])
options = {"rtsp_transport": "tcp", "analyzeduration": "0", "probesize": "32"}
with av.open(url, format="rtsp", options=options) as container:
    stream = container.streams.video[0]
    stream.codec_context.thread_count = 1
    frames = (f for packet in container.demux(stream) for f in packet.decode())
    next(frames)
    print("reading", flush=True)
    sys.stdin.readline()
    next(frames)
    begun_s, begun_cpu_s, n = time.monotonic(), time.process_time(), 0
    while time.monotonic() - begun_s < seconds:
        next(frames)
        n += 1
    print((time.process_time() - begun_cpu_s) / n)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What every measurement needs."""

    stage: Stage
    shape: Shape  # of every camera
    chosen: Sequence[str]  # rows of the table of sources
    seconds: float
    n_runs: int
    max_streams: int
    settle_s: float = SETTLE_S  # after a source has begun


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--runs", type=int, default=3, help="of the ratio")
    parser.add_argument("--max-streams", type=int, default=24, help="where the ramp ends")
    parser.add_argument("--sources", default=",".join(SOURCES), help="rows of the table of sources")
    parser.add_argument("--only", default=",".join(PARTS), help="measurements to make")
    parser.add_argument("--quick", action="store_true", help="short, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.runs, options.max_streams = 1.0, 1, 1
        options.sources, options.only = (
            "rtsp h264,push jpeg",
            "ratio,whip,livekit,sources,rtsp_capacity",
        )
    chosen = [name for name in SOURCES if name in options.sources.split(",")]
    announce()
    with tempfile.TemporaryDirectory() as folder, Rig(hot_mb=24) as rig:
        run = Run(
            stage=Stage(rig, Footages(Path(folder))),
            shape=SMALL if options.quick else HD,
            chosen=chosen,
            seconds=options.seconds,
            n_runs=options.runs,
            max_streams=options.max_streams,
            settle_s=0.3 if options.quick else SETTLE_S,
        )
        figures: dict[str, Any] = {}
        for part, measure in PARTS.items():
            if part in options.only.split(","):
                figures |= measure(run)
    finish(figures)
    return 0


# ── 1. RTSP beside a bare reader ──


class Beside(NamedTuple):
    """One run: milliseconds of processor per frame."""

    number: int
    ours_ms: float
    bare_ms: float
    ratio: float


def rtsp_ratio(run: Run) -> dict[str, float]:
    """The server and the bare reader watch the same camera in the same seconds."""
    rows: list[Beside] = []
    rig = run.stage.rig
    with RtspCamera({"live": run.stage.make_footage(run.shape)}) as camera:
        url = f"rtsp://127.0.0.1:{camera.port}/live"
        stream_id = rig.client.create_stream({"type": "rtsp", "url": url})["id"]
        _until_frames(rig, stream_id)
        time.sleep(run.settle_s)  # the first groups of pictures are decoded twice
        threads: dict[str, float] = {}
        for number in range(run.n_runs):
            with bare_reader(url, run.seconds) as measure:
                before, before_n = rig.cpu_s(), _received(rig, stream_id)
                bare_s = measure()
                n_frames = _received(rig, stream_id) - before_n
                threads = {kind: s / n_frames for kind, s in spent_s(before, rig.cpu_s()).items()}
            ours_s = sum(threads.values())
            rows.append(Beside(number + 1, ours_s * 1000, bare_s * 1000, ours_s / bare_s))
        rig.delete(stream_id)
    print(f"RTSP {_size(run)}, processor time per frame")
    table(("run", "whole server ms", "bare PyAV ms", "ratio"), rows)
    table(
        ("thread of the server", "ms per frame"),
        [(kind, s * 1000) for kind, s in threads.items()],
    )
    return {
        "rtsp_ratio": statistics.median(row.ratio for row in rows),
        "rtsp_ms": statistics.median(row.ours_ms for row in rows),
    }


@contextmanager
def bare_reader(url: str, seconds: float) -> Iterator[Callable[[], float]]:
    """A process that is reading; called, it measures: seconds of processor per frame."""
    command = [sys.executable, "-c", BARE, url, str(seconds)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        stdin, stdout = child.stdin, child.stdout

        def measure() -> float:
            stdin.write("\n")
            stdin.flush()
            return float(stdout.readline())

        try:
            if stdout.readline().strip() != "reading":
                raise SystemExit("the bare reader could not open the camera")
            yield measure
        finally:
            child.kill()


# ── 2. published streams by thread ──


def published_cores(run: Run, *, way: Way, codec: str) -> dict[str, float]:
    """Processors that one published 720p30 stream takes."""
    live = way == "livekit"
    footage = run.stage.make_footage(replace(run.shape, codec=codec, live=live, n_frames=90))
    rig = run.stage.rig
    created = rig.client.create_stream({"type": way})
    with Publisher(way, created["publish"], footage) as publisher:
        publisher.event("answered_ms")
        _until_frames(rig, created["id"])
        time.sleep(run.settle_s)
        begun_s, before, before_n = time.monotonic(), rig.cpu_s(), _received(rig, created["id"])
        time.sleep(run.seconds)
        after, after_n = rig.cpu_s(), _received(rig, created["id"])
        took_s = time.monotonic() - begun_s
    seen = rig.client.stream(created["id"])
    rig.delete(created["id"])
    threads = {kind: s / took_s for kind, s in spent_s(before, after).items()}
    print(f"{way}, {seen['codec']} {seen['width']}x{seen['height']}: processors")
    rows = [(kind, share) for kind, share in threads.items() if share >= SHOWN_SHARE]
    total = sum(threads.values())
    table(("thread of the server", "processors"), [*rows, ("all", total)])
    return {f"{way}_cores": total, f"{way}_fps": (after_n - before_n) / took_s}


# ── 3. every kind of source ──


def sources(run: Run) -> dict[str, Any]:
    rows: list[Sequence[object]] = []
    figures: dict[str, Mapping[str, float]] = {}
    for name in run.chosen:
        with ExitStack() as stack:
            opened = SOURCES[name](run.stage, stack, run.shape)
            figures[name] = measured = look(run, opened)
            rows.append((name, *measured.values(), opened.note))
            run.stage.clear()
    table(("source", "connect ms", "first frame ms", "fps", "delay p50 ms", "p95 ms", "note"), rows)
    return {"sources": figures}


def look(run: Run, opened: Opened) -> dict[str, float]:
    """What one source does, from its connecting on."""
    shot = opened.shot
    stream = shot.until(lambda stream: stream["first_frame_at_ms"] is not None, "begun")
    time.sleep(run.settle_s)
    span = Span(wall_ms(), wall_ms() + run.seconds * 1000)
    time.sleep(run.seconds)
    shot.look()
    n_frames = sum(span.has(s.arrived_ms) for s in shot.seen)
    return {
        "connect_ms": opened.connected_ms - opened.begun_ms,
        "first_ms": stream["first_frame_at_ms"] - opened.begun_ms,
        "fps": n_frames / run.seconds,
        "delay_p50_ms": shot.delay_ms(50, span),
        "delay_p95_ms": shot.delay_ms(95, span),
    }


# ── 4. how many fit ──


def capacity(run: Run, *, way: str) -> dict[str, int]:
    """The most streams whose pictures were as fresh as those of one."""
    footage = run.stage.make_footage(run.shape)
    rows = []
    fits = 0
    with ExitStack() as stack:
        camera = stack.enter_context(RtspCamera({"live": footage}))
        alone_ms = 0.0
        for n_streams in range(1, run.max_streams + 1):
            _add(run, way, footage, stack, camera)
            time.sleep(run.settle_s)
            delay_ms, fps = _together(run.stage.shots, step_s=min(STEP_S, run.seconds))
            alone_ms = alone_ms or delay_ms
            rows.append((n_streams, delay_ms, fps))
            if delay_ms > alone_ms + GROWN_PERIODS * footage.period_ms:
                break
            fits = n_streams
        run.stage.clear()
    print(f"{way}: {_size(run)}, streams at once")
    table(("streams", "delay p95 ms", "fps of the slowest"), rows)
    return {f"{way}_streams": fits}


def _add(run: Run, way: str, footage: Footage, stack: ExitStack, camera: RtspCamera) -> None:
    if way == "rtsp":
        source = {"type": "rtsp", "url": f"rtsp://127.0.0.1:{camera.port}/live"}
        shot = run.stage.shoot(source, footage, truth=False)
    else:
        shot = run.stage.shoot({"type": "whip"}, footage, truth=False)
        assert shot.publish is not None
        stack.enter_context(Publisher("whip", shot.publish, footage)).event("answered_ms")
    shot.until(lambda stream: stream["health"] == "live", "live")


def _together(shots: Sequence[Shot], *, step_s: float) -> tuple[float, float]:
    """Delay of the worst stream, and frames a second of the slowest."""
    span = Span(wall_ms(), wall_ms() + step_s * 1000)
    time.sleep(step_s)
    for shot in shots:
        shot.look()
    counts = [sum(span.has(s.arrived_ms) for s in shot.seen) for shot in shots]
    return max(shot.delay_ms(95, span) for shot in shots), min(counts) / step_s


def _size(run: Run) -> str:
    return f"{run.shape.width}x{run.shape.height} at {run.shape.fps} fps"


def _received(rig: Rig, stream_id: str) -> int:
    return int(rig.counters(stream_id)["received"])


def _until_frames(rig: Rig, stream_id: str, *, within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while _received(rig, stream_id) < 30:
        if time.monotonic() > deadline_s:
            raise Failed(f"no frames, but {rig.client.stream(stream_id)['health_reason']}")
        time.sleep(0.05)


PARTS: Mapping[str, Callable[[Run], Mapping[str, Any]]] = {
    "ratio": rtsp_ratio,
    "whip": partial(published_cores, way="whip", codec="h264"),
    "livekit": partial(published_cores, way="livekit", codec="vp8"),
    "sources": sources,
    "rtsp_capacity": partial(capacity, way="rtsp"),
    "whip_capacity": partial(capacity, way="whip"),
}


if __name__ == "__main__":
    sys.exit(main())

"""Slow and absent consumers: does a camera at 30 frames a second notice them?

    python bench/consumers.py --minutes 10 --sources sim,rtsp,whip

Beside each stream: a consumer that takes the newest frame once a second, over HTTP; one that asks
for pictures and never reads the answers; one that waits for a newer frame inside the server and never
looks at it. Ten times a second the age of the newest frame is read from the clock burned into it.

Kept, or the run fails: the age (p95) is below two frame periods, neither it nor the memory of the
server rises by more than it scatters, and every frame that came was counted. What a step takes is the
time in which the slow consumer gets its frame; its slope must be zero too (case 35 of long runs).
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from cameras.footage import Footages, Shape
from cameras.publisher import Publisher
from cameras.rig import Rig
from cameras.rtsp_camera import RtspCamera
from cameras.scene import Shot, Stage
from liveedge.core.tasks import OwnedThread
from machine import announce
from observe import Trend, memory_mb, trend
from report import finish, percentile, table

FPS = 30
SHAPE = Shape(crf=20)
SIM = f"sim://workcell?width=640&height=360&fps={FPS}"
LOOK_S = 2.0
CONSUME_S = 1.0
N_UNREAD = 20  # pictures asked for and never read: more than any socket buffer holds
KEEP_ALIVE_S = 100.0
MAX_PERIODS = 2.0


@dataclass
class Watched:
    """One stream, its consumers, and everything seen, by seconds since the start."""

    name: str
    shot: Shot
    ages_ms: list[tuple[float, float]] = field(default_factory=list)
    steps_ms: list[tuple[float, float]] = field(default_factory=list)
    n_frames: int = 0
    n_unaccounted: int = 0


@dataclass
class Run:
    """All of it. One thread looks; each slow consumer is a thread of its own."""

    rig: Rig
    minutes: float
    began_s: float = field(default_factory=time.monotonic)
    stopping: threading.Event = field(default_factory=threading.Event)
    rss_mb: list[tuple[float, float]] = field(default_factory=list)
    own_mb: list[tuple[float, float]] = field(default_factory=list)  # without pages of files

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began_s


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--sources", default="sim,rtsp,whip")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it works")
    options = parser.parse_args()
    chosen = [name for name in ("sim", "rtsp", "whip") if name in options.sources.split(",")]
    if not chosen or options.minutes <= 0:
        parser.error("--sources needs some of sim, rtsp, whip; --minutes needs more than 0")
    announce()
    minutes = 0.1 if options.quick else options.minutes
    # A history that is full soon: what fills is no leak.
    with tempfile.TemporaryDirectory() as folder, Rig(history_mb=8, retention_s=60) as rig:
        stage = Stage(rig, Footages(Path(folder)))
        with ExitStack() as stack:
            watched = [Watched(name, _open(name, stage, stack)) for name in chosen]
            for one in watched:
                one.shot.until(lambda stream: stream["health"] == "live", "live")
            run = Run(rig, minutes)
            consume(run, watched, stack)
            observe(run, watched)
            run.stopping.set()
        stage.clear()
    return tell(run, watched, strict=not options.quick)


def _open(name: str, stage: Stage, stack: ExitStack) -> Shot:
    footage = stage.make_footage(SHAPE)
    if name == "sim":
        return stage.open({"type": "sim", "url": SIM}, footage)
    if name == "rtsp":
        camera = stack.enter_context(RtspCamera({"live": footage}))
        url = f"rtsp://127.0.0.1:{camera.port}/live"
        return stage.open({"type": "rtsp", "url": url}, footage)
    shot = stage.open({"type": "whip"}, footage)
    assert shot.publish is not None
    stack.enter_context(Publisher("whip", shot.publish, footage)).event("answered_ms")
    return shot


def consume(run: Run, watched: Sequence[Watched], stack: ExitStack) -> None:
    """Start all consumers; they end with the stack."""
    for one in watched:
        stack.enter_context(never_reads(run.rig.url, one.shot.stream_id))
        run.rig.subscribe_and_forget(one.shot.stream_id)
        slow = OwnedThread(f"bench-slow-{one.name}", partial(_consume, run, one))
        slow.start()
        stack.callback(slow.stop)


def never_reads(url: str, stream_id: str) -> socket.socket:
    """A connection that asks for many pictures and takes none."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((parts.hostname, parts.port or 80))
    path = f"/v1beta/streams/{stream_id}/frame.png?frame_index=-1"
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {parts.hostname}\r\n\r\n".encode() * N_UNREAD)
    return connection


def _consume(run: Run, one: Watched, stopping: threading.Event) -> None:
    path = f"/v1beta/streams/{one.shot.stream_id}/frame.jpg?frame_index=-1"
    with httpx.Client(base_url=run.rig.url, trust_env=False) as http:
        while not stopping.wait(CONSUME_S):
            begun_s = time.monotonic()
            http.get(path).raise_for_status()
            one.steps_ms.append((run.now_s, (time.monotonic() - begun_s) * 1000))


def observe(run: Run, watched: Sequence[Watched]) -> None:
    kept_s = run.now_s
    for one in watched:
        run.rig.sample_ages(one.shot.stream_id, one.shot.footage)
    while run.now_s < run.minutes * 60:
        time.sleep(LOOK_S)
        run.rss_mb.append((run.now_s, run.rig.held().rss_mb))
        run.own_mb.append((run.now_s, memory_mb(run.rig.pid)["server"]))
        for one in watched:
            ages = run.rig.ages(one.shot.stream_id)
            one.ages_ms += [(age.at_s - run.began_s, age.ms) for age in ages]
            counters = run.rig.counters(one.shot.stream_id)
            accounted = counters["retained"] + counters["evicted"] + counters["dropped"]
            one.n_unaccounted += counters["received"] != accounted
            one.n_frames = counters["received"]
            if run.now_s - kept_s > KEEP_ALIVE_S:
                run.rig.client.keep_alive(one.shot.stream_id)
        if run.now_s - kept_s > KEEP_ALIVE_S:
            kept_s = run.now_s


def tell(run: Run, watched: Sequence[Watched], *, strict: bool) -> int:
    limit_ms = MAX_PERIODS * 1000 / FPS
    rows: list[tuple[object, ...]] = []
    is_kept = True
    for one in watched:
        ages, steps = trend(one.ages_ms), trend(one.steps_ms)
        p95_ms = percentile([ms for _, ms in one.ages_ms], 95)
        is_kept &= p95_ms < limit_ms and ages.is_flat and steps.is_flat
        is_kept &= one.n_unaccounted == 0
        rows.append(
            (
                one.name,
                one.n_frames / run.minutes / 60,
                percentile([ms for _, ms in one.ages_ms], 50),
                p95_ms,
                max(ms for _, ms in one.ages_ms),
                ages.per_min,
                percentile([ms for _, ms in one.steps_ms], 50),
                steps.per_min,
                _word(ages, steps),
            )
        )
    columns = ("source", "fps", "age p50 ms", "p95", "max", "per min", "step p50 ms", "per min", "")
    table(columns, rows)
    memory, own = trend(run.rss_mb), trend(run.own_mb)
    table(
        ("memory of the server", "at first MB", "at last", "per min", ""),
        [
            ("resident", memory.first, memory.last, memory.per_min, _word(memory)),
            ("without pages of files", own.first, own.last, own.per_min, _word(own)),
        ],
    )
    finish(
        {
            "minutes": run.minutes,
            "limit_ms": limit_ms,
            "age_p95_ms": {row[0]: row[3] for row in rows},
            "age_ms_per_min": {row[0]: row[5] for row in rows},
            "step_ms_per_min": {row[0]: row[7] for row in rows},
            "rss_mb_per_min": memory.per_min,
            "rss_flat": memory.is_flat,
            "own_mb_per_min": own.per_min,
            "unaccounted": sum(one.n_unaccounted for one in watched),
            "kept": bool(is_kept and memory.is_flat),
        }
    )
    return 1 if strict and not (is_kept and memory.is_flat) else 0


def _word(*trends: Trend) -> str:
    return "flat" if all(one.is_flat for one in trends) else "RISES"


if __name__ == "__main__":
    sys.exit(main())

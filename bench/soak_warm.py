"""Does it stay the same for half an hour? Cameras, warm windows, questions, and people who misbehave.

    python bench/soak_warm.py --minutes 30

Serves the model in processes of its own and watches from outside. Four simulated cameras with two
warm windows each; two questions a second whose true answers are known; a client that leaves in the
middle of an answer every five seconds; uploads that nobody honest sends. Every few seconds: memory
of the server and of its engine, every gauge of `/metrics`, counters that must add up.

Slopes are taken over the last four fifths, when caches and histories are full (the history is kept
short for that: `--retention-s`). The verdict is FLAT where no process and no gauge rises by more
than it scatters or half a percent; and it needs no status of 500 or above.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from hostile import CHAT, Attack, attacks
from lean_http import FIRST_WORDS, LeanClient
from liveedge.client.http import Answer, Client, Refused, image_part, video_part
from liveedge.client.local_server import running_server
from liveedge.client.truth import Oracle
from liveedge.core.clock import SystemClock
from liveedge.sim.questions import KINDS, TEST_SEEDS, expected, score
from machine import announce
from observe import Trend, gauges, memory_mb, trend
from report import finish, percentile, table

WINDOWS = ({"seconds": 2.0, "max_fps": 2.0}, {"seconds": 4.0, "max_fps": 1.0})
ON_WINDOWS = ("belt", "display_event")
ON_FRAMES = ("door", "display", "lamp", "count")
N_ASKERS = 4
KEEP_ALIVE_S = 100.0
FIRST_FRAMES_MS = 4500  # of stream time: as long as the longest window
RESIDENT = "liveedge_process_resident_memory_bytes"  # with pages of files; `memory_mb` is without
SHOWN_EVERY_S = 120.0
SHORTEST_MIN = 5.0  # a verdict on less would be about the filling of caches


@dataclass
class Record:
    """Everything seen, by seconds since the start. Threads append and add nothing up."""

    answers: list[tuple[float, Answer]] = field(default_factory=list)
    judged: list[bool] = field(default_factory=list)
    late: list[int] = field(default_factory=list)  # questions asked a second after they were due
    errors: list[str] = field(default_factory=list)  # what was refused though it was honest
    server_errors: list[str] = field(default_factory=list)  # 500 and above, whoever asked
    hostile: Counter[str] = field(default_factory=Counter)  # by name and status
    disconnects: int = 0
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # MB
    gauges: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    broken_counters: list[str] = field(default_factory=list)
    looks: int = 0
    cold_windows: int = 0  # looks at a window that was not warm
    streams: list[dict[str, Any]] = field(default_factory=list)  # as last seen

    def refused(self, who: str, status: int, message: str) -> None:
        if status >= 500 or status == 0:  # 0: no answer at all
            self.server_errors.append(f"{who}: {message}")
        else:
            self.errors.append(f"{who}: {message}")


@dataclass(frozen=True, slots=True)
class Camera:
    """A stream and what it looks at."""

    stream_id: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """What every part of the run needs to know."""

    url: str
    pid: int
    model: str
    cameras: Sequence[Camera]
    options: argparse.Namespace
    record: Record
    began_s: float
    stopping: threading.Event

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def wait_until(self, at_s: float) -> bool:
        """True once that time has come; False where the run is over."""
        over = at_s >= self.options.minutes * 60
        left_s = min(at_s, self.options.minutes * 60) - self.now_s
        return not self.stopping.wait(max(0.0, left_s)) and not over

    def client(self) -> Client:
        return Client(self.url, clock=SystemClock())


def main() -> None:
    options = parse()
    announce()
    record = Record()
    flags = [
        f"--retention-s={options.retention_s}",
        f"--max-windows={max(1, options.streams * options.windows)}",
        f"--encoder-cache-mb={options.encoder_cache_mb}",
        f"--engine={options.engine}",
    ]
    clock = SystemClock()
    with running_server(model=options.model, port=None, clock=clock, flags=flags) as server:
        with Client(server.url, clock=clock) as client:
            model = client.models()[0]["id"]
            cameras = [
                open_camera(client, TEST_SEEDS.start + number, options)
                for number in range(options.streams)
            ]
            wait_for_frames(client, cameras)
        open_windows(server.url, model, cameras, options)
        soak = Soak(
            url=server.url,
            pid=server.pid,
            model=model,
            cameras=cameras,
            options=options,
            record=record,
            began_s=time.monotonic(),
            stopping=threading.Event(),
        )
        run(soak)
    show(record)
    finish(figures(record, options))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="checkpoint folder; default: the shipped model")
    parser.add_argument("--engine", choices=("process", "inproc"), default="process")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--windows", type=int, choices=(0, 1, 2), default=2, help="per stream")
    parser.add_argument("--fps", type=float, default=5.0, help="of each camera")
    parser.add_argument("--questions-per-s", type=float, default=2.0)
    parser.add_argument("--leave-every-s", type=float, default=5.0, help="a client disconnects")
    parser.add_argument("--attack-every-s", type=float, default=3.0, help="a hostile upload")
    parser.add_argument("--look-every-s", type=float, default=5.0)
    parser.add_argument("--retention-s", type=int, default=50, help="of the streams' frames")
    parser.add_argument("--encoder-cache-mb", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="six seconds, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.minutes, options.streams = 6 / 60, 2
        options.leave_every_s, options.attack_every_s, options.look_every_s = 2.0, 0.7, 2.0
    return options


def open_camera(client: Client, seed: int, options: argparse.Namespace) -> Camera:
    url = f"sim://workcell?seed={seed}&fps={options.fps}"
    return Camera(client.create_stream({"type": "sim", "url": url})["id"], seed)


def wait_for_frames(client: Client, cameras: Sequence[Camera]) -> None:
    for camera in cameras:
        while client.stream(camera.stream_id)["stream_time_ms"] < FIRST_FRAMES_MS:
            time.sleep(0.1)


def open_windows(
    url: str, model: str, cameras: Sequence[Camera], options: argparse.Namespace
) -> None:
    with httpx.Client(base_url=url, trust_env=False) as http:
        for camera in cameras:
            for number, window in enumerate(WINDOWS[: options.windows]):
                path = f"/v1beta/streams/{camera.stream_id}/windows/window-{number}"
                http.put(path, json={"model": model, **window}).raise_for_status()


def run(soak: Soak) -> None:
    """All parts at once, each in a thread of its own; the first that breaks ends the run."""
    every_s = soak.options
    parts: list[Callable[[], None]] = [partial(ask_on, soak, number) for number in range(N_ASKERS)]
    parts += [
        partial(leave_on, soak, every_s.leave_every_s),
        partial(attack_on, soak, every_s.attack_every_s),
        partial(look_on, soak, every_s.look_every_s),
        partial(keep_alive_on, soak),
    ]
    with ThreadPoolExecutor(len(parts)) as pool:
        running = [pool.submit(part) for part in parts]
        try:
            for one in running:
                one.result()
        finally:
            soak.stopping.set()


# Questions


def ask_on(soak: Soak, asker: int) -> None:
    """Every `N_ASKERS`th question, when it is due."""
    with ExitStack() as stack:
        client = stack.enter_context(soak.client())
        oracles = [Oracle(client, camera.stream_id, seed=camera.seed) for camera in soak.cameras]
        for number in itertools.count(asker, N_ASKERS):
            due_s = number / soak.options.questions_per_s
            if not soak.wait_until(due_s):
                return
            if soak.now_s > due_s + 1:
                soak.record.late.append(number)
            place = number % len(soak.cameras)
            ask(soak, client, number, oracles[place], soak.cameras[place])


def ask(soak: Soak, client: Client, number: int, oracle: Oracle, camera: Camera) -> None:
    """One question about a window or a frame, its answer compared with the truth."""
    turn = number // len(soak.cameras)
    windows = WINDOWS[: soak.options.windows] or WINDOWS
    if turn % 3:
        kind = ON_WINDOWS[turn % len(ON_WINDOWS)]
        window = windows[turn % len(windows)]
        offset_ms = round(window["seconds"] * 1000)
        media = video_part(camera.stream_id, start_offset_ms=-offset_ms, max_fps=window["max_fps"])
    else:
        kind = ON_FRAMES[turn % len(ON_FRAMES)]
        media = image_part(camera.stream_id, frame_index=-1)
    try:
        words = {"type": "text", "text": KINDS[kind].phrasings[0]}
        answer = client.ask([media, words], model=soak.model)
        truth = true_answer(kind, oracle, answer)
    except Refused as error:
        soak.record.refused(f"question {number}", error.status, str(error))
        return
    soak.record.answers.append((soak.now_s, answer))
    if truth is not None:
        soak.record.judged.append(score(kind, answer.text, truth))


def true_answer(kind: str, oracle: Oracle, answer: Answer) -> str | None:
    """From the first and the last frame, which decide all kinds asked here."""
    indices = [int(frame["frame_index"]) for frame in answer.frames]
    chosen = [indices[0], indices[-1]] if KINDS[kind].needs_clip else indices[-1:]
    return expected(kind, [oracle.state(index) for index in chosen])


# Misbehaviour


def leave_on(soak: Soak, every_s: float) -> None:
    """Leave in the middle of an answer, again and again."""
    for number in itertools.count(1):
        if not soak.wait_until(number * every_s):
            return
        camera = soak.cameras[number % len(soak.cameras)]
        asyncio.run(leave(soak, camera))


async def leave(soak: Soak, camera: Camera) -> None:
    content = [
        image_part(camera.stream_id, frame_index=-1),
        {"type": "text", "text": KINDS["state"].phrasings[0]},
    ]
    async with LeanClient(soak.url) as client:
        body = {"model": soak.model, "messages": [{"role": "user", "content": content}]}
        reader = await client.send(client.chat({**body, "max_completion_tokens": 200}))
        said = b""
        while FIRST_WORDS not in said.replace(b'"content":""', b""):
            piece = await reader.read(4096)
            if not piece:
                soak.record.errors.append(f"an answer ended before its first word: {said!r}")
                return
            said += piece
    soak.record.disconnects += 1


def attack_on(soak: Soak, every_s: float) -> None:
    """One hostile request after the other."""
    made: Sequence[Attack] = attacks(soak.model)
    with httpx.Client(base_url=soak.url, trust_env=False, timeout=60) as http:
        for number in itertools.count(1):
            if not soak.wait_until(number * every_s):
                return
            attack = made[number % len(made)]
            try:
                status = http.post(CHAT, content=attack.body, headers=JSON).status_code
            except httpx.HTTPError as error:
                soak.record.server_errors.append(f"{attack.name}: {error!r}")
                continue
            soak.record.hostile[f"{attack.name}: {status}"] += 1
            if status >= 500:
                soak.record.server_errors.append(f"{attack.name}: {status}")


JSON = {"Content-Type": "application/json"}


# Looking


def look_on(soak: Soak, every_s: float) -> None:
    with soak.client() as client, httpx.Client(base_url=soak.url, trust_env=False) as http:
        for number in itertools.count():
            if not soak.wait_until(number * every_s):
                return
            look(soak, client, http)


def look(soak: Soak, client: Client, http: httpx.Client) -> None:
    """Memory, gauges and counters at this moment; what does not add up is kept word for word."""
    record, now_s = soak.record, soak.now_s
    record.looks += 1
    for process, used_mb in memory_mb(soak.pid).items():
        record.memory.setdefault(process, []).append((now_s, used_mb))
    for name, value in gauges(http.get("/metrics").raise_for_status().text).items():
        if name.startswith(RESIDENT):
            continue
        record.gauges.setdefault(name, []).append((now_s, value))
    record.streams = [client.stream(camera.stream_id) for camera in soak.cameras]
    for stream in record.streams:
        record.cold_windows += sum(window["state"] != "warm" for window in stream["windows"])
        kept, gone = stream["retained_frame_count"], stream["evicted_frame_count"]
        if kept + gone != stream["last_frame_index"] + 1:
            record.broken_counters.append(f"{kept} + {gone} != {stream['last_frame_index']} + 1")
        span_ms = stream["last_frame_at_ms"] - stream["first_frame_at_ms"]
        if stream["stream_time_ms"] != span_ms:
            record.broken_counters.append(f"stream time {stream['stream_time_ms']} != {span_ms}")


def keep_alive_on(soak: Soak) -> None:
    with soak.client() as client:
        for number in itertools.count(1):
            if not soak.wait_until(number * KEEP_ALIVE_S):
                return
            for camera in soak.cameras:
                client.keep_alive(camera.stream_id)


# Telling


def show(record: Record) -> None:
    columns = ("memory", "first MB", "last MB", "MB/min", "scatter MB", "")
    table(columns, [trend_row(name, points) for name, points in record.memory.items()])
    moving = [
        (name, points)
        for name, points in record.gauges.items()
        if len({value for _, value in points}) > 1
    ]
    table(
        ("gauge that moves", "first", "last", "per min", "scatter", ""),
        [trend_row(name, points) for name, points in moving],
    )
    table(("hostile request: status", "times"), sorted(record.hostile.items()))
    for stream in record.streams:
        for window in stream["windows"]:
            print(
                f"window {window['name']} of {stream['id'][:8]}: {window['state']}, "
                f"{window['frames']} frames, {window['hits']} hits, {window['updates']} updates, "
                f"{window['cost_ms_per_s']:g} ms of the device per second"
            )
    for name, points in record.memory.items():
        print(f"{name}, MB every {SHOWN_EVERY_S / 60:g} minutes: {' '.join(over_time(points))}")
    for line in [*record.server_errors[:5], *record.errors[:5], *record.broken_counters[:5]]:
        print(f"WRONG  {line}")


def over_time(points: Sequence[tuple[float, float]]) -> list[str]:
    """The median of each span of time: whether it is a slope or a step."""
    spans: dict[int, list[float]] = {}
    for at_s, value in points:
        spans.setdefault(int(at_s / SHOWN_EVERY_S), []).append(value)
    return [f"{percentile(values, 50):.0f}" for values in spans.values()]


def trend_row(name: str, points: Sequence[tuple[float, float]]) -> Sequence[object]:
    line = trend(points)
    return (name, line.first, line.last, line.per_min, line.noise, "" if line.is_flat else "RISES")


def figures(record: Record, options: argparse.Namespace) -> dict[str, Any]:
    memory = {name: trend(points) for name, points in record.memory.items()}
    lines = {name: trend(points) for name, points in record.gauges.items()}
    rising = [name for name, line in {**memory, **lines}.items() if not line.is_flat]
    print(f"\n{verdict(rising, record, options)}\n")
    ttft = [answer.ttft_ms for _, answer in record.answers]
    ages = [float(answer.evidence["age_ms"]) for _, answer in record.answers]
    return {
        "minutes": options.minutes,
        "streams": options.streams,
        "asked": len(record.answers) + len(record.errors),
        "errors": len(record.errors),
        "server_errors": len(record.server_errors),
        "late": len(record.late),
        "disconnects": record.disconnects,
        "hostile": sum(record.hostile.values()),
        "counters_add_up": not record.broken_counters,
        "correct_share": sum(record.judged) / max(len(record.judged), 1),
        "warm_share": warm_share(record),
        "looks": record.looks,
        "cold_windows": record.cold_windows,
        **{f"{name}_mb_per_min": line.per_min for name, line in memory.items()},
        **{f"{name}_mb": line.last for name, line in memory.items()},
        "gauges_per_min": {name: line.per_min for name, line in lines.items() if moves(line)},
        "rising": rising,
        "ttft_ms_p50": percentile(ttft, 50),
        "ttft_ms_p95": percentile(ttft, 95),
        "age_ms_p50": percentile(ages, 50),
        "age_ms_p95": percentile(ages, 95),
    }


def moves(line: Trend) -> bool:
    return line.per_min != 0.0 or line.noise != 0.0


def warm_share(record: Record) -> float:
    """Of the frames that answers rest on, those that were there before the question."""
    frames = [frame for _, answer in record.answers for frame in answer.frames]
    return sum(frame["warm"] for frame in frames) / max(len(frames), 1)


def verdict(rising: Sequence[str], record: Record, options: argparse.Namespace) -> str:
    if record.server_errors:
        return f"VERDICT  broken: {len(record.server_errors)} answers of 500 and above, or none"
    if options.minutes < SHORTEST_MIN:
        return f"VERDICT  none: {options.minutes:.1f} minutes are too short to tell"
    if rising:
        return f"VERDICT  rising: {', '.join(rising)}"
    return "VERDICT  FLAT: no process and no gauge rises, and nothing was answered with 5xx"


if __name__ == "__main__":
    main()

"""Twice as many questions as can be answered, for minutes: what becomes of those that are admitted?

    python bench/overload.py --seconds 600 [--polite]

A server process with the shipped model and simulated cameras; questions of one mix, each with an
answer of a few tokens, half of them streamed: about the warm window of a stream, about its newest
frame, about an uploaded picture (never the same one), about nothing but text. In one run:

calm      two clients that ask, wait for the answer and rest: the server has time for every question.
          Once before and once after the load; its p95 is the yardstick
capacity  closed loops of 4 to 32 clients: the highest rate of answers. On a server of its own, that
          refuses nobody for the time it would wait
overload  200 clients, each with a connection of its own, whose questions come at times drawn before
          (Poisson), all together at `--times` (2) the capacity, whether or not earlier ones are
          answered. They hammer: what is refused changes nothing. With `--polite` a client waits as
          long as Retry-After says, asks the same again, and nothing else meanwhile

Latency is from sending to the complete answer (and to the first content) of what was admitted; how
late the generator sent is told apart, and a generator that was late makes the run invalid: it is then
the generator that was measured. Kept, or the run fails: no status of 500 and above but 503, Retry-After
with every 429 and 503, no broken connection, p95 of the admitted within 1.5 of calm, memory flat, and
afterwards the server answers and holds nothing.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from liveedge.bench.processes import process_tree
from liveedge.bench.prometheus import gauges_and_totals
from liveedge.client.http import Client, Refused, reference
from liveedge.client.local_server import Started, running_server
from liveedge.core.clock import SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.media.picture import encode_picture
from liveedge.sim.questions import KINDS, TEST_SEEDS
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell
from load_clients import NUMBER, STAMP, Job, Kind, Row
from machine import announce
from observe import Trend, trend
from report import finish, percentile, table

HERE = Path(__file__).resolve().parent
MAX_TOKENS = 6
N_CALM = 2
CALM_REST_S = 0.15  # mean pause: two clients then ask for about a third of what can be answered
LOOK_S = 1.0
KEEP_ALIVE_S = 100.0
WINDOW = {"start_offset_ms": -3800, "max_fps": 1, "edge": "grid"}
FIRST_FRAMES_MS = 4500
MAX_RATIO = 1.5
MIN_GOODPUT = 0.9
LATE_P99_MS = 20.0  # of the generator
LATE_CPU = 0.5  # of one processor
SETTLE_S = 10.0  # until then everything that was held has to be given back
UNBOUNDED = "--max-queue-ms=600000"  # whoever comes is taken, however long it waits
SIDES = ("window", "newest", "picture", "text")
WEIGHTS = {"window": 0.3, "newest": 0.3, "picture": 0.15, "text": 0.25}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
# What must be zero when nothing is asked.
IDLE = re.compile(
    r"liveedge_(num_requests_\w+|sessions_used|frame_loads_in_flight|patch_bytes|shared_frame_bytes"
    r"|encoder_cache_pinned_bytes|budget_used\{of=\"(?!previews).*)"
)


@dataclass
class Phase:
    """What the clients of one phase saw."""

    name: str
    seconds: float
    rows: list[Row]
    own: Mapping[str, float]  # of the generator
    server_cpu: float  # processors, meanwhile
    engine_cpu: float

    @property
    def answered(self) -> list[Row]:
        return [row for row in self.rows if row.status == 200 and not row.code]

    @property
    def per_s(self) -> float:
        """Answers that were complete, per second up to the last of them."""
        ends = [row.at_s + row.total_ms / 1000 for row in self.answered]
        return len(ends) / max([self.seconds, *ends])

    def total_ms(self, percent: float, kind: str = "") -> float:
        return percentile([r.total_ms for r in self.answered if r.kind.startswith(kind)], percent)

    def first_ms(self, percent: float) -> float:
        return percentile([row.first_ms for row in self.answered if "sse" in row.kind], percent)


@dataclass
class Looks:
    """What was seen from outside, by seconds since the load began."""

    rss_mb: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: {"server": [], "engine": []}
    )
    waiting: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    questions: list[float] = field(default_factory=list)
    wait_ms: list[float] = field(default_factory=list)  # forecast of a newcomer's wait
    bound_ms: list[float] = field(default_factory=list)  # what it may be

    def series(self) -> Mapping[str, Sequence[float]]:
        return {
            "questions in progress": self.questions,
            "with a session": self.running,
            "waiting for one": self.waiting,
            "forecast wait ms": self.wait_ms,
            "its bound ms": self.bound_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One server, its streams, and how it is asked."""

    server: Started
    engine_pid: int
    client: Client
    streams: Sequence[str]
    kinds: Sequence[Kind]
    options: argparse.Namespace

    def phase(self, name: str, **of_job: Any) -> Phase:
        """Let clients ask, and take what they saw."""
        job = Job(url=self.server.url, kinds=self.kinds, **of_job)
        print(f"... {name}", file=sys.stderr, flush=True)
        before = cpu_s(self.server.pid), cpu_s(self.engine_pid)
        begun_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(HERE / "load_clients.py")],
            input=job.as_json(),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        took_s = time.perf_counter() - begun_s
        self.server.check()
        if done.returncode:
            raise SystemExit(f"the clients ended with status {done.returncode}")
        *rows, own = done.stdout.splitlines()
        return Phase(
            name=name,
            seconds=job.seconds,
            rows=[Row(**json.loads(row)) for row in rows],
            own=json.loads(own),
            server_cpu=(cpu_s(self.server.pid) - before[0]) / took_s,
            engine_cpu=(cpu_s(self.engine_pid) - before[1]) / took_s,
        )

    def calm(self, name: str) -> Phase:
        seconds = self.options.calm_seconds
        return self.phase(name, clients=N_CALM, seconds=seconds, rest_s=CALM_REST_S, seed=1)

    def closed(self, clients: int) -> Phase:
        seconds = self.options.capacity_seconds
        return self.phase(f"{clients} at once", clients=clients, seconds=seconds, seed=clients)

    def overload(self, per_s: float) -> Phase:
        options = self.options
        return self.phase(
            f"{options.times:g} x capacity",
            clients=options.clients,
            seconds=options.seconds,
            per_s=per_s,
            polite=options.polite,
            seed=1000,
        )

    def look(self) -> dict[str, float]:
        return seen_at(self.server.url)

    def residue(self) -> dict[str, float]:
        """What the server still holds when nobody asks any more and the cameras are gone."""
        for stream in self.streams:
            self.client.delete_stream(stream)
        held: dict[str, float] = {}
        limit_s = time.monotonic() + SETTLE_S
        while time.monotonic() < limit_s:
            held = {n: value for n, value in self.look().items() if value and IDLE.fullmatch(n)}
            if not held:
                break
            time.sleep(0.1)
        return held

    def control(self) -> bool:
        part = {
            "type": "image_url",
            "image_url": {"url": reference(self.streams[0], {"frame_index": -1})},
        }
        content: list[dict[str, Any]] = [part, {"type": "text", "text": KINDS["door"].phrasings[0]}]
        try:
            model = self.client.models()[0]["id"]
            answer = self.client.ask(content, model=model, max_tokens=8)
            self.client.get("/health")
        except Refused as refusal:
            print(f"the control question: {refusal}", file=sys.stderr)
            return False
        return answer.text.strip().lower() in KINDS["door"].answers


def main() -> int:
    options = parse()
    announce()
    if options.quick:
        with started(options) as bench:
            return measure(bench, capacity_of(bench))
    # What can be answered at all is found where nobody is refused for the time it would wait.
    with started(options, UNBOUNDED) as bench:
        closed = capacity_of(bench)
    with started(options) as bench:
        return measure(bench, closed)


def capacity_of(bench: Bench) -> list[Phase]:
    bench.phase("beginning", clients=4, seconds=bench.options.warm_seconds)
    return [bench.closed(clients) for clients in bench.options.at_once]


@contextmanager
def started(options: argparse.Namespace, *flags: str) -> Iterator[Bench]:
    """A server with its cameras."""
    clock = SystemClock()
    flags = ("--retention-s=50", *options.flag, *flags)
    with (
        running_server(model=options.model, port=None, clock=clock, flags=flags) as server,
        Client(server.url, clock=clock) as client,
    ):
        streams = open_streams(client, options)
        model = client.models()[0]["id"]
        yield Bench(
            server=server,
            engine_pid=max(process_tree(server.pid)[1:], key=rss_mb),
            client=client,
            streams=streams,
            kinds=question_kinds(model, streams),
            options=options,
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="checkpoint folder; default: the shipped model")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the load")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--times", type=float, default=2.0, help="the capacity")
    parser.add_argument("--polite", action="store_true", help="clients do as Retry-After says")
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--fps", type=float, default=5.0, help="of each camera")
    parser.add_argument("--calm-seconds", type=float, default=20.0)
    parser.add_argument("--capacity-seconds", type=float, default=8.0, help="of each closed loop")
    parser.add_argument(
        "--warm-seconds", type=float, default=4.0, help="before anything is counted"
    )
    parser.add_argument("--at-once", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument(
        "--flag", action="append", default=[], help="of the server, as --flag=--queue=9"
    )
    parser.add_argument(
        "--rows", type=Path, help="file for every request of the load, as JSON lines"
    )
    parser.add_argument("--quick", action="store_true", help="seconds, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.calm_seconds, options.capacity_seconds = 2.0, 0.6, 0.6
        options.at_once, options.streams, options.warm_seconds = [4], 1, 0.5
    return options


def open_streams(client: Client, options: argparse.Namespace) -> list[str]:
    streams = []
    for number in range(options.streams):
        url = f"sim://workcell?seed={TEST_SEEDS.start + number}&fps={options.fps}"
        streams.append(client.create_stream({"type": "sim", "url": url})["id"])
    wanted_ms = 300 if options.quick else FIRST_FRAMES_MS
    while any(client.stream(stream)["stream_time_ms"] < wanted_ms for stream in streams):
        time.sleep(0.1)
    return streams


def question_kinds(model: str, streams: Sequence[str]) -> list[Kind]:
    """Every way to ask, half of them streamed, with the weights of the mix."""
    kinds = []
    for name in SIDES:
        contents = (
            [_content(name, stream) for stream in streams]
            if name in ("window", "newest")
            else [_content(name, "")]
        )
        for content in contents:
            for streamed in (True, False):
                body = {
                    "model": model,
                    "messages": [{"role": "user", "content": content}],
                    "max_completion_tokens": MAX_TOKENS,
                    "temperature": 0,
                    "stream": streamed,
                }
                weight = WEIGHTS[name] / len(contents) / 2
                kinds.append(
                    Kind(f"{name} {'sse' if streamed else 'json'}", weight, json.dumps(body))
                )
    return kinds


def _content(name: str, stream: str) -> list[dict[str, Any]]:
    if name == "window":
        return [_media("video_url", reference(stream, WINDOW)), _text(KINDS["belt"].phrasings[0])]
    if name == "newest":
        newest = reference(stream, {"frame_index": -1})
        return [_media("image_url", newest), _text(KINDS["lamp"].phrasings[0])]
    if name == "picture":
        return [_media("image_url", stamped_picture()), _text(KINDS["door"].phrasings[0])]
    return [_text("Answer in one word")]


def _text(words: str) -> dict[str, Any]:
    """With a number, so that no question is the one before."""
    return {"type": "text", "text": f"{words} (question {NUMBER.decode()})"}


def _media(kind: str, url: str) -> dict[str, Any]:
    return {"type": kind, kind: {"url": url}}


def stamped_picture() -> str:
    """A JPEG as a data URL, with room for a comment that makes each copy another picture."""
    workcell = Workcell(TEST_SEEDS.start)
    data = encode_picture(Renderer(workcell, width=640, height=360).render(0, 8.0, 0), "jpeg")
    rest = base64.b64encode(data[2:]).decode()  # its first two bytes are the stamp's
    return f"data:image/jpeg;base64,{STAMP.decode()}{rest}"


def measure(bench: Bench, closed: Sequence[Phase]) -> int:
    options = bench.options
    bench.phase("beginning", clients=4, seconds=options.warm_seconds)
    calm = [bench.calm("calm, before")]
    capacity = max(phase.per_s for phase in closed)
    with watching(bench) as looks:
        load = bench.overload(options.times * capacity)
    alive = bench.control()
    calm.append(bench.calm("calm, after"))
    residue = bench.residue()
    return tell(bench, calm, closed, load, looks, residue=residue, alive=alive)


@contextmanager
def watching(bench: Bench) -> Iterator[Looks]:
    """Look at the processes and at /metrics until the block ends."""
    looks = Looks()
    watcher = OwnedThread("bench-watch", partial(_watch, bench, looks))
    watcher.start()
    try:
        yield looks
    finally:
        watcher.stop()


def _watch(bench: Bench, looks: Looks, stopping: threading.Event) -> None:
    began_s = kept_s = time.monotonic()
    with Client(bench.server.url, clock=SystemClock()) as client:
        while not stopping.wait(LOOK_S):
            now_s = time.monotonic() - began_s
            looks.rss_mb["server"].append((now_s, rss_mb(bench.server.pid)))
            looks.rss_mb["engine"].append((now_s, rss_mb(bench.engine_pid)))
            seen = seen_at(bench.server.url)
            looks.waiting.append(seen["liveedge_num_requests_waiting"])
            looks.running.append(seen["liveedge_num_requests_running"])
            looks.questions.append(seen['liveedge_budget_used{of="questions"}'])
            looks.wait_ms.append(seen['liveedge_budget_used{of="queueing_ms"}'])
            looks.bound_ms.append(seen['liveedge_budget_capacity{of="queueing_ms"}'])
            if time.monotonic() - kept_s > KEEP_ALIVE_S:
                kept_s = time.monotonic()
                for stream in bench.streams:
                    client.keep_alive(stream)


def seen_at(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return gauges_and_totals(answer.read().decode())[0]


def rss_mb(pid: int) -> float:
    """Resident, pages of files and shared memory included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MB


def cpu_s(pid: int) -> float:
    """Of all its threads, since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def tell(
    bench: Bench,
    calm: Sequence[Phase],
    closed: Sequence[Phase],
    load: Phase,
    looks: Looks,
    *,
    residue: Mapping[str, float],
    alive: bool,
) -> int:
    unloaded = merged(calm)
    columns = (
        "phase",
        "asked/s",
        "answered/s",
        "p50 ms",
        "p95",
        "p99",
        "first p50",
        "p95",
        "cpu server",
        "engine",
        "clients",
    )
    table(columns, [row_of(phase) for phase in (*calm, *closed, load)])
    table(
        ("kind", "share calm", "share admitted", "p50 calm", "p95 calm", "p50", "p95", "p95 ratio"),
        [kind_row(kind, unloaded, load) for kind in SIDES],
    )
    counted = Counter((row.status, row.code) for row in load.rows)
    table(
        ("status", "code", "requests"),
        [(str(s), c or "-", n) for (s, c), n in counted.most_common()],
    )
    memory = {name: trend(points) for name, points in looks.rss_mb.items()}
    table(
        ("resident", "at first MB", "at last", "MB/min", "noise", ""),
        [
            (name, t.first, t.last, t.per_min, t.noise, "flat" if t.is_flat else "RISES")
            for name, t in memory.items()
        ],
    )
    table(
        ("at each second", "p50", "p95", "max"),
        [(name, *spread(values)) for name, values in looks.series().items()],
    )
    if bench.options.rows:
        bench.options.rows.write_text("".join(f"{json.dumps(asdict(row))}\n" for row in load.rows))
    figures = figures_of(unloaded, closed, load, looks, memory)
    figures |= {"alive": alive, "residue": sum(residue.values())}
    if residue:
        print(f"RESIDUE {residue}")
    broken = failures(figures, strict=not bench.options.quick)
    invalid = late_generator(load)
    print("VERDICT ", invalid or ("; ".join(broken) if broken else "kept"), flush=True)
    finish(figures | {"valid": not invalid, "kept": not broken and not invalid})
    return 1 if broken else 0


def spread(values: Sequence[float]) -> Sequence[float]:
    return [percentile(values, percent) for percent in (50, 95, 100)]


def merged(phases: Sequence[Phase]) -> Phase:
    rows = [row for phase in phases for row in phase.rows]
    return Phase("calm", sum(phase.seconds for phase in phases), rows, {}, math.nan, math.nan)


def row_of(phase: Phase) -> Sequence[object]:
    totals = [phase.total_ms(percent) for percent in (50, 95, 99)]
    firsts = [phase.first_ms(percent) for percent in (50, 95)]
    cpu = (phase.server_cpu, phase.engine_cpu, phase.own["cpu_share"])
    return (phase.name, len(phase.rows) / phase.seconds, phase.per_s, *totals, *firsts, *cpu)


def kind_row(kind: str, calm: Phase, load: Phase) -> Sequence[object]:
    shares = [
        sum(row.kind.startswith(kind) for row in phase.answered) / max(1, len(phase.answered))
        for phase in (calm, load)
    ]
    figures = [phase.total_ms(percent, kind) for phase in (calm, load) for percent in (50, 95)]
    return (kind, *shares, *figures, figures[3] / figures[1])


def figures_of(
    calm: Phase, closed: Sequence[Phase], load: Phase, looks: Looks, memory: Mapping[str, Trend]
) -> dict[str, Any]:
    best = max(closed, key=lambda phase: phase.per_s)
    refused = [row for row in load.rows if row.status in (429, 503)]
    waits = [float(row.retry_after) for row in refused if row.retry_after is not None]
    return {
        "seconds": load.seconds,
        "capacity_per_s": best.per_s,
        "capacity_at_once": int(best.name.split()[0]),
        "calm_per_s": calm.per_s,
        "offered_per_s": len(load.rows) / load.seconds,
        "goodput_per_s": load.per_s,
        "goodput_share": load.per_s / best.per_s,
        "admitted": len(load.answered),
        "refused": len(refused),
        "statuses": {str(s): n for s, n in sorted(Counter(r.status for r in load.rows).items())},
        "codes": dict(Counter(row.code for row in load.rows if row.code)),
        "server_errors": sum(row.status >= 500 and row.status != 503 for row in load.rows),
        "broken": sum(row.status == 0 for row in load.rows) + int(load.own["unanswered"]),
        "retry_after_missing": len(refused) - len(waits),
        "retry_after_s": {str(int(s)): n for s, n in sorted(Counter(waits).items())},
        "calm_p50_ms": calm.total_ms(50),
        "calm_p95_ms": calm.total_ms(95),
        "p50_ms": load.total_ms(50),
        "p95_ms": load.total_ms(95),
        "p99_ms": load.total_ms(99),
        "p95_ratio": load.total_ms(95) / calm.total_ms(95),
        "p50_ratio": load.total_ms(50) / calm.total_ms(50),
        "first_p95_ms": load.first_ms(95),
        "first_p95_ratio": load.first_ms(95) / calm.first_ms(95),
        "refused_p50_ms": percentile([row.total_ms for row in refused], 50),
        "refused_p95_ms": percentile([row.total_ms for row in refused], 95),
        "late_p50_ms": percentile([row.late_ms for row in load.rows], 50),
        "late_p99_ms": percentile([row.late_ms for row in load.rows], 99),
        "wave": wave(load),
        "held_back": load.own["held_back"],
        "clients_cpu": load.own["cpu_share"],
        "server_cpu": load.server_cpu,
        "engine_cpu": load.engine_cpu,
        "waiting_max": max(looks.waiting, default=0.0),
        "in_progress_max": max(looks.questions, default=0.0),
        **{f"{name}_mb_per_min": line.per_min for name, line in memory.items()},
        **{f"{name}_mb": line.last for name, line in memory.items()},
        "memory_flat": all(line.is_flat for line in memory.values()),
    }


def wave(load: Phase) -> float:
    """How evenly requests come: variance over mean of their number in tenths of a second; 1 for
    arrivals by chance, more where clients come back together."""
    counted = Counter(int(row.at_s * 10) for row in load.rows)
    counts = [counted[i] for i in range(int(load.seconds * 10))]
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / len(counts) / max(mean, 1e-9)


def late_generator(load: Phase) -> str:
    """Why the generator was the bottleneck; empty where it was not."""
    late_ms = percentile([row.late_ms for row in load.rows], 99)
    if late_ms > LATE_P99_MS:
        return f"invalid: the clients were late (p99 {late_ms:.0f} ms, limit {LATE_P99_MS:.0f})"
    if load.own["cpu_share"] > LATE_CPU:
        return f"invalid: the clients took {load.own['cpu_share']:.0%} of a processor"
    return ""


def failures(figures: Mapping[str, Any], *, strict: bool) -> list[str]:
    """What was not kept; what depends on how busy the machine is only where `strict`."""
    rules: list[tuple[bool, str]] = [
        (figures["server_errors"] == 0, "a status of 500 or above"),
        (figures["broken"] == 0, "connections were lost"),
        (figures["retry_after_missing"] == 0, "Retry-After was missing"),
        (figures["alive"], "the control question failed"),
        (figures["residue"] == 0, "something was left"),
    ]
    if strict:
        rules += [
            (figures["p95_ratio"] <= MAX_RATIO, f"p95 is {figures['p95_ratio']:.2f} of calm"),
            (
                figures["goodput_share"] >= MIN_GOODPUT,
                f"goodput is {figures['goodput_share']:.2f} of the capacity",
            ),
            (figures["memory_flat"], "memory rises"),
        ]
    return [what for kept, what in rules if not kept]


if __name__ == "__main__":
    sys.exit(main())

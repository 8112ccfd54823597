"""A thousand clients that leave, in every phase of a request: what is left of them.

    python bench/disconnects.py --n 1000

A server with its engine process, the shipped model and a simulated camera. Each client leaves in the
middle of something, half of them by a reset (RST), half by closing their side (FIN) as programs do
that end. Checked, against the moment before: every gauge of work in progress, descriptors and threads
of both processes, tasks of the event loop, memory, and whether a control question is still answered
correctly. *closed* is from a FIN to the moment at which the server has closed its side; *ended* from
leaving to the moment at which no gauge shows the work, as far as looking every few milliseconds tells.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import functools
import io
import json
import random
import socket
import struct
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from lean_http import LeanClient
from liveedge.bench.processes import process_tree
from liveedge.bench.prometheus import gauges_and_totals
from liveedge.bench.soak.raw import ENDLESS
from liveedge.client.http import Client, image_part
from liveedge.client.local_server import running_server
from liveedge.client.truth import Oracle
from liveedge.core.clock import SystemClock
from liveedge.sim.questions import KINDS, TEST_SEEDS
from machine import announce
from observe import memory_mb
from report import finish, percentile, slope, table

SEED = TEST_SEEDS.start
CHAT = "/v1beta/chat/completions"
AT_ONCE = 12  # more than there are sessions, so that some wait in the queue
N_SLICES = 12  # memory is looked at after each
MEASURED = 3  # of each phase, one after the other
PROMISE_MS = 200.0
SESSIONS = 8  # the server's default
# The camera's memory has its final size before anything is compared.
FLAGS = ("--hot-mb", "16", "--history-mb", "16", "--window-ttl-s", "5")
HISTORY_S = 6.0
GROWN_MB = 16.0  # per 1000, of one process: more is called a leak, after so many:
ENOUGH = 500
WORK = (  # gauges that show work in progress, or what it holds
    "num_requests_running",
    "num_requests_waiting",
    "sessions_used",
    "budget_used",
    "shared_frame_bytes",
    "encoder_cache_pinned_bytes",
    "frame_loads_in_flight",
    "patch_bytes",
    "streams_opening",
    "watch_listeners",
    "signalling_sockets",
    "windows_kept",
)


@dataclass(frozen=True, slots=True)
class Place:
    """What there is to ask about."""

    url: str
    pid: int
    model: str
    camera: str  # a stream with frames
    still: str  # a stream whose only frame grows old
    watch: str
    silent_port: int  # accepts, and says nothing
    upload: str  # a data URL of a picture that takes a while

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 80)


@dataclass(frozen=True, slots=True)
class Phase:
    """A request, and when its client leaves it."""

    name: str
    request: Callable[[Place, random.Random], bytes]
    stay_s: tuple[float, float]  # after the request is sent, or after `until` was read
    until: bytes = b""  # of the answer


@dataclass(slots=True)
class Tally:
    """What happened to the clients of one phase."""

    left: int = 0
    too_late: int = 0  # the answer was complete before they left
    refused: Counter[int] = field(default_factory=Counter)  # by status, before they left
    closed_ms: list[float] = field(default_factory=list)
    ended_ms: list[float] = field(default_factory=list)


# ── the phases ──


def http(place: Place, method: str, path: str, body: bytes = b"", kind: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(place.url).netloc}\r\n"
    if kind:
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def chat(place: Place, *parts: dict[str, object], **options: object) -> bytes:
    content = [*parts, {"type": "text", "text": "Tell me a story about it."}]
    body = {
        "model": place.model,
        "messages": [{"role": "user", "content": content}],
        "max_completion_tokens": 2000,
        "response_format": ENDLESS,
        **options,
    }
    return http(place, "POST", CHAT, json.dumps(body).encode(), "application/json")


def picture(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def frames(place: Place, chance: random.Random, n: int) -> list[dict[str, object]]:
    """Frames of the camera at moments that are not cached."""
    newest = f"ovs://streams/{place.camera}?offset_ms=-"
    moments = [chance.randrange(50, int(HISTORY_S * 900)) for _ in range(n)]
    return [picture(f"{newest}{ms}&tolerance_ms=1000&max_pixels=300000") for ms in moments]


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


@functools.cache  # megabytes, which the clients would else be busy with
def _large(place: Place) -> bytes:
    return chat(place, picture(place.upload))


def _upload(place: Place, _chance: random.Random) -> bytes:
    return _large(place)


def _head(place: Place, _chance: random.Random) -> bytes:
    return _half(http(place, "GET", "/v1beta/models"))


def _body(place: Place, _chance: random.Random) -> bytes:
    whole = _large(place)
    return whole[: len(whole) * 3 // 4]


def _waiting(place: Place, _chance: random.Random) -> bytes:
    return chat(place, picture(f"ovs://streams/{place.still}?frame_index=-1&max_age_ms=1"))


def _prefill(place: Place, chance: random.Random) -> bytes:
    words = " ".join(chance.choice(("door", "lamp", "box", "belt", "red")) for _ in range(1500))
    return chat(place, {"type": "text", "text": words})


def _decode(place: Place, chance: random.Random) -> bytes:
    return chat(place, *frames(place, chance, 1))


def _stream(place: Place, chance: random.Random) -> bytes:
    return chat(place, *frames(place, chance, 1), stream=True)


def _watch(place: Place, _chance: random.Random) -> bytes:
    return http(place, "GET", f"/v1beta/watches/{place.watch}/events")


def _preview(place: Place, _chance: random.Random) -> bytes:
    return http(place, "GET", f"/v1beta/streams/{place.camera}/preview.mjpeg?fps=30")


def _frame(place: Place, chance: random.Random) -> bytes:
    ms = chance.randrange(50, int(HISTORY_S * 900))
    query = f"offset_ms=-{ms}&tolerance_ms=1000"
    return http(place, "GET", f"/v1beta/streams/{place.camera}/frame.jpg?{query}")


def _frame_waiting(place: Place, _chance: random.Random) -> bytes:
    query = "frame_index=-1&max_age_ms=1"
    return http(place, "GET", f"/v1beta/streams/{place.still}/frame.jpg?{query}")


def _pushed(place: Place, _chance: random.Random) -> bytes:
    path = f"/v1beta/streams/{place.still}/frames"
    return _half(http(place, "POST", path, bytes(100_000), "image/png"))


def _opening(place: Place, _chance: random.Random) -> bytes:
    source = {"type": "rtsp", "url": f"rtsp://127.0.0.1:{place.silent_port}/x"}
    body = json.dumps({"source": source}).encode()
    return http(place, "POST", "/v1beta/streams", body, "application/json")


def _socket(place: Place, _chance: random.Random) -> bytes:
    key = base64.b64encode(bytes(16)).decode()
    path = f"/v1beta/streams/{place.still}/frames"
    head = http(place, "GET", path)[:-2].decode()
    head += f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
    return (head + "Sec-WebSocket-Version: 13\r\n\r\n").encode()


PHASES = (
    Phase("half a head", _head, (0.0, 0.05)),
    Phase("half a body", _body, (0.0, 0.05)),
    Phase("half a pushed picture", _pushed, (0.0, 0.05)),
    Phase("upload being decoded", _upload, (0.0, 0.15)),
    Phase("waiting for a frame", _waiting, (0.02, 0.1)),
    Phase("encoding", lambda p, c: chat(p, *frames(p, c, 6)), (0.01, 0.15)),
    Phase("prefill", _prefill, (0.005, 0.1)),
    Phase("decoding", _decode, (0.15, 0.5)),
    Phase("streaming", _stream, (0.0, 0.1), until=b'"content":"{'),
    Phase("events of a watch", _watch, (0.0, 0.1), until=b"text/event-stream"),
    Phase("preview", _preview, (0.0, 0.2), until=b"\xff\xd8"),
    Phase("a frame as a picture", _frame, (0.0, 0.004)),
    Phase("waiting for a picture", _frame_waiting, (0.02, 0.1)),
    Phase("a camera being opened", _opening, (0.02, 0.1)),
    Phase("a socket of pushed frames", _socket, (0.0, 0.05), until=b" 101 "),
)


# ── leaving ──


QUEUED = Phase("waiting for a session", _decode, (0.05, 0.1))
PHASES_BY_NAME = {phase.name: phase for phase in PHASES}


async def leave(
    place: Place,
    phase: Phase,
    chance: random.Random,
    tally: Tally,
    may_leave: asyncio.Event | None = None,
) -> float | None:
    """One client, from its coming to its going. The moment at which it left, or None where it was
    not in the middle of anything any more."""
    reader, writer = await asyncio.open_connection(*place.address)
    try:
        writer.write(phase.request(place, chance))
        await writer.drain()
        heard = await _read_until(reader, phase.until)
        await asyncio.sleep(chance.uniform(*phase.stay_s))
        if may_leave is not None:
            await may_leave.wait()
        heard += await _arrived(reader)
        if _is_complete(heard):
            tally.too_late += 1
            tally.refused[int(heard.split(b" ", 2)[1])] += 1
            return None
        tally.left += 1
        if chance.random() < 0.5:
            left_s = time.perf_counter()
            _reset(writer)
            return left_s
        left_s = time.perf_counter()
        writer.write_eof()
        async with asyncio.timeout(30):
            while await reader.read(1 << 20):
                pass
        tally.closed_ms.append((time.perf_counter() - left_s) * 1000)
        return left_s
    except ConnectionError:  # the server was first
        tally.too_late += 1
        return None
    finally:
        writer.close()


async def _read_until(reader: asyncio.StreamReader, wanted: bytes) -> bytes:
    heard = b""
    async with asyncio.timeout(60):
        while wanted not in heard:
            piece = await reader.read(65536)
            heard += piece
            if not piece or _is_complete(heard):
                break
    return heard


async def _arrived(reader: asyncio.StreamReader) -> bytes:
    """What has come and was not read."""
    try:
        async with asyncio.timeout(0.001):
            return await reader.read(1 << 20)
    except TimeoutError:
        return b""


def _is_complete(heard: bytes) -> bool:
    """Whether this is a whole answer, of a known length."""
    head, separator, body = heard.partition(b"\r\n\r\n")
    if not separator:
        return False
    lowered = head.lower()
    if b"content-length:" in lowered:
        length = lowered.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]
        return len(body) >= int(length)
    return b"chunked" in lowered and body.endswith(b"0\r\n\r\n")


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def leave_many(
    place: Place,
    n: int,
    chance: random.Random,
    tallies: Mapping[str, Tally],
    at_once: int = AT_ONCE,
) -> None:
    """All phases by chance, the same number of each as far as it goes, many at once."""
    phases = [phase for _ in range(n // len(PHASES)) for phase in PHASES]
    jobs = iter(phases + chance.sample(PHASES, n % len(PHASES)))

    async def client() -> None:
        for phase in jobs:
            await leave(place, phase, chance, tallies[phase.name])

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(client())


async def measure(place: Place, chance: random.Random, tallies: Mapping[str, Tally]) -> None:
    """One client at a time: how long its work goes on without it."""
    async with LeanClient(place.url) as looking:
        idle = work(await look(looking))
        for phase in PHASES:
            for _ in range(MEASURED):
                left_s = await leave(place, phase, chance, tallies[phase.name])
                if left_s is None:
                    continue
                await until(looking, lambda found: work(found) <= idle)
                tallies[phase.name].ended_ms.append((time.perf_counter() - left_s) * 1000)


async def leave_the_queue(
    place: Place, n: int, chance: random.Random, tallies: Mapping[str, Tally]
) -> None:
    """Clients that leave while all sessions are taken. Those that had them leave after them."""
    talking = PHASES_BY_NAME["streaming"]
    async with LeanClient(place.url) as looking:
        while n > 0:
            n_here = min(n, SESSIONS)
            n -= n_here
            async with asyncio.TaskGroup() as group:
                may_leave = asyncio.Event()
                for _ in range(SESSIONS):
                    group.create_task(
                        leave(place, talking, chance, tallies[talking.name], may_leave)
                    )
                await until(looking, _is_writing)
                for _ in range(n_here):
                    left_s = await leave(place, QUEUED, chance, tallies[QUEUED.name])
                    if left_s is not None:
                        await until(looking, lambda found: found["num_requests_waiting"] == 0)
                        tallies[QUEUED.name].ended_ms.append((time.perf_counter() - left_s) * 1000)
                may_leave.set()


def _is_writing(found: Mapping[str, float]) -> bool:
    """All sessions write answers; a step that encodes frames takes longer, and is another phase."""
    n_running, n_loads = found["num_requests_running"], found["frame_loads_in_flight"]
    return n_running >= SESSIONS and n_loads == 0 and found["num_requests_waiting"] == 0


async def until(looking: LeanClient, is_so: Callable[[Mapping[str, float]], bool]) -> None:
    """Look until it is so, for ten seconds at most."""
    begun_s = time.perf_counter()
    while not is_so(await look(looking)) and time.perf_counter() - begun_s < 10:  # noqa: ASYNC110  it is in another process
        await asyncio.sleep(0.002)


def work(found: Mapping[str, float]) -> float:
    """How much is in progress; memory that is only warm is none."""
    return sum(found[name] for name in found if not name.startswith("windows_kept"))


async def looks(place: Place) -> float:
    """What one look takes, in ms: nothing is told more exactly than this."""
    spent = []
    async with LeanClient(place.url) as looking:
        for _ in range(50):
            begun_s = time.perf_counter()
            await look(looking)
            spent.append((time.perf_counter() - begun_s) * 1000)
    return percentile(spent, 50)


async def look(looking: LeanClient) -> dict[str, float]:
    text = (await looking.fetch(looking.get("/metrics"))).decode()
    found = {
        name.removeprefix("liveedge_"): value for name, value in gauges_and_totals(text)[0].items()
    }
    return {name: v for name, v in found.items() if name.partition("{")[0] in WORK}


# ── what is held ──


async def held(place: Place) -> dict[str, float]:
    """Everything that must be as it was, once nothing is going on."""
    async with LeanClient(place.url) as looking:
        for _ in range(5):
            await until(looking, lambda found: not any(found.values()))
        await asyncio.sleep(1.0)
        found = await look(looking)
        text = (await looking.fetch(looking.get("/metrics"))).decode()
    tasks = gauges_and_totals(text)[0].get("liveedge_event_loop_tasks", 0.0)
    counted = {"tasks of the event loop": tasks}
    for name, pid in (("server", place.pid), ("engine", engine_pid(place.pid))):
        process = Path(f"/proc/{pid}")
        counted[f"descriptors of the {name}"] = len(list((process / "fd").iterdir()))
        counted[f"threads of the {name}"] = len(list((process / "task").iterdir()))
    return {**found, **counted}


def engine_pid(server: int) -> int:
    """The largest process below the server's."""

    def resident(pid: int) -> int:
        try:
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            return 0

    return max(process_tree(server)[1:], key=resident)


# ── all of it ──


def prepare(server_url: str, pid: int, silent_port: int, client: Client) -> Place:
    model = str(client.models()[0]["id"])
    source = {"type": "sim", "url": f"sim://workcell?seed={SEED}&fps=10"}
    camera = str(client.create_stream(source)["id"])
    still = str(client.create_stream({"type": "push"})["id"])
    return Place(
        url=server_url,
        pid=pid,
        model=model,
        camera=camera,
        still=still,
        watch="",
        silent_port=silent_port,
        upload=_noise(),
    )


def _noise() -> str:
    """A picture that does not compress: 2.3 MB to read and to decode."""
    rgb = np.random.default_rng(0).integers(0, 256, (720, 1080, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(rgb).save(out, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


async def settle_in(place: Place) -> Place:
    """A frame that grows old, a watch that rarely asks."""
    async with LeanClient(place.url) as client:
        out = io.BytesIO()
        Image.new("RGB", (64, 48)).save(out, "PNG")
        path = f"/v1beta/streams/{place.still}/frames"
        await client.fetch(client.post(path, out.getvalue(), "image/png"))
        content = [
            picture(f"ovs://streams/{place.camera}?frame_index=-1"),
            {"type": "text", "text": "Is the lamp on or off?"},
        ]
        body = {
            "model": place.model,
            "messages": [{"role": "user", "content": content}],
            "every_ms": 3_600_000,
            "max_tokens": 4,
        }
        answer = await client.fetch(client.post("/v1beta/watches", json.dumps(body).encode()))
    await asyncio.sleep(HISTORY_S)
    await fill_pools(place)
    return Place(**{**_fields(place), "watch": json.loads(answer)["id"]})


async def fill_pools(place: Place) -> None:
    """Have the server start the threads that it starts when two need one at once."""

    async def upload() -> None:
        async with LeanClient(place.url) as client:
            part = picture(place.upload)
            body = {"model": place.model, "messages": [{"role": "user", "content": [part]}]}
            data = json.dumps({**body, "max_completion_tokens": 1}).encode()
            await client.fetch(client.post(CHAT, data))

    async def stream() -> None:
        async with LeanClient(place.url) as client:
            data = b'{"source": {"type": "push"}}'
            made = json.loads(await client.fetch(client.post("/v1beta/streams", data)))
            path = f"/v1beta/streams/{made['id']}"
            await client.fetch(http(place, "DELETE", path))

    await asyncio.gather(*[upload() for _ in range(4)], *[stream() for _ in range(4)])


def _fields(place: Place) -> dict[str, object]:
    return {name: getattr(place, name) for name in Place.__slots__}


def is_right(client: Client, place: Place) -> bool:
    """A control question, checked against the burned-in code of its frame."""
    oracle = Oracle(client, place.camera, seed=SEED)
    content = [
        image_part(place.camera, frame_index=-1),
        {"type": "text", "text": KINDS["lamp"].phrasings[0]},
    ]
    for _ in range(3):  # the model errs now and then
        answer = client.ask(content, model=place.model, max_tokens=8)
        if answer.text.strip().lower() == oracle.expected("lamp", answer):
            return True
    return False


async def kept_alive(client: Client, place: Place, work: Awaitable[None]) -> None:
    """`work`, while the leases of the streams are renewed."""

    async def renew() -> None:
        while True:
            for stream_id in (place.camera, place.still):
                await asyncio.to_thread(client.keep_alive, stream_id)
            await asyncio.sleep(60)

    renewing = asyncio.ensure_future(renew())
    try:
        await work
    finally:
        renewing.cancel()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--quick", action="store_true", help="sixty, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.n = 60
    announce()
    clock = SystemClock()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=1024) as silent,
        running_server(model=None, port=None, clock=clock, flags=FLAGS) as server,
        Client(server.url, clock=clock) as client,
    ):
        place = prepare(server.url, server.pid, silent.getsockname()[1], client)
        place = asyncio.run(settle_in(place))
        chance = random.Random(options.seed)
        tallies: defaultdict[str, Tally] = defaultdict(Tally)
        # Pools of threads and memory reach their size; nobody is measured.
        warm_up = (2 if options.quick else 10) * len(PHASES)
        asyncio.run(leave_many(place, warm_up, chance, defaultdict(Tally), 3 * AT_ONCE))
        asyncio.run(leave_the_queue(place, 1, chance, defaultdict(Tally)))
        before = asyncio.run(held(place))
        begun_s = time.perf_counter()
        look_ms = asyncio.run(looks(place))
        n_queued = max(1, options.n // (len(PHASES) + 1))
        asyncio.run(kept_alive(client, place, leave_the_queue(place, n_queued, chance, tallies)))
        asyncio.run(kept_alive(client, place, measure(place, chance, tallies)))
        n_many = max(0, options.n - sum(tally.left for tally in tallies.values()))
        memory: list[tuple[float, Mapping[str, float]]] = []
        for n_here in _slices(n_many, N_SLICES):
            asyncio.run(kept_alive(client, place, leave_many(place, n_here, chance, tallies)))
            memory.append((sum(tally.left for tally in tallies.values()), memory_mb(server.pid)))
        took_s = time.perf_counter() - begun_s
        after = asyncio.run(held(place))
        right = is_right(client, place)
    figures = {
        "look_ms": look_ms,
        **{f"{name}_mb_per_1000": _per_1000(memory, name) for name in ("server", "engine")},
        "control_right": right,
        "took_s": took_s,
    }
    return tell(tallies, before, after, figures)


def _slices(n: int, n_slices: int) -> list[int]:
    return [n * (i + 1) // n_slices - n * i // n_slices for i in range(n_slices)]


def _per_1000(memory: Sequence[tuple[float, Mapping[str, float]]], name: str) -> float:
    """How fast a process grows in the later two thirds: caches and pools are full by then."""
    print(f"{name} MB: {' '.join(f'{mb[name]:.0f}' for _, mb in memory)}")
    later = memory[len(memory) // 3 :]
    return 1000 * slope([(n, mb[name]) for n, mb in later])


def tell(
    tallies: Mapping[str, Tally],
    before: Mapping[str, float],
    after: Mapping[str, float],
    figures: Mapping[str, float],
) -> int:
    rows = [
        (
            phase.name,
            tallies[phase.name].left,
            tallies[phase.name].too_late,
            percentile(tallies[phase.name].closed_ms, 50),
            percentile(tallies[phase.name].closed_ms, 95),
            percentile(tallies[phase.name].ended_ms, 50),
            percentile(tallies[phase.name].ended_ms, 100),
        )
        for phase in (*PHASES, QUEUED)
    ]
    columns = ("left during", "left", "too late", "closed p50 ms", "p95", "ended p50 ms", "max")
    table(columns, rows)
    residue = {name: after[name] - before[name] for name in before if after[name] != before[name]}
    table(("held", "before", "after"), [(name, before[name], after[name]) for name in before])
    table(("figure", "value"), list(figures.items()))
    ended_ms = [ms for tally in tallies.values() for ms in tally.ended_ms]
    closed_ms = [ms for tally in tallies.values() for ms in tally.closed_ms]
    n_left = sum(tally.left for tally in tallies.values())
    told = {
        "left": n_left,
        "too_late": sum(tally.too_late for tally in tallies.values()),
        "left_behind": residue,
        "ended_ms_p50": percentile(ended_ms, 50),
        "ended_ms_max": percentile(ended_ms, 100),
        "closed_ms_p95": percentile(closed_ms, 95),
        **figures,
    }
    finish(told)
    grown_mb = max(figures["server_mb_per_1000"], figures["engine_mb_per_1000"])
    is_clean = not residue and figures["control_right"]
    if n_left >= ENOUGH:
        is_clean = is_clean and grown_mb < GROWN_MB
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())

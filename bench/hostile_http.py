"""Hostile and careless media over HTTP: cases 1 to 9 and 19, with memory and log growth measured.

    python bench/hostile_http.py
    python bench/hostile_http.py --quick      # 60 clients instead of 500 in case 19

Serves the shipped model in processes of its own, with two keys. After each case a control question
with a known answer is asked, and the following is looked at: the highest resident memory of the server and of
its engine during the case (the kernel's own mark, set back before each case), what the log has
grown by, and every status. A case fails on a status of 500 or above other than 503, on what it
expects besides, on a wrong control answer, and on more memory or log than it may take.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

import hostile_media as media
from liveedge.bench.processes import process_tree
from liveedge.client.local_server import free_port, running_server
from liveedge.core.clock import SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.sim.questions import TEST_SEEDS, expected, score
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell
from machine import announce
from report import finish, table

CHAT = "/v1beta/chat/completions"
KEYS = ("first-key-of-the-bench", "second-key-of-the-bench")
MODEL = "liveedge/workcell-tiny"
MAX_LOG_BYTES = 2000  # of case 4
MAX_LINE_BYTES = 250  # of the log for an answer
MAX_RISE_MB = 64.0  # of a case's highest memory over the memory before it; case 19 has its own
# What the plan has for bodies, twice (as JSON and as text), and for decoded pictures.
MAX_CROWD_RISE_MB = 2 * 512.0 + 1024.0
WARM_UP_PICTURES = 40  # until the pools of the plan have been touched once and are resident
SLOW_BYTE_S = 1.0


@dataclass
class Case:
    """What was seen of one case."""

    name: str
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_ms: float = 0.0
    rise_mb: float = 0.0
    peak_mb: float = 0.0
    log_bytes: int = 0

    def expect(self, kept: bool, what: str) -> None:  # noqa: FBT001  reads like an assertion
        if not kept:
            self.wrong.append(what)


class Site:
    """A running server, seen from outside."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.pid = url, pid
        self._log = Path(f"/proc/{pid}/fd/1")
        self.n_requests = 0
        self.http = httpx.Client(
            base_url=url,
            trust_env=False,
            timeout=90,
            headers=key(0),
            event_hooks={"response": [self._count]},
        )

    def _count(self, _answer: httpx.Response) -> None:
        self.n_requests += 1

    def warm_up(self) -> None:
        noise = np.random.default_rng(1)
        for _ in range(WARM_UP_PICTURES):
            pixels = noise.integers(0, 256, (480, 640, 3), dtype=np.uint8)
            self.ask(Case("warm"), picture(media.encoded(Image.fromarray(pixels), "PNG")))

    def ask(self, case: Case, *parts: dict[str, Any], **options: Any) -> httpx.Response:
        return self.post(case, body_of(*parts, **options))

    def post(self, case: Case, body: Any, *, of: int = 0) -> httpx.Response:
        begun_s = time.perf_counter()
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = self.http.post(CHAT, headers=key(of), **content)
        case.slowest_ms = max(case.slowest_ms, (time.perf_counter() - begun_s) * 1000)
        case.statuses[answer.status_code] += 1
        return answer

    def watched(self, name: str, run: Callable[[Site, Case], None], *, may_rise_mb: float) -> Case:
        """Run a case and look at what it took."""
        case = Case(name)
        before_mb = self._memory_mb("VmRSS")
        self._forget_peak()
        log_before, n_before = self.log_bytes(), self.n_requests
        run(self, case)
        case.peak_mb = self._memory_mb("VmHWM")
        case.rise_mb = case.peak_mb - before_mb
        case.log_bytes = self.log_bytes() - log_before
        case.expect(case.rise_mb <= may_rise_mb, f"memory rose by {case.rise_mb:.0f} MB")
        n_requests = max(self.n_requests - n_before, case.statuses.total())
        may_log = max(MAX_LOG_BYTES, MAX_LINE_BYTES * n_requests)
        case.expect(case.log_bytes <= may_log, f"the log grew by {case.log_bytes} bytes")
        bad = [status for status in case.statuses if status >= 500 and status != 503]
        case.expect(not bad, f"answered with {bad}")
        self._control(case)
        return case

    def log_bytes(self) -> int:
        return self._log.stat().st_size

    def ended_connections(self) -> str:
        """At a limit of time or number, by reason."""
        lines = self.http.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith("liveedge_http_connections_ended_total")]
        return ", ".join(line.partition("{")[2] for line in found)

    def _control(self, case: Case) -> None:
        case.expect(self.http.get("/health").status_code == 200, "/health is not 200")
        for kind, url, truth, text in CONTROLS:
            body = body_of(image(url), text=text, max_completion_tokens=8)
            answer = self.http.post(CHAT, json=body)
            case.expect(answer.status_code == 200, f"the control question got {answer.status_code}")
            if answer.status_code == 200:
                said = answer.json()["choices"][0]["message"]["content"]
                case.expect(score(kind, said, truth), f"control: {said!r}, and {truth!r} is true")

    def _processes(self) -> list[int]:
        return [self.pid, *process_tree(self.pid)[1:]]

    def _memory_mb(self, mark: str) -> float:
        total_kb = 0
        for pid in self._processes():
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(f"{mark}:"):
                    total_kb += int(line.split()[1])
        return total_kb / 1024

    def _forget_peak(self) -> None:
        for pid in self._processes():
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def key(n: int) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[n]}"}


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def picture(data: bytes, **more: Any) -> dict[str, Any]:
    return image(media.data_url(data), **more)


def body_of(
    *parts: dict[str, Any], text: str = "Is the door open?", **options: Any
) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": text}]
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "max_completion_tokens": 2, "messages": messages, **options}


def controls() -> list[tuple[str, str, str, str]]:
    """Questions about one picture of the workcell: kind, picture, truth, text."""
    cell = Workcell(TEST_SEEDS[7])
    renderer = Renderer(cell, width=640, height=480, difficulty="easy")
    pixels = renderer.render(60, 2.0, 1_750_000_000_000)
    url = media.data_url(media.encoded(Image.fromarray(pixels), "PNG"))
    texts = {"door": "Is the door open or closed?", "lamp": "Is the lamp on or off?"}
    found = []
    for kind, text in texts.items():
        truth = expected(kind, [cell.state(2.0)])
        if truth is not None:
            found.append((kind, url, truth, text))
    return found


CONTROLS = controls()


# The cases


def orientation(site: Site, case: Case) -> None:
    """Pushed, so that the pixels can be read back; and asked, as uploads."""
    upright = np.asarray(media.flagged())
    created = site.http.post("/v1beta/streams", json={"source": {"type": "push"}}).json()
    path = f"/v1beta/streams/{created['id']}"
    for kind in ("JPEG", "PNG", "WEBP"):
        for tag, data in media.turned(kind).items():
            site.http.post(f"{path}/frames", content=data).raise_for_status()
            png = site.http.get(f"{path}/frame.png").raise_for_status().content
            got = np.asarray(Image.open(io.BytesIO(png)))
            same = got.shape == upright.shape and (
                float(np.abs(got.astype(int) - upright).mean()) < (3.0 if kind == "JPEG" else 0.01)
            )
            case.expect(same, f"{kind} with tag {tag} is not upright")
            answer = site.ask(case, picture(data))
            frame = answer.json()["liveedge"]["frames"][0]
            case.expect((frame["width"], frame["height"]) == (640, 480), f"{kind} {tag}: {frame}")
    site.http.delete(path)


def modes(site: Site, case: Case) -> None:
    every = media.modes()
    for name, data in every.items():
        case.expect(site.ask(case, picture(data)).status_code == 200, f"mode {name}")
    mixed = site.ask(case, *map(picture, every.values()))
    case.expect(mixed.status_code == 200, "all modes in one question")
    bad = site.ask(case, picture(media.plain()), picture(media.plain()[:50]))
    case.expect(_code(bad) == (400, "media_invalid"), "one bad picture is one 400")
    case.expect("content[1]" in bad.text, "which names the part")


def bombs(site: Site, case: Case) -> None:
    too_large = {
        "16000 x 16000": media.one_colour_png(16_000, 16_000),
        "40000 x 40000": media.one_colour_png(40_000, 40_000),
        "header of 60000 x 60000": media.header_only(60_000, 60_000),
    }
    for name, data in too_large.items():
        case.expect(len(data) < 5_000_000, f"{name} has {len(data)} bytes")
        case.expect(_code(site.ask(case, picture(data))) == (413, "media_too_large"), name)
    for name, data in media.busy_files().items():
        case.expect(_code(site.ask(case, picture(data))) == (400, "media_invalid"), name)
    case.expect(case.slowest_ms < 1000, f"a refusal took {case.slowest_ms:.0f} ms")
    for name, data in {
        "GIF": media.gif(1024, 768, n_frames=2000),
        "APNG": media.one_colour_png(1024, 768, n_frames=2000),
    }.items():
        case.expect(site.ask(case, picture(data)).status_code == 200, f"{name} of 2,000 frames")


def echoes(site: Site, case: Case) -> None:
    broken = "A*" * 2_500_000
    body = body_of(image(f"data:image/png;base64,{broken}"))
    answers = [site.post(case, body), site.post(case, {**body_of(), "temperature": broken})]
    answers.append(site.post(case, str(body).encode()[:5_000_000]))
    answers.append(site.ask(case, image("data:image/png;base64," + "QUJD" * 1_250_000)))
    for answer in answers:
        case.expect(400 <= answer.status_code < 500, f"status {answer.status_code}")
        case.expect(len(answer.content) < 2000, f"an answer of {len(answer.content)} bytes")


def tiny(site: Site, case: Case) -> None:
    for size in media.TINY:
        answer = site.ask(case, picture(media.plain(size=size)))
        case.expect(answer.status_code in (200, 400), f"{size}: {answer.status_code}")


def dialects(site: Site, case: Case) -> None:
    data = media.encoded(Image.fromarray(media.gradient(64, 48)), "PNG")
    for name, url in media.dialects(data).items():
        case.expect(site.ask(case, image(url)).status_code == 200, name)
    for name, url in media.no_pictures(data).items():
        answer = site.ask(case, picture(data), image(url))
        case.expect(answer.status_code == 400, f"{name}: {answer.status_code}")
        case.expect("content[1]" in answer.text or "ovs://" in answer.text, f"{name} is not named")


def inside(site: Site, case: Case) -> None:
    """Remote media are allowed, private networks are not."""
    own = httpx.URL(site.url).port
    hosts = ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.1", "[::1]"]
    hosts += ["[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254", "10.0.0.1", "[fe80::1]"]
    for host in hosts:
        for port in ("", f":{own}"):
            answer = site.ask(case, image(f"http://{host}{port}/metrics?token=s3cret"))
            case.expect(_code(answer) == (400, "media_invalid"), f"{host}{port}")
            case.expect("s3cret" not in answer.text, "an answer repeats the URL")
    case.expect(case.slowest_ms < 500, f"a refusal took {case.slowest_ms:.0f} ms")


def outside(site: Site, case: Case, slow_port: int) -> None:
    """Private networks are allowed too, as they must be to reach servers of this machine."""
    own = httpx.URL(site.url).port
    base = f"http://127.0.0.1:{slow_port}"
    begun_s = time.perf_counter()
    slow = site.ask(case, image(f"{base}/slow"))
    spent_s = time.perf_counter() - begun_s
    case.expect(_code(slow) == (400, "media_invalid"), f"the slow server: {slow.status_code}")
    case.expect(9 < spent_s < 13, f"the slow server was left after {spent_s:.1f} s")
    for path in ("/loop", "/own", "/metadata", "/file", "/gzip", "/endless"):
        answer = site.ask(case, image(base + path))
        case.expect(answer.status_code in (400, 413), f"{path}: {answer.status_code}")
    answer = site.ask(case, image(f"http://127.0.0.1:{own}/metrics"))
    case.expect(_code(answer) == (400, "media_invalid"), "its own port")
    case.expect(site.ask(case, image(f"{base}/picture")).status_code == 200, "an honest picture")


def unknown_parts(site: Site, case: Case) -> None:
    url = media.data_url(media.plain())
    for kind in ("input_video", "image_ulr", "input_image", "file", "Image_url", ""):
        answer = site.ask(case, {"type": kind, "image_url": {"url": url}})
        case.expect(_code(answer) == (400, "media_invalid"), kind)
    without = site.ask(case).json()["usage"]
    used = site.ask(case, picture(media.plain(size=(320, 320)))).json()["usage"]
    tokens = used["prompt_tokens_details"]["image_tokens"]
    case.expect(tokens > 0, "media tokens are not counted")
    case.expect(
        used["prompt_tokens"] >= without["prompt_tokens"] + tokens, "nor are they in the sum"
    )


def cache_keys(site: Site, case: Case) -> None:
    """The same client id everywhere; answers to equal pictures are equal, to others they are not."""
    pictures = {
        "red": media.striped((255, 0, 0), (320, 240)),
        "blue": media.striped((0, 0, 255), (320, 240)),
        "larger": media.striped((255, 0, 0), (640, 480)),
        "transposed": media.striped((255, 0, 0), (240, 320)),
    }
    said: dict[str, Any] = {}
    for turn in range(2):
        for name, data in pictures.items():
            answer = site.post(case, _with_logprobs(picture(data, uuid="same", id="same")))
            got = _logprobs(answer)
            case.expect(said.setdefault(name, got) == got, f"{name} answers otherwise when cached")
            if turn == 0:
                case.expect(
                    sum(got == other for other in said.values()) == 1, f"{name} answers as another"
                )
    other = site.post(case, _with_logprobs(picture(pictures["red"], uuid="same")), of=1)
    case.expect(_logprobs(other) == said["red"], "another key gets another answer")
    cached = other.json()["overshoot"]["cache"]["cached_input_tokens"]
    n_image = other.json()["usage"]["prompt_tokens_details"]["image_tokens"]
    case.expect(cached < n_image, f"another key is told of {cached} cached tokens")
    _cache_of_frames(site, case)


def _cache_of_frames(site: Site, case: Case) -> None:
    created = site.http.post("/v1beta/streams", json={"source": {"type": "push"}}).json()
    path = f"/v1beta/streams/{created['id']}"
    site.http.post(f"{path}/frames", content=media.plain(size=(640, 480))).raise_for_status()
    tokens = []
    for n_pixels in (640 * 480, 64 * 64, 640 * 480):
        url = f"ovs://streams/{created['id']}?frame_index=0&max_pixels={n_pixels}"
        usage = site.ask(case, image(url)).json()["usage"]
        tokens.append(usage["prompt_tokens_details"]["image_tokens"])
    case.expect(tokens[0] == tokens[2] > tokens[1], f"tokens by max_pixels: {tokens}")
    site.http.delete(path)


def crowd(site: Site, case: Case, n_clients: int) -> None:
    """All at once, each with a 4K picture of its own."""
    pixels = media.gradient(3840, 2160)
    pixels[::2] ^= np.random.default_rng(5).integers(0, 32, (1080, 3840, 3), dtype=np.uint8)
    data = media.encoded(Image.fromarray(pixels), "JPEG", quality=80)
    print(f"case 19: {n_clients} pictures of {len(data) / 1e6:.1f} MB", flush=True)
    asyncio.run(_crowd(site, case, n_clients, data))
    refused = case.statuses[429] + case.statuses[503]
    case.expect(case.statuses[200] > 0, "nobody was answered")
    case.expect(refused > 0 or n_clients < 200, "nobody was refused")


async def _crowd(site: Site, case: Case, n_clients: int, data: bytes) -> None:
    """By hand: a client library would take more of the machine than the server."""
    url = httpx.URL(site.url)
    body = json.dumps(body_of(image(_PLACE))).encode()
    before, after = body.split(_PLACE.encode())

    async def one(n: int) -> None:
        comment = b"\xff\xfe\x00\x08" + b"%06d" % n  # each picture is another one
        picture_url = media.data_url(data[:2] + comment + data[2:], "image/jpeg").encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {KEYS[n % 2]}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(before) + len(picture_url) + len(after)}\r\n\r\n"
        )
        begun_s = time.perf_counter()
        answer = await _exchanged(url, [head.encode(), before, picture_url, after])
        case.slowest_ms = max(case.slowest_ms, (time.perf_counter() - begun_s) * 1000)
        status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
        case.statuses[status] += 1
        if status in (429, 503):
            case.expect(b"\r\nretry-after: " in answer, f"{status} without Retry-After")
        elif status != 200:
            case.wrong.append(f"{status}: {answer[-300:]!r}")

    await asyncio.gather(*(one(n) for n in range(n_clients)))


_PLACE = "PLACE-OF-THE-URL"


async def _exchanged(url: httpx.URL, pieces: Sequence[bytes]) -> bytes:
    """What comes back, also where the server answers before it has read everything; else how the
    connection ended."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    doing = "sending"
    try:
        for piece in pieces:
            writer.write(piece)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        doing = "waiting for the answer"
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return head + await reader.readexactly(int(length or b"0"))
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        return f"no answer, {doing}: {type(error).__name__}".encode()
    finally:
        writer.close()


def _with_logprobs(part: dict[str, Any]) -> dict[str, Any]:
    return body_of(part, logprobs=True, top_logprobs=5)


def _logprobs(answer: httpx.Response) -> list[tuple[str, float]]:
    said = answer.json()
    first = said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    n_image = said["usage"]["prompt_tokens_details"]["image_tokens"]
    frame = said["liveedge"]["frames"][0]
    shown = [("tokens", float(n_image)), ("width", float(frame["width"]))]
    return [*shown, *((one["token"], round(one["logprob"], 2)) for one in first)]


def _code(answer: httpx.Response) -> tuple[int, str]:
    error = answer.json().get("error")
    return answer.status_code, error["code"] if isinstance(error, dict) else ""


class Trap:
    """A web server that is as bad as its path says."""

    def __init__(self, own_port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.settimeout(0.05)
        self.port = self._listener.getsockname()[1]
        self._own_port = own_port
        self._thread = OwnedThread("trap", self._serve)
        self._thread.start()

    def _serve(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(20)
            OwnedThread("trapped", partial(self._answer, connection)).start()

    def _answer(self, sock: socket.socket, end: threading.Event) -> None:
        with sock:
            try:
                path = sock.recv(8192).split(b" ")[1].decode()
                for piece, wait_s in self._pieces(path):
                    sock.sendall(piece)
                    if end.wait(wait_s):
                        return
            except (OSError, IndexError):  # the other side has left, as it should
                return

    def _pieces(self, path: str) -> Sequence[tuple[bytes, float]]:
        ok = b"HTTP/1.1 200 OK\r\n"
        to = {
            "/loop": f"http://127.0.0.1:{self.port}/loop",
            "/own": f"http://127.0.0.1:{self._own_port}/metrics",
            "/metadata": "http://169.254.169.254/latest",
            "/file": "file:///etc/passwd",
        }
        if path in to:
            return [
                (
                    f"HTTP/1.1 302 Found\r\nLocation: {to[path]}\r\nContent-Length: 0\r\n\r\n".encode(),
                    0,
                )
            ]
        if path == "/slow":
            return [(ok + b"Content-Length: 60\r\n\r\n", 0), *[(b"x", SLOW_BYTE_S)] * 60]
        if path == "/gzip":
            return [(ok + b"Content-Encoding: gzip\r\n\r\n" + bytes(1000), 0)]
        if path == "/endless":
            return [(ok + b"\r\n", 0), *[(bytes(1 << 20), 0.0)] * 500]
        return [(ok + b"\r\n" + media.plain(), 0)]

    def close(self) -> None:
        self._thread.stop(2)
        self._listener.close()


CASES: Sequence[tuple[str, Callable[[Site, Case], None]]] = (
    ("1 orientation", orientation),
    ("2 modes", modes),
    ("3 bombs", bombs),
    ("4 echoes", echoes),
    ("5 tiny sizes", tiny),
    ("6 dialects", dialects),
    ("7 inside", inside),
    ("8 unknown parts", unknown_parts),
    ("9 cache keys", cache_keys),
)


def main() -> int:
    options = parse()
    announce()
    clock = SystemClock()
    # A standby that is still importing would be counted as what the first case takes.
    # A stream reserves its history when it is created, and touches it.
    common = [*(f"--api-key={one}" for one in KEYS), "--no-standby", "--history-mb=16"]
    with running_server(
        model=None, port=None, clock=clock, flags=[*common, "--allow-remote-media"]
    ) as server:
        site = Site(server.url, server.pid)
        site.warm_up()
        chosen = [one for one in CASES if not options.only or one[0].startswith(options.only)]
        cases = [site.watched(name, run, may_rise_mb=MAX_RISE_MB) for name, run in chosen]
        if not options.only or options.only == "19":
            run = partial(crowd, n_clients=options.clients)
            cases.append(site.watched("19 crowd", run, may_rise_mb=MAX_CROWD_RISE_MB))
        print(f"connections that the server ended: {site.ended_connections()}", flush=True)
    if options.only:
        show(cases)
        return 1 if any(case.wrong for case in cases) else 0
    port = free_port()
    with ExitStack() as stack:
        trap = Trap(port)
        stack.callback(trap.close)
        ports = [f"--remote-media-ports={one}" for one in (port, trap.port)]
        flags = [*common, "--allow-remote-media", "--allow-private-media", *ports]
        server = stack.enter_context(
            running_server(model=None, port=port, clock=clock, flags=flags)
        )
        site = Site(server.url, server.pid)
        site.warm_up()
        cases.append(
            site.watched(
                "7 outside",
                lambda at, case: outside(at, case, trap.port),
                may_rise_mb=MAX_RISE_MB,
            )
        )
    show(cases)
    return 1 if any(case.wrong for case in cases) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=500, help="in case 19")
    parser.add_argument("--only", help="cases whose name begins so, on the first server")
    parser.add_argument("--quick", action="store_true", help="60 clients in case 19")
    options = parser.parse_args()
    if options.quick:
        options.clients = 60
    return options


def show(cases: Sequence[Case]) -> None:
    rows = [
        (
            case.name,
            " ".join(f"{n}x{status}" for status, n in sorted(case.statuses.items())),
            case.slowest_ms,
            case.peak_mb,
            case.rise_mb,
            case.log_bytes,
            "WRONG" if case.wrong else "",
        )
        for case in cases
    ]
    table(("case", "answers", "slowest ms", "peak MB", "rise MB", "log bytes", ""), rows)
    for case in cases:
        for line in case.wrong[:8]:
            print(f"WRONG  {case.name}: {line}")
    finish(
        {
            "wrong": sum(len(case.wrong) for case in cases),
            "rise_mb": {case.name: case.rise_mb for case in cases},
            "log_bytes": {case.name: case.log_bytes for case in cases},
            "crowd": {
                str(k): v
                for case in cases
                if case.name == "19 crowd"
                for k, v in case.statuses.items()
            },
        }
    )


if __name__ == "__main__":
    raise SystemExit(main())

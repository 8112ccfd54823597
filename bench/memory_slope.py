"""Does memory stay the same over 20,000 pictures, each of its own kind? Case 18, in full length.

    python bench/memory_slope.py
    python bench/memory_slope.py --pictures 1500   # a minute, to see where it goes

Takes the better part of an hour. Serves the model in processes of its own. Four clients push
pictures of random sizes and random pixels, and ask about each; so each is new to the frame store, to
the patches and to the encoder cache, whose caps are small here and turn over many times. Then the
same once more among faults:
clients that leave in the middle of an answer, pictures that cannot be read, frames that were never
there. The verdict is about the last four fifths of each pass, for the server and for its engine:
FLAT where neither rises by more than 1 MB in 1,000 pictures, and nothing is held once all is quiet.
"""

from __future__ import annotations

import argparse
import io
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from PIL import Image

from liveedge.bench.prometheus import gauges_and_totals
from liveedge.client.http import Client, image_part
from liveedge.client.local_server import running_server
from liveedge.core.clock import SystemClock
from machine import announce
from observe import memory_mb
from report import finish, slope, table

FULL = 20_000
SHORTEST = 5000  # a verdict on less would be about the filling of caches
ALLOWED_MB = 1.0  # in 1,000 pictures
SETTLING_SHARE = 0.2
LOOKS = 100  # at memory, in a pass
SIDES = (40, 260)  # of pictures, in pixels
CLIENTS = 4
KEEP_ALIVE_EVERY = 100  # pictures of a client
CAPS = (
    "--hot-mb=4",
    "--history-mb=8",
    "--encoder-cache-mb=4",
    "--shared-frames-mb=16",
    f"--max-streams={CLIENTS}",
    "--max-windows=0",
)
PASSES = ("clean", "faults")
# Of eight pictures in the second pass these are spoilt, and what must come of each.
LEAVES, UNREADABLE, NEVER_THERE = 3, 5, 7
EXPECTED = {LEAVES: "left", UNREADABLE: "refused 400", NEVER_THERE: "refused 409"}
QUIET_S = 10.0  # until everything that was left behind has ended
# What must be zero when nobody asks.
HELD = (
    "liveedge_num_requests_running",
    "liveedge_num_requests_waiting",
    "liveedge_sessions_used",
    "liveedge_encoder_cache_pinned_bytes",
    "liveedge_frame_loads_in_flight",
    "liveedge_patch_bytes",
    "liveedge_shared_frame_bytes",
)


@dataclass
class Pass:
    """One time through all pictures. Threads append and add nothing up."""

    name: str
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # MB, by pictures
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    held: dict[str, float] = field(default_factory=dict)  # gauges that stay above zero

    @property
    def per_thousand(self) -> dict[str, float]:
        """MB in 1,000 pictures, by process."""
        return {
            process: 1000 * slope([p for p in points if p[0] >= SETTLING_SHARE * points[-1][0]])
            for process, points in self.memory.items()
        }


def main() -> int:
    options = parse()
    announce()
    clock = SystemClock()
    with running_server(model=options.model, port=None, clock=clock, flags=CAPS) as server:
        passes = [
            go(server.url, server.pid, name, options.pictures, first=number * options.pictures)
            for number, name in enumerate(PASSES)
        ]
    show(passes)
    said = verdict(passes, options.pictures)
    print(f"{said}\n")
    finish(figures(passes, options.pictures, said))
    return 1 if said.startswith(("VERDICT  rising", "VERDICT  broken")) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="checkpoint folder; default: the shipped model")
    parser.add_argument("--pictures", type=int, default=FULL, help="in each of the two passes")
    parser.add_argument("--quick", action="store_true", help="60 pictures, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.pictures = 60
    return options


def go(url: str, pid: int, name: str, n_pictures: int, *, first: int) -> Pass:
    """All pictures, from several clients at once; memory is looked at now and then."""
    found = Pass(name)
    numbers = iter(range(first, first + n_pictures))
    lock = threading.Lock()
    every = max(1, n_pictures // LOOKS)

    def taken() -> Iterator[int]:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            if (number - first) % every == 0:
                for process, used_mb in memory_mb(pid).items():
                    found.memory.setdefault(process, []).append((number - first, used_mb))
            yield number

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(one_client, url, found, taken()) for _ in range(CLIENTS)]
        for one in running:
            one.result()
    found.held = still_held(url)
    return found


def one_client(url: str, found: Pass, numbers: Iterator[int]) -> None:
    with (
        Client(url, clock=SystemClock()) as client,
        httpx.Client(base_url=f"{url}/v1beta", trust_env=False, timeout=60) as http,
    ):
        model = client.models()[0]["id"]
        created = http.post("/streams", json={"source": {"type": "push"}}).raise_for_status()
        stream_id = created.json()["id"]
        for turn, number in enumerate(numbers):
            if turn % KEEP_ALIVE_EVERY == 0:
                client.keep_alive(stream_id)
            fault = number % 8 if found.name == "faults" else 0
            outcome = one_picture(http, model, stream_id, number, fault)
            found.outcomes[outcome] += 1
            if outcome != EXPECTED.get(fault, "answered"):
                found.wrong.append(f"picture {number}: {outcome}")
        http.delete(f"/streams/{stream_id}").raise_for_status()


def one_picture(http: httpx.Client, model: str, stream_id: str, number: int, fault: int) -> str:
    data = picture(number)
    if fault == UNREADABLE:
        data = data[: len(data) // 3]
    path, headers = f"/streams/{stream_id}/frames", {"Content-Type": "image/jpeg"}
    pushed = http.post(path, content=data, headers=headers)
    if pushed.is_error:
        return f"refused {pushed.status_code}"
    index = pushed.json()["frame_index"] + (1_000_000 if fault == NEVER_THERE else 0)
    content = [image_part(stream_id, frame_index=index), {"type": "text", "text": "What is it?"}]
    leaves = fault == LEAVES
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_completion_tokens": 200 if leaves else 2,
        "stream": leaves,
    }
    if leaves:
        with http.stream("POST", "/chat/completions", json=body) as answer:
            next(answer.iter_raw(), b"")
        return "left"
    answer = http.post("/chat/completions", json=body)
    return f"refused {answer.status_code}" if answer.is_error else "answered"


def picture(number: int) -> bytes:
    """Random pixels in a random size; no two are alike."""
    rng = np.random.default_rng(number)
    height, width = rng.integers(*SIDES, 2)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=85)
    return out.getvalue()


def still_held(url: str) -> dict[str, float]:
    """Gauges that do not go back to zero once nobody asks."""
    ends_s = time.monotonic() + QUIET_S
    with httpx.Client(base_url=url, trust_env=False) as http:
        while True:
            now, _ = gauges_and_totals(http.get("/metrics").raise_for_status().text)
            held = {name: now[name] for name in HELD if now[name] != 0}
            if not held or time.monotonic() > ends_s:
                return held
            time.sleep(0.1)


# Telling


def show(passes: Sequence[Pass]) -> None:
    rows = [
        (
            done.name,
            process,
            done.memory[process][0][1],
            done.memory[process][-1][1],
            rise,
            "RISES" if rise > ALLOWED_MB else "",
        )
        for done in passes
        for process, rise in done.per_thousand.items()
    ]
    table(("pass", "memory", "first MB", "last MB", "MB per 1,000", ""), rows)
    table(
        ("pass", "pictures that were", "times"),
        [(done.name, what, n) for done in passes for what, n in sorted(done.outcomes.items())],
    )
    for done in passes:
        for line in done.wrong[:5]:
            print(f"WRONG  {done.name}, {line}")
        for name, value in done.held.items():
            print(f"WRONG  {done.name}: {name} stays at {value:g}")


def verdict(passes: Sequence[Pass], n_pictures: int) -> str:
    if any(done.wrong or done.held for done in passes):
        return "VERDICT  broken: see the lines above"
    if n_pictures < SHORTEST:
        return f"VERDICT  none: {n_pictures} pictures are too few to tell"
    rising = [
        f"{process} in the pass {done.name} ({rise:.2f} MB in 1,000 pictures)"
        for done in passes
        for process, rise in done.per_thousand.items()
        if rise > ALLOWED_MB
    ]
    if rising:
        return f"VERDICT  rising: {', '.join(rising)}"
    return (
        f"VERDICT  FLAT: over {n_pictures} pictures, and as many among faults, no process rises by"
        f" {ALLOWED_MB:g} MB in 1,000"
    )


def figures(passes: Sequence[Pass], n_pictures: int, said: str) -> dict[str, Any]:
    return {
        "pictures": n_pictures,
        "errors": sum(len(done.wrong) for done in passes),
        "held": sum(len(done.held) for done in passes),
        "verdict": said.removeprefix("VERDICT").split(":")[0].strip(),
        **{
            f"{done.name}_{process}_mb_per_1000": rise
            for done in passes
            for process, rise in done.per_thousand.items()
        },
    }


if __name__ == "__main__":
    raise SystemExit(main())

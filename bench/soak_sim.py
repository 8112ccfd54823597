"""Does it stay the same for ten minutes? One simulated camera, a question a second.

    python bench/soak_sim.py --minutes 10 --fps 30

Serves the model in a process of its own and watches it from outside: resident memory, counters
that must add up at every look, errors, times and ages. Slopes are taken after the first minute.
`rss_slope` is of all memory; `rest_slope` is without the frames of the stream, which may grow until
the history is full (its cap is a setting; `--retention-s 50` fills it within the first minute).
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liveedge.client.http import Answer, Client, Refused, image_part, video_part
from liveedge.core.clock import SystemClock
from liveedge.demo.server import running_server
from liveedge.demo.truth import Oracle
from liveedge.sim.questions import KINDS, TEST_SEEDS, score
from report import finish, percentile, slope, table

SEED = TEST_SEEDS.start
KINDS_ASKED = ("door", "belt", "display", "lamp", "display_event", "count")
LOOK_EVERY_S = 5.0
KEEP_ALIVE_S = 100.0


@dataclass
class Record:
    """Everything seen, by seconds since the start."""

    answers: list[tuple[float, Answer]] = field(default_factory=list)
    judged: list[bool] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    looks: list[tuple[float, float, float]] = field(default_factory=list)  # s, RSS MB, frames MB
    broken_counters: list[str] = field(default_factory=list)
    last_stream: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    options = parse()
    clock = SystemClock()
    flags = [f"--retention-s={options.retention_s}"] if options.retention_s else []
    with (
        running_server(model=options.model, port=None, clock=clock, flags=flags) as server,
        Client(server.url, clock=clock) as client,
    ):
        url = f"sim://workcell?seed={SEED}&fps={options.fps}"
        stream_id = client.create_stream({"type": "sim", "url": url})["id"]
        model = client.models()[0]["id"]
        record = Record()
        soak(client, stream_id, model, server.pid, record, options)
    show(record, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="checkpoint folder; default: the shipped model")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--fps", type=float, default=30.0)
    parser.add_argument("--ask-every-s", type=float, default=1.0)
    parser.add_argument("--retention-s", type=int, help="default: the server's own")
    parser.add_argument("--quick", action="store_true", help="ten seconds, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.minutes = 10 / 60
    return options


def soak(
    client: Client,
    stream_id: str,
    model: str,
    pid: int,
    record: Record,
    options: argparse.Namespace,
) -> None:
    oracle = Oracle(client, stream_id, seed=SEED)
    begun = time.monotonic()
    while client.stream(stream_id)["stream_time_ms"] < 2500:
        time.sleep(0.1)
    next_look, next_alive = 0.0, KEEP_ALIVE_S
    for number in itertools.count():
        now_s = time.monotonic() - begun
        if now_s >= options.minutes * 60:
            break
        if now_s >= next_look:
            look(client, stream_id, pid, now_s, record)
            next_look += LOOK_EVERY_S
        if now_s >= next_alive:
            client.keep_alive(stream_id)
            next_alive += KEEP_ALIVE_S
        ask(client, stream_id, model, KINDS_ASKED[number % len(KINDS_ASKED)], oracle, record, now_s)
        spent_s = time.monotonic() - begun - now_s
        time.sleep(max(0.0, options.ask_every_s - spent_s))
    look(client, stream_id, pid, time.monotonic() - begun, record)


def ask(
    client: Client,
    stream_id: str,
    model: str,
    kind: str,
    oracle: Oracle,
    record: Record,
    now_s: float,
) -> None:
    if KINDS[kind].needs_clip:
        media = video_part(stream_id, start_offset_ms=-2000, max_fps=2)
    else:
        media = image_part(stream_id, frame_index=-1)
    try:
        question = {"type": "text", "text": KINDS[kind].phrasings[0]}
        answer = client.ask([media, question], model=model)
        truth = oracle.expected(kind, answer)
    except Refused as error:
        record.errors.append(str(error))
        return
    record.answers.append((now_s, answer))
    if truth is not None:
        record.judged.append(score(kind, answer.text, truth))


def look(client: Client, stream_id: str, pid: int, now_s: float, record: Record) -> None:
    """Memory and counters at this moment; what does not add up is kept word for word."""
    stream = client.stream(stream_id)
    record.last_stream = stream
    record.looks.append((now_s, rss_mb(pid), stream["memory_bytes"] / 2**20))
    kept, gone = stream["retained_frame_count"], stream["evicted_frame_count"]
    if kept + gone != stream["last_frame_index"] + 1:
        record.broken_counters.append(f"{kept} + {gone} != {stream['last_frame_index']} + 1")
    span_ms = stream["last_frame_at_ms"] - stream["first_frame_at_ms"]
    if stream["stream_time_ms"] != span_ms:
        record.broken_counters.append(f"stream time {stream['stream_time_ms']} != {span_ms}")


def rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return int(kilobytes) / 1024


def show(record: Record, options: argparse.Namespace) -> None:
    print(f"a question every {options.ask_every_s:g} s, {options.fps:g} frames/s\n")
    columns = (
        "minute",
        "RSS MB",
        "frames MB",
        "asked",
        "TTFT p50 ms",
        "p95 ms",
        "age p50 ms",
        "p95 ms",
    )
    minutes = range(int(record.looks[-1][0] // 60) + 1)
    table(columns, [row for minute in minutes if (row := by_minute(record, minute))])
    settled = [look for look in record.looks if look[0] >= 60] or record.looks
    ttft = [answer.ttft_ms for _, answer in record.answers]
    ages = [float(answer.evidence["age_ms"]) for _, answer in record.answers]
    for line in [*record.errors[:5], *record.broken_counters[:5]]:
        print(f"WRONG  {line}")
    finish(
        {
            "minutes": record.looks[-1][0] / 60,
            "fps": options.fps,
            "recent_fps": record.last_stream["recent_fps"],
            "frames": record.last_stream["last_frame_index"] + 1,
            "dropped": record.last_stream.get("dropped", {}),
            "asked": len(record.answers) + len(record.errors),
            "errors": len(record.errors),
            "counters_add_up": not record.broken_counters,
            "correct_share": sum(record.judged) / max(len(record.judged), 1),
            "rss_mb_first": settled[0][1],
            "rss_mb_last": settled[-1][1],
            "rss_slope_mb_per_min": slope([(s / 60, rss) for s, rss, _ in settled]),
            "rest_slope_mb_per_min": slope([(s / 60, rss - kept) for s, rss, kept in settled]),
            "ttft_ms_p50": percentile(ttft, 50),
            "ttft_ms_p95": percentile(ttft, 95),
            "age_ms_p50": percentile(ages, 50),
            "age_ms_p95": percentile(ages, 95),
        }
    )


def by_minute(record: Record, minute: int) -> Sequence[object]:
    looks = [look for look in record.looks if look[0] // 60 == minute]
    answers = [answer for s, answer in record.answers if s // 60 == minute]
    if not looks or not answers:
        return ()
    ttft = [answer.ttft_ms for answer in answers]
    ages = [float(answer.evidence["age_ms"]) for answer in answers]
    return (
        minute + 1,
        looks[-1][1],
        looks[-1][2],
        len(answers),
        percentile(ttft, 50),
        percentile(ttft, 95),
        percentile(ages, 50),
        percentile(ages, 95),
    )


if __name__ == "__main__":
    main()

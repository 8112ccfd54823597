"""Result folders as a run would leave them, from a simulated server whose figures are known.

`make_result(folder)` writes a rate sweep through saturation: answers, 429s, time-outs, a cut stream,
accuracy, samples of the machine, and the summary. By hand: `python tests/bench_results.py FOLDER`.
"""

from __future__ import annotations

import bisect
import heapq
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liveedge.bench.measures import summarise_folder
from liveedge.bench.record import Record
from liveedge.bench.result import (
    ENVIRONMENT,
    RECORDS,
    SAMPLES,
    SCENARIO,
    SUMMARY,
    ResultFolder,
)
from liveedge.bench.scenario import Load, Scenario, scenario_of

WALL_MS = 1_750_000_000_000
KINDS = ("lamp", "door", "display", "count")
COLD: tuple[dict[str, Any], ...] = (
    {"kind": "cold", "at_s": 0.2, "name": "process_start_ms", "ms": 640.0},
    {"kind": "cold", "at_s": 0.4, "name": "model_load_ms", "ms": 2210.0},
    {"kind": "cold", "at_s": 0.6, "name": "first_request_ms", "ms": 890.0},
)
RATES = (2.0, 4.0, 8.0, 12.0, 16.0, 20.0)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A server of `places` answers at once; a question waits for a place, or is refused."""

    places: int = 4
    service_s: float = 0.32  # mean of one answer: 4 / 0.32 = 12.5 per second at most
    spread: float = 0.15  # of the logarithm of it
    most_wait_s: float = 2.6  # a longer wait is refused with 429; infinite: nothing is refused
    share_cut: float = 0.002  # of answers that end in mid-stream
    frame_age_ms: tuple[float, float] = (10.0, 210.0)  # at sending: frames come at 5 per second
    accuracy: Mapping[str, float] = field(
        default_factory=lambda: {"lamp": 0.99, "door": 0.97, "display": 0.92, "count": 0.88}
    )
    n_tokens: int = 8
    lateness_ms: tuple[float, float] = (0.1, 1.5)  # of the generator


def scenario(**load: Any) -> Scenario:
    return scenario_of(
        {
            "name": "synthetic-sweep",
            "about": "simulated answers: for reports and tests, of no server",
            "target": {"base_url": "http://127.0.0.1:8000/v1", "model": "synthetic/queue-4"},
            "sources": {"count": 2},
            "media": {"frames": 4, "max_fps": 2.0, "max_age_ms": 1000},
            "questions": {"max_tokens": 16},
            "load": {
                "kind": "poisson",
                "rates_per_s": list(RATES),
                "warmup_s": 5.0,
                "duration_s": 60.0,
                "timeout_s": 3.0,
                "seed": 1,
                **load,
            },
            "slo": {"ttft_ms": 800.0, "freshness_ms": 1500.0},
        }
    )


def make_result(
    path: Path,
    *,
    server: Simulated | None = None,
    seed: int = 1,
    asked: Scenario | None = None,
) -> ResultFolder:
    """Write a whole result folder into `path` (made if need be, not emptied)."""
    path.mkdir(parents=True, exist_ok=True)
    folder, asked = ResultFolder(path), asked or scenario()
    records, rows = simulated(asked, server or Simulated(), seed)
    folder.write(SCENARIO, asked.as_json())
    folder.write(ENVIRONMENT, environment())
    folder.append(
        RECORDS, ({name: getattr(one, name) for name in one.__slots__} for one in records)
    )
    folder.append(SAMPLES, rows)
    folder.write(SUMMARY, summarise_folder(folder).as_json())
    return folder


def simulated(
    asked: Scenario, server: Simulated, seed: int = 1
) -> tuple[list[Record], list[dict[str, Any]]]:
    """The records and the samples of a run."""
    chance = random.Random(seed)
    run = _Run(asked, server, chance)
    records = list(run.records())
    return records, [*COLD, *run.own, *_looks(records, run.at_s, server, chance)]


class _Run:
    """Arrivals, a queue, answers: on a clock that begins with the run."""

    def __init__(self, asked: Scenario, server: Simulated, chance: random.Random) -> None:
        self._asked, self._server, self._chance = asked, server, chance
        self.at_s = 1.0
        self.own: list[dict[str, Any]] = []  # a row of each step, as the generator tells
        self._index = 0

    def records(self) -> Iterator[Record]:
        load = self._asked.load
        for repeat in range(load.repeats):
            for step, rate in enumerate(load.rates_per_s):
                start_s = self.at_s + load.warmup_s
                end_s = start_s + load.duration_s
                found = list(self._step(rate, repeat, step, (start_s, end_s)))
                self.own.append(_own_row(found, self.at_s, load))
                yield from found
                self.at_s = end_s + load.timeout_s + load.pause_s

    def _step(
        self, rate: float, repeat: int, step: int, window: tuple[float, float]
    ) -> Iterator[Record]:
        free_s = [self.at_s] * self._server.places
        heapq.heapify(free_s)
        due_s = self.at_s + self._chance.expovariate(rate)
        while due_s < window[1]:
            record = Record(
                index=self._index,
                repeat=repeat,
                step=step,
                warmup=due_s < window[0],
                source=self._index % self._asked.sources.count,
                question=KINDS[self._index % len(KINDS)],
                due_s=due_s,
                sent_s=due_s + self._chance.uniform(*self._server.lateness_ms) / 1000,
                request_id=f"synthetic-{self._index}",
                n_bytes=612,
            )
            self._answer(record, free_s)
            yield record
            self._index += 1
            due_s += self._chance.expovariate(rate)

    def _answer(self, record: Record, free_s: list[float]) -> None:
        chance, server = self._chance, self._server
        sent_s = record.sent_s or 0.0
        record.sent_at_ms = WALL_MS + sent_s * 1000
        place_s = max(sent_s + 0.002, free_s[0])
        if place_s - sent_s > server.most_wait_s:
            return _refuse(record, chance)
        service_s = server.service_s * chance.lognormvariate(0.0, server.spread)
        heapq.heapreplace(free_s, place_s + service_s)
        first_s, ended_s = place_s + 0.6 * service_s, place_s + service_s
        bound_s = record.due_s + self._asked.load.timeout_s
        if chance.random() < server.share_cut:
            record.outcome, record.code = "failed", "cut_stream"
            record.message = "the stream ended without [DONE]"
            record.status, record.headers_s, record.ended_s = 200, first_s - 0.01, first_s + 0.02
            return None
        if ended_s > bound_s:
            record.outcome, record.code, record.ended_s = "timeout", "timeout", bound_s
            if first_s < bound_s:
                record.status, record.headers_s = 200, first_s - 0.01
                record.first_content_s = first_s
                record.content_s = [first_s]
            return None
        return self._fill(record, (place_s, first_s, ended_s))

    def _fill(self, record: Record, moments: tuple[float, float, float]) -> None:
        chance, server = self._chance, self._server
        place_s, first_s, ended_s = moments
        sent_s, sent_at_ms = record.sent_s or 0.0, record.sent_at_ms or 0.0
        gap_s = (ended_s - first_s) / server.n_tokens
        record.outcome, record.status, record.finish_reason = "ok", 200, "stop"
        record.headers_s, record.first_event_s = first_s - 0.012, first_s - 0.010
        record.first_content_s, record.ended_s = first_s, ended_s
        record.content_s = [first_s + n * gap_s for n in range(server.n_tokens)]
        record.prompt_tokens, record.completion_tokens = 180, server.n_tokens
        record.cached_tokens = 120
        record.timings_ms = {
            "resolve": 0.4,
            "queue": (place_s - sent_s) * 1000 - 2,
            "prefill": 0.5 * (first_s - place_s) * 1000,
            "encode": 0.5 * (first_s - place_s) * 1000,
            "decode": (ended_s - first_s) * 1000,
            "total": (ended_s - sent_s) * 1000 - 3,
        }
        age_ms = chance.uniform(*server.frame_age_ms)
        record.evidence_at_ms = float(round(sent_at_ms - age_ms))
        record.known_evidence_at_ms = record.evidence_at_ms
        record.age_ms = age_ms + (first_s - sent_s) * 1000
        record.frames = [{"frame_index": record.index * 2 + n, "tokens": 40} for n in range(4)]
        record.truth = None if chance.random() < 0.03 else "yes"
        if record.truth is not None:
            record.correct = chance.random() < server.accuracy[record.question]
            record.text = "yes" if record.correct else "no"


def _own_row(records: Sequence[Record], begun_s: float, load: Load) -> dict[str, Any]:
    seconds = load.warmup_s + load.duration_s
    late_s = [one.sent_s - one.due_s for one in records if one.sent_s is not None]
    return {
        "kind": "generator",
        "at_s": begun_s + seconds,
        "repeat": records[0].repeat,
        "step": records[0].step,
        "begun_s": begun_s,
        "seconds": seconds,
        "cpu_share": 0.07,
        "max_in_flight": 40,
        "loop_stall_ms_max": 6.0,
        "n_loop_stalls": 0,
        "loop_stalled_s": 0.0,
        "in_flight_limit": load.max_in_flight,
        "n_not_sent": sum(one.outcome == "not_sent" for one in records),
        "n_sent": len(late_s),
        "lateness_ms_max": max(late_s, default=0.0) * 1000,
        "connections_made": 12,
    }


def _refuse(record: Record, chance: random.Random) -> None:
    record.outcome, record.status, record.code = "refused", 429, "queue_full"
    record.message = "3 requests wait already; ask again in 1 s"
    record.retry_after_s = 1.0
    record.headers_s = record.ended_s = (record.sent_s or 0.0) + chance.uniform(0.003, 0.009)


def _looks(
    records: Sequence[Record], end_s: float, server: Simulated, chance: random.Random
) -> Iterator[dict[str, Any]]:
    """A look each second, as the sampler would have had it."""
    spans = [
        (record.sent_s, record.ended_s)
        for record in records
        if record.sent_s is not None and record.ended_s is not None and record.status != 429
    ]
    starts, ends = sorted(start for start, _ in spans), sorted(end for _, end in spans)
    for second in range(int(end_s)):
        at_s = second + 0.5
        inside = bisect.bisect(starts, at_s) - bisect.bisect(ends, at_s)
        running = min(inside, server.places)
        busy = running / server.places
        yield {
            "at_s": at_s,
            "metrics": {"running": running, "queue_depth": inside - running, "kv_used_share": busy},
            "machine": {
                "cpu_share": min(1.0, 0.1 + 0.85 * busy + chance.uniform(-0.02, 0.02)),
                "target_cpu_cores": 1.7 * busy,
                "rss_mb": 912.0 + chance.uniform(-1, 1),
                "pss_mb": 771.0 + chance.uniform(-1, 1),
                "memory_available_mb": 5_200.0,
                "generator_cpu_share": 0.06 + chance.uniform(0, 0.02),
            },
        }


def environment() -> dict[str, Any]:
    """As `environment.describe` makes it, of a machine that there is not."""
    return {
        "liveedge": "0.0.0",
        "python": "3.12.0",
        "packages": {"httpx": "0.28.1", "numpy": "2.4.0", "pillow": "12.0.0"},
        "os": "Linux 6.8 x86_64",
        "cpu": {"model": "Example CPU", "cores": 2},
        "memory_mb": 8192,
        "gpus": [],
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "command": "liveedge bench run sweep.toml --out results/synthetic",
        "server": {"name": "liveedge", "version": "0.0.0"},
        "model": {"id": "synthetic/queue-4", "digest": "sha256:0011223344556677", "dtype": "f32"},
        "busy_before": {"cpu_share": 0.03, "load_average_1min": 0.11},
        "began_at_ms": WALL_MS,
        "clock": {"offset_ms": 0.0, "uncertainty_ms": 0.0},
    }


if __name__ == "__main__":
    make_result(Path(sys.argv[1]))

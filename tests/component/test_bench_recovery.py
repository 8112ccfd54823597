"""A whole run against a scripted server: every figure of the summary is what the script says, to 2 %.

Time is moved by hand, so that what is compared is what the program does and not how busy this machine is
(`test_bench_sockets` has the moments over sockets). Expected figures come from the script and from the
stub's log, with numpy's percentiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from liveedge.bench.generator import SelfLook
from liveedge.bench.interfaces import Prepared
from liveedge.bench.measures import summarise_folder
from liveedge.bench.record import Record, measured
from liveedge.bench.result import PERCENTS, ResultFolder, StepSummary, Summary
from liveedge.bench.run import Parts, Target, run_scenario
from liveedge.testing.clock import FakeClock
from tests.bench_parts import FixedSource, NoSampler, scenario
from tests.bench_stub import DONE, PING, ROLE, Piece, Script, Stub, chunk, driven, event, plain

TIMEOUT_S = 4.0
CONNECT_S = 0.02
CAPTURED_MS = 500  # before the request, of every frame
QUEUED_MS = 12.5
TOLERANCE = 0.02


def first_s(n: int) -> float:
    """Headers to first content: 200 to 590 ms, spread evenly in an order that is none."""
    return 0.2 + 0.01 * (n * 7 % 40)


def gap_s(n: int) -> float:
    """Between two tokens: 30 to 69 ms."""
    return 0.03 + 0.001 * (n * 11 % 40)


def answer(n: int, wall_ms: int) -> Script:
    """Headers after 100 ms; a role, two heartbeats, four tokens, the evidence 50 ms later."""
    evidence = {
        "choices": [],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 75},
        },
        "liveedge": {
            "evidence_at_ms": wall_ms - CAPTURED_MS,
            "age_ms": 640,
            "timings_ms": {"queue": QUEUED_MS},
        },
    }
    waits = [Piece(0.0, ROLE), Piece(first_s(n) / 2, PING), Piece(0.0, PING)]
    words = [Piece(first_s(n) / 2, chunk(content="red"), "content")]
    words += [Piece(gap_s(n), chunk(content=" "), "content") for _ in range(3)]
    ends = [Piece(0.05, chunk("stop")), Piece(0.0, event(evidence)), Piece(0.0, DONE, "done")]
    return Script(headers_after_s=0.1, pieces=[*waits, *words, *ends])


class TrueSource(FixedSource):
    """Says that two of three answers are right, and when each frame was captured."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def prepare(self, index: int) -> Prepared:
        parts = ({"type": "text", "text": str(index)},)
        captured_ms = self._clock.wall_ms() - CAPTURED_MS
        return Prepared(content=parts, question="lamp", source=0, note={"ms": captured_ms})

    async def judge(self, records: Sequence[Record], notes: Mapping[int, Prepared]) -> None:
        for record in records:
            record.known_evidence_at_ms = notes[record.index].note["ms"]
            if record.outcome == "ok":
                record.truth, record.correct = "red", record.index % 3 != 0


async def run_against(
    script: Callable[[int, int], Script],
    path: Path,
    *,
    slo: Mapping[str, Any] | None = None,
    capacity: int | None = None,
    **load: Any,
) -> tuple[Summary, Stub, ResultFolder]:
    clock = FakeClock()

    def scripted(_n: int, body: Mapping[str, Any]) -> Script:
        index = int(body["messages"][0]["content"][0]["text"])
        return script(index, clock.wall_ms())

    async def nothing(before: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        return before or {}

    stub = Stub(scripted, clock=clock, connect_s=CONNECT_S, capacity=capacity)
    told = scenario(load={"timeout_s": TIMEOUT_S, "pause_s": 1.0, **load}, slo=dict(slo or {}))
    parts = Parts(
        source=TrueSource(clock),
        sampler=lambda _keep, _begun_s: NoSampler(),
        environment=nothing,
        environment_after=nothing,
        summarise=summarise_folder,
        write_report=lambda _folder: None,
        look=SelfLook(every_s=1.0, cpu_s=lambda: 0.0),
    )
    target = Target(model="m", api_key=None, dial=stub.dial)
    folder = ResultFolder(path)
    work = run_scenario(told, folder, target=target, parts=parts, clock=clock)
    return await driven(clock, work, limit_s=2000.0), stub, folder


def close(found: float, wanted: float) -> bool:
    return abs(found - wanted) <= TOLERANCE * abs(wanted)


def assert_percentiles(step: StepSummary, name: str, expected_s: Sequence[float]) -> None:
    found = step.latencies[name]
    assert found.n == len(expected_s)
    for percent in PERCENTS:
        wanted_ms = float(np.percentile(expected_s, percent)) * 1000
        assert close(found.percentiles[f"p{percent}"], wanted_ms), (name, percent)


async def test_every_figure_of_a_run_is_what_the_script_says(tmp_path: Path) -> None:
    summary, _stub, folder = await run_against(
        answer,
        tmp_path,
        slo={"ttft_ms": 500.0},
        kind="constant",
        rates_per_s=[10],
        warmup_s=5.0,
        duration_s=40.0,
    )

    [step] = summary.steps
    asked = list(measured(folder.records()))
    numbers = [record.index for record in asked]
    # Only the first requests need a connection, and they are warm-up.
    assert all(record.connected_s is None for record in asked)
    assert summary.valid, summary.invalid
    assert step.sent == 400
    assert (step.offered_per_s, step.seconds) == (10, 40)
    assert close(step.achieved_per_s, 10.0)
    assert step.outcomes["ok"] == 400
    whole_s = [0.1 + first_s(n) + 3 * gap_s(n) + 0.05 for n in numbers]
    assert_percentiles(step, "headers_ms", [0.1] * 400)
    assert_percentiles(step, "ttft_ms", [0.1 + first_s(n) for n in numbers])
    assert_percentiles(step, "itl_ms", [gap_s(n) for n in numbers for _ in range(3)])
    assert_percentiles(step, "tpot_ms", [gap_s(n) for n in numbers])
    assert_percentiles(step, "total_ms", whole_s)
    assert_percentiles(step, "age_ms", [0.640] * 400)
    for name in ("freshness_ms", "known_freshness_ms"):
        assert_percentiles(step, name, [CAPTURED_MS / 1000 + whole for whole in whole_s])
    assert_percentiles(step, "capture_to_request_ms", [CAPTURED_MS / 1000] * 400)
    assert close(step.server_ms["queue"].percentiles["p50"], QUEUED_MS)
    assert close(step.tokens["prompt_per_s"], 1000)
    assert close(step.tokens["completion_per_s"], 40)
    assert step.tokens["cached_share"] == pytest.approx(0.75)
    right = sum(n % 3 != 0 for n in numbers)
    assert (step.accuracy.k, step.accuracy.n) == (right, 400)
    good = sum(0.1 + first_s(n) <= 0.5 + 1e-9 for n in numbers)
    assert close(step.good.k, good)
    assert close(step.goodput_per_s, good / 40)
    assert step.lateness_ms.high == pytest.approx(0, abs=0.01)


def losing(n: int, wall_ms: int) -> Script:
    """Of ten requests: five answers, a 429, a 503, a cut, an error in mid-answer, silence."""
    whole = answer(n, wall_ms)
    refusals = {
        5: plain({"error": {"code": "queue_full", "message": "x"}}, after_s=0.1, status=429),
        6: plain({"detail": "x"}, after_s=0.1, status=503),
        7: Script(pieces=whole.pieces[:4], end="reset"),
        8: Script(pieces=[*whole.pieces[:4], Piece(0.1, event({"error": {"code": "oops"}}))]),
        9: Script(headers_after_s=1e4),
    }
    return refusals.get(n % 10, whole)


async def test_every_loss_is_counted_by_its_kind_and_time_outs_at_their_bound(
    tmp_path: Path,
) -> None:
    summary, _stub, _folder = await run_against(
        losing, tmp_path, kind="constant", rates_per_s=[10], warmup_s=0.0, duration_s=20.0
    )

    [step] = summary.steps
    assert step.outcomes == {
        "ok": 100,
        "refused": 40,
        "failed": 40,
        "unreachable": 0,
        "timeout": 20,
        "not_sent": 0,
    }
    assert step.codes == {
        "429 queue_full": 20,
        "503 http_503": 20,
        "failed connection_lost": 20,
        "failed oops": 20,
        "timeout": 20,
    }
    with_bound = step.with_timeouts["total_ms"]
    assert with_bound.n == 120
    assert close(with_bound.percentiles["p99"], TIMEOUT_S * 1000)
    assert step.latencies["total_ms"].n == 100
    assert (step.latencies["total_ms"].high or 0) < 1000
    assert close(step.achieved_per_s, 100 / 20)


async def test_a_connection_that_is_made_anew_is_timed_apart(tmp_path: Path) -> None:
    summary, stub, _ = await run_against(
        answer, tmp_path, kind="constant", rates_per_s=[0.2], warmup_s=0.0, duration_s=100.0
    )

    [step] = summary.steps
    assert stub.n_connections == 20
    assert_percentiles(step, "connect_ms", [CONNECT_S] * 20)


async def test_an_overloaded_server_shows_in_the_rate_it_achieves(tmp_path: Path) -> None:
    """One worker of 250 ms: four a second, whatever is offered above it."""
    pieces = [Piece(0.0, chunk("stop", content="red")), Piece(0.0, DONE)]
    script = Script(headers_after_s=0.25, pieces=pieces)
    summary, _stub, _folder = await run_against(
        lambda _n, _wall_ms: script,
        tmp_path,
        capacity=1,
        kind="constant",
        rates_per_s=[3, 6],
        warmup_s=4.0,
        duration_s=20.0,
        timeout_s=100.0,
    )

    calm, overloaded = summary.steps
    assert close(calm.achieved_per_s, 3.0)
    assert_percentiles(calm, "total_ms", [0.25] * 60)
    assert close(overloaded.achieved_per_s, 4.0)
    assert overloaded.latencies["total_ms"].percentiles["p50"] > 2_000

"""Records of a constant rate whose moments the test chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from liveedge.bench.record import Record
from liveedge.bench.scenario import Scenario, scenario_of
from tests.bench_results import WALL_MS

RATE = 10.0


def constant(**load: Any) -> Scenario:
    """100 requests in 10 s, unless told otherwise."""
    return scenario_of(
        {
            "name": "constant",
            "load": {
                "kind": "constant",
                "rates_per_s": [RATE],
                "warmup_s": 0.0,
                "duration_s": 10.0,
                "timeout_s": 5.0,
                **load,
            },
        }
    )


def answer(
    index: int, *, ttft_s: float = 0.2, total_s: float = 0.5, late_s: float = 0.0, **more: Any
) -> Record:
    """Due every tenth of a second. Moments count from sending."""
    due_s = 1.0 + index / RATE
    sent_s = due_s + late_s
    made = Record(
        index=index,
        question="lamp",
        due_s=due_s,
        sent_s=sent_s,
        headers_s=sent_s + 0.8 * ttft_s,
        first_event_s=sent_s + 0.9 * ttft_s,
        first_content_s=sent_s + ttft_s,
        content_s=[sent_s + ttft_s + n * (total_s - ttft_s) / 4 for n in range(5)],
        ended_s=sent_s + total_s,
        sent_at_ms=WALL_MS + sent_s * 1000,
        outcome="ok",
        status=200,
        completion_tokens=9,
        prompt_tokens=100,
    )
    return replace(made, **more)

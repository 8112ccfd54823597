"""What is counted about answers: how long each stage took, how large they were, how they ended.

Thread  the server's event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, TypeAlias

from liveedge.core.errors import LiveEdgeError
from liveedge.core.histogram import Histogram
from liveedge.service.observed import ANSWERED, CANCELLED, AnswerRecord
from liveedge.service.question import ChoiceEnd, Report

Warmth: TypeAlias = Literal["warm", "cold", "none", "elsewhere"]
WARMTHS: tuple[Warmth, ...] = ("warm", "cold", "none", "elsewhere")
FINISHED_REASONS = ("stop", "length", "tool_calls", "content_filter")
UPSTREAM_STATUS = "upstream_http_"  # codes that end in the status of somebody else
OTHER = "other"

# vLLM's bounds where it has them, with finer ones below: a warm first token comes in milliseconds.
FIRST_TOKEN_S = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
TOKEN_S = (
    0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
REQUEST_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0,
    15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
# A frame period at 30 per second is 0.033.
AGE_S = (
    0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0,
    10.0, 30.0, 60.0, 600.0,
)  # fmt: skip

STAGES = ("resolve", "queue", "preprocess", "encode", "prefill", "decode")


class AnswerStats:
    """An `AnswerObserver` that counts. What is of one choice is counted once per choice."""

    def __init__(self) -> None:
        self.first_token_s: dict[Warmth, Histogram] = {
            warmth: Histogram(FIRST_TOKEN_S) for warmth in WARMTHS
        }
        self.between_tokens_s = Histogram(TOKEN_S)
        self.request_s = Histogram(REQUEST_S)
        self.stage_s = {stage: Histogram(REQUEST_S) for stage in STAGES}
        self.prompt_tokens = Histogram(TOKENS)
        self.generated_tokens = Histogram(TOKENS)
        self.evidence_age_s = Histogram(AGE_S)
        self.reasons: Counter[str] = Counter(dict.fromkeys(FINISHED_REASONS, 0))
        self.failed: Counter[str] = Counter(dict.fromkeys(_failures(), 0))

    def ended(self, record: AnswerRecord) -> None:
        for end in record.ends:
            self._count_choice(end)
        for gap_s in record.gaps_s:
            self.between_tokens_s.observe(gap_s)
        if record.outcome == ANSWERED:
            self.request_s.observe(record.ended_s - record.began_s)
        else:
            self.failed[self._shown(record.outcome)] += 1

    def _count_choice(self, end: ChoiceEnd) -> None:
        report = end.report
        self.reasons[end.reason] += 1
        self.prompt_tokens.observe(report.prompt_tokens)
        self.generated_tokens.observe(report.completion_tokens)
        if report.age_ms is not None:
            self.evidence_age_s.observe(report.age_ms / 1000)
        for stage, histogram in self.stage_s.items():
            if stage in report.timings_ms:
                histogram.observe(report.timings_ms[stage] / 1000)
        if "first_token" in report.timings_ms:
            first_s = report.timings_ms["first_token"] / 1000
            self.first_token_s[warmth_of(report)].observe(first_s)

    def _shown(self, code: str) -> str:
        """A closed set: codes with somebody else's status in them are one."""
        if code.startswith(UPSTREAM_STATUS):
            code = UPSTREAM_STATUS.rstrip("_")
        return code if code in self.failed else OTHER


def warmth_of(report: Report) -> Warmth:
    """Warm where every frame was encoded before the question came; elsewhere where another server
    answered, which says nothing of it."""
    if report.provider is not None:
        return "elsewhere"
    if not report.frames:
        return "none"
    return "warm" if all(frame.warm for frame in report.frames) else "cold"


def _failures() -> list[str]:
    codes = {error.code for error in _tree(LiveEdgeError)}
    return sorted({*codes, UPSTREAM_STATUS.rstrip("_"), CANCELLED, OTHER})


def _tree(root: type[LiveEdgeError]) -> Iterator[type[LiveEdgeError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)

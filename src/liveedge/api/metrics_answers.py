"""Metrics of answers and of HTTP requests: names as vLLM's, where it has them."""

from __future__ import annotations

from collections.abc import Iterator

from liveedge.api.exposition import Metric, Sample, histogram, many
from liveedge.api.http_stats import HttpStats
from liveedge.service.answer_stats import AnswerStats

_STAGES = {
    "resolve": (
        "request_resolve_time_seconds",
        "From admission to the engine: references, uploads, waiting for a frame, the prompt.",
    ),
    "queue": ("request_queue_time_seconds", "Waiting for a session."),
    "preprocess": ("request_preprocess_time_seconds", "Frames to patches."),
    "encode": ("request_encode_time_seconds", "Encoding frames; 0 where all were encoded before."),
    "prefill": ("request_prefill_time_seconds", "Computing the prompt."),
    "decode": ("request_decode_time_seconds", "From the first token to the last."),
}


def answer_metrics(stats: AnswerStats) -> Iterator[Metric]:
    """How long answers took, how large they were and how they ended."""
    yield histogram(
        "time_to_first_token_seconds",
        "From admission to the first token, by whether all frames were encoded before the question; elsewhere: of providers.",
        {(("frames", warmth),): found for warmth, found in stats.first_token_s.items()},
    )
    what = "Between two pieces of an answer."
    yield histogram("inter_token_latency_seconds", what, stats.between_tokens_s)
    what = "From admission to the end of a whole answer."
    yield histogram("e2e_request_latency_seconds", what, stats.request_s)
    for stage, (name, help_) in _STAGES.items():
        yield histogram(name, help_, stats.stage_s[stage])
    yield histogram("request_prompt_tokens", "Tokens per prompt.", stats.prompt_tokens)
    yield histogram("request_generation_tokens", "Tokens per answer.", stats.generated_tokens)
    what = "Age of the newest frame of an answer at its first token."
    yield histogram("evidence_age_seconds", what, stats.evidence_age_s)
    what = "Answers that are complete, by why they ended."
    yield many("request_success_total", "counter", what, "finished_reason", stats.reasons)
    what = "Questions without a complete answer, by the code of the error."
    yield many("request_failure_total", "counter", what, "code", stats.failed)


def http_metrics(stats: HttpStats) -> Iterator[Metric]:
    """Requests by route."""
    yield Metric(
        "http_requests_total",
        "counter",
        "HTTP requests that ended, by route without its version, method and class of status.",
        tuple(
            Sample(float(n), (("route", route), ("method", method), ("status", status)))
            for (route, method, status), n in stats.ended.items()
        ),
    )
    yield histogram(
        "http_request_duration_seconds",
        "How long HTTP requests took, to the last byte of the answer.",
        {(("route", route),): found for route, found in stats.duration_s.items()},
    )

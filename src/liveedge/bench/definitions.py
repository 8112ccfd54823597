"""What every figure means, in one sentence each. Reports print them; a test finds each in docs/benchmark.md."""

from __future__ import annotations

from collections.abc import Mapping

# All in milliseconds, all of answers that are whole (`ok`).
LATENCIES: Mapping[str, str] = {
    "ttft_ms": "from the moment at which the request was due to its first content: waiting to be sent"
    " counts, chunks without content do not",
    "service_ttft_ms": "from the moment at which it was sent to its first content",
    "itl_ms": "between two neighbouring events with content of one answer; an event may carry several"
    " tokens (tokens: completion_per_event)",
    "tpot_ms": "from the first content to the last, divided by the tokens after the first",
    "total_ms": "from due to the validated end of the answer",
    "service_total_ms": "from sent to the validated end of the answer",
    "capture_to_request_ms": "from the capture of the newest frame used to the sending of the request:"
    " below 0 where that frame was captured afterwards",
    "age_ms": "age of the newest frame used at the first token, as the server says it",
    "freshness_ms": "from the capture of the newest frame used, as the server's evidence says it, to the"
    " validated end of the answer: how old the picture is when somebody can act on it",
    "known_freshness_ms": "freshness from the capture time that the bench itself knows: of the frame it"
    " published or sent, or of the clock burned into it",
    "connect_ms": "from sent to the new connection's readiness, where one was needed",
    "headers_ms": "from sent to the headers of the answer",
}
# Those of which a second series counts each time-out at its bound.
WITH_TIMEOUTS = ("ttft_ms", "total_ms")

RATES: Mapping[str, str] = {
    "offered_per_s": "requests that the schedule asks for; none for a closed loop",
    "achieved_per_s": "whole answers that ended within the measured time, per second of it",
    "goodput_per_s": "of those, answers that keep to every objective at once",
    "good": "share of all measured requests, refused and failed ones too, that keep to every objective",
    "outcomes": "requests by how they ended; each ends exactly once",
    "codes": "what was not ok, by status and code",
    "accuracy": "right answers among whole answers whose truth is decidable",
    "lateness_ms": "of the generator: from due to sent",
}
TOKENS: Mapping[str, str] = {
    "prompt_per_s": "prompt tokens of whole answers per second",
    "completion_per_s": "completion tokens of whole answers per second",
    "prompt_per_answer": "mean prompt tokens",
    "completion_per_answer": "mean completion tokens",
    "cached_share": "prompt tokens that the server says it had cached, of all",
    "completion_per_event": "mean completion tokens per event with content",
}
MACHINE: Mapping[str, str] = {
    "queue_depth": "requests that wait in the server, from its /metrics",
    "running": "requests that it works on, from its /metrics",
    "kv_used_share": "of the pool of KV memory, from its /metrics",
    "cpu_share": "of all processors of the machine, everything that runs there",
    "target_cpu_cores": "processors that the target's process tree keeps busy",
    "rss_mb": "resident memory of the target's process tree; shared pages count in each process",
    "pss_mb": "the same with shared pages divided among those who share them",
    "memory_available_mb": "of the machine",
    "generator_cpu_share": "of one processor, by the thread that sends: near 1 it is the bottleneck",
    "gpu_share": "of the time in which a kernel ran (nvidia-smi), mean over the GPUs",
    "gpu_memory_mb": "used on all GPUs",
    "gpu_power_w": "drawn by all GPUs",
}
CAPACITY: Mapping[str, str] = {
    "sustained_per_s": "highest offered rate whose steps, and all below, are steady, achieve 95 % of"
    " it and lose at most 1 %",
    "saturated_per_s": "the first offered rate that does not",
    "within_slo_per_s": "highest offered rate at which, and below, at least 95 % of the requests are good",
    "peak_achieved_per_s": "most that any step achieved",
    "peak_goodput_per_s": "most goodput of any step",
}
# Asked one after the other before the first step; `model_STAGE_ms` are stages of the model's load.
COLD: Mapping[str, str] = {
    "process_start_ms": "from starting the server's process to its first answer on /health; only where"
    " the run started it",
    "model_load_ms": "from there until it says that the model is ready",
    "connect_ms": "a new connection, TCP and TLS: median",
    "first_request_ttft_ms": "first content of the run's first request",
    "first_request_ms": "the whole of it",
    "new_media_ttft_ms": "first content about media that were never asked about: median",
    "new_media_ms": "the whole answer",
    "same_media_ttft_ms": "first content about the same media again, with caches filled: median",
    "same_media_ms": "the whole answer",
}

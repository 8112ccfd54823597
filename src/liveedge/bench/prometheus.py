"""The text format of Prometheus, read: of ours, vLLM, SGLang, llama.cpp or any other server. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TypeAlias

Series: TypeAlias = tuple[str, Mapping[str, str], float]  # name, labels, value

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')

# What servers call the same thing, without the prefix before the last colon or `liveedge_`.
QUEUE_DEPTH = ("num_requests_waiting", "num_queue_reqs", "requests_deferred", "queue_size")
RUNNING = ("num_requests_running", "num_running_reqs", "requests_processing")
KV_USED = ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage", "kv_cache_usage_ratio")
# Kept as they are, summed over their labels: few, since every look writes them.
KEPT = frozenset(
    {
        "budget_used_questions",
        "encoder_cache_bytes",
        "encoder_groups_total_hit",
        "encoder_groups_total_miss",
        "engine_restarts_total",
        "kv_resident_tokens",
        "num_preemptions_total",
        "prefix_cache_hits_total",
        "prefix_cache_queries_total",
        "process_resident_memory_bytes",
        "stream_memory_bytes",
        "stream_retained_frames",
        "windows",
    }
)
_SPLIT_BY = {"encoder_groups_total": "cache", "budget_used": "of"}  # labels that stay apart
_TYPE = re.compile(r"^# TYPE (\S+) (\S+)\s*$")
_LOOKED_AT = frozenset({*QUEUE_DEPTH, *RUNNING, *KV_USED, *KEPT, *_SPLIT_BY})


def looked_at(text: str) -> dict[str, float]:
    """`queue_depth`, `running`, `kv_used_share` under one name for every server, and those of `KEPT`.

    A series per engine or model is summed; shares take the largest.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        short = _short(line)
        series = _series(line) if short in _LOOKED_AT else None
        if series is None:
            continue
        _, labels, value = series
        if short in _SPLIT_BY:
            short = f"{short}_{labels.get(_SPLIT_BY[short], '')}"
        for known, names in (("queue_depth", QUEUE_DEPTH), ("running", RUNNING)):
            if short in names:
                found[known] = found.get(known, 0.0) + value
        if short in KV_USED:
            found["kv_used_share"] = max(found.get("kv_used_share", 0.0), value)
        elif short in KEPT:
            found[short] = found.get(short, 0.0) + value
    return found


def gauges_and_totals(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """Every gauge and every total, by name and labels as written.

    Totals are counters, and sums and counts of histograms; their buckets are left out.
    """
    kinds: dict[str, str] = {}
    gauges: dict[str, float] = {}
    totals: dict[str, float] = {}
    for line in text.splitlines():
        if named := _TYPE.match(line):
            kinds[named[1]] = named[2]
        elif series := _series(line):
            name, _, value = series
            key = line.rpartition("}")[0] + "}" if "{" in line else name
            if kinds.get(name) == "gauge":
                gauges[key] = value
            elif not name.endswith("_bucket"):
                totals[key] = value
    return gauges, totals


def _short(line: str) -> str:
    """The name without its prefix. Cheap: most lines are of no interest."""
    name = line.partition("{")[0].partition(" ")[0]
    return name.rpartition(":")[2].removeprefix("liveedge_")


def _series(line: str) -> Series | None:
    match = None if line.startswith("#") else _LINE.match(line)
    if match is None:
        return None
    try:
        value = float(match[3])
    except ValueError:
        return None
    labels = dict(_LABEL.findall(match[2] or ""))
    return (match[1], labels, value) if math.isfinite(value) else None

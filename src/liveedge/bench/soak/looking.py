"""Looks at the server from outside, again and again: processes, `/metrics`, streams. One line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from liveedge.bench.processes import gpus
from liveedge.bench.prometheus import gauges_and_totals
from liveedge.bench.soak import processes
from liveedge.bench.soak.place import Place

TIMEOUT_S = 30.0
CONSTANT = ("liveedge_planned_bytes", "liveedge_build_info")


def look_on(place: Place) -> None:
    """Until the run is over."""
    with httpx.Client(base_url=place.url, trust_env=False, timeout=TIMEOUT_S) as http:
        for _ in place.ticks("look", place.options.look_every_s):
            look(place, http)


def look_at_rest(place: Place) -> None:
    """The last line of a run: nobody asks any more, and nothing may be in progress."""
    with httpx.Client(base_url=place.url, trust_env=False, timeout=TIMEOUT_S) as http:
        look(place, http, what="rest")


def look(place: Place, http: httpx.Client, *, what: str = "look") -> None:
    """One line with everything; with what could be had where the server did not answer."""
    fields: dict[str, Any] = {"machine": processes.machine()}
    if place.pid is not None:
        fields["processes"] = {
            role: [processes.as_json(one) for one in found]
            for role, found in processes.of_server(place.pid).items()
        }
    if seen_gpus := gpus():
        fields["gpu_mb"] = sum(gpu.memory_used_mb or 0.0 for gpu in seen_gpus)
    try:
        page = http.get("/metrics").raise_for_status()
        gauges, totals = gauges_and_totals(page.text)
        fields["gauges"], fields["totals"] = _changing(gauges), totals
        listed = http.get("/v1beta/streams").raise_for_status().json()["data"]
    except httpx.HTTPError as error:
        fields["error"] = repr(error)[:200]
    else:
        now_ms = place.stream_clock.wall_ms()
        fields["streams"] = [seen(stream, now_ms) for stream in listed]
    place.log.write(what, **fields)


def _changing(gauges: Mapping[str, float]) -> dict[str, float]:
    """Without those that say the same in every look."""
    return {key: value for key, value in gauges.items() if not key.startswith(CONSTANT)}


def seen(stream: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """What is kept of a stream's view. `age_ms` of its newest frame is stream time."""
    newest_ms = stream.get("last_frame_at_ms")
    return {
        "id": stream["id"],
        "kind": stream["source"]["type"],
        "health": stream.get("health"),
        "age_ms": None if newest_ms is None else now_ms - newest_ms,
        "fps": stream.get("recent_fps"),
        "memory_bytes": stream.get("memory_bytes"),
        "reconnects": stream.get("reconnects"),
        "corrupt": stream.get("corrupt_frames"),
        "adds_up": adds_up(stream),
    }


def adds_up(stream: Mapping[str, Any]) -> bool:
    """What must hold of a stream's counters at every instant."""
    if stream.get("last_frame_index") is None:
        return True
    kept, gone = stream["retained_frame_count"], stream["evicted_frame_count"]
    span_ms = stream["last_frame_at_ms"] - stream["first_frame_at_ms"]
    return bool(
        kept + gone == stream["last_frame_index"] + 1 and stream["stream_time_ms"] == span_ms
    )

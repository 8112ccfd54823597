"""The series of a soak, out of its log: what is looked at for growth, without what is settling.

Everything is by stream time. The first minutes after each start of the server are left out, and the
first of each life of a process that took another's place: caches, rings and pools fill.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.bench.soak.log import Line
from liveedge.bench.soak.options import SoakOptions
from liveedge.bench.stats import percentile

Kind: TypeAlias = Literal["memory", "count", "time", "pool"]

SETTLE_SHARE = 0.2  # of a segment, or of the life of a process
SETTLE_MOST_S = 3600.0
SETTLE_LIFE_S = 600.0  # at least, of a process in another's place: a shorter life says nothing
SETTLE_LIFE_REAL_S = 45.0  # at least: a new process imports for so long on a busy machine
AFTER_KILL_S = 60.0  # the times of answers are not those of every day
SPAN_S = 300.0  # percentiles of answers are over so long
FEWEST_ANSWERS = 15
MB = 1 << 20
PREFIX = "liveedge_"
# Constant, told elsewhere, or what the churn itself makes.
LEFT_OUT = (
    "build_info",
    "model_ready",
    "clock_speed",
    "planned_bytes",
    "process_resident",
    "keys",
    "tls_",
)
# What an engine holds ends with its process.
OF_ENGINE = ("kv_", "encoder_cache_", "frame_loads", "patch_bytes", "num_requests", "sessions_used")
# Pools with a bound: filling one is what it is for. The gauge that tells the bound, if there is one.
BOUNDS = {
    "encoder_cache_bytes": "encoder_cache_capacity_bytes",
    "encoder_cache_pinned_bytes": "encoder_cache_capacity_bytes",
    "stream_memory_bytes": "stream_reserved_bytes",
    "kv_resident_tokens": None,  # of slots that are allocated at the start
}
RETAINED = "stream_retained_frames"
MARGIN = 1.2
STEP_SUM = "liveedge_inter_token_latency_seconds_sum"
STEP_COUNT = "liveedge_inter_token_latency_seconds_count"


@dataclass(slots=True)
class Series:
    """Points of one thing: at s, value, group."""

    name: str
    kind: Kind
    unit: str
    points: list[tuple[float, float, object]] = field(default_factory=list)  # settled
    settling: list[tuple[float, float, object]] = field(
        default_factory=list
    )  # left out of the slope
    bound: float | None = None  # of a pool: the most that it may hold
    is_bounded: bool = False
    around_s: float = 0.0  # a point is over so long before and after its moment
    load: list[float] = field(default_factory=list)  # of the machine, for each point of a time

    def settle(self, settled_s: Callable[[object, float, float], float]) -> None:
        """Part what is settling from what is judged; `settled_s` of a group, its first and last moment."""
        spans: dict[object, tuple[float, float]] = {}
        for at_s, _, group in self.points:
            first_s, last_s = spans.get(group, (at_s, at_s))
            spans[group] = min(first_s, at_s), max(last_s, at_s)
        begin_s = {group: settled_s(group, *span) for group, span in spans.items()}
        self.settling = [point for point in self.points if point[0] < begin_s[point[2]]]
        self.points = [point for point in self.points if point[0] >= begin_s[point[2]]]


@dataclass(frozen=True, slots=True)
class Segment:
    """One run of the server, by stream time."""

    number: int
    ready_s: float
    end_s: float

    @property
    def settled_s(self) -> float:
        """From here on it counts."""
        return self.ready_s + min(SETTLE_MOST_S, SETTLE_SHARE * (self.end_s - self.ready_s))


def segments(lines: Sequence[Line]) -> list[Segment]:
    """Those that became ready."""
    found: list[Segment] = []
    number, ready_s, newest_s = 0, None, 0.0
    for line in [*lines, {"what": "segment", "number": 0, "at_s": 0.0}]:
        if line["what"] == "segment":
            if ready_s is not None:
                found.append(Segment(number, ready_s, newest_s))
            number, ready_s = line["number"], None
        elif line["what"] == "ready":
            ready_s = float(line["at_s"])
        newest_s = max(newest_s, float(line["at_s"]))
    return found


class Gathering:
    """Series by name, as lines are read."""

    def __init__(self, options: SoakOptions, parts: Sequence[Segment]) -> None:
        self.found: dict[str, Series] = {}
        self._options = options
        self._segments = parts

    @property
    def most_retained(self) -> float:
        """Frames of all streams that the server keeps, by its retention; more come in after a pause."""
        options = self._options
        return MARGIN * options.retention_s * options.fps * options.n_streams

    def segment_at(self, at_s: float) -> Segment | None:
        for segment in self._segments:
            if segment.ready_s <= at_s <= segment.end_s:
                return segment
        return None

    def add(
        self, name: str, kind: Kind, unit: str, at_s: float, value: float, *, life: object = None
    ) -> None:
        """One value. `life`: which process it is of; others are of the whole segment."""
        segment = self.segment_at(at_s)
        if segment is None:
            return
        series = self.found.setdefault(name, Series(name, kind, unit))
        series.points.append((at_s, value, (segment.number, life)))

    def settle(self) -> None:
        """After the last value."""
        for one in self.found.values():
            one.settle(self._settled_s)

    def put_beside(self, load: Sequence[tuple[float, float]]) -> None:
        """The machine's load at each point of the series that are times."""
        if not load:
            return
        at_s = np.array([moment for moment, _ in load])
        values = np.array([value for _, value in load])
        for one in self.found.values():
            if one.kind == "time":
                one.load = [
                    _around(at_s, values, moment, one.around_s) for moment, _, _ in one.points
                ]

    def _settled_s(self, _group: object, first_s: float, last_s: float) -> float:
        """From when on a group counts: the segment's first lives with the segment, others by their own."""
        segment = self.segment_at(first_s)
        if segment is None or first_s < segment.settled_s:
            return first_s if segment is None else segment.settled_s
        least_s = max(SETTLE_LIFE_S, SETTLE_LIFE_REAL_S * self._options.speed)
        return first_s + max(least_s, min(SETTLE_MOST_S, SETTLE_SHARE * (last_s - first_s)))


def _around(
    at_s: NDArray[np.float64], values: NDArray[np.float64], moment_s: float, around_s: float
) -> float:
    near = np.abs(at_s - moment_s) <= around_s
    return float(values[near].mean() if near.any() else np.interp(moment_s, at_s, values))


def series(lines: Sequence[Line], options: SoakOptions) -> list[Series]:
    """Everything that is looked at for growth; what never moved is left out."""
    gathering = Gathering(options, segments(lines))
    kills = [float(line["at_s"]) for line in lines if line.get("act") == "kill"]
    looks = [line for line in lines if line["what"] == "look"]
    for look in looks:
        _processes(gathering, look)
        _gauges(gathering, look)
        _ages(gathering, look)
    _steps(gathering, looks, options.speed)
    _answers(gathering, lines, kills)
    gathering.settle()
    gathering.put_beside(loads(lines))
    return [one for one in gathering.found.values() if _moves(one)]


def _moves(one: Series) -> bool:
    return len({value for _, value, _ in one.points}) > 1


def _processes(gathering: Gathering, look: Line) -> None:
    at_s = float(look["at_s"])
    for role, found in look.get("processes", {}).items():
        if role == "others":
            total = sum(one["anon_mb"] for one in found)
            gathering.add("others: memory of its own", "memory", "MB", at_s, total)
            gathering.add("others: processes", "count", "", at_s, len(found))
            continue
        for one in found[:1]:
            life = (one["pid"], one["born"])
            for key, name, kind, unit in (
                ("anon_mb", "memory of its own", "memory", "MB"),
                ("rss_mb", "resident memory", "memory", "MB"),
                ("fds", "descriptors", "count", ""),
                ("threads", "threads", "count", ""),
            ):
                gathering.add(f"{role}: {name}", kind, unit, at_s, one[key], life=life)  # type: ignore[arg-type]  # the literals above
    if look.get("gpu_mb") is not None:
        gathering.add("GPU memory", "memory", "MB", at_s, look["gpu_mb"])


def _gauges(gathering: Gathering, look: Line) -> None:
    at_s, gauges = float(look["at_s"]), look.get("gauges", {})
    engine = look.get("processes", {}).get("engine", [])
    life = (engine[0]["pid"], engine[0]["born"]) if engine else None
    for key, value in gauges.items():
        name = key.removeprefix(PREFIX)
        if name.startswith(LEFT_OUT) or "capacity" in name or name.startswith("streams_by_health"):
            continue
        is_bytes = "_bytes" in name
        scale = MB if is_bytes else 1
        kind: Kind = (
            "pool" if _bound_key(name) or name in BOUNDS else "memory" if is_bytes else "count"
        )
        gathering.add(
            name,
            kind,
            "MB" if is_bytes else "",
            at_s,
            value / scale,
            life=life if name.startswith(OF_ENGINE) else None,
        )
        if name == RETAINED and name in gathering.found:
            gathering.found[name].is_bounded = True
            gathering.found[name].bound = gathering.most_retained
        elif kind == "pool" and name in gathering.found:
            bound = gauges.get(PREFIX + (_bound_key(name) or ""))
            gathering.found[name].is_bounded = True
            if bound is not None:  # 0 while an engine is being started
                gathering.found[name].bound = max(gathering.found[name].bound or 0.0, bound / scale)


def _bound_key(name: str) -> str | None:
    if name.startswith("budget_used"):
        return name.replace("budget_used", "budget_capacity")
    return BOUNDS.get(name)


def _ages(gathering: Gathering, look: Line) -> None:
    """Of cameras that the server calls live; the others are being lost on purpose."""
    ages = [
        stream["age_ms"]
        for stream in look.get("streams", [])
        if stream["health"] == "live" and stream["age_ms"] is not None
    ]
    if ages:
        at_s = float(look["at_s"])
        gathering.add("age of the newest frames", "time", "ms", at_s, statistics.fmean(ages))


def _steps(gathering: Gathering, looks: Sequence[Line], speed: float) -> None:
    """Time between two tokens since the look before, in real time."""
    for before, look in itertools.pairwise(looks):
        first, last = before.get("totals", {}), look.get("totals", {})
        n = last.get(STEP_COUNT, 0.0) - first.get(STEP_COUNT, 0.0)
        if n > 0:
            ms = (last[STEP_SUM] - first[STEP_SUM]) / n * 1000 / speed
            gathering.add("time between tokens (real)", "time", "ms", float(look["at_s"]), ms)


def _answers(gathering: Gathering, lines: Sequence[Line], kills: Sequence[float]) -> None:
    """Percentiles of the time to the first token, over spans without those near a kill."""
    spans: dict[int, list[float]] = {}
    for line in lines:
        if line["what"] == "ask" and line["status"] == 200 and "ttft_ms" in line:
            begun_s = float(line["begun_s"])
            if not any(-1 <= begun_s - at_s <= AFTER_KILL_S for at_s in kills):
                spans.setdefault(int(begun_s / SPAN_S), []).append(line["ttft_ms"])
    for span, found in sorted(spans.items()):
        if len(found) >= FEWEST_ANSWERS:
            middle_s = (span + 0.5) * SPAN_S
            for percent in (50, 95):
                name = f"first token p{percent} (real)"
                gathering.add(name, "time", "ms", middle_s, percentile(found, percent))
                if name in gathering.found:
                    gathering.found[name].around_s = SPAN_S / 2


def loads(lines: Sequence[Line]) -> list[tuple[float, float]]:
    """The machine's load average, by stream time."""
    looks = [line for line in lines if line["what"] == "look" and "machine" in line]
    return [(float(look["at_s"]), float(look["machine"]["load"])) for look in looks]


def cores(lines: Sequence[Line], speed: float) -> Iterator[tuple[float, Mapping[str, float]]]:
    """Cores that each role kept busy between two looks, by stream time."""
    looks = [line for line in lines if line["what"] == "look"]
    for before, look in itertools.pairwise(looks):
        real_s = (look["at_s"] - before["at_s"]) / speed
        if real_s > 0:
            yield look["at_s"], _cores(before, look, real_s)


def _cores(before: Line, look: Line, real_s: float) -> dict[str, float]:
    spent: dict[str, float] = {}
    known = {
        (one["pid"], one["born"]): one["cpu_s"]
        for found in before.get("processes", {}).values()
        for one in found
    }
    for role, found in look.get("processes", {}).items():
        used = sum(one["cpu_s"] - known.get((one["pid"], one["born"]), 0.0) for one in found)
        spent[role] = max(0.0, used) / real_s
    return spent

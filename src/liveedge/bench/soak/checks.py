"""What must have been so: answers, ends, counters, cameras and engines that came back. Pure.

Each check reads the lines of the log and says one thing. An error is explained where a fault that
the soak itself made was going on: nothing else excuses one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from liveedge.bench.soak.log import Line
from liveedge.bench.soak.options import FEWEST_STREAMS, SoakOptions
from liveedge.bench.soak.series import loads, segments
from liveedge.bench.stats import percentile

Outcome: TypeAlias = Literal["pass", "fail", "undecided"]

GRACE_REAL_S = 3.0  # after a kill: answers that were under way end
MAX_WRONG = 0.1  # of the judged answers; the shipped model errs, more where it sees few frames
MAX_REFUSED = 0.05  # of the honest questions, for want of room or time
BUSY = 2.0  # load per core: others have the machine, and refusing is right
MAX_LATE = 0.05  # of the questions that were due: the soak itself did not get to ask them
SHOWN = 3  # examples in a reason
OK = 200
ABOUT_STREAMS = (403, 404, 409, 410)
NO_FRAME_YET = "frame_not_yet_produced"
SERVER_ERROR = 500
DEADLINE = 504
OVERLOADED = (429, DEADLINE)
HOSTILE = ("hostile", "fill")
AT_REST = (
    "liveedge_num_requests_waiting",
    "liveedge_sessions_used",
    'liveedge_budget_used{of="questions"}',
    'liveedge_budget_used{of="request_body_bytes"}',
    'liveedge_budget_used{of="decoded_upload_bytes"}',
    'liveedge_budget_used{of="previews"}',
    "liveedge_watches",
    "liveedge_watch_listeners",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    outcome: Outcome
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The log, sorted for the checks."""

    options: SoakOptions
    lines: Sequence[Line]
    asks: Sequence[Line]
    looks: Sequence[Line]
    begun: Mapping[str, Sequence[Line]]  # by act
    done: Mapping[str, Sequence[Line]]
    faults: Sequence[tuple[float, float]]  # spans of stream time in which there is no engine


def evidence(lines: Sequence[Line], options: SoakOptions) -> Evidence:
    begun: dict[str, list[Line]] = {}
    done: dict[str, list[Line]] = {}
    for line in lines:
        if line["what"] in ("begin", "done"):
            found = begun if line["what"] == "begin" else done
            found.setdefault(line["act"], []).append(line)
    return Evidence(
        options=options,
        lines=lines,
        asks=[line for line in lines if line["what"] == "ask"],
        looks=[line for line in lines if line["what"] == "look"],
        begun=begun,
        done=done,
        faults=_faults(begun.get("kill", ()), done.get("kill", ()), options.speed),
    )


def _faults(begun: Sequence[Line], done: Sequence[Line], speed: float) -> list[tuple[float, float]]:
    ends = {line["number"]: float(line["at_s"]) for line in done}
    grace_s = GRACE_REAL_S * speed
    return [
        (float(line["at_s"]) - grace_s, ends.get(line["number"], math.inf) + grace_s)
        for line in begun
    ]


def checks(found: Evidence) -> list[Finding]:
    return [check(found) for check in CHECKS]


def _is_explained(found: Evidence, begun_s: float, ended_s: float) -> bool:
    return any(begun_s <= end_s and ended_s >= start_s for start_s, end_s in found.faults)


def _begun_s(found: Evidence, line: Line) -> float:
    """When the request of a line began: a done act began with its first line."""
    if "begun_s" in line:
        return float(line["begun_s"])
    for begin in found.begun.get(str(line.get("act")), ()):
        if begin["number"] == line.get("number"):
            return float(begin["at_s"])
    return float(line["at_s"])


# ── answers ──


def _server_errors(found: Evidence) -> Finding:
    """Statuses of 500 and above, and answers that broke off, whoever asked."""
    requests = [*found.asks, *_misbehaved(found)]
    bad = [line for line in requests if _is_server_error(line)]
    unexplained = [
        line for line in bad if not _is_explained(found, _begun_s(found, line), float(line["at_s"]))
    ]
    says = f"{len(bad)} in {len(requests)} requests, {len(bad) - len(unexplained)} of them while the engine was killed"
    return _counted("no error of the server without an injected fault", unexplained, says)


def _misbehaved(found: Evidence) -> list[Line]:
    return [line for act in ("hostile", "fill", "disconnect") for line in found.done.get(act, ())]


def _is_server_error(line: Line) -> bool:
    status = line.get("status")
    if line.get("act") in HOSTILE and status == DEADLINE:
        return False  # its own time was over: it was refused, and nothing failed
    broke_off = status == 200 and "code" in line
    return broke_off or (status is not None and status >= SERVER_ERROR)


def _endless(found: Evidence) -> Finding:
    """No answer at all within a minute, or a connection that broke."""
    requests = [*found.asks, *_misbehaved(found)]
    bad = [line for line in requests if line.get("status") == 0]
    return _counted("every request ends", bad, f"{len(bad)} of {len(requests)} had no answer")


def _counted(what: str, bad: Sequence[Line], says: str) -> Finding:
    if not bad:
        return Finding(what, "pass", says)
    shown = "; ".join(_shown(line) for line in bad[:SHOWN])
    return Finding(what, "fail", f"{says}. {len(bad)} unexplained: {shown}")


def _shown(line: Line) -> str:
    what = line.get("act") or line.get("kind") or line["what"]
    why = line.get("code") or line.get("error") or line.get("name") or ""
    return f"{what} at {float(line['at_s']):.0f} s: {line.get('status', '')} {why}".strip()


def _wrong(found: Evidence) -> Finding:
    """The share of wrong answers, and whether it rises."""
    what = f"wrong answers, at most {MAX_WRONG:.0%}"
    judged = [bool(line["right"]) for line in found.asks if "right" in line]
    wrong = judged.count(False)
    low, high = wilson(wrong, len(judged))
    third = len(judged) // 3
    first, last = judged[:third].count(False), judged[-third:].count(False) if third else 0
    says = (
        f"{wrong} of {len(judged)} ({low:.1%} to {high:.1%}); {first} of the first {third},"
        f" {last} of the last"
    )
    unreadable = sum("unreadable" in line for line in found.asks)
    if unreadable:
        says += f"; {unreadable} frames without a readable code"
    rises = third > 0 and wilson(last, third)[0] > wilson(first, third)[1]
    if low > MAX_WRONG or rises:
        return Finding(what, "fail", says)
    return Finding(what, "pass" if high <= MAX_WRONG else "undecided", says)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson); 0 to 1 of nothing."""
    if n == 0:
        return 0.0, 1.0
    z = 1.96
    share = hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def _refused(found: Evidence) -> Finding:
    what = f"honest questions refused for want of room or time, at most {MAX_REFUSED:.0%}"
    bad = [line for line in found.asks if line.get("status") in OVERLOADED]
    low, high = wilson(len(bad), len(found.asks))
    codes = Counter(str(line.get("code")) for line in bad)
    says = f"{len(bad)} of {len(found.asks)} ({low:.1%} to {high:.1%}) {_counts(codes)}".strip()
    if low > MAX_REFUSED:
        load, cores = _load(found)
        if load > BUSY * cores:
            says += f"; the machine's load was {load:.1f} on {cores} cores in the median"
            return Finding(what, "undecided", says)
        return Finding(what, "fail", says)
    return Finding(what, "pass" if high <= MAX_REFUSED else "undecided", says)


def _load(found: Evidence) -> tuple[float, int]:
    """Load average in the median, and cores, where the log has both."""
    busy = [load for _, load in loads(found.lines)]
    cores = int(found.lines[0].get("environment", {}).get("cores") or 0)
    return (percentile(busy, 50), cores) if busy and cores else (0.0, 1)


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counted.most_common())


def _lost_streams(found: Evidence) -> Finding:
    """404 and the like about cameras that nobody has taken away. One that was never seen yet may be
    without frames: whether it comes at all is another check."""
    left = {line.get("stream") for line in found.begun.get("leave", ())}
    seen: set[str] = set()
    bad: list[Line] = []
    for line in found.asks:
        if line["status"] == OK:
            seen.add(line["stream"])
        elif line["status"] in ABOUT_STREAMS and line["stream"] not in left:
            is_young = line["code"] == NO_FRAME_YET and line["stream"] not in seen
            bad += [] if is_young else [line]
    bad += [
        line for line in found.lines if line["what"] == "keepalive" and line["stream"] not in left
    ]
    return _counted("cameras stay until they leave", bad, f"{len(found.asks)} questions about them")


# ── cameras, engine, watches, clients ──


def _cameras(found: Evidence) -> Finding:
    """Every camera that came, fell silent or flapped is live again."""
    acts = [line for act in ("leave", "loss", "flap") for line in found.done.get(act, ())]
    bad = [line for line in acts if not line["ok"]]
    counted = ", ".join(
        f"{len(found.done.get(act, ()))} {act}" for act in ("leave", "loss", "flap")
    )
    back = [float(line["back_s"]) for line in acts if line.get("back_s") is not None]
    says = f"{counted}; back within {max(back, default=0):.1f} s of stream time"
    if not acts:
        return Finding("cameras come back", "undecided", "none was lost")
    return _counted("cameras come back", bad, says)


def _engine(found: Evidence) -> Finding:
    what = "the engine comes back after a kill"
    kills = found.done.get("kill", ())
    if not kills:
        return Finding(what, "undecided", "none was killed")
    took = [line["recovered_real_s"] for line in kills if line["ok"]]
    says = (
        f"{len(took)} of {len(kills)}: right answers again after {percentile(took, 50):.1f} s in the"
        f" median, {max(took, default=math.nan):.1f} s at most (real time)"
    )
    return _counted(what, [line for line in kills if not line["ok"]], says)


def _restarts(found: Evidence) -> Finding:
    """The engine never ended by itself."""
    what = "the engine ends by no other cause"
    n_kills = len(found.begun.get("kill", ()))
    n_restarts = 0.0
    newest = 0.0
    for line in found.lines:
        if line["what"] == "segment":
            n_restarts, newest = n_restarts + newest, 0.0
        if "totals" in line:
            newest = line["totals"].get("liveedge_engine_restarts_total", newest)
    n_restarts += newest
    says = f"{n_restarts:.0f} restarts, {n_kills} kills"
    return Finding(what, "pass" if n_restarts <= n_kills else "fail", says)


def _watches(found: Evidence) -> Finding:
    """Events in order, and no end but those that the soak brought about."""
    watches = found.done.get("watch", ())
    bad = [
        line
        for line in watches
        if line.get("events", {}).get("out of order")
        or (
            not (line["ok"] and _ends_well(line))
            and not _is_explained(found, _begun_s(found, line), float(line["at_s"]))
        )
    ]
    events = Counter(line["kind"] for line in found.lines if line["what"] == "watch")
    return _counted("watches", bad, f"{len(watches)} watches: {_counts(events)}")


def _ends_well(line: Line) -> bool:
    return str(line.get("ended")) in ("deleted", "stream_ended")


def _clients(found: Evidence) -> Finding:
    """Slow readers and hostile uploads were served, cut or refused; nobody else is told of them."""
    bad = [
        line
        for act in ("slow", *HOSTILE)
        for line in found.done.get(act, ())
        if not line["ok"]
        and line.get("status") != DEADLINE
        and not _is_explained(found, _begun_s(found, line), float(line["at_s"]))
    ]
    counted = ", ".join(
        f"{len(found.done.get(act, ()))} {act}" for act in ("slow", "hostile", "disconnect")
    )
    return _counted("clients that misbehave", bad, counted)


# ── counters, and the soak itself ──


def _adds_up(found: Evidence) -> Finding:
    views = [stream for look in found.looks for stream in look.get("streams", ())]
    bad = [look for look in found.looks if not all(s["adds_up"] for s in look.get("streams", ()))]
    return _counted("counters of the streams add up", bad, f"in {len(views)} views")


def _rest(found: Evidence) -> Finding:
    """When everybody has gone, nothing is in progress."""
    what = "nothing is left in progress at the end"
    rests = [line for line in found.lines if line["what"] == "rest" and "gauges" in line]
    if not rests:
        return Finding(what, "undecided", "no run has come to its end")
    left = {
        name: rest["gauges"][name]
        for rest in rests
        for name in AT_REST
        if rest["gauges"].get(name, 0.0) > 0
    }
    says = ", ".join(f"{name} {value:g}" for name, value in left.items())
    return Finding(what, "fail" if left else "pass", says or f"at {len(rests)} ends")


def _soak_itself(found: Evidence) -> Finding:
    """Whether what was to be done was done."""
    what = "the soak did what it was to do"
    crashes = Counter(str(line["part"]) for line in found.lines if line["what"] == "crash")
    stuck = [line for line in found.lines if line["what"] == "stuck"]
    late = sum(line["what"] == "unasked" and line["reason"] == "late" for line in found.lines)
    n_due = len(found.asks) + late
    failed = [line for line in found.lines if line["what"] == "end" and line["reason"] == "failed"]
    fewest = min((_n_active(look) for look in found.looks if "streams" in look), default=0)
    says = f"{late} of {n_due} questions not asked in time; {fewest} streams at least"
    if failed:
        return Finding(what, "fail", f"{says}; the server ended in segment {failed[0]['number']}")
    if crashes or stuck:
        says += f"; parts that crashed: {_counts(crashes)}; stuck at the end: {len(stuck)}"
    is_weak = crashes or stuck or late > MAX_LATE * n_due or fewest < FEWEST_STREAMS - 1
    return Finding(what, "undecided" if is_weak else "pass", says)


def _n_active(look: Line) -> int:
    return sum(stream["health"] != "ended" for stream in look["streams"])


def _duration(found: Evidence) -> Finding:
    what = "the whole time was run"
    ran_s = sum(segment.end_s - segment.ready_s for segment in segments(found.lines))
    says = f"{ran_s / 3600:.2f} of {found.options.hours:g} hours of stream time"
    is_done = any(line["what"] == "end" and line["reason"] == "done" for line in found.lines)
    return Finding(what, "pass" if is_done else "undecided", says)


CHECKS: tuple[Callable[[Evidence], Finding], ...] = (
    _duration,
    _soak_itself,
    _server_errors,
    _endless,
    _wrong,
    _refused,
    _lost_streams,
    _cameras,
    _engine,
    _restarts,
    _watches,
    _clients,
    _adds_up,
    _rest,
)

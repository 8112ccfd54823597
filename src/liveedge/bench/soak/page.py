"""The report of a soak: what its document says. `report.html` writes it, one file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from liveedge.bench.report.chart import Axis, Chart, Mark, Series as Line, Strip, Style, thinned
from liveedge.bench.report.document import (
    Cell,
    Document,
    Fact,
    Listing,
    Section,
    Table,
    Tone,
    Verdict,
)
from liveedge.bench.report.html import html as as_html
from liveedge.bench.report.scale import Scale, linear, plain, ticks, time_ticks
from liveedge.bench.soak import verdict as soak
from liveedge.bench.soak.growth import TOLERANCES, Judged
from liveedge.bench.soak.series import (
    SETTLE_LIFE_S,
    SETTLE_MOST_S,
    SETTLE_SHARE,
    Series,
    cores,
    loads,
    series,
)
from liveedge.bench.stats import percentile

Point: TypeAlias = tuple[float, float, Hashable]  # at s, value, group

ROLES = ("server", "engine", "standby", "others")
TONES: Mapping[str, Tone] = {
    "pass": "good",
    "flat": "good",
    "pool": "muted",
    "undecided": "doubt",
    "fail": "bad",
    "grows": "bad",
}
UNITS = {"memory": " MB", "time": " ms"}
LOOKS = (
    Style(colour="c0"),
    Style(colour="c1", dash="dashed"),
    Style(colour="c2", dash="dashdot"),
    Style(colour="c3", dash="dotted"),
    Style(colour="c7", width=1.2),
)
SETTLING = Style(colour="axis", shape="dot", size=1.2, strength=0.5)
JUDGED = Style(colour="c0", shape="dot", size=1.4)
KILL = Style(colour="bad", shape="down", size=2.6)
MOST_POINTS = 700  # of a line: more are not seen
MOST_DOTS = 300  # of a series in its small chart


def html(found: soak.Verdict) -> str:
    """The whole page."""
    return as_html(document(found))


def document(found: soak.Verdict) -> Document:
    """What is told, in its order."""
    end_s = max((float(line["at_s"]) for line in found.evidence.lines), default=0.0)
    time = _time_axis(end_s)
    return Document(
        kind="Soak",
        title=f"{found.options.hours:g} hours of everything at once",
        subtitle=[f"{found.options.n_streams} cameras, {found.time_says}"],
        verdict=Verdict(
            word=found.outcome.upper(), tone=TONES[found.outcome], reasons=_reasons(found)
        ),
        facts=list(_facts(found, end_s)),
        warnings=[found.time_says] if found.is_accelerated else [],
        sections=[
            Section(name="checks", title="What was checked", tables=[_findings(found)]),
            Section(name="growth", title="What grows", tables=[_growths(found.growths)]),
            Section(
                name="time",
                title="Over time",
                texts=["Lines break where a process or the server began anew."],
                charts=list(_charts(found, time)),
            ),
            Section(
                name="series",
                title="Every series that was judged",
                texts=["In the order of the table above."],
                charts=[_judged_chart(one, time) for one in found.growths],
            ),
            Section(
                name="method",
                title="How this was computed",
                texts=[_method()],
                listings=[_settings(found)],
            ),
        ],
    )


def _reasons(found: soak.Verdict) -> list[str]:
    told = [f"Failed: {one.what}: {one.says}" for one in found.findings if one.outcome == "fail"]
    told += [
        f"{one.series.name} grows: {one.says}" for one in found.growths if one.growth == "grows"
    ]
    unclear = [one.what for one in found.findings if one.outcome == "undecided"]
    unclear += [one.series.name for one in found.growths if one.growth == "undecided"]
    if unclear:
        told.append(f"Undecided: {'; '.join(unclear)}")
    return told or ["Nothing grows, and nothing broke that was not broken on purpose."]


def _facts(found: soak.Verdict, end_s: float) -> Iterator[Fact]:
    ttft = [
        one["ttft_ms"] for one in found.evidence.asks if one["status"] == 200 and "ttft_ms" in one
    ]
    busy = [load for _, load in loads(found.evidence.lines)]
    kills = [line["recovered_real_s"] for line in found.evidence.done.get("kill", ()) if line["ok"]]
    real_h = end_s / 3600 / found.options.speed
    yield Fact(
        name="Stream time", value=f"{end_s / 3600:.2f} h", detail=f"{real_h:.2f} h of real time"
    )
    yield Fact(name="Questions", value=f"{len(found.evidence.asks):,}")
    if ttft:
        p50, p95 = (percentile(ttft, share) for share in (50, 95))
        yield Fact(
            name="First token", value=f"{p50:.0f} ms", detail=f"p50, real time; p95 {p95:.0f} ms"
        )
    if kills:
        yield Fact(
            name="Longest recovery",
            value=f"{max(kills):.1f} s",
            detail=f"real time, of {len(found.evidence.begun['kill'])} engine kills",
        )
    if busy:
        yield Fact(name="Load of the machine", value=f"{percentile(busy, 50):.1f}", detail="median")


def _findings(found: soak.Verdict) -> Table:
    return Table(
        caption="Checks",
        head=("check", "outcome", "what was found"),
        rows=[
            (one.what, Cell(one.outcome, TONES[one.outcome]), one.says) for one in found.findings
        ],
        n_names=3,
    )


def _growths(growths: Sequence[Judged]) -> Table:
    return Table(
        caption="Slope of each series, per hour of stream time",
        head=("series", "outcome", "per hour", "95 % interval", "tolerance", "level"),
        rows=[_growth(one) for one in growths],
        n_names=2,
    )


def _growth(one: Judged) -> Sequence[str | Cell]:
    unit = f" {one.series.unit}" if one.series.unit else ""
    rate, interval, level = "too few points", "", ""
    if one.slope is not None:
        rate = f"{one.slope.per_h:+.3g}"
        interval = f"{one.slope.low:+.3g} to {one.slope.high:+.3g}"
        level = f"{one.slope.level:.4g}{unit}"
    outcome = Cell(one.growth, TONES[one.growth])
    return one.series.name, outcome, rate, interval, f"{one.tolerance:.3g}{unit}", level


def _time_axis(end_s: float) -> Axis:
    scale = Scale(0.0, max(end_s, 1.0))
    return Axis(label="stream time", scale=scale, ticks=time_ticks(scale), grid=False)


def _charts(found: soak.Verdict, time: Axis) -> Iterator[Chart]:
    known = {one.name: one for one in series(found.evidence.lines, found.options)}

    def of(*names: str) -> dict[str, list[Point]]:
        return {name: _all_points(known[name]) for name in names if name in known}

    own = [f"{role}: memory of its own" for role in ROLES]
    resident = [f"{role}: resident memory" for role in ROLES]
    held = [
        f"{role}: {what}" for what in ("descriptors", "threads") for role in ("server", "engine")
    ]
    kills = [(float(line["at_s"]), "") for line in found.evidence.begun.get("kill", ())]
    marks = [Strip(caption="kill", items=kills, style=KILL, label="engine killed")] if kills else []
    for title, unit, drawn in (
        ("Memory of the processes' own", "MB", of(*own)),
        ("Resident memory, pages of files included", "MB", of(*resident)),
        ("Descriptors and threads", "number", of(*held)),
        ("Age of live cameras' newest frames", "ms, stream time", of("age of the newest frames")),
        ("First token", "ms, real time", of("first token p50 (real)", "first token p95 (real)")),
        ("Time between tokens", "ms, real time", of("time between tokens (real)")),
        ("Busy cores and load of the whole machine", "cores", _busy(found)),
    ):
        if drawn:
            yield _chart(title, unit, drawn, time, marks)


def _chart(
    title: str, unit: str, drawn: Mapping[str, Sequence[Point]], time: Axis, marks: Sequence[Mark]
) -> Chart:
    lines = [
        Line(label=name, points=_broken(points), style=look)
        for (name, points), look in zip(drawn.items(), LOOKS, strict=False)
    ]
    scale = linear(value for points in drawn.values() for _, value, _ in points)
    return Chart(
        title=title,
        about=f"{title} along the time of the streams.",
        x=time,
        y=Axis(label=unit, scale=scale, ticks=ticks(scale, plain, wanted=4)),
        marks=[*marks, *lines],
        wide=True,
    )


def _broken(points: Sequence[Point]) -> list[tuple[float, float | None]]:
    """With a gap where the group changes."""
    kept = points[:: max(1, len(points) // MOST_POINTS)]
    found: list[tuple[float, float | None]] = [(at_s, value) for at_s, value, _ in kept[:1]]
    for (_, _, before), (at_s, value, group) in pairwise(kept):
        found += [(at_s, value)] if group == before else [(at_s, None), (at_s, value)]
    return found


def _judged_chart(one: Judged, time: Axis) -> Chart:
    """The points of a series: those that were judged, and pale those that were settling."""
    settling, judged = (
        thinned([(at_s, value) for at_s, value, _ in points], most=MOST_DOTS)[0]
        for points in (one.series.settling, one.series.points)
    )
    values = [value for _, value in (*settling, *judged)]
    scale = linear(values, zero=not values or min(values) < max(values) / 3)
    return Chart(
        title=one.series.name,
        about=f"Every look at {one.series.name}. {one.growth}: {one.says}.",
        x=time,
        y=Axis(label=one.series.unit, scale=scale, ticks=ticks(scale, plain, wanted=4)),
        marks=[
            Line(label="settling", points=settling, style=SETTLING, joined=False),
            Line(label="judged", points=judged, style=JUDGED, joined=False),
        ],
        notes=[f"{one.growth}: {one.says}."],
    )


def _all_points(one: Series) -> list[Point]:
    """With those that were settling, each in its place."""
    found: list[Point] = [*one.settling, *one.points]
    return sorted(found, key=lambda point: point[0])


def _busy(found: soak.Verdict) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    for at_s, spent in cores(found.evidence.lines, found.options.speed):
        for role, value in spent.items():
            lines.setdefault(role, []).append((at_s, value, 0))
    load: list[Point] = [(at_s, value, 0) for at_s, value in loads(found.evidence.lines)]
    drawn = {role: lines[role] for role in ROLES if role in lines}
    return {**drawn, "machine's load": load} if load else drawn


def _method() -> str:
    rules = ", ".join(
        f"{kind} {share:.1%} of the level or {amount:g}{UNITS.get(kind, '')}"
        for kind, (share, amount) in TOLERANCES.items()
    )
    return (
        f"Slopes are over what is left after the first {SETTLE_SHARE:.0%} of the time after each"
        f" start of the server, {SETTLE_MOST_S / 3600:g} hour at most, and of the life of each process"
        f" that took another's place, {SETTLE_LIFE_S / 60:g} minutes at least. Every start and"
        " every life of a process has a level of its own; all share one slope, by least squares. The"
        " interval does not take points as independent (see docs/soak.md). A series grows where the"
        " whole interval is above its tolerance and the later half of each life goes on, is flat"
        " where the whole interval or that of the later halves is below it, and is undecided where"
        f" neither holds. Tolerances per hour, whichever is larger: {rules}. A pool with a bound may"
        " fill up to it."
    )


def _settings(found: soak.Verdict) -> Listing:
    first = found.evidence.lines[0]
    told = {"environment": first.get("environment", {}), "options": found.options.as_json()}
    return Listing(caption="Settings", text=json.dumps(told, indent=1))

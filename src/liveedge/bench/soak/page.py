"""The report of a soak: one HTML file with everything in it, for light and dark, without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from liveedge.bench.soak.charts import Drawn, Mark, chart, spark
from liveedge.bench.soak.growth import TOLERANCES, Judged
from liveedge.bench.soak.series import (
    SETTLE_LIFE_S,
    SETTLE_MOST_S,
    SETTLE_SHARE,
    Series,
    cores,
    loads,
    quantile,
    series,
)
from liveedge.bench.soak.verdict import Verdict

STYLE = """
:root{--ink:#1d1d1b;--soft:#5d5c57;--page:#fff;--panel:#f6f5f1;--rule:#dcdad2;--good:#1a7f37;--bad:#c2272d;
--open:#9a6700;--c0:#2a6fc9;--c1:#d95926;--c2:#1f8a5b;--c3:#8250c4;--c4:#7a7a74}
@media (prefers-color-scheme:dark){:root{--ink:#ecebe6;--soft:#a5a49c;--page:#161615;--panel:#20201e;
--rule:#383732;--good:#56b870;--bad:#f07575;--open:#d9a83c;--c0:#6ea8ee;--c1:#f08a5d;--c2:#5cc598;
--c3:#b393ec;--c4:#9d9c95}}
*{box-sizing:border-box}
body{margin:0 auto;padding:28px 20px 60px;max-width:1040px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:26px;margin:0 0 6px}h2{font-size:18px;margin:34px 0 10px}p{margin:6px 0}
.soft{color:var(--soft)}.pass,.flat,.pool{color:var(--good)}.fail,.grows{color:var(--bad)}.undecided{color:var(--open)}
.pool{color:var(--soft)}
.label{display:inline-block;border:2px solid var(--open);color:var(--open);font-weight:600;padding:4px 10px;margin:8px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:16px 0}
.tiles div{background:var(--panel);padding:10px 12px}.tiles b{display:block;font-size:19px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}
td,th{text-align:left;vertical-align:top;padding:5px 10px 5px 0;border-bottom:1px solid var(--rule)}
th{color:var(--soft);font-weight:500}td.n{white-space:nowrap;font-variant-numeric:tabular-nums}
td.o{font-weight:600;white-space:nowrap}
figure{margin:0 0 22px}figcaption{font-weight:600;margin-bottom:4px}svg{width:100%;height:auto;display:block}
.spark{width:150px;height:28px}.grid{stroke:var(--rule)}.mark{stroke:var(--soft);stroke-dasharray:2 3;opacity:.6}
.tick{fill:var(--soft);font:11px system-ui,sans-serif}.line{fill:none;stroke-width:1.5;stroke-linejoin:round}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}
.dot,.pale{fill:none;stroke:var(--c0);stroke-width:2;stroke-linecap:round}.pale{stroke:var(--rule)}
.keys span{margin-right:16px;color:var(--soft);font-size:13px}.keys i{display:inline-block;width:14px;height:3px;
margin-right:6px;vertical-align:middle}
i.c0{background:var(--c0)}i.c1{background:var(--c1)}i.c2{background:var(--c2)}i.c3{background:var(--c3)}i.c4{background:var(--c4)}
pre{background:var(--panel);padding:12px;overflow-x:auto;font-size:12.5px}
"""
ROLES = ("server", "engine", "standby", "others")
OUTCOMES = {"pass": "PASS", "fail": "FAIL", "undecided": "UNDECIDED"}


def html(found: Verdict) -> str:
    """The whole page."""
    all_series = {one.name: one for one in series(found.evidence.lines, found.options)}
    end_s = max((float(line["at_s"]) for line in found.evidence.lines), default=0.0)
    parts = [
        *_head(found),
        *_tiles(found, end_s),
        "<h2>What was checked</h2>",
        *_findings(found),
        "<h2>What grows</h2>",
        *_growths(found.growths, end_s),
        "<h2>Over time</h2>",
        _axis_says(found),
        *_charts(found, all_series, end_s),
        "<h2>How this was computed</h2>",
        *_method(),
        "<h2>Settings</h2>",
        *_settings(found),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Soak: {OUTCOMES[found.outcome]}</title><style>{STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _axis_says(found: Verdict) -> str:
    return (
        f"<p class='soft'>Horizontal: hours of stream time{_accelerated(found)}. Dashed: the engine"
        " was killed. Lines break where a process or the server began anew.</p>"
    )


def _accelerated(found: Verdict) -> str:
    return f", accelerated {found.options.speed:g} times" if found.is_accelerated else ""


def _head(found: Verdict) -> Iterator[str]:
    yield f"<h1>Soak: <span class='{found.outcome}'>{OUTCOMES[found.outcome]}</span></h1>"
    if found.is_accelerated:
        yield f"<p class='label'>{escape(found.time_says)}</p>"
    reasons = [one.what for one in found.findings if one.outcome == "fail"]
    reasons += [f"{one.series.name} grows" for one in found.growths if one.growth == "grows"]
    unclear = [one.what for one in found.findings if one.outcome == "undecided"]
    unclear += [one.series.name for one in found.growths if one.growth == "undecided"]
    if reasons:
        yield f"<p>Failed: {escape('; '.join(reasons))}.</p>"
    if unclear:
        yield f"<p>Undecided: {escape('; '.join(unclear))}.</p>"
    if not reasons and not unclear:
        yield "<p>Nothing grows, and nothing broke that was not broken on purpose.</p>"


def _tiles(found: Verdict, end_s: float) -> Iterator[str]:
    asks = [line for line in found.evidence.asks if line["status"] == 200]
    ttft = [line["ttft_ms"] for line in asks if "ttft_ms" in line]
    busy = [load for _, load in loads(found.evidence.lines)]
    kills = [line["recovered_real_s"] for line in found.evidence.done.get("kill", ()) if line["ok"]]
    tiles = [
        (f"{end_s / 3600:.2f} h", f"of stream time{_accelerated(found)}"),
        (f"{end_s / 3600 / found.options.speed:.2f} h", "of real time"),
        (f"{len(found.evidence.asks):,}", "questions"),
        (
            f"{quantile(ttft, 0.5):.0f} / {quantile(ttft, 0.95):.0f} ms",
            "first token p50 / p95, real",
        ),
        (f"{len(found.evidence.begun.get('kill', ()))}", "engine kills"),
        (f"{max(kills, default=0.0):.1f} s", "longest recovery, real"),
        (f"{quantile(busy, 0.5):.1f}", "load of the machine, median"),
    ]
    yield "<div class='tiles'>"
    yield from (
        f"<div><b>{value}</b><span class='soft'>{what}</span></div>" for value, what in tiles
    )
    yield "</div>"


def _findings(found: Verdict) -> Iterator[str]:
    yield "<div class='wide'><table>"
    for one in found.findings:
        yield (
            f"<tr><td class='o {one.outcome}'>{one.outcome}</td><td>{escape(one.what)}</td>"
            f"<td class='soft'>{escape(one.says)}</td></tr>"
        )
    yield "</table></div>"


def _growths(growths: Sequence[Judged], end_s: float) -> Iterator[str]:
    yield (
        "<div class='wide'><table><tr><th></th><th>series</th><th>per hour (95 % interval)</th>"
        "<th>tolerance</th><th>level</th><th>judged points (pale: settling)</th></tr>"
    )
    for one in growths:
        rate, level = "too few points", ""
        if one.slope is not None:
            rate = f"{one.slope.per_h:+.3g} ({one.slope.low:+.3g} to {one.slope.high:+.3g})"
            level = f"{one.slope.level:.4g} {one.series.unit}"
        drawn = spark(one.series.settling, one.series.points, end_s=end_s)
        yield (
            f"<tr title='{escape(one.says)}'><td class='o {one.growth}'>{one.growth}</td>"
            f"<td>{escape(one.series.name)}</td><td class='n'>{rate}</td>"
            f"<td class='n'>{one.tolerance:.3g} {one.series.unit}</td><td class='n'>{level}</td>"
            f"<td>{drawn}</td></tr>"
        )
    yield "</table></div>"


def _charts(found: Verdict, known: dict[str, Series], end_s: float) -> Iterator[str]:
    marks = [Mark(float(line["at_s"]), "kill") for line in found.evidence.begun.get("kill", ())]

    def of(*names: str) -> list[Drawn]:
        return [Drawn(name, _all_points(known[name])) for name in names if name in known]

    own = [f"{role}: memory of its own" for role in ROLES]
    resident = [f"{role}: resident memory" for role in ROLES]
    held = [
        f"{role}: {what}" for what in ("descriptors", "threads") for role in ("server", "engine")
    ]
    for title, unit, drawn in (
        ("Memory of the processes' own", "MB", of(*own)),
        ("Resident memory, pages of files included", "MB", of(*resident)),
        ("Descriptors and threads", "number", of(*held)),
        (
            "Age of the newest frames of live cameras",
            "ms of stream time",
            of("age of the newest frames"),
        ),
        ("First token", "ms, real time", of("first token p50 (real)", "first token p95 (real)")),
        ("Time between tokens", "ms, real time", of("time between tokens (real)")),
        ("Busy cores and load of the whole machine", "cores", _busy(found)),
    ):
        yield chart(title, unit, drawn, end_s=end_s, marks=marks)


def _all_points(one: Series) -> list[tuple[float, float, Any]]:
    """With those that were settling, each in its place."""
    return sorted([*one.settling, *one.points], key=lambda point: point[0])


def _busy(found: Verdict) -> list[Drawn]:
    lines: dict[str, list[tuple[float, float, Any]]] = {}
    for at_s, spent in cores(found.evidence.lines, found.options.speed):
        for role, value in spent.items():
            lines.setdefault(role, []).append((at_s, value, 0))
    load = [(at_s, value, 0) for at_s, value in loads(found.evidence.lines)]
    return [*(Drawn(role, lines.get(role, [])) for role in ROLES), Drawn("machine's load", load)]


def _method() -> Iterator[str]:
    rules = ", ".join(
        f"{kind} {share:.1%} of the level or {amount:g}{' MB' if kind == 'memory' else ' ms' if kind == 'time' else ''}"
        for kind, (share, amount) in TOLERANCES.items()
    )
    yield (
        f"<p>Slopes are over what is left after the first {SETTLE_SHARE:.0%} of the time after each start of the"
        f" server, {SETTLE_MOST_S / 3600:g} hour at most, and of the life of each process that took another's place, {SETTLE_LIFE_S / 60:g} minutes at least. Every"
        " start and every life of a process has a level of its own; all share one slope, by least"
        " squares. The interval does not take points as independent (see docs/soak.md). A series"
        " grows where the whole interval is above its tolerance, is flat where the whole interval is"
        " below it, and is undecided where neither holds. Tolerances per hour, whichever is larger:"
        f" {escape(rules)}. A pool with a bound may fill up to it.</p>"
    )


def _settings(found: Verdict) -> Iterator[str]:
    first = found.evidence.lines[0]
    told = {"environment": first.get("environment", {}), "options": found.options.as_json()}
    yield f"<pre>{escape(json.dumps(told, indent=1))}</pre>"

"""The verdict of a soak, computed from its folder alone: what passed, what failed, what is open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liveedge.bench.soak.checks import Evidence, Finding, Outcome, checks, evidence
from liveedge.bench.soak.growth import Judged, judge
from liveedge.bench.soak.log import NAME, Line, read_log
from liveedge.bench.soak.options import SoakOptions, options_of
from liveedge.bench.soak.series import series

STATUS = {"pass": 0, "fail": 1, "undecided": 3}
SERVER_LOGS = "server-*.log"
_TRACEBACK = re.compile(r"^Traceback|\bcrashed\b|\bCRITICAL\b", re.MULTILINE)
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Everything that is told about a soak."""

    outcome: Outcome
    options: SoakOptions
    evidence: Evidence
    findings: Sequence[Finding]
    growths: Sequence[Judged]

    @property
    def status(self) -> int:
        """Exit status of the command."""
        return STATUS[self.outcome]

    @property
    def is_accelerated(self) -> bool:
        return self.options.speed != 1.0

    @property
    def time_says(self) -> str:
        """What kind of hours these were."""
        if self.is_accelerated:
            return f"ACCELERATED stream time: {self.options.speed:g} times as fast as real time"
        return "real time"


def judged(folder: Path) -> Verdict:
    """Raises LogBroken and OptionsInvalid."""
    lines = read_log(folder / NAME)
    return verdict(lines, options_of(lines, folder), server_logs(folder))


def verdict(lines: Sequence[Line], options: SoakOptions, server_says: Finding) -> Verdict:
    found = evidence(lines, options)
    growths = [judge(one) for one in series(lines, options)]
    findings = [*checks(found), server_says]
    return Verdict(
        outcome=_outcome(findings, growths),
        options=options,
        evidence=found,
        findings=findings,
        growths=sorted(growths, key=_first_what_matters),
    )


def server_logs(folder: Path) -> Finding:
    """Whether the servers wrote of crashes; what they say of killed engines is none."""
    bad: list[str] = []
    paths = sorted(folder.glob(SERVER_LOGS))
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        bad += [
            f"{path.name}: {text[m.start() : m.start() + 120]!r}" for m in _TRACEBACK.finditer(text)
        ]
    what = "no crash in the server's log"
    if bad:
        return Finding(what, "fail", f"{len(bad)}: {'; '.join(bad[:SHOWN])}")
    return Finding(what, "pass" if paths else "undecided", f"{len(paths)} logs")


def _outcome(findings: Sequence[Finding], growths: Sequence[Judged]) -> Outcome:
    if any(one.outcome == "fail" for one in findings) or any(g.growth == "grows" for g in growths):
        return "fail"
    is_open = any(one.outcome == "undecided" for one in findings) or any(
        one.growth == "undecided" for one in growths
    )
    return "undecided" if is_open else "pass"


def _first_what_matters(one: Judged) -> tuple[int, str]:
    return ("grows", "undecided", "pool", "flat").index(one.growth), one.series.name


def as_text(found: Verdict) -> str:
    """For the console."""
    hours = f"{found.options.hours:g} hours, {found.time_says}"
    lines = [f"VERDICT  {found.outcome.upper()}  ({hours})", ""]
    lines += [f"{one.outcome:10} {one.what}: {one.says}" for one in found.findings]
    lines += ["", f"{'growth':10} per hour of stream time, with 95 % interval"]
    lines += [f"{one.growth:10} {one.series.name}: {one.says}" for one in found.growths]
    return "\n".join(lines)


def as_json(found: Verdict) -> dict[str, Any]:
    return {
        "verdict": found.outcome,
        "accelerated": found.is_accelerated,
        "time": found.time_says,
        "options": found.options.as_json(),
        "findings": [
            {"what": one.what, "outcome": one.outcome, "says": one.says} for one in found.findings
        ],
        "series": [_series_json(one) for one in found.growths],
    }


def _series_json(one: Judged) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": one.series.name,
        "kind": one.series.kind,
        "unit": one.series.unit,
        "growth": one.growth,
        "tolerance_per_h": one.tolerance,
        "says": one.says,
    }
    if one.slope is not None:
        told |= {
            "per_h": one.slope.per_h,
            "low_per_h": one.slope.low,
            "high_per_h": one.slope.high,
            "level": one.slope.level,
            "scatter": one.slope.scatter,
            "hours": one.slope.hours,
            "points": one.slope.n,
            "groups": one.slope.groups,
        }
    return told

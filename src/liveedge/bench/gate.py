"""Release gates: rules of a TOML file, held against one run or against a comparison. Pure.

A rule is kept or broken where the whole 95 % interval says so, and undecided where the limit lies inside
it: by default that fails too, for a gate must show what it lets through. A figure that the run does not
have fails always.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from liveedge.bench.compare import (
    Comparison,
    Line,
    NotComparable,
    Run,
    check_comparable,
    compare,
    is_compared,
    load_of,
    markdown as comparison_markdown,
)
from liveedge.bench.figures import Figure, NoSuchFigure, figure
from liveedge.bench.result import ResultFolder, StepSummary, finite

Outcome: TypeAlias = Literal["pass", "fail", "undecided"]
STEPS = ("all", "lowest", "highest")
FRESHNESS = ("freshness_ms.", "known_freshness_ms.")
NOT_ENOUGH = "too few samples in one of the two runs"


class GateInvalid(Exception):
    """A gate file that cannot be used: which rule, which key, what it may say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One limit. Exactly one of the four is given: of B alone, or of its change against A (ratio, for
    shares the difference)."""

    figure: str  # of `figures`, or of the whole run: `goodput_of_peak`, `achieved_of_peak`, `capacity.NAME`
    at_least: float | None = None
    at_most: float | None = None
    change_at_least: float | None = None
    change_at_most: float | None = None
    steps: str | Sequence[int] = "all"
    up_to_per_s: float | None = None  # steps of this offered rate and below
    why: str = ""

    @property
    def limit(self) -> float:
        given = (self.at_least, self.at_most, self.change_at_least, self.change_at_most)
        return next(one for one in given if one is not None)

    @property
    def is_most(self) -> bool:
        return self.at_most is not None or self.change_at_most is not None

    @property
    def is_change(self) -> bool:
        return self.change_at_least is not None or self.change_at_most is not None


@dataclass(frozen=True, slots=True)
class Gate:
    """All rules of a file."""

    rules: Sequence[Rule]
    undecided: Literal["pass", "fail"] = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One rule at one step, or at the whole run."""

    rule: str
    where: str
    value: float | None
    interval: tuple[float, float] | None
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A gate's verdict."""

    held: Sequence[Held]
    passed: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Findings:
    """What `liveedge bench compare` says."""

    comparison: Comparison | None
    judged: Judged | None

    @property
    def passed(self) -> bool:
        return self.judged is None or self.judged.passed

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = finite(
            {
                "comparison": self.comparison and self.comparison.as_json(),
                "gate": self.judged and self.judged.as_json(),
            }
        )
        return found

    def as_markdown(self) -> str:
        tables = []
        if self.comparison is not None:
            tables.append(comparison_markdown(self.comparison))
        if self.judged is not None:
            tables.append(markdown(self.judged))
        return "\n\n".join(tables)


def hold(
    a: ResultFolder, b: ResultFolder | None = None, *, gate: Gate | None, anyway: bool = False
) -> Findings:
    """Compare two results and hold the second, or the only one, against a gate.

    Raises ResultInvalid, GateInvalid, NoSuchFigure, and NotComparable unless `anyway`.
    """
    first = Run.of(a)
    if b is None:
        if gate is None:
            raise NotComparable(f"{a.path} alone has nothing to be held against: give B or --gate")
        return Findings(None, judge(gate, first, None))
    second = Run.of(b)
    if not anyway:
        check_comparable(first, second)
    comparison = compare(first, second)
    return Findings(comparison, None if gate is None else judge(gate, second, comparison))


def load_gate(path: Path) -> Gate:
    """Raises GateInvalid."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GateInvalid(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GateInvalid(f"{path} is no TOML: {error}") from error
    return gate_of(document)


def gate_of(document: Mapping[str, Any]) -> Gate:
    """A gate from its decoded TOML. Raises GateInvalid."""
    undecided = document.get("undecided", "fail")
    rules = document.get("rule", [])
    unknown = document.keys() - {"undecided", "rule"}
    if unknown:
        raise GateInvalid(f"{', '.join(sorted(unknown))}: no key here; known: undecided, rule")
    if undecided not in ("pass", "fail"):
        raise GateInvalid(f"undecided is {undecided!r}; one of 'pass', 'fail'")
    if not isinstance(rules, list) or not rules:
        raise GateInvalid("the gate has no rule: write at least one [[rule]]")
    return Gate([_rule(rule, number) for number, rule in enumerate(rules, start=1)], undecided)


def judge(gate: Gate, b: Run, comparison: Comparison | None) -> Judged:
    """Every rule, and that the run is valid at all. Raises NoSuchFigure, GateInvalid."""
    held = [_validity(b), *(one for rule in gate.rules for one in _hold(rule, b, comparison))]
    allowed = {"pass", "undecided"} if gate.undecided == "pass" else {"pass"}
    return Judged(held, all(one.outcome in allowed for one in held))


def markdown(judged: Judged) -> str:
    """A table and a last line with the verdict."""
    rows = ["| rule | where | value | 95 % interval | outcome |", "|---|---|---:|---:|---|"]
    for one in judged.held:
        value = "-" if one.value is None else f"{one.value:.4g}"
        interval = (
            "-" if one.interval is None else f"{one.interval[0]:.4g} to {one.interval[1]:.4g}"
        )
        why = f" ({one.why})" if one.why and one.outcome != "pass" else ""
        rows.append(f"| {one.rule} | {one.where} | {value} | {interval} | {one.outcome}{why} |")
    counts = {
        name: sum(one.outcome == name for one in judged.held) for name in ("fail", "undecided")
    }
    verdict = "passed" if judged.passed else "FAILED"
    told = f"gate {verdict}: {len(judged.held)} rules held, {counts['fail']} failed,"
    return "\n".join([*rows, "", f"{told} {counts['undecided']} undecided"])


def _rule(document: Any, number: int) -> Rule:
    where = f"rule {number}"
    if not isinstance(document, Mapping):
        raise GateInvalid(f"{where} is {document!r}, it must be a table")
    known = {one.name for one in fields(Rule)}
    unknown = document.keys() - known
    if unknown:
        named = ", ".join(sorted(unknown))
        raise GateInvalid(f"{where}: {named} is no key; known: {', '.join(sorted(known))}")
    _check_types(document, where)
    rule = Rule(**document)
    given = (rule.at_least, rule.at_most, rule.change_at_least, rule.change_at_most)
    if sum(one is not None for one in given) != 1:
        raise GateInvalid(
            f"{where} ({rule.figure}) needs exactly one of at_least, at_most, change_at_least,"
            " change_at_most"
        )
    if isinstance(rule.steps, str) and rule.steps not in STEPS:
        raise GateInvalid(
            f"{where}: steps is {rule.steps!r}; one of {', '.join(STEPS)}, or a list of numbers"
        )
    return rule


def _check_types(document: Mapping[str, Any], where: str) -> None:
    if not isinstance(document.get("figure"), str):
        raise GateInvalid(f"{where} has no figure: name what it limits, such as 'ttft_ms.p95'")
    for key, value in document.items():
        if key in ("figure", "why"):
            is_right, kind = isinstance(value, str), "a text"
        elif key == "steps":
            is_right = isinstance(value, str) or _are_numbers(value)
            kind = "a text or a list of whole numbers"
        else:
            is_right = isinstance(value, (int, float)) and not isinstance(value, bool)
            kind = "a number"
        if not is_right:
            raise GateInvalid(f"{where}: {key} is {value!r}, it must be {kind}")


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int for one in value)


def _validity(b: Run) -> Held:
    return Held(
        rule="the run is valid",
        where="run",
        value=None,
        interval=None,
        outcome="pass" if b.summary.valid else "fail",
        why="; ".join(b.summary.invalid),
    )


def _hold(rule: Rule, b: Run, comparison: Comparison | None) -> Iterator[Held]:
    of_run = _of_run(rule.figure, b)
    if of_run is not None and not rule.is_change:
        yield _held(rule, "run", of_run)
        return
    steps = _steps(rule, b.summary.steps)
    if not steps:
        yield _held(rule, "no step", Figure(value=None))
    for step in steps:
        if rule.is_change:
            yield _held_change(rule, step, comparison)
        else:
            yield _held(rule, load_of(step), figure(rule.figure, step, b.records))


def _of_run(name: str, b: Run) -> Figure | None:
    """Figures of a whole sweep, which have no interval of their own: taken as they are."""
    if name.startswith("capacity."):
        value = b.summary.capacity.get(name.partition(".")[2])
        return Figure(value=value, interval=None if value is None else (value, value))
    of_step = _OF_PEAK.get(name)
    if of_step is None:
        return None
    best = max((of_step(step) for step in b.summary.steps), default=0.0)
    last = _steps(Rule(figure=name, at_least=0.0, steps="highest"), b.summary.steps)
    share = of_step(last[0]) / best if last and best else None
    return Figure(value=share, interval=None if share is None else (share, share))


_OF_PEAK: Mapping[str, Callable[[StepSummary], float]] = {
    "goodput_of_peak": lambda step: step.goodput_per_s,
    "achieved_of_peak": lambda step: step.achieved_per_s,
}


def _steps(rule: Rule, steps: Sequence[StepSummary]) -> list[StepSummary]:
    chosen = [
        step
        for step in sorted(steps, key=lambda one: (one.offered_per_s or 0, one.concurrency or 0))
        if rule.up_to_per_s is None or (step.offered_per_s or 0.0) <= rule.up_to_per_s
    ]
    if rule.steps == "lowest":
        return chosen[:1]
    if rule.steps == "highest":
        return chosen[-1:]
    return [step for step in chosen if rule.steps == "all" or step.step in rule.steps]


def _held_change(rule: Rule, step: StepSummary, comparison: Comparison | None) -> Held:
    if comparison is None:
        raise GateInvalid(f"{_told(rule)} compares two runs: give both folders")
    lines = [one for one in comparison.lines if one.step == step.step]
    mine = [line for line in lines if _is_line(rule.figure, line)]
    if not mine:
        if not is_compared(rule.figure):
            known = sorted({line.figure for line in comparison.lines})
            raise NoSuchFigure(f"{rule.figure} is not compared; compared are {', '.join(known)}")
        return replace(_held(rule, load_of(step), Figure(value=None)), why=NOT_ENOUGH)
    line = mine[0]
    return _held(rule, load_of(step), Figure(value=line.change, interval=line.interval))


def _is_line(name: str, line: Line) -> bool:
    """TTFT and whole answers are compared with time-outs at their bound alone."""
    return line.figure in (name, f"with_timeouts.{name}")


def _held(rule: Rule, where: str, found: Figure) -> Held:
    outcome, why = _outcome(rule, found)
    return Held(
        rule=_told(rule),
        where=where,
        value=found.value,
        interval=found.interval,
        outcome=outcome,
        why=rule.why if outcome == "fail" and rule.why else why,
    )


def _outcome(rule: Rule, found: Figure) -> tuple[Outcome, str]:
    if found.value is None:  # whatever the gate says of what is undecided: nothing was looked at
        return "fail", "the run has no such figure"
    if found.value < 0 and rule.figure.startswith(FRESHNESS) and not rule.is_change:
        return "fail", "evidence from the future is none"
    if found.interval is None:
        return "undecided", "too few samples for an interval"
    low, high = found.interval
    if rule.is_most:
        is_kept, is_broken = high <= rule.limit, low > rule.limit
    else:
        is_kept, is_broken = low >= rule.limit, high < rule.limit
    if is_kept:
        return "pass", ""
    return ("fail", "") if is_broken else ("undecided", "the limit lies inside the interval")


def _told(rule: Rule) -> str:
    relation = "at most" if rule.is_most else "at least"
    return f"{rule.figure} {'B to A ' if rule.is_change else ''}{relation} {rule.limit:g}"

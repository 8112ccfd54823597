"""`liveedge bench envelope`: the smallest media whose answers are right often enough, and what it costs.

One closed-loop run per size and number of frames, from the smallest up, until every kind of question
has reached the threshold; each is a whole result in a folder of its own.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from liveedge.bench.record import Record, measured
from liveedge.bench.result import Proportion, ResultFolder, write_text
from liveedge.bench.scenario import Scenario, ScenarioInvalid
from liveedge.bench.stats import share_of
from liveedge.sim.questions import CLIP_KINDS

Bound: TypeAlias = Literal["lower", "point"]
Verdict: TypeAlias = Literal["reached", "undecided", "missed"]
Run: TypeAlias = Callable[[Scenario, ResultFolder], Sequence[str]]  # gives why it is invalid
Say: TypeAlias = Callable[[str], None]
ALL = "all"  # questions together, in envelopes where every kind can be asked
JSON_NAME, MARKDOWN_NAME = "envelope.json", "envelope.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a question looks at: pixels of each frame, and how many."""

    width: int
    height: int
    frames: int

    @property
    def name(self) -> str:
        return f"{self.width}x{self.height}x{self.frames}"

    @property
    def n_pixels(self) -> int:
        return self.width * self.height * self.frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When accuracy is enough: the measured share, or the lower end of its 95 % interval."""

    threshold: float
    bound: Bound = "lower"

    def verdict(self, accuracy: Proportion) -> Verdict:
        """`undecided`: the share is there, but so few questions do not prove it."""
        if accuracy.share is None or accuracy.interval is None or accuracy.share < self.threshold:
            return "missed"
        if self.bound == "point" or accuracy.interval[0] >= self.threshold:
            return "reached"
        return "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One envelope as it was measured. Medians; None where no answer says it."""

    envelope: Envelope
    accuracy: Mapping[str, Proportion]  # by kind, and ALL
    asked: Sequence[str]  # kinds
    answered: int
    failed: int
    prompt_tokens: float | None
    ttft_ms: float | None
    total_ms: float | None
    invalid: Sequence[str] = ()  # why the times say nothing about the server; accuracy does

    @property
    def cost(self) -> tuple[float, float, int]:
        """What orders envelopes: tokens, then time, then pixels."""
        tokens = math.inf if self.prompt_tokens is None else self.prompt_tokens
        total_ms = math.inf if self.total_ms is None else self.total_ms
        return tokens, total_ms, self.envelope.n_pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """The cheapest envelope for one kind of question, or ALL; None: none of those measured."""

    kind: str
    envelope: Envelope | None
    verdict: Verdict  # of it, or the best that any came to
    accuracy: Proportion | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What was measured and found."""

    base: Scenario
    rule: Rule
    points: Sequence[Point]
    skipped: Sequence[Envelope]  # everything was decided before
    smallest: Sequence[Smallest]

    def as_json(self) -> dict[str, Any]:
        return {
            "base": self.base.as_json(),
            "rule": asdict(self.rule),
            "points": [asdict(point) for point in self.points],
            "skipped": [asdict(envelope) for envelope in self.skipped],
            "smallest": [asdict(one) for one in self.smallest],
        }


def envelopes(sizes: Iterable[str], frames: Iterable[int]) -> list[Envelope]:
    """All of them, smallest first. Raises ScenarioInvalid."""
    found = {
        Envelope(width=width, height=height, frames=count)
        for width, height in map(_size, sizes)
        for count in frames
    }
    if not found or any(one.frames < 1 for one in found):
        raise ScenarioInvalid("envelopes need at least one size and one number of frames above 0")
    return sorted(found, key=lambda one: (one.n_pixels, one.frames))


def search(
    base: Scenario,
    wanted: Sequence[Envelope],
    rule: Rule,
    *,
    run: Run,
    folder: Path,
    say: Say = lambda _line: None,
) -> Search:
    """Measure from the smallest up. `run` fills the folder that it is given.

    Raises ScenarioInvalid, and what `run` raises; points that are done stay in their folders.
    """
    _check(base, wanted)
    points: list[Point] = []
    for n, envelope in enumerate(wanted):
        scenario = scenario_in(base, envelope)
        result = ResultFolder(folder / envelope.name)
        result.path.mkdir(parents=True, exist_ok=True)
        invalid = run(scenario, result)
        records = list(measured(result.records()))
        points.append(point_of(envelope, scenario, records, invalid=invalid))
        say(_line(points[-1]))
        found = _smallest(base, points, rule)
        if all(one.verdict == "reached" for one in found):
            return Search(
                base=base, rule=rule, points=points, skipped=wanted[n + 1 :], smallest=found
            )
    found = _smallest(base, points, rule)
    return Search(base=base, rule=rule, points=points, skipped=(), smallest=found)


def write(search: Search, folder: Path) -> None:
    """`envelope.json` and `envelope.md`. Raises ResultUnwritable."""
    document = json.dumps(search.as_json(), indent=1)
    write_text(folder / JSON_NAME, document + "\n")
    write_text(folder / MARKDOWN_NAME, markdown(search))


def scenario_in(base: Scenario, envelope: Envelope) -> Scenario:
    """The same questions in this envelope, one after the other. Kinds that need a clip are left out of
    single frames."""
    kinds = [kind for kind in base.questions.kinds if envelope.frames > 1 or kind not in CLIP_KINDS]
    return replace(
        base,
        name=f"{base.name}-{envelope.name}",
        sources=replace(base.sources, width=envelope.width, height=envelope.height),
        media=replace(base.media, frames=envelope.frames),
        questions=replace(base.questions, kinds=tuple(kinds)),
        load=replace(base.load, kind="closed", concurrency=base.load.concurrency[:1]),
    )


def point_of(
    envelope: Envelope,
    scenario: Scenario,
    records: Sequence[Record],
    *,
    invalid: Sequence[str] = (),
) -> Point:
    """What these records say, in their order: answers about one frame resemble each other, and count
    for less. Undecidable truths and failed requests count for no accuracy."""
    answered = [record for record in records if record.outcome == "ok"]
    judged: dict[str, list[bool]] = defaultdict(list)
    for record in answered:
        if record.correct is not None:
            judged[record.question].append(record.correct)
            judged[ALL].append(record.correct)
    return Point(
        envelope=envelope,
        accuracy={kind: share_of(right) for kind, right in judged.items()},
        asked=scenario.questions.kinds,
        answered=len(answered),
        failed=len(records) - len(answered),
        prompt_tokens=_median(record.prompt_tokens for record in answered),
        ttft_ms=_median(_since_sent_ms(record, record.first_content_s) for record in answered),
        total_ms=_median(_since_sent_ms(record, record.ended_s) for record in answered),
        invalid=tuple(invalid),
    )


def markdown(search: Search) -> str:
    """Two tables: what is enough, and everything that was measured."""
    rule, threshold = search.rule, f"{search.rule.threshold:.0%}"
    which = "the lower end of its 95 % interval" if rule.bound == "lower" else "the measured share"
    lines = [
        f"# Envelope of {search.base.name}",
        "",
        (
            f"Enough: accuracy of at least {threshold}, by {which} (Wilson). Costs are medians of one"
            " closed-loop run per envelope."
        ),
        "",
        "| question | smallest | accuracy | prompt tokens | TTFT ms | ms per question |",
        "|---|---|--:|--:|--:|--:|",
        *(_smallest_row(one, search.points) for one in search.smallest),
        "",
        (
            f"| width x height x frames | {ALL} | {' | '.join(search.base.questions.kinds)} |"
            " prompt tokens | TTFT ms | ms per question | failed |"
        ),
        f"|---|{'--:|' * (len(search.base.questions.kinds) + 5)}",
        *(_point_row(point, search.base.questions.kinds) for point in search.points),
    ]
    if any(point.invalid for point in search.points):
        lines += [
            "",
            "\\* The load generator was late itself: this time is not the server's alone.",
        ]
    if search.skipped:
        names = ", ".join(envelope.name for envelope in search.skipped)
        lines += ["", f"Not measured, since everything was reached before: {names}."]
    return "\n".join(lines) + "\n"


def _check(base: Scenario, wanted: Sequence[Envelope]) -> None:
    if base.mix:
        raise ScenarioInvalid("an envelope is searched for one kind of media: leave mix out")
    if base.media.seconds:
        raise ScenarioInvalid(
            "media.seconds fixes the clip while the number of frames changes: leave it out"
        )
    if not base.questions.kinds:
        raise ScenarioInvalid("accuracy needs questions.kinds: prompts have no true answers")
    if not base.load.concurrency:
        raise ScenarioInvalid("load.concurrency is empty: the closed loop needs one value")
    if all(kind in CLIP_KINDS for kind in base.questions.kinds) and wanted[0].frames == 1:
        raise ScenarioInvalid("all questions.kinds need a clip: leave 1 out of the frames")


def _size(text: str) -> tuple[int, int]:
    width, x, height = text.partition("x")
    if not (x and width.isdecimal() and height.isdecimal()):
        raise ScenarioInvalid(f"{text!r} is no size; write it as 320x240")
    return int(width), int(height)


def _smallest(base: Scenario, points: Sequence[Point], rule: Rule) -> list[Smallest]:
    kinds = base.questions.kinds
    eligible = [point for point in points if set(point.asked) == set(kinds)]
    found = [_smallest_of(kind, points, rule) for kind in kinds]
    return [*found, _smallest_of(ALL, eligible, rule)]


def _smallest_of(kind: str, points: Sequence[Point], rule: Rule) -> Smallest:
    judged = [
        (point, point.accuracy[kind])
        for point in sorted(points, key=lambda point: point.cost)
        if kind in point.accuracy
    ]
    for wanted in ("reached", "undecided"):
        for point, accuracy in judged:
            if rule.verdict(accuracy) == wanted:
                return Smallest(
                    kind=kind,
                    envelope=point.envelope,
                    verdict=rule.verdict(accuracy),
                    accuracy=accuracy,
                )
    best = max((accuracy for _, accuracy in judged), key=lambda one: one.share or 0, default=None)
    return Smallest(kind=kind, envelope=None, verdict="missed", accuracy=best)


def _since_sent_ms(record: Record, at_s: float | None) -> float | None:
    if at_s is None or record.sent_s is None:
        return None
    return (at_s - record.sent_s) * 1000


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _line(point: Point) -> str:
    return (
        f"{point.envelope.name}: {_shown(point.accuracy.get(ALL))} right,"
        f" {_number(point.prompt_tokens)} prompt tokens, TTFT {_number(point.ttft_ms)} ms,"
        f" {_number(point.total_ms)} ms per question"
    )


def _smallest_row(one: Smallest, points: Sequence[Point]) -> str:
    point = next((point for point in points if point.envelope == one.envelope), None)
    name = "none" if point is None else point.envelope.name
    note = " (too few questions to be sure)" if one.verdict == "undecided" else ""
    return f"| {one.kind} | {name}{note} | {_shown(one.accuracy)} | {_costs(point)} |"


def _point_row(point: Point, kinds: Sequence[str]) -> str:
    shares = " | ".join(_shown(point.accuracy.get(kind)) for kind in (ALL, *kinds))
    return f"| {point.envelope.name} | {shares} | {_costs(point)} | {point.failed} |"


def _costs(point: Point | None) -> str:
    if point is None:
        return "- | - | -"
    mark = "*" if point.invalid else ""
    times = [f"{_number(one)}{mark}" for one in (point.ttft_ms, point.total_ms)]
    return " | ".join([_number(point.prompt_tokens), *times])


def _shown(accuracy: Proportion | None) -> str:
    if accuracy is None or accuracy.share is None or accuracy.interval is None:
        return "-"
    low, high = accuracy.interval
    return f"{accuracy.share:.1%} of {accuracy.n} ({low:.1%} to {high:.1%})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"

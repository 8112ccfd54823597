"""What the demonstration prints: blocks for people, or one JSON object per line.

Results go to standard output, progress to standard error, so that `--json` can be piped.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TextIO

BAR_CELLS = 40
# Stages in the order they happen, with the letter they have in the bar.
STAGES = {
    "resolve": "r",
    "queue": "q",
    "preprocess": "p",
    "encode": "e",
    "prefill": "f",
    "decode": "d",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One question and everything worth knowing about its answer."""

    question: str
    kind: str
    answer: str
    expected: str
    correct: bool
    ttft_ms: float
    total_ms: float
    age_ms: float | None
    frames: int
    reused_tokens: int
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    moment: str
    error: str | None = None


class Report(Protocol):
    """Where the demonstration tells what happens."""

    def progress(self, text: str) -> None: ...
    def waiting(self, text: str, share: float) -> None: ...
    def started(self, stages_ms: Mapping[str, float]) -> None: ...
    def result(self, number: int, result: Result) -> None: ...
    def summary(self, summary: Mapping[str, Any]) -> None: ...
    def urls(self, lines: Sequence[str]) -> None: ...


def summarise(results: Sequence[Result], startup_ms: Mapping[str, float]) -> dict[str, Any]:
    """The figures of the whole run."""
    answered = [result for result in results if result.error is None]
    return {
        "questions": len(results),
        "correct": sum(result.correct for result in results),
        "errors": len(results) - len(answered),
        "ttft_ms_median": _median([result.ttft_ms for result in answered]),
        "total_ms_median": _median([result.total_ms for result in answered]),
        "startup_ms": {stage: round(ms, 1) for stage, ms in startup_ms.items()},
    }


def passed(summary: Mapping[str, Any]) -> bool:
    """At least nine of ten right, and no error."""
    return summary["errors"] == 0 and summary["correct"] * 10 >= summary["questions"] * 9


def bar(timings_ms: Mapping[str, float]) -> str:
    """The stages as letters, each as long as its share of the time."""
    shares = {stage: max(timings_ms.get(stage, 0.0), 0.0) for stage in STAGES}
    total = sum(shares.values())
    if total == 0:
        return ""
    ends, before = [], 0.0
    for share in shares.values():
        before += share
        ends.append(round(before / total * BAR_CELLS))
    starts = [0, *ends[:-1]]
    cells = zip(STAGES.values(), starts, ends, strict=True)
    return "".join(letter * (end - start) for letter, start, end in cells)


class Waiting:
    """A long step: a bar where somebody watches, else one plain line when it begins."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._line = ""

    def show(self, text: str, share: float) -> None:
        """`share` of the step is done; at 1 the bar is complete and the line ends."""
        is_new = text != self._line
        self._line = "" if share >= 1 else text
        if self._output.isatty():
            n_done = round(min(share, 1.0) * BAR_CELLS)
            end = "\n" if share >= 1 else ""
            filled = "#" * n_done + "." * (BAR_CELLS - n_done)
            self._output.write(f"\r[{filled}] {text}{end}")
        elif is_new and share < 1:
            self._output.write(f"{text}\n")
        self._output.flush()


class JsonReport:
    """One object per question, the summary last."""

    def __init__(self) -> None:
        self._waiting = Waiting(sys.stderr)

    def waiting(self, text: str, share: float) -> None:
        self._waiting.show(text, share)

    def progress(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def started(self, stages_ms: Mapping[str, float]) -> None:
        self.progress(_startup_line(stages_ms))

    def result(self, number: int, result: Result) -> None:
        print(json.dumps(_rounded(asdict(result))), flush=True)

    def summary(self, summary: Mapping[str, Any]) -> None:
        print(json.dumps({"summary": summary}), flush=True)

    def urls(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.progress(line)


class TextReport:
    """Blocks for people; plain lines where the output is not a terminal."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._waiting = Waiting(sys.stdout)

    def waiting(self, text: str, share: float) -> None:
        self._waiting.show(text, share)

    def progress(self, text: str) -> None:
        print(text, flush=True)

    def started(self, stages_ms: Mapping[str, float]) -> None:
        self.progress(_startup_line(stages_ms) + "\n")

    def result(self, number: int, result: Result) -> None:
        print(f"{number:2}  {result.moment:10}  {result.question}")
        if result.error is not None:
            print(f"    {self._paint('error', good=False)}: {result.error}\n", flush=True)
            return
        verdict = self._paint("right" if result.correct else "WRONG", good=result.correct)
        print(f"    {result.answer}   (truth: {result.expected})   {verdict}")
        age = "unknown" if result.age_ms is None else f"{result.age_ms:.0f} ms"
        print(
            f"    first token {result.ttft_ms:.0f} ms, all {result.total_ms:.0f} ms, evidence {age}"
            f" old, frames {result.frames}, reused tokens {result.reused_tokens}"
        )
        stages = ", ".join(
            f"{stage} {result.timings_ms[stage]:.0f}"
            for stage in STAGES
            if stage in result.timings_ms
        )
        print(f"    [{bar(result.timings_ms):{BAR_CELLS}}] ms: {stages}\n", flush=True)

    def summary(self, summary: Mapping[str, Any]) -> None:
        line = f"{summary['correct']} of {summary['questions']} right, {summary['errors']} errors"
        if summary["ttft_ms_median"] is not None:
            line += (
                f"; median first token {summary['ttft_ms_median']:.0f} ms,"
                f" median full answer {summary['total_ms_median']:.0f} ms"
            )
        print(line, flush=True)

    def urls(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.progress(line)

    def _paint(self, text: str, *, good: bool) -> str:
        return f"\x1b[{32 if good else 31}m{text}\x1b[0m" if self._colours else text


def _startup_line(stages_ms: Mapping[str, float]) -> str:
    parts = ", ".join(f"{stage} {ms / 1000:.2f} s" for stage, ms in stages_ms.items())
    return f"start to first answer {sum(stages_ms.values()) / 1000:.2f} s: {parts}"


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 1) if values else None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 1)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value

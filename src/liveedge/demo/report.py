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

BAR_CELLS = 16
ERASE = "\r\x1b[K"  # to the start of the line, and nothing on it
SHOWN_MS = 0.5  # a stage below is 0 when rounded
# Stages in the order they happen, with the letter they have in the bar.
STAGES = {
    "resolve": "r",
    "queue": "q",
    "preprocess": "p",
    "encode": "e",
    "prefill": "f",
    "decode": "d",
}
LEGEND = (
    f"bars: {', '.join(f'{letter} {stage}' for stage, letter in STAGES.items())}. All stages but"
    " decode\nend before the first token; decode is the rest of the answer.\n"
)
# What a stage of the start includes.
STARTS = {
    "server": "Python, its imports, until HTTP is answered",
    "model": "until the model is ready; it loads in its own process, beside the server:",
    "first frame": "opening the simulated camera",
    "first answer": "question 1",
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
    def working(self, text: str, seconds: float) -> None: ...
    def worked(self) -> None: ...
    def started(
        self, stages_ms: Mapping[str, float], model_stages_ms: Mapping[str, float]
    ) -> None: ...
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
    """A long step: one changing line where somebody watches, else a plain line when it begins."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._shown = ""

    def show(self, text: str, share: float) -> None:
        """`share` of the step is done."""
        n_done = round(min(share, 1.0) * BAR_CELLS)
        self._write(text, f"[{'#' * n_done}{'.' * (BAR_CELLS - n_done)}] {text}")

    def count(self, text: str, seconds: float) -> None:
        """The step takes `seconds` already, and nobody knows how long it will."""
        self._write(text, f"{text}: {seconds:.0f} s")

    def clear(self) -> None:
        """The step is over, if there was one."""
        if self._shown and self._output.isatty():
            self._output.write(ERASE)
            self._output.flush()
        self._shown = ""

    def _write(self, text: str, live: str) -> None:
        """`live` for a terminal, `text` for everything else; nothing if it stands there already."""
        shown = live if self._output.isatty() else text
        if shown != self._shown:
            self._output.write(f"{ERASE}{live}" if self._output.isatty() else f"{text}\n")
            self._output.flush()
        self._shown = shown


class JsonReport:
    """One object per question, the summary last."""

    def __init__(self) -> None:
        self._waiting = Waiting(sys.stderr)

    def waiting(self, text: str, share: float) -> None:
        self._waiting.show(text, share)

    def progress(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def working(self, text: str, seconds: float) -> None:
        self._waiting.count(text, seconds)

    def worked(self) -> None:
        self._waiting.clear()

    def started(self, stages_ms: Mapping[str, float], model_stages_ms: Mapping[str, float]) -> None:
        self.progress(start_told(stages_ms, model_stages_ms))

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

    def working(self, text: str, seconds: float) -> None:
        self._waiting.count(text, seconds)

    def worked(self) -> None:
        self._waiting.clear()

    def started(self, stages_ms: Mapping[str, float], model_stages_ms: Mapping[str, float]) -> None:
        self.progress(f"{start_told(stages_ms, model_stages_ms)}\n\n{LEGEND}")

    def result(self, number: int, result: Result) -> None:
        print(f"{number:2}  {result.moment:10}  {result.question}")
        if result.error is not None:
            print(f"    {self._paint('error', good=False)}: {result.error}\n", flush=True)
            return
        verdict = self._paint("right" if result.correct else "WRONG", good=result.correct)
        if result.kind == "state":  # JSON twice is too long for a line
            print(f"    answer {_compact(result.answer)}")
            print(f"    truth  {_compact(result.expected)}")
            print(f"    {verdict}")
        else:
            print(f"    {result.answer}   (truth: {result.expected})   {verdict}")
        age = "unknown" if result.age_ms is None else f"{result.age_ms:.0f} ms"
        print(
            f"    first token {result.ttft_ms:.0f} ms, all {result.total_ms:.0f} ms, evidence {age}"
            f" old, frames {result.frames}, reused tokens {result.reused_tokens}"
        )
        stages = ", ".join(
            f"{stage} {result.timings_ms[stage]:.0f}"
            for stage in STAGES
            if result.timings_ms.get(stage, 0.0) >= SHOWN_MS
        )
        print(f"    [{bar(result.timings_ms):{BAR_CELLS}}] {stages} ms\n", flush=True)

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


def start_told(stages_ms: Mapping[str, float], model_stages_ms: Mapping[str, float]) -> str:
    """The start stage by stage, with what each includes and what the model's went into."""
    lines = [f"start to first answer {sum(stages_ms.values()) / 1000:.2f} s"]
    for stage, ms in stages_ms.items():
        lines.append(f"    {stage:12} {ms / 1000:6.2f} s  {STARTS[stage]}")
        if stage == "model" and model_stages_ms:
            parts = ", ".join(f"{name} {ms / 1000:.2f}" for name, ms in model_stages_ms.items())
            lines.append(f"{'':19}{parts}")
    return "\n".join(lines)


def _compact(text: str) -> str:
    """JSON without spaces; what is no JSON stays."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":"))
    except ValueError:
        return text


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 1) if values else None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 1)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value

"""Measure the shipped model on held-out workcells, through the engine that serves it.

    python tools/evaluate_workcell.py --model build/workcell/model --json build/accuracy.json

1. Accuracy by kind of question at the default envelope: 854x480, four frames at 2 per second.
2. The questions that need time again from the newest frame alone: near chance, or the clip is not
   what the answers come from.
3. The media envelope: accuracy by camera size and number of frames.

`--card README.md` puts the tables between the markers of the model card. The last line printed is
JSON. The same seed asks the same questions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.core.clock import SystemClock
from liveedge.engine.client import load_engine
from liveedge.engine.interface import Engine, EngineSettings
from liveedge.engine.request import (
    Delta,
    Failed,
    Finished,
    FrameInput,
    GenerateRequest,
    ImagePart,
    Message,
    SamplingParams,
    TextPart,
    Usage,
    VideoPart,
)
from liveedge.frames.resolve import Pick
from liveedge.sim import questions
from liveedge.sim.render import NATIVE_HEIGHT, NATIVE_WIDTH
from workcell_exam import Exam, Moment, Question, Tally, draw_exams, pooled, shares

Pictures: TypeAlias = Mapping[int, NDArray[np.uint8]]  # by frame number
Tallies: TypeAlias = dict[str, Tally]

NATIVE: Final = (NATIVE_WIDTH, NATIVE_HEIGHT)
SIZES: Final = (NATIVE, (640, 360), (426, 240), (284, 160))
FRAME_COUNTS: Final = (1, 2, 4, 8)
CLIP_FRAMES: Final = 4
MAX_ANSWER_TOKENS: Final = 16  # twice the longest answer
MAX_STATE_TOKENS: Final = 96  # twice a state as JSON
CLIPS_AT_ONCE: Final = 2  # one is rendered while the other is asked about
PROGRESS_EVERY_S: Final = 10.0

# What the model card promises; a kind that is not named has no promise.
TARGETS: Final = {
    **dict.fromkeys(("door", "lamp", "person"), 0.99),
    **dict.fromkeys(("shirt", "first_box", "last_box"), 0.97),
    **dict.fromkeys(("count", "display"), 0.95),
    **dict.fromkeys(questions.CLIP_KINDS, 0.93),
}
MARK_BEGIN, MARK_END = "<!-- accuracy -->", "<!-- /accuracy -->"


@dataclass(slots=True)
class Progress:
    """Says on standard error how far a long step is."""

    name: str
    total: int
    done: int = 0
    began_s: float = field(default_factory=time.monotonic)
    said_s: float = 0.0

    def step(self) -> None:
        self.done += 1
        now_s = time.monotonic()
        if self.done < self.total and now_s - self.said_s < PROGRESS_EVERY_S:
            return
        self.said_s = now_s
        rate = self.done / max(now_s - self.began_s, 1e-6)
        line = f"{self.name}: {self.done} of {self.total} answers, {rate:.1f}/s"
        print(line, file=sys.stderr, flush=True)


@dataclass(slots=True)
class Marks:
    """What was answered, counted."""

    kinds: Tallies = field(default_factory=lambda: defaultdict(Tally))
    single: Tallies = field(default_factory=lambda: defaultdict(Tally))  # clip kinds, one picture
    parseable: Tally = field(default_factory=Tally)
    visual_tokens: int = 0  # of the most expensive clip
    reused_tokens: int = 0
    prompt_tokens: int = 0
    wrong: list[dict[str, Any]] = field(default_factory=list)

    def add(self, question: Question, answer: str, usage: Usage, moment: Moment) -> None:
        right = questions.score(question.kind, answer, question.truth)
        self.kinds[question.kind].add(right=right)
        if question.kind == "state":
            self.parseable.add(right=_is_json_object(answer))
        self.visual_tokens = max(self.visual_tokens, usage.image_tokens)
        self.reused_tokens += usage.cached_tokens
        self.prompt_tokens += usage.prompt_tokens
        if not right:
            self.wrong.append(
                {
                    "kind": question.kind,
                    "answer": answer,
                    "truth": question.truth,
                    "seed": moment.seed,
                    "t_s": round(moment.newest / moment.fps, 3),
                }
            )


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False


# Asking


class Examiner:
    """Puts exams to an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._n_requests = 0

    async def take(
        self, exams: Sequence[Exam], *, size: tuple[int, int], name: str, single: bool = False
    ) -> Marks:
        """All answers of all exams; with `single` the time questions a second time, see above."""
        marks = Marks()
        n_single = sum(q.kind in questions.CLIP_KINDS for e in exams for q in e.questions) * single
        progress = Progress(name, sum(len(exam.questions) for exam in exams) + n_single)
        gate = asyncio.Semaphore(CLIPS_AT_ONCE)

        async def one(exam: Exam) -> None:
            async with gate:
                width, height = size
                render = partial(exam.moment.render, width=width, height=height)
                pictures = await asyncio.to_thread(render)
                await self._about_clip(exam, pictures, marks, progress)
                if single:
                    await self._about_picture(exam, pictures, marks, progress)

        async with asyncio.TaskGroup() as tasks:
            for exam in exams:
                tasks.create_task(one(exam))
        return marks

    async def _about_clip(
        self, exam: Exam, pictures: Pictures, marks: Marks, progress: Progress
    ) -> None:
        """The first question alone: the others find its media in the engine's memory."""
        media = clip_part(exam.moment, pictures)

        async def one(question: Question) -> None:
            answer, usage = await self._answer(media, question)
            marks.add(question, answer, usage, exam.moment)
            progress.step()

        first, *others = exam.questions
        await one(first)
        await asyncio.gather(*(one(question) for question in others))

    async def _about_picture(
        self, exam: Exam, pictures: Pictures, marks: Marks, progress: Progress
    ) -> None:
        newest = exam.moment.picks[-1]
        media = ImagePart(frame=frame_input(exam.moment, newest, pictures))
        for question in exam.questions:
            if question.kind in questions.CLIP_KINDS:
                answer, _ = await self._answer(media, question)
                right = questions.score(question.kind, answer, question.truth)
                marks.single[question.kind].add(right=right)
                progress.step()

    async def _answer(self, media: ImagePart | VideoPart, question: Question) -> tuple[str, Usage]:
        self._n_requests += 1
        limit = MAX_STATE_TOKENS if question.kind == "state" else MAX_ANSWER_TOKENS
        request = GenerateRequest(
            request_id=f"exam-{self._n_requests}",
            messages=(Message(role="user", content=(media, TextPart(question.text))),),
            sampling=SamplingParams(max_tokens=limit),
        )
        said: list[str] = []
        async with aclosing(self._engine.generate(self._engine.prepare(request))) as events:
            async for event in events:
                match event:
                    case Delta():
                        said.append(event.text)
                    case Failed():
                        raise event.error
                    case Finished():
                        return "".join(said), event.usage
        raise AssertionError("an answer ended without its last event")


def frame_input(moment: Moment, pick: Pick, pictures: Pictures) -> FrameInput:
    pixels = pictures[pick.index]
    height, width, _ = pixels.shape
    return FrameInput(
        key=f"{moment.seed}/{moment.fps}/{pick.index}/{width}x{height}",
        width=width,
        height=height,
        load=lambda: pixels,
        time_s=moment.time_s(pick),
    )


def clip_part(moment: Moment, pictures: Pictures) -> VideoPart:
    """The frames as the service hands them to the engine."""
    picks = [pick for pair in moment.pairs() for pick in pair]
    return VideoPart(frames=tuple(frame_input(moment, pick, pictures) for pick in picks))


# The three measurements


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the envelope table."""

    size: tuple[int, int]
    n_frames: int
    state: Tally  # questions that one frame can answer
    time: Tally  # questions that need a clip
    visual_tokens: int

    def to_json(self) -> dict[str, Any]:
        return {
            "camera": f"{self.size[0]}x{self.size[1]}",
            "frames": self.n_frames,
            "visual_tokens": self.visual_tokens,
            "state": self.state.to_json(),
            "time": self.time.to_json() if self.time.n else None,
        }


async def measure_accuracy(
    examiner: Examiner, *, n_questions: int, seed: int, size: tuple[int, int] = NATIVE
) -> Marks:
    rng = np.random.default_rng((seed, 1))
    wanted = shares(tuple(questions.KINDS), n_questions)
    exams = draw_exams(rng, wanted=wanted, n_frames=CLIP_FRAMES)
    return await examiner.take(exams, size=size, name="accuracy", single=True)


async def measure_envelope(
    examiner: Examiner,
    *,
    n_questions: int,
    seed: int,
    sizes: Sequence[tuple[int, int]] = SIZES,
    frame_counts: Sequence[int] = FRAME_COUNTS,
) -> list[Cell]:
    """The same moments at every camera size; `n_questions` of state and as many of time."""
    cells = []
    for n_frames in frame_counts:
        wanted = shares(questions.FRAME_KINDS, n_questions)
        if n_frames > 1:
            wanted += shares(questions.CLIP_KINDS, n_questions)
        rng = np.random.default_rng((seed, 2, n_frames))
        exams = draw_exams(rng, wanted=wanted, n_frames=n_frames)
        for size in sizes:
            name = f"envelope {size[0]}x{size[1]}, {n_frames} frames"
            marks = await examiner.take(exams, size=size, name=name)
            state = pooled(marks.kinds, questions.FRAME_KINDS)
            in_time = pooled(marks.kinds, questions.CLIP_KINDS)
            cells.append(Cell(size, n_frames, state, in_time, marks.visual_tokens))
    return cells


# Tables


def accuracy_table(marks: Marks) -> str:
    """By kind, with what was promised."""
    lines = [
        "| question | right | 95 % interval | n | promised |",
        "|---|--:|--:|--:|--:|",
    ]
    for kind, tally in _in_order(marks.kinds):
        target = TARGETS.get(kind)
        promised = "" if target is None else f"{target:.0%}"
        missed = target is not None and tally.rate < target
        lines.append(
            f"| {kind.replace('_', ' ')} | {_percent(tally)} | {_interval(tally)} | {tally.n} |"
            f" {promised}{' (missed)' if missed else ''} |"
        )
    total = pooled(marks.kinds, tuple(marks.kinds))
    lines.append(f"| **all** | {_percent(total)} | {_interval(total)} | {total.n} | |")
    return "\n".join(lines)


def single_table(marks: Marks) -> str:
    """Time questions: the clip against its newest frame alone."""
    lines = [
        "| question | from the clip | from its newest frame alone | 95 % interval | chance |",
        "|---|--:|--:|--:|--:|",
    ]
    for kind, tally in _in_order(marks.single):
        chance = 1 / len(questions.KINDS[kind].answers)
        lines.append(
            f"| {kind.replace('_', ' ')} | {_percent(marks.kinds[kind])} | {_percent(tally)} |"
            f" {_interval(tally)} | {chance:.0%} |"
        )
    return "\n".join(lines)


def envelope_table(cells: Sequence[Cell]) -> str:
    """Rows are camera sizes, columns numbers of frames; state / time (visual tokens)."""
    found = {(cell.size, cell.n_frames): cell for cell in cells}
    sizes, counts = (list(dict.fromkeys(keys)) for keys in zip(*found, strict=True))
    lines = [
        "| camera | " + " | ".join(_frames(n) for n in counts) + " |",
        "|---|" + "--:|" * len(counts),
    ]
    for width, height in sizes:
        row = [_cell(found[(width, height), n_frames]) for n_frames in counts]
        lines.append(f"| {width}x{height} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def report(marks: Marks, cells: Sequence[Cell]) -> str:
    """Everything as Markdown."""
    setting = (
        f"Four frames at 2 per second of 854x480, at most {marks.visual_tokens} visual tokens; "
        "unseen workcells, difficulty normal; questions balanced over kinds and answers. JSON "
        f"states that parse: {_percent(marks.parseable)} of {marks.parseable.n}."
    )
    parts = [
        setting,
        accuracy_table(marks),
        "The questions that need time, asked about the newest frame alone:",
        single_table(marks),
    ]
    if cells:
        fewest = min(tally.n for cell in cells for tally in (cell.state, cell.time) if tally.n)
        legend = (
            "The media envelope: questions about the state / about what happened (visual tokens), "
            f"frames 0.5 s apart, at least {fewest} questions for each figure:"
        )
        parts += [legend, envelope_table(cells)]
    return "\n\n".join(parts)


def fill_card(card: Path, text: str) -> None:
    """Replace what stands between the markers."""
    whole = card.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(MARK_BEGIN)
    _, end, after = rest.partition(MARK_END)
    if not begin or not end:
        raise SystemExit(f"{card}: has no {MARK_BEGIN} ... {MARK_END} to fill")
    card.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def figures(marks: Marks, cells: Sequence[Cell]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "kinds": {kind: tally.to_json() for kind, tally in _in_order(marks.kinds)},
        "all": pooled(marks.kinds, tuple(marks.kinds)).to_json(),
        "single_frame": {kind: tally.to_json() for kind, tally in _in_order(marks.single)},
        "json_parseable": marks.parseable.to_json(),
        "visual_tokens": marks.visual_tokens,
        "reused_share": marks.reused_tokens / max(marks.prompt_tokens, 1),
        "promises_missed": [
            kind for kind, target in TARGETS.items() if not marks.kinds[kind].rate >= target
        ],
        "envelope": [cell.to_json() for cell in cells],
    }


def _in_order(tallies: Tallies) -> list[tuple[str, Tally]]:
    return [(kind, tallies[kind]) for kind in questions.KINDS if kind in tallies]


def _percent(tally: Tally) -> str:
    return f"{tally.rate:.1%}"


def _interval(tally: Tally) -> str:
    low, high = tally.interval
    return f"{low:.1%}–{high:.1%}"


def _frames(n: int) -> str:
    return f"{n} frame{'s' if n > 1 else ''}"


def _cell(cell: Cell) -> str:
    in_time = f" / {_percent(cell.time)}" if cell.time.n else ""
    return f"{_percent(cell.state)}{in_time} ({cell.visual_tokens})"


# The program


async def measure(options: argparse.Namespace) -> tuple[Marks, list[Cell]]:
    settings = EngineSettings(device=options.device, n_slots=options.slots)
    engine = load_engine(options.model, settings=settings, clock=SystemClock())
    try:
        await engine.ready()
        examiner = Examiner(engine)
        marks = await measure_accuracy(examiner, n_questions=options.questions, seed=options.seed)
        cells: list[Cell] = []
        if options.envelope_questions:
            cells = await measure_envelope(
                examiner, n_questions=options.envelope_questions, seed=options.seed
            )
    finally:
        engine.close()
    return marks, cells


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--questions", type=int, default=2400, help="at the default envelope")
    parser.add_argument(
        "--envelope-questions",
        type=int,
        default=256,
        help="of state and of time, per cell; 0: none",
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is asked")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--slots", type=int, default=12, help="questions asked at once")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write figures and mistakes")
    parser.add_argument("--card", type=Path, metavar="README", help="model card to fill")
    options = parser.parse_args()
    began_s = time.monotonic()
    marks, cells = asyncio.run(measure(options))
    text = report(marks, cells)
    print(text + "\n")
    result = figures(marks, cells)
    result |= {"seed": options.seed, "seconds": round(time.monotonic() - began_s)}
    if options.card is not None:
        fill_card(options.card, text)
    if options.json is not None:
        whole = result | {"wrong": marks.wrong}
        options.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

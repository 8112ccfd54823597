"""A window that slides: time to first token of liveedge and of peers, on the same weights.

    PYTHONPATH=src:bench python -m peers.slide --vllm PYTHON --llama FOLDER

One server at a time has all cores. Each is asked over HTTP for one greedy token, after
new      media that it has never seen
same     the same media and the same question again
other    the same media, another question
slid     the window moved on by one frame, asked as soon as that frame is there
waited   the same for a stream, asked shortly before the next frame is due
A peer gets all frames of the window with every question, as a video or as pictures. Ours gets them
as pictures too, and as what it is made for: a camera that sends every frame once (`stream`; the
time of a push stands beside it). Before that, each is timed from the start of its process to its
first answer, about one picture. Texts of longer answers are compared with transformers' own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from peers.camera import Camera, fill
from peers.chat import Chat, Part, Reply, as_images, as_video
from peers.clips import Clips
from peers.process import end_on_sigterm, free_port, running
from peers.sides import LIVEEDGE, STOCK, Mode, Side, add_arguments, chosen, title
from report import finish, table

QUESTION = "Is the door open or closed?"
OTHER = "Is the lamp on or off?"
AGREED = (
    QUESTION,
    OTHER,
    "Which way is the belt moving?",
    "How many boxes are on the belt?",
    "What number is on the display?",
    "Is somebody there?",
)
ANSWER_TOKENS = 12
WAITED_SHARE = 0.7  # of the time between two frames
COLUMNS = ("new", "same", "other", "slid", "waited", "push")

Texts: TypeAlias = dict[tuple[int, str], str]  # by scene and question


@dataclass(slots=True)
class Measured:
    """What one side did in one mode."""

    times_ms: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    n_read: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    texts: Texts = field(default_factory=dict)

    def add(self, column: str, reply: Reply) -> None:
        self.times_ms[column].append(reply.total_ms)
        self.n_read[column].append(reply.n_read)

    def median_ms(self, column: str) -> float:
        values = self.times_ms[column]
        return statistics.median(values) if values else float("nan")

    def median_read(self, column: str) -> float:
        values = self.n_read[column]
        return float(statistics.median(values)) if values else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """How much is measured, on which pictures."""

    clips: Clips
    n_frames: int
    n_new: int
    n_slides: int
    n_agree: int  # scenes on which answers are compared

    def scenes(self) -> list[list[bytes]]:
        """One window each that nobody has seen, the one for warming up last."""
        return [self.clips.jpegs(number, self.n_frames) for number in range(self.n_new + 1)]

    def long_scene(self, n_slides: int) -> list[bytes]:
        return self.clips.jpegs(self.n_new + 1, self.n_frames + n_slides)


def with_every_question(chat: Chat, mode: Mode, task: Task) -> Measured:
    """A server that gets all frames of the window each time."""
    shown = as_video if mode == "video" else as_images
    measured = Measured()
    *scenes, warm_up = task.scenes()
    chat.ask(shown(warm_up), QUESTION)
    for number, scene in enumerate(scenes):
        new_same_other(chat, shown(scene), measured)
        if number < task.n_agree:
            answers(chat, shown(scene), number, measured.texts)
    long = task.long_scene(task.n_slides)
    chat.ask(shown(long[: task.n_frames]), QUESTION)
    for first in range(1, task.n_slides + 1):
        window = shown(long[first : first + task.n_frames])
        measured.add("slid", chat.ask(window, QUESTION))
    return measured


def as_they_come(chat: Chat, task: Task) -> Measured:
    """Ours, from cameras that send each frame once."""
    measured = Measured()
    interval_s = task.clips.interval_s
    *scenes, before = task.scenes()
    warm_up = Camera(chat.http, interval_s=interval_s)
    fill([warm_up], [before], task.n_frames)
    chat.ask(warm_up.window(task.n_frames), QUESTION)
    warm_up.close()
    cameras = [Camera(chat.http, interval_s=interval_s) for _ in scenes]
    fill(cameras, scenes, task.n_frames)
    for number, camera in enumerate(cameras):
        new_same_other(chat, camera.window(task.n_frames), measured)
        if number < task.n_agree:
            answers(chat, camera.window(task.n_frames), number, measured.texts)
    for camera in cameras:
        camera.close()
    slide_stream(chat, task, measured)
    return measured


def slide_stream(chat: Chat, task: Task, measured: Measured) -> None:
    interval_s = task.clips.interval_s
    long = task.long_scene(2 * task.n_slides)
    camera = Camera(chat.http, interval_s=interval_s)
    fill([camera], [long], task.n_frames)
    chat.ask(camera.window(task.n_frames), QUESTION)
    for index, jpeg in enumerate(long[task.n_frames :]):
        measured.times_ms["push"].append(camera.push(jpeg))
        column = "waited" if index % 2 else "slid"
        if column == "waited":
            time.sleep(interval_s * WAITED_SHARE)
        reply = chat.ask(camera.window(task.n_frames), QUESTION)
        check_frames(reply, newest=camera.n_frames - 1, n_frames=task.n_frames)
        measured.add(column, reply)
    camera.close()


def check_frames(reply: Reply, *, newest: int, n_frames: int) -> None:
    """A fast answer about the wrong frames is worth nothing."""
    seen = [frame["frame_index"] for frame in reply.evidence["frames"]]
    expected = list(range(newest - n_frames + 1, newest + 1))
    if sorted(set(seen)) != expected:
        raise SystemExit(f"the answer is about frames {seen}, asked was about {expected}")


def new_same_other(chat: Chat, window: Sequence[Part], measured: Measured) -> None:
    measured.add("new", chat.ask(window, QUESTION))
    measured.add("same", chat.ask(window, QUESTION))
    measured.add("other", chat.ask(window, OTHER))


def answers(chat: Chat, window: Sequence[Part], number: int, texts: Texts) -> None:
    for question in AGREED:
        texts[number, question] = chat.ask(window, question, max_tokens=ANSWER_TOKENS).text


def starts_and_measured(
    side: Side, modes: Sequence[Mode], task: Task, n_starts: int
) -> tuple[list[float], list[float], dict[Mode, Measured]]:
    """(seconds to ready, seconds to the first answer, what the last of the servers did)."""
    picture = as_images(task.clips.jpegs(0, 1))
    ready_s: list[float] = []
    first_s: list[float] = []
    measured: dict[Mode, Measured] = {}
    for number in range(n_starts):
        port = free_port()
        with running(side.launch(port), port=port) as server, Chat(server.url) as chat:
            chat.ask(picture, QUESTION)
            first_s.append(time.perf_counter() - server.begun_s)
            ready_s.append(server.ready_s)
            if number + 1 < n_starts:
                continue
            for mode in modes:
                stream = mode == "stream"
                measured[mode] = (
                    as_they_come(chat, task) if stream else with_every_question(chat, mode, task)
                )
    return ready_s, first_s, measured


def agreement(texts: Texts, reference: Texts) -> str:
    """How many answers are the reference's own."""
    common = texts.keys() & reference.keys()
    return f"{sum(texts[key] == reference[key] for key in common)}/{len(common)}"


def reference_of(mode: Mode) -> Mode:
    """The mode in which transformers sees what a side sees in `mode`."""
    return "video" if mode == "stream" else mode


def row(
    name: str, mode: Mode, measured: Measured, reference: Mapping[Mode, Measured]
) -> tuple[object, ...]:
    same = reference.get(reference_of(mode))
    agree = agreement(measured.texts, same.texts if same else {})
    times = [measured.median_ms(column) for column in COLUMNS]
    tokens = [measured.median_read(column) for column in ("new", "slid")]
    return (f"{name}, {mode}", *times, *tokens, agree)


def figures_of(measured: Measured, agree: str, ours_ms: float) -> dict[str, object]:
    times = {f"{column}_ms": measured.median_ms(column) for column in COLUMNS}
    return {
        **times,
        "new_tokens": measured.median_read("new"),
        "slid_tokens": measured.median_read("slid"),
        "agree": agree,
        "slid_over_ours": measured.median_ms("slid") / ours_ms,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--frames", type=int, default=8, help="of a window")
    parser.add_argument("--slides", type=int, default=20)
    parser.add_argument("--new", type=int, default=5, help="windows never seen before")
    parser.add_argument("--agree", type=int, default=5, help="scenes whose answers are compared")
    parser.add_argument("--starts", type=int, default=1, help="of each server")
    parser.add_argument("--modes", default="stream,video,images", help="of these, which to measure")
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument(
        "--interval-s",
        type=float,
        default=0.5,
        help="between two frames; longer for a model that needs longer for one",
    )
    return parser.parse_args()


def main() -> None:
    options = parse()
    end_on_sigterm()
    clips = Clips(width=options.width, height=options.height, interval_s=options.interval_s)
    task = Task(
        clips=clips,
        n_frames=options.frames,
        n_new=options.new,
        n_slides=options.slides,
        n_agree=min(options.agree, options.new),
    )
    asked = options.modes.split(",")
    results: dict[str, dict[Mode, Measured]] = {}
    starts: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as work:
        for side in chosen(options, work=Path(work), fps=1 / options.interval_s):
            modes = [mode for mode in side.modes if mode in asked]
            ready_s, first_s, results[side.name] = starts_and_measured(
                side, modes, task, options.starts
            )
            starts[side.name] = statistics.median(ready_s), statistics.median(first_s)
            print(f"{side.name}: measured", flush=True)
    show(options, results, starts)


def show(
    options: argparse.Namespace,
    results: Mapping[str, Mapping[Mode, Measured]],
    starts: Mapping[str, tuple[float, float]],
) -> None:
    print()
    table(("side", "ready s", "first answer s"), [(name, *starts[name]) for name in starts])
    reference = results.get(STOCK, {})
    rows = [
        row(name, mode, measured, reference)
        for name, modes in results.items()
        for mode, measured in modes.items()
    ]
    columns = ("median ms", *COLUMNS, "tokens new", "tokens slid", "agree")
    table(columns, rows)
    ours = results.get(LIVEEDGE, {})
    best = ours.get("stream") or next(iter(ours.values()), Measured())
    sides = {
        str(line[0]): figures_of(measured, str(line[-1]), best.median_ms("slid"))
        for line, measured in zip(
            rows, (one for modes in results.values() for one in modes.values()), strict=True
        )
    }
    finish(
        {
            "model": title(options.model),
            "frames": options.frames,
            "slides": options.slides,
            "interval_s": options.interval_s,
            "threads": options.threads,
            "starts": {name: {"ready_s": a, "first_s": b} for name, (a, b) in starts.items()},
            "sides": sides,
        }
    )


if __name__ == "__main__":
    main()

"""Whether the sides answer alike, and rightly, on the shipped weights.

    PYTHONPATH=src:bench python -m peers.agree --vllm PYTHON --llama FOLDER

One side at a time is asked greedily about single frames and about clips of four, whose truth the
simulator knows, in every way in which it takes frames. Printed are right answers, texts equal to
transformers' own for the same request, and tokens that a prompt takes. Time is not measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from liveedge.sim.render import NATIVE_HEIGHT, NATIVE_WIDTH
from peers.camera import Camera, fill
from peers.chat import Chat, Part, as_images, as_video
from peers.exam import INTERVAL_S, Item, draw
from peers.process import end_on_sigterm, free_port, running
from peers.sides import STOCK, Mode, Side, add_arguments, chosen, title
from report import finish, table

N_FRAMES = 4  # of a clip
MAX_TOKENS = 96  # the longest answer is a line of JSON
AT_ONCE = 2  # cameras: all must keep their pace, on a busy machine too

Task: TypeAlias = tuple[Literal["frame", "clip"], Mode]


@dataclass(slots=True)
class Answers:
    """What one side said to one list of items in one way of sending them."""

    texts: list[str] = field(default_factory=list)
    n_read: list[int] = field(default_factory=list)

    def ask(self, chat: Chat, media: Sequence[Part], item: Item) -> None:
        reply = chat.ask(media, item.question, max_tokens=MAX_TOKENS)
        self.texts.append(reply.text)
        self.n_read.append(reply.n_read)


def with_every_question(chat: Chat, mode: Mode, items: Sequence[Item]) -> Answers:
    """The frames go with each question."""
    shown = as_video if mode == "video" else as_images
    answers = Answers()
    for item in items:
        answers.ask(chat, shown(item.jpegs), item)
    return answers


def from_cameras(chat: Chat, items: Sequence[Item]) -> Answers:
    """The frames come from cameras, some at a time."""
    answers = Answers()
    for first in range(0, len(items), AT_ONCE):
        batch = items[first : first + AT_ONCE]
        cameras = [Camera(chat.http, interval_s=INTERVAL_S) for _ in batch]
        fill(cameras, [item.jpegs for item in batch], N_FRAMES)
        for camera, item in zip(cameras, batch, strict=True):
            answers.ask(chat, camera.window(N_FRAMES), item)
        for camera in cameras:
            camera.close()
    return answers


def asked(side: Side, frames: Sequence[Item], clips: Sequence[Item]) -> dict[Task, Answers]:
    """Everything that this side can be asked."""
    port = free_port()
    found: dict[Task, Answers] = {}
    with running(side.launch(port), port=port) as server, Chat(server.url) as chat:
        found["frame", "images"] = with_every_question(chat, "images", frames)
        for mode in side.modes:
            stream = mode == "stream"
            found["clip", mode] = (
                from_cameras(chat, clips) if stream else with_every_question(chat, mode, clips)
            )
    return found


def reference_of(task: Task) -> Task:
    """What transformers is asked in the same place: a stream is a video there."""
    shape, mode = task
    return shape, "video" if mode == "stream" else mode


def differing(items: Sequence[Item], texts: Sequence[str], same: Sequence[str]) -> list[str]:
    """Where two sides differ, a line each, with the truth."""
    return [
        f"{item.question!r} is {item.truth!r}: {text!r}, transformers {other!r}"
        for item, text, other in zip(items, texts, same, strict=True)
        if text != other
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--count", type=int, default=50, help="of frames, and again of clips")
    parser.add_argument("--width", type=int, default=NATIVE_WIDTH)
    parser.add_argument("--height", type=int, default=NATIVE_HEIGHT)
    parser.add_argument("--show", type=int, default=5, help="differences to print for each row")
    options = parser.parse_args()
    end_on_sigterm()
    items = {
        shape: draw(options.count, n_frames=n, width=options.width, height=options.height)
        for shape, n in (("frame", 1), ("clip", N_FRAMES))
    }
    results: dict[str, dict[Task, Answers]] = {}
    with tempfile.TemporaryDirectory() as work:
        for side in chosen(options, work=Path(work), fps=1 / INTERVAL_S):
            results[side.name] = asked(side, items["frame"], items["clip"])
            print(f"{side.name}: asked", flush=True)
    show(options, items, results)


def show(
    options: argparse.Namespace,
    items: Mapping[str, Sequence[Item]],
    results: Mapping[str, Mapping[Task, Answers]],
) -> None:
    rows: list[tuple[object, ...]] = []
    figures: dict[str, object] = {}
    reference = results.get(STOCK, {})
    for name, found in results.items():
        for (shape, mode), answers in found.items():
            about = items[shape]
            right = sum(
                item.is_right(text) for item, text in zip(about, answers.texts, strict=True)
            )
            row: dict[str, object] = {
                "asked": len(about),
                "right": right,
                "equal": "",
                "tokens": statistics.median(answers.n_read),
            }
            if same := reference.get(reference_of((shape, mode))):
                lines = differing(about, answers.texts, same.texts)
                row["equal"] = len(about) - len(lines)
                for line in lines[: options.show]:
                    print(f"{name}, {shape} as {mode}: {line}")
            rows.append((name, shape, mode, *row.values()))
            figures[f"{name}, {shape} as {mode}"] = row
    print()
    columns = ("side", "about a", "sent as", "asked", "right", "equal", "tokens")
    table(columns, rows)
    size = f"{options.width}x{options.height}"
    finish({"model": title(options.model), "size": size, "sides": figures})


if __name__ == "__main__":
    main()

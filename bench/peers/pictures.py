"""Pictures of the simulated camera and questions about them, for load tools that bring neither.

    PYTHONPATH=src:bench python -m peers.pictures OUT --count 120

Every question is about new pictures. One line each, in the same order, of
OUT/questions.jsonl   the question, and the files under OUT/frames that it is about
OUT/requests.jsonl    the whole request: pictures first, then the question, streamed, greedy
OUT/truths.jsonl      the true answer, which no load tool reads
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from liveedge.sim.render import NATIVE_HEIGHT, NATIVE_WIDTH
from peers.chat import as_images
from peers.exam import Item, draw
from peers.names import SHIPPED, model_id

MAX_TOKENS = 96  # the longest answer is a line of JSON


def request(item: Item, *, model: str) -> dict[str, Any]:
    """What every program here sends: the media, then the question."""
    content = [*as_images(item.jpegs), {"type": "text", "text": item.question}]
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def write(items: Sequence[Item], out: Path, *, model: str) -> None:
    frames = out.resolve() / "frames"
    frames.mkdir(parents=True, exist_ok=True)
    for number, item in enumerate(items):
        for path, data in zip(_paths(frames, number, item), item.jpegs, strict=True):
            path.write_bytes(data)
    questions = [_question(item, _paths(frames, n, item)) for n, item in enumerate(items)]
    _write_lines(out / "questions.jsonl", questions)
    _write_lines(out / "requests.jsonl", [request(item, model=model) for item in items])
    truths = [{"kind": item.kind, "truth": item.truth} for item in items]
    _write_lines(out / "truths.jsonl", truths)


def _paths(frames: Path, number: int, item: Item) -> list[Path]:
    return [frames / f"{number:04}-{index}.jpg" for index in range(len(item.jpegs))]


def _question(item: Item, paths: Sequence[Path]) -> dict[str, Any]:
    """The keys that both tools know; of several pictures, aiperf only."""
    if len(paths) == 1:
        return {"text": item.question, "image": str(paths[0])}
    return {"texts": [item.question], "images": [str(path) for path in paths]}


def _write_lines(path: Path, lines: Sequence[object]) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--count", type=int, default=120, help="questions")
    parser.add_argument(
        "--frames", type=int, default=1, help="pictures of a question, oldest first"
    )
    parser.add_argument("--width", type=int, default=NATIVE_WIDTH)
    parser.add_argument("--height", type=int, default=NATIVE_HEIGHT)
    parser.add_argument("--model", default=model_id(SHIPPED), help="id in the requests")
    options = parser.parse_args()
    items = draw(options.count, n_frames=options.frames, width=options.width, height=options.height)
    write(items, options.out, model=options.model)


if __name__ == "__main__":
    main()

"""Pictures of the simulated camera and questions about them, for load tools that bring neither.

    PYTHONPATH=src:bench python -m peers.pictures OUT --count 120

Every question is about new pictures. One line each, in the same order, of
OUT/questions.jsonl   the question, and the files under OUT/frames that it is about
OUT/requests.jsonl    the whole request: pictures first, then the question, streamed, greedy
OUT/truths.jsonl      the true answer, which no load tool reads
With --live, requests.jsonl has that reference in place of pictures: what a camera shows when the
request arrives, which no file can hold.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from liveedge.sim.render import NATIVE_HEIGHT, NATIVE_WIDTH
from peers.chat import Part, as_images
from peers.exam import Item, draw
from peers.names import SHIPPED, model_id

MAX_TOKENS = 96  # the longest answer is a line of JSON
LIVE = r"ovs://streams/[^/?]+\?."


def request(media: Sequence[Part], question: str, *, model: str) -> dict[str, Any]:
    """What every program here sends: the media, then the question."""
    content = [*media, {"type": "text", "text": question}]
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
    requests = [request(as_images(item.jpegs), item.question, model=model) for item in items]
    _write_lines(out / "requests.jsonl", requests)
    truths = [{"kind": item.kind, "truth": item.truth} for item in items]
    _write_lines(out / "truths.jsonl", truths)


def write_live(items: Sequence[Item], out: Path, *, model: str, reference: str) -> None:
    """The questions about a stream of a liveedge server."""
    out.mkdir(parents=True, exist_ok=True)
    kind = "video_url" if "start_" in reference else "image_url"
    media: list[Part] = [{"type": kind, kind: {"url": reference}}]
    requests = [request(media, item.question, model=model) for item in items]
    _write_lines(out / "requests.jsonl", requests)


def _paths(frames: Path, number: int, item: Item) -> list[Path]:
    return [frames / f"{number:04}-{index}.jpg" for index in range(len(item.jpegs))]


def _question(item: Item, paths: Sequence[Path]) -> dict[str, Any]:
    """The keys that both tools know; of several pictures, aiperf only."""
    if len(paths) == 1:
        return {"text": item.question, "image": str(paths[0])}
    return {"texts": [item.question], "images": [str(path) for path in paths]}


def _write_lines(path: Path, lines: Sequence[object]) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--count", type=int, default=120, help="questions")
    parser.add_argument(
        "--frames", type=int, default=1, help="pictures of a question, oldest first"
    )
    parser.add_argument("--seed", type=int, default=0, help="another one draws other pictures")
    parser.add_argument("--live", metavar="REFERENCE", help="`ovs://streams/ID?frame_index=-1`")
    parser.add_argument("--width", type=int, default=NATIVE_WIDTH)
    parser.add_argument("--height", type=int, default=NATIVE_HEIGHT)
    parser.add_argument("--model", default=model_id(SHIPPED), help="id in the requests")
    options = parser.parse_args(arguments)
    if options.live is not None and not re.match(LIVE, options.live):
        parser.error(f"--live is {options.live!r}, it must be ovs://streams/ID?...")
    return options


def main() -> None:
    options = parse()
    items = draw(
        options.count,
        n_frames=options.frames,
        width=options.width,
        height=options.height,
        seed=options.seed,
    )
    if options.live is None:
        write(items, options.out, model=options.model)
    else:
        write_live(items, options.out, model=options.model, reference=options.live)


if __name__ == "__main__":
    main()

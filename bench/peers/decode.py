"""Tokens per second of one answer: liveedge and peers, on the same weights.

    PYTHONPATH=src:bench python -m peers.decode --model FOLDER --vllm PYTHON --llama FOLDER

One server at a time has all cores. Each is asked over HTTP for one token and for many, greedily;
what each token of the longer answer took more is its time. So neither prompt nor HTTP counts, but
all that a server does for every token does. After a short text, and after frames as pictures, which
make the context long. A model with random weights answers at any length; one that ends earlier,
such as the shipped one, is refused, since its short answers would be timed by noise.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from peers.chat import Chat, Part, as_images
from peers.clips import Clips
from peers.process import end_on_sigterm, free_port, running
from peers.sides import LIVEEDGE, Side, add_arguments, chosen, title
from report import finish, table

QUESTION = "Tell a long story about the people who work here."
LEAST_SHARE = 0.5  # of the tokens asked for; with fewer the difference is too small to time


def ms_per_token(chat: Chat, media: Sequence[Part], *, n_tokens: int, runs: int) -> float:
    """The median over runs, each of a short answer and a long one."""
    chat.ask(media, QUESTION, max_tokens=n_tokens)  # from here on, the prompt is known to all
    found: list[float] = []
    for _ in range(runs):
        short = chat.ask(media, QUESTION)
        long = chat.ask(media, QUESTION, max_tokens=n_tokens)
        if long.n_written < LEAST_SHARE * n_tokens:
            raise SystemExit(
                f"the answer ended after {long.n_written} of {n_tokens} tokens: take a checkpoint"
                " with random weights (tools/random_checkpoint.py)"
            )
        found.append((long.total_ms - short.total_ms) / (long.n_written - short.n_written))
    return statistics.median(found)


def measure(side: Side, options: argparse.Namespace) -> dict[str, float]:
    clips = Clips(width=options.width, height=options.height, interval_s=0.5)
    port = free_port()
    with running(side.launch(port), port=port) as server, Chat(server.url) as chat:
        prompts = {"text": [], "frames": as_images(clips.jpegs(0, options.frames))}
        return {
            name: 1000 / ms_per_token(chat, media, n_tokens=options.tokens, runs=options.runs)
            for name, media in prompts.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--tokens", type=int, default=128, help="of the long answer")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--frames", type=int, default=8, help="pictures before the second answer")
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--height", type=int, default=480)
    options = parser.parse_args()
    end_on_sigterm()
    speeds: dict[str, Mapping[str, float]] = {}
    with tempfile.TemporaryDirectory() as work:
        for side in chosen(options, work=Path(work), fps=2.0):
            speeds[side.name] = measure(side, options)
            print(f"{side.name}: measured", flush=True)
    print()
    ours = speeds.get(LIVEEDGE, {})
    nan = float("nan")
    rows = [
        (name, *found.values(), *(ours.get(key, nan) / found[key] for key in found))
        for name, found in speeds.items()
    ]
    table(("tokens/s", "text", "frames", "ours / it, text", "ours / it, frames"), rows)
    finish(
        {
            "model": title(options.model),
            "tokens": options.tokens,
            "threads": options.threads,
            "precision": options.precision,
            "tok_s": speeds,
        }
    )


if __name__ == "__main__":
    main()

"""Pixels to patches: stock transformers against liveedge, in one run, alternating, bit by bit.

    python bench/preprocess.py

Clips of 15 frames at 480p with no downsampling: 854x480 becomes 864x480, the nearest size that the
patches fit. Two questions, each for both sides:
sequential  one clip after the other; a clip's patches all exist at the end
load        clips arrive at a constant rate, whether the last one is done or not; a clip's time
            counts from its scheduled arrival, so a queue is seen as it is
stock       the reference's video processor, with torch's own number of threads
ours        one temporal pair after the other, as a loader thread of the engine does it: one thread
Before anything is timed the patches of both sides are compared: `identical`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

from liveedge.models.qwen3_vl.config import load_config, load_pixel_config
from liveedge.models.qwen3_vl.geometry import fit_frame
from liveedge.models.qwen3_vl.processor import Preprocessor
from liveedge.native.pixels import pixel_kernels
from liveedge.sim.questions import TEST_SEEDS
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell
from machine import SHIPPED, announce, settle, undisturbed
from report import finish, percentile, table

FPS = 2.0
WIDTH, HEIGHT = 854, 480
PER_FRAME_PX = 1 << 22  # of the budget: far above 480p, so that nothing shrinks
N_CLIPS = 3  # different ones, so that no side finds a whole clip in the processor's cache
Clip = Sequence[NDArray[np.uint8]]
Side = Callable[[Clip], object]


class Stock:
    """The reference's video processor with frames that are sampled already."""

    def __init__(self, folder: Path) -> None:
        library: Any = transformers  # ships few types
        library.logging.set_verbosity_error()
        self._processor: Any = library.AutoProcessor.from_pretrained(folder).video_processor
        self.n_threads = torch.get_num_threads()

    def __call__(self, clip: Clip) -> Tensor:
        n_px = PER_FRAME_PX * len(clip)
        made = self._processor(
            videos=[np.stack(clip)],
            size={"shortest_edge": 1, "longest_edge": n_px},
            cap_pixels_per_frame=False,
            do_sample_frames=False,
            return_tensors="pt",
        )
        patches: Tensor = made["pixel_values_videos"]
        return patches


class Ours:
    """What a loader thread does for each temporal group."""

    def __init__(self, folder: Path) -> None:
        vision = load_config(folder).vision
        self._factor, self._depth = vision.factor, vision.temporal_patch_size
        self._preprocess = Preprocessor(vision, load_pixel_config(folder, vision)).preprocess
        self.n_threads = 1

    def __call__(self, clip: Clip) -> list[Tensor]:
        return [self.group(clip[at : at + self._depth]) for at in range(0, len(clip), self._depth)]

    def group(self, frames: Clip) -> Tensor:
        height, width = frames[0].shape[:2]
        size = fit_frame(height, width, min_pixels=1, max_pixels=PER_FRAME_PX, factor=self._factor)
        return self._preprocess(frames, size=size)


def clips(n_frames: int) -> list[Clip]:
    """Rendered beforehand, in memory as a decoder leaves them."""
    made: list[Clip] = []
    for seed in itertools.islice(TEST_SEEDS, N_CLIPS):
        renderer = Renderer(Workcell(seed), width=WIDTH, height=HEIGHT)
        made.append([renderer.render(i, 5.0 + i / FPS, 0) for i in range(n_frames)])
    return made


def timed_ms(side: Side, clip: Clip) -> float:
    begun = time.perf_counter()
    made = side(clip)
    took_ms = (time.perf_counter() - begun) * 1000
    del made  # the patches live until here, as they must until the encoder has read them
    return took_ms


def sequential(stock: Stock, ours: Ours, used: list[Clip], n_runs: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"stock": [], "ours": [], "group": []}
    for run in range(n_runs):
        clip = used[run % len(used)]
        torch.set_num_threads(stock.n_threads)
        settle()
        times["stock"].append(timed_ms(stock, clip))
        torch.set_num_threads(ours.n_threads)
        settle()
        times["ours"].append(timed_ms(ours, clip))
        times["group"].append(timed_ms(ours.group, clip[-3:-1]))
    return times


def load(side: Stock | Ours, used: list[Clip], *, n_requests: int, rate_hz: float) -> list[float]:
    """Open loop with one worker: ms from each scheduled arrival to the end of its work."""
    torch.set_num_threads(side.n_threads)
    times = []
    begun = time.perf_counter()
    for number in range(n_requests):
        due = begun + number / rate_hz
        time.sleep(max(0.0, due - time.perf_counter()))
        timed_ms(side, used[number % len(used)])
        times.append((time.perf_counter() - due) * 1000)
    return times


def identical(stock: Stock, ours: Ours, used: list[Clip]) -> bool:
    return all(torch.equal(torch.cat(ours(clip)), stock(clip)) for clip in used)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    stock, ours = Stock(options.model), Ours(options.model)
    used = clips(options.frames)
    figures: dict[str, Any] = {
        "kernels": "torch" if pixel_kernels() is None else "native",
        "frames": options.frames,
        "stock_threads": stock.n_threads,
        "ours_threads": ours.n_threads,
        "identical": identical(stock, ours, used),
    }
    with undisturbed():
        times = sequential(stock, ours, used, options.runs)
        for name, side in (("stock", stock), ("ours", ours)):
            settle()
            times[f"{name}_load"] = load(
                side, used, n_requests=options.requests, rate_hz=options.rate
            )
    for name, values in times.items():
        figures[f"{name}_p50_ms"] = statistics.median(values)
        figures[f"{name}_p90_ms"] = percentile(values, 90)
    figures["ratio"] = figures["stock_p90_ms"] / figures["ours_p90_ms"]
    figures["load_ratio"] = figures["ours_load_p90_ms"] / figures["ours_p90_ms"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=SHIPPED, help="checkpoint folder")
    parser.add_argument("--frames", type=int, default=15)
    parser.add_argument("--runs", type=int, default=20, help="clips one after the other")
    parser.add_argument("--requests", type=int, default=50, help="clips at a constant rate")
    parser.add_argument("--rate", type=float, default=5.0, help="clips per second")
    parser.add_argument("--quick", action="store_true", help="few runs, to see that it works")
    options = parser.parse_args()
    if options.frames < 2 or options.runs < 1 or options.requests < 1 or options.rate <= 0:
        parser.error("--frames needs at least 2, --runs, --requests and --rate more than 0")
    if options.quick:
        options.runs, options.requests = 2, 4
    announce()
    figures = measure(options)
    print(
        f"{options.frames} frames of {WIDTH}x{HEIGHT}, patches bit-identical: "
        f"{figures['identical']}; kernels: {figures['kernels']}; threads: "
        f"stock {figures['stock_threads']}, ours {figures['ours_threads']}\n"
    )
    rows = [
        ("stock, one after the other", "stock"),
        ("ours, one after the other", "ours"),
        ("ours, the newest pair alone", "group"),
        (f"stock, {options.rate:g} clips/s", "stock_load"),
        (f"ours, {options.rate:g} clips/s", "ours_load"),
    ]
    table(
        ("side", "p50 ms", "p90 ms"),
        [(text, figures[f"{name}_p50_ms"], figures[f"{name}_p90_ms"]) for text, name in rows],
    )
    finish(figures)


if __name__ == "__main__":
    main()

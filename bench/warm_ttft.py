"""Time to first token: stock transformers against liveedge, cold and warm, on the same weights.

    python bench/warm_ttft.py --model random-267m --frames 8

One clip, questions of equal length, greedy, sides alternating within each run:
stock        the reference's processor, then `generate` of one token
cold         ours, media never seen: load, preprocess, encode, prefill, one token
warm         ours, another question about a window that was warmed with exactly these frames
limit        the question's own tokens and their first answer token on the bare runner: the least
             that any engine must do (until version 0.1 it was the last token of the prompt alone);
             a decode step behind it, which the first token does not need, is told apart: `step_ms`
warm newest  ours, the window is warm up to its last tick and the question shows a newer frame: its
             load, preprocessing, encoding and prefill are paid by the question
newest limit that group's encoding and prefill and the question's tokens on the bare runner
repeated     ours, the same media and words once more
Then the window slides: one frame further per question, warmed between two questions as the service
does at a tick. Then the same over HTTP: a pushed stream, a server process, the first content.

TTFT at the engine is from `generate` with a prepared request to the first event; what `prepare`
takes is told beside it. `limit_ratio` is warm / limit and `newest_limit_ratio` warm newest / newest
limit; the other ratios are stock / ours. Before anything is timed both sides must read the same
number of tokens and give the same first token, cold, warm and with a newest frame.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from asking import Asked, Asker, add_engine_options, running_engine, settings
from lean_http import LeanClient
from live import TRIES, LiveStream
from liveedge.client.local_server import running_server
from liveedge.core.clock import SystemClock
from liveedge.engine.decide.prefix import common_prefix
from liveedge.engine.interface import PreparedRequest
from machine import announce, checkpoint, settle, undisturbed
from report import finish, table
from tape import Edge, Tape, Window, question
from yardsticks import Limit, Stock

SIDES = (
    "stock",
    "cold",
    "warm",
    "limit",
    "warm newest",
    "newest limit",
    "repeated",
    "slide stock",
    "slide warm",
    "slide newest",
    "http",
    "http newest",
)
WINDOW_ID = "bench"
CHECKS = 2
STOCK_EVERY = 10  # slides
WARM_PER_RUN = 3  # questions on each warmed window
TICKS_PER_WARM_WORK = 3.0  # a tick must be so much longer than the work that it causes
SHORTEST_TICK_S = 0.5
LONGEST_TICK_S = 10.0  # a window of 16 ticks then takes nearly three minutes to fill


@dataclass
class Times:
    """Milliseconds by side, in the order in which they were taken."""

    by_side: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, side: str, ms: float) -> None:
        self.by_side[side].append(ms)

    def median(self, side: str) -> float:
        taken = self.by_side.get(side)
        return statistics.median(taken) if taken else math.nan

    def ratio(self, side: str, other: str) -> float:
        return self.median(side) / self.median(other)


@dataclass
class Hits:
    """How much of what questions showed was there already."""

    n_groups: int = 0
    n_warm_groups: int = 0
    n_tokens: int = 0
    n_cached_tokens: int = 0

    def add(self, asked: Asked) -> None:
        assert asked.usage is not None
        counted = [use for use in asked.usage.media if use.n_tokens]
        self.n_groups += len(counted)
        self.n_warm_groups += sum(use.warm for use in counted)
        self.n_tokens += asked.usage.prompt_tokens
        self.n_cached_tokens += asked.usage.cached_tokens

    @property
    def encoder_rate(self) -> float:
        return self.n_warm_groups / self.n_groups if self.n_groups else math.nan

    @property
    def prefix_rate(self) -> float:
        return self.n_cached_tokens / self.n_tokens if self.n_tokens else math.nan


class Bench:
    """Everything that is measured at the engine's face."""

    def __init__(self, asker: Asker, stock: Stock, limit: Limit, *, n_frames: int) -> None:
        self.times = Times()
        self.hits: dict[Edge, Hits] = {"grid": Hits(), "newest": Hits()}
        self._asker = asker
        self._engine = asker.engine
        self._stock = stock
        self._limit = limit
        self._n_frames = n_frames
        self._n_questions = 0

    def _words(self) -> str:
        """Of a question that nobody has asked before."""
        self._n_questions += 1
        return question(self._n_questions)

    def _window(self, stream_id: str, edge: Edge = "grid", *, n_slides: int = 0) -> Window:
        last = self._n_frames - 1 + n_slides
        return Window(stream_id=stream_id, tick=last, n_frames=self._n_frames, edge=edge)

    async def check(self, edge: Edge) -> None:
        """All sides read the same and say the same, or a ratio says nothing."""
        words, number = self._words(), self._n_questions
        request = self._asker.request(self._window("check", edge), words)
        prepared = self._engine.prepare(request)
        n_read, token = self._stock.first_token(request)
        if n_read != prepared.n_tokens:
            raise SystemExit(
                f"stock reads {n_read} tokens, ours {prepared.n_tokens}: not comparable"
            )
        cold = await self._asker.ask(self._window(f"check-cold-{number}", edge), words)
        await self._asker.warm(WINDOW_ID, self._window(f"check-warm-{number}"))
        warm = await self._asker.ask(self._window(f"check-warm-{number}", edge), words)
        n_resident = self._n_resident(prepared, self._window("check"))
        self._limit.prepare(prepared, n_resident)
        _, bare = self._limited(edge)(prepared, n_resident)
        self._limit.forget(prepared)
        answers = {
            "stock": self._stock.text_of(token),  # the engine gives text, not ids
            "cold": cold.text,
            "warm": warm.text,
            "the bare runner": self._stock.text_of(bare),
        }
        if len(set(answers.values())) > 1:
            raise SystemExit(f"first tokens with edge={edge}: {answers}: not comparable")

    async def still(self, run: int) -> None:
        """Every side once, on media of its own."""
        asker, times = self._asker, self.times
        settle()
        stock_ms, _ = self._stock.timed(asker.request(self._window("stock"), self._words()))
        times.add("stock", stock_ms)
        settle()
        cold = await asker.ask(self._window(f"cold-{run}"), self._words())
        times.add("cold", cold.ttft_ms)
        window = self._window(f"still-{run}")
        await asker.warm(WINDOW_ID, window)
        for _ in range(WARM_PER_RUN):
            asked = await self._ask_warm(window, self._words())
            times.add("warm", asked.ttft_ms)
            times.add("prepare", asked.prepare_ms)
        newest, words = self._window(f"still-{run}", "newest"), self._words()
        times.add("warm newest", (await self._ask_warm(newest, words)).ttft_ms)
        times.add("repeated", (await self._ask_warm(newest, words)).ttft_ms)
        settle()
        self._take_limits()

    def _take_limits(self) -> None:
        grid, n_resident = self._on_the_bare_runner("grid")
        for _ in range(WARM_PER_RUN):
            limit_ms, token = self._limit.question_ms(grid, n_resident)
            self.times.add("limit", limit_ms)
            self.times.add("step", self._limit.step_ms(grid, token))
        self._limit.forget(grid)
        newest, n_resident = self._on_the_bare_runner("newest")
        self.times.add("newest limit", self._limit.newest_ms(newest, n_resident)[0])
        self._limit.forget(newest)
        self.times.add("preprocess", self._limit.preprocess_ms(newest))

    def _on_the_bare_runner(self, edge: Edge) -> tuple[PreparedRequest, int]:
        """A question whose window the bare runner holds, and how many tokens that is."""
        asked = self._asker.request(self._window("limit", edge), self._words())
        prepared = self._engine.prepare(asked)
        n_resident = self._n_resident(prepared, self._window("limit"))
        self._limit.prepare(prepared, n_resident)
        return prepared, n_resident

    def _limited(self, edge: Edge) -> Callable[[PreparedRequest, int], tuple[float, int]]:
        return self._limit.question_ms if edge == "grid" else self._limit.newest_ms

    def _n_resident(self, prepared: PreparedRequest, window: Window) -> int:
        """Tokens of a prompt that a warm window holds."""
        return common_prefix(self._asker.prefix(window).identity, prepared.identity)

    async def _ask_warm(self, window: Window, words: str) -> Asked:
        """Ask about a window that is warm on the grid; what it holds must have been used."""
        asked = await self._asker.ask(window, words)
        prepared = self._engine.prepare(self._asker.request(window, words))
        n_resident = self._n_resident(prepared, replace(window, edge="grid"))
        if asked.cached_tokens < n_resident:
            raise SystemExit(f"not warm: {asked.cached_tokens} of {n_resident} tokens were reused")
        return asked

    async def slide(self, number: int) -> None:
        """The window moves on by one frame; then a question about it, and one about a newer one."""
        asker, times = self._asker, self.times
        window = self._window("sliding", n_slides=number)
        warmed = await asker.warm(WINDOW_ID, window)
        times.add("warm work", warmed.busy_s * 1000)
        words = self._words()
        grid = await self._ask_warm(window, words)
        newest = await self._ask_warm(replace(window, edge="newest"), self._words())
        for edge, asked in (("grid", grid), ("newest", newest)):
            times.add("slide warm" if edge == "grid" else "slide newest", asked.ttft_ms)
            self.hits["grid" if edge == "grid" else "newest"].add(asked)
        if number % STOCK_EVERY == 0:
            settle()
            stock_ms, token = self._stock.timed(asker.request(window, words))
            times.add("slide stock", stock_ms)
            if (said := self._stock.text_of(token)) != grid.text:
                raise SystemExit(f"slide {number}: stock says {said!r}, ours {grid.text!r}")
            settle()


async def over_http(
    folder: Path, options: argparse.Namespace, tape: Tape, times: Times, tick_s: float
) -> None:
    """The two warm cases again, from the request's bytes to the first content."""
    clock, flags = SystemClock(), [f"--engine={options.engine}", "--no-standby"]
    with running_server(model=str(folder), port=None, clock=clock, flags=flags) as server:
        async with LeanClient(server.url) as client:
            models = json.loads(await client.fetch(client.get("/v1beta/models")))
            live = LiveStream(client, tape, model=models["data"][0]["id"], tick_s=tick_s)
            await live.begin(options.frames)
            await http_grid(live, options, times)
            await http_newest(live, options, times)


async def http_grid(live: LiveStream, options: argparse.Namespace, times: Times) -> None:
    """Nothing moves: once the server has warmed the window, every question finds it so."""
    await live.until_warm(options.frames)
    for number in range(WARM_PER_RUN * options.runs):
        asked = live.question(question(TRIES + number), n_frames=options.frames, edge="grid")
        heard = await live.hear(asked)
        times.add("http", heard.ttft_ms)
        for stage, ms in heard.evidence["timings_ms"].items():
            times.add(f"http: {stage}", ms)


async def http_newest(live: LiveStream, options: argparse.Namespace, times: Times) -> None:
    """A tick, time for the server to warm it, then a newer frame and the question at once."""
    for number in range(options.runs):
        await live.push_tick()
        asked = live.question(question(number), n_frames=options.frames, edge="newest")
        await live.push_off_grid()
        heard = await live.hear(asked)
        times.add("http newest", heard.ttft_ms)
        times.add("http newest tokens", heard.usage["prompt_tokens"] - heard.cached_tokens)


def tick_that_fits(times: Times) -> float:
    """Ticks that the server can keep up with, in half seconds."""
    work_s = times.median("warm work") / 1000
    fitting_s = math.ceil(2 * TICKS_PER_WARM_WORK * work_s) / 2
    return min(LONGEST_TICK_S, max(SHORTEST_TICK_S, fitting_s))


async def measure(options: argparse.Namespace) -> Bench:
    folder = checkpoint(options.model)
    n_ticks = options.frames + max(options.slides, 1)
    tape = Tape(n_ticks=n_ticks, width=options.width, height=options.height)
    asked = settings(n_slots=4, n_windows=2)
    async with running_engine(folder, options.engine, asked) as engine:
        bench = Bench(
            Asker(engine, tape), Stock(folder), Limit(folder, asked), n_frames=options.frames
        )
        with undisturbed():
            for _ in range(CHECKS):
                await bench.check("grid")
                await bench.check("newest")
            say("all sides agree; still media")
            for run in range(options.runs):
                await bench.still(run)
            say("a window that slides")
            for number in range(options.slides):
                await bench.slide(number)
    tick_s = tick_that_fits(bench.times)
    say(f"over HTTP, with a tick every {tick_s:g} s")
    with undisturbed():
        await over_http(folder, options, tape, bench.times, tick_s)
    return bench


def say(what: str) -> None:
    """A run of a large model takes long: tell where it is."""
    print(f"... {what}", file=sys.stderr, flush=True)


def show(bench: Bench) -> None:
    times = bench.times
    rows = [
        (side, times.median(side), min(taken), len(taken), times.ratio(stock, side))
        for side, taken in times.by_side.items()
        for stock in ["slide stock" if side.startswith("slide") else "stock"]
        if side in SIDES
    ]
    table(("side", "median ms", "best ms", "n", "stock / side"), rows)
    for edge, hits in bench.hits.items():
        print(
            f"sliding, edge={edge}: {hits.n_warm_groups} of {hits.n_groups} groups and "
            f"{hits.n_cached_tokens} of {hits.n_tokens} tokens were there already"
        )
    prepare, work = times.median("prepare"), times.median("warm work")
    print(f"prepare {prepare:.2f} ms; with it warm is {prepare + times.median('warm'):.2f} ms and")
    print(f"warm newest {prepare + times.median('warm newest'):.2f} ms")
    print(
        f"preprocessing of the newest group {times.median('preprocess'):.2f} ms, not in its limit"
    )
    print(f"work for a window per tick {work:.2f} ms")
    stages = [side for side in times.by_side if side.startswith("http: ")]
    print(f"over HTTP a newest frame cost {times.median('http newest tokens'):.0f} prompt tokens")
    print(f"over HTTP, as the answers say: {', '.join(stage_of(times, side) for side in stages)}\n")


def stage_of(times: Times, side: str) -> str:
    return f"{side.removeprefix('http: ')} {times.median(side):.2f} ms"


def figures(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    times, grid, newest = bench.times, bench.hits["grid"], bench.hits["newest"]
    sides = {f"{side.replace(' ', '_')}_ms": times.median(side) for side in SIDES}
    return {
        "model": Path(options.model).name,
        "frames": options.frames,
        **sides,
        "cold_ratio": times.ratio("stock", "cold"),
        "warm_ratio": times.ratio("stock", "warm"),
        "limit_ratio": times.ratio("warm", "limit"),
        "newest_ratio": times.ratio("stock", "warm newest"),
        "newest_limit_ratio": times.ratio("warm newest", "newest limit"),
        "slide_ratio": times.ratio("slide stock", "slide warm"),
        "slide_newest_ratio": times.ratio("slide stock", "slide newest"),
        "encoder_hit_rate": grid.encoder_rate,
        "prefix_hit_rate": grid.prefix_rate,
        "newest_encoder_hit_rate": newest.encoder_rate,
        "newest_prefix_hit_rate": newest.prefix_rate,
        "step_ms": times.median("step"),
        "warm_work_ms": times.median("warm work"),
        "prepare_ms": times.median("prepare"),
        "http_overhead_ms": times.median("http") - times.median("warm"),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_engine_options(parser)
    parser.add_argument("--frames", type=int, default=8, help="even: frames are encoded in pairs")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--slides", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="one run, to see that it works")
    options = parser.parse_args()
    if options.frames < 2 or options.frames % 2:
        parser.error(f"--frames is {options.frames}, needs to be even and at least 2")
    if options.quick:
        options.frames, options.runs, options.slides = 4, 1, 2
    return options


def main() -> None:
    options = parse()
    announce()
    bench = asyncio.run(measure(options))
    show(bench)
    finish(figures(bench, options))


if __name__ == "__main__":
    main()

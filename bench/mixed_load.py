"""Text answers running while short videos arrive: does either wait for the other?

    python bench/mixed_load.py

Two engines of the same weights take turns in one run: one encodes frames of all requests in one
batch, the other one temporal group per slice and one video at a time (two settings, nothing else).
First the text answers alone (idle), then as many videos as can be answered (saturation, closed
loop), then videos of distinct frames at 25, 50 and 80 % of the batched engine's saturation, sent at
their due times whether or not the ones before are answered.

ITL   time between two tokens of a running text answer as its client sees it
TTFT  from the time at which a video was due to its first token
`itl_ratio` is the worst median ITL under load / idle; `ttft_p95_ratio_80` the p95 of TTFT at 80 % /
at 25 %.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from asking import Asker, add_engine_options, running_engine, settings
from liveedge.core.errors import QueueFull
from liveedge.engine.interface import Engine
from liveedge.engine.request import (
    Delta,
    Failed,
    GenerateRequest,
    Message,
    SamplingParams,
    TextPart,
)
from machine import announce, checkpoint, undisturbed
from report import finish, percentile, table
from tape import Tape, Window, question

IDLE, SATURATED = "idle", "saturated"
LOADS = (25, 50, 80)  # percent of saturation
N_TEXTS = 2
N_CLOSED = 6  # videos at once when saturation is measured
TEXT_TOKENS = 1024
VIDEO_TOKENS = 8
ANY_TOKEN = 100.0  # a temperature at which every token is equally likely: answers go on and on
RAMP_S = 0.5  # texts run so long before anything is counted


@dataclass
class Phase:
    """What was seen while one load lasted."""

    began_s: float = math.inf
    ended_s: float = math.inf
    gaps_ms: list[float] = field(default_factory=list)  # one for each token of a text
    ttft_ms: list[float] = field(default_factory=list)  # of videos
    n_refused: int = 0

    @property
    def itl_ms(self) -> float:
        return statistics.median(self.gaps_ms) if self.gaps_ms else math.nan

    @property
    def ttft_p95_ms(self) -> float:
        return percentile(self.ttft_ms, 95)

    @property
    def videos_per_s(self) -> float:
        return len(self.ttft_ms) / (self.ended_s - self.began_s)

    def take_gap(self, *, now_s: float, since_s: float, n_tokens: int) -> None:
        """A piece of a text; `since_s` is when the one before it came, nan for the first."""
        if self.began_s <= now_s < self.ended_s and not math.isnan(since_s):
            self.gaps_ms += [(now_s - since_s) * 1000 / n_tokens] * n_tokens


@dataclass
class Side:
    """One engine and what was seen of it, by phase."""

    name: str
    asker: Asker
    phases: dict[str, Phase] = field(default_factory=dict)

    def at(self, load: int) -> Phase:
        return self.phases[named(load)]

    @property
    def itl_ratio(self) -> float:
        return max(self.at(load).itl_ms for load in LOADS) / self.phases[IDLE].itl_ms

    @property
    def ttft_ratio(self) -> float:
        return self.at(LOADS[-1]).ttft_p95_ms / self.at(LOADS[0]).ttft_p95_ms


def named(load: int) -> str:
    return f"{load} %"


class Driver:
    """Lets phases happen: texts all the time, videos as the phase says."""

    def __init__(self, *, phase_s: float, arrivals: str, n_frames: int) -> None:
        self._phase_s = phase_s
        self._is_poisson = arrivals == "poisson"
        self._n_frames = n_frames
        self._numbers = itertools.count()
        self._chance = random.Random(0)

    async def idle(self, side: Side) -> None:
        async with self._phase(side, IDLE):
            await asyncio.sleep(self._phase_s)

    async def saturate(self, side: Side) -> None:
        """So many videos at once all the time: as many as can be answered."""
        async with self._phase(side, SATURATED) as phase, asyncio.TaskGroup() as group:
            for _ in range(N_CLOSED):
                group.create_task(self._videos_on_end(side, phase))

    async def _videos_on_end(self, side: Side, phase: Phase) -> None:
        while (now_s := time.perf_counter()) < phase.began_s + self._phase_s:
            await self._video(side, phase, due_s=now_s)

    async def open_loop(self, side: Side, load: int, *, videos_per_s: float) -> None:
        """Videos at their due times, whether or not the ones before are answered."""
        async with self._phase(side, named(load)) as phase, asyncio.TaskGroup() as group:
            for due_s in self._due(phase.began_s, videos_per_s * load / 100):
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                group.create_task(self._video(side, phase, due_s=due_s))

    def _due(self, began_s: float, per_s: float) -> Iterator[float]:
        """When videos come; one at least."""
        due_s = began_s
        while due_s < began_s + self._phase_s:
            yield due_s
            due_s += self._chance.expovariate(per_s) if self._is_poisson else 1 / per_s

    async def _video(self, side: Side, phase: Phase, *, due_s: float) -> None:
        number = next(self._numbers)
        window = Window(
            stream_id=f"video-{number}", tick=self._n_frames - 1, n_frames=self._n_frames
        )
        try:
            asked = await side.asker.ask(window, question(number), max_tokens=VIDEO_TOKENS)
        except QueueFull:
            phase.n_refused += 1
            return
        phase.ttft_ms.append((asked.first_s - due_s) * 1000)

    @asynccontextmanager
    async def _phase(self, side: Side, name: str) -> AsyncIterator[Phase]:
        """Texts run before, during and a little after; what is inside the block counts."""
        phase = side.phases[name] = Phase()
        texts = [
            asyncio.create_task(self._texts_on_end(side.asker.engine, phase))
            for _ in range(N_TEXTS)
        ]
        try:
            await asyncio.sleep(RAMP_S)
            phase.began_s = time.perf_counter()
            yield phase
            phase.ended_s = time.perf_counter()
            for text in texts:
                if text.done():  # none ends by itself
                    text.result()
        finally:
            for text in texts:
                text.cancel()
            await asyncio.gather(*texts, return_exceptions=True)

    async def _texts_on_end(self, engine: Engine, phase: Phase) -> None:
        while True:
            prepared = engine.prepare(text_request(next(self._numbers)))
            last_s = math.nan
            async with aclosing(engine.generate(prepared)) as events:
                async for event in events:
                    if isinstance(event, Failed):
                        raise event.error
                    if isinstance(event, Delta) and event.n_tokens:
                        now_s = time.perf_counter()
                        phase.take_gap(now_s=now_s, since_s=last_s, n_tokens=event.n_tokens)
                        last_s = now_s


def text_request(number: int) -> GenerateRequest:
    """A question without pictures whose answer is long."""
    return GenerateRequest(
        request_id=f"text-{number}",
        messages=(Message(role="user", content=(TextPart(f"{question(number)} At length."),)),),
        sampling=SamplingParams(max_tokens=TEXT_TOKENS, temperature=ANY_TOKEN, seed=number),
    )


async def measure(options: argparse.Namespace) -> tuple[Side, Side]:
    """(batched, serial)."""
    folder = checkpoint(options.model)
    tape = Tape(n_ticks=options.frames, width=options.width, height=options.height)
    batched = settings(n_slots=N_TEXTS + N_CLOSED, n_windows=1)
    # One group per slice is the least; with one slot beside the texts', one video at a time.
    serial = replace(batched, n_slots=N_TEXTS + 1, encode_tokens=1)
    driver = Driver(phase_s=options.seconds, arrivals=options.arrivals, n_frames=options.frames)
    async with AsyncExitStack() as stack:
        sides = []
        for name, asked in (("batched", batched), ("serial", serial)):
            engine = await stack.enter_async_context(running_engine(folder, options.engine, asked))
            sides.append(Side(name, Asker(engine, tape)))
        with undisturbed():
            for side in sides:
                await driver.idle(side)
                await driver.saturate(side)
            videos_per_s = sides[0].phases[SATURATED].videos_per_s
            for load in LOADS:
                for side in sides:
                    await driver.open_loop(side, load, videos_per_s=videos_per_s)
    return sides[0], sides[1]


def rows(side: Side) -> Sequence[Sequence[object]]:
    return [
        (
            side.name,
            name,
            phase.itl_ms,
            percentile(phase.gaps_ms, 95),
            phase.videos_per_s,
            statistics.median(phase.ttft_ms) if phase.ttft_ms else math.nan,
            phase.ttft_p95_ms,
            phase.n_refused,
        )
        for name, phase in side.phases.items()
    ]


def figures(side: Side, prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}itl_ratio": side.itl_ratio,
        f"{prefix}ttft_p95_ratio_80": side.ttft_ratio,
        f"{prefix}saturation_per_s": side.phases[SATURATED].videos_per_s,
        f"{prefix}itl_idle_ms": side.phases[IDLE].itl_ms,
        f"{prefix}itl_ms": {str(load): side.at(load).itl_ms for load in LOADS},
        f"{prefix}ttft_p95_ms": {str(load): side.at(load).ttft_p95_ms for load in LOADS},
        f"{prefix}refused": sum(phase.n_refused for phase in side.phases.values()),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_engine_options(parser)
    parser.add_argument("--frames", type=int, default=6, help="of a video")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the ten phases")
    parser.add_argument(
        "--arrivals",
        choices=("constant", "poisson"),
        default="constant",
        help="of videos: as cameras send them, or as strangers would",
    )
    parser.add_argument("--quick", action="store_true", help="short phases, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 0.4
    return options


def main() -> None:
    options = parse()
    announce()
    batched, serial = asyncio.run(measure(options))
    columns = (
        "engine",
        "load",
        "ITL p50 ms",
        "p95 ms",
        "videos/s",
        "TTFT p50 ms",
        "p95 ms",
        "refused",
    )
    table(columns, [*rows(batched), *rows(serial)])
    shared = {"model": Path(options.model).name, "frames": options.frames}
    finish({**shared, **figures(batched, ""), **figures(serial, "serial_")})


if __name__ == "__main__":
    main()

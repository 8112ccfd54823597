"""Eight different questions at once on one warm window: what they cost, and how long they wait.

    python bench/fork.py --model random-267m

Cost    prompt tokens that went through the model, from the engine's own counters and from the
        answers' usage: one window and the eight questions' own tokens, or the program fails. (A
        question admitted later than another can take the marker behind the media from it, too.)
Time    p95 of the time to first token of questions asked eight at once, over many rounds, against
        the median of the same question asked alone. At the engine's face and over HTTP, one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asking import Asked, Asker, add_engine_options, running_engine, settings
from lean_http import LeanClient
from live import LiveStream
from liveedge.client.local_server import running_server
from liveedge.core.clock import SystemClock
from liveedge.engine.decide.prefix import common_prefix
from machine import announce, checkpoint, settle, undisturbed
from report import finish, percentile, table
from tape import Tape, Window, question

TICK_S = 0.5


@dataclass
class Work:
    """Prompt tokens computed for one window and a set of questions."""

    window_tokens: int
    own_tokens: int  # behind the window, of all questions together
    shared_tokens: int  # of these, what a question may take from the one before: the media's end
    counted: int  # by the engine
    used: int  # by the answers, with the window's

    @property
    def expected(self) -> int:
        return self.window_tokens + self.own_tokens


@dataclass
class Waits:
    """Times to first token in ms."""

    single: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)

    @property
    def single_ms(self) -> float:
        return statistics.median(self.single)

    @property
    def p95_ms(self) -> float:
        return percentile(self.together, 95)

    @property
    def ratio(self) -> float:
        return self.p95_ms / self.single_ms


async def count_work(asker: Asker, options: argparse.Namespace, *, warm: bool) -> Work:
    """The tokens computed for a window never seen and the questions on it, all at once."""
    stream_id = "counted-warm" if warm else "counted-cold"
    window = Window(stream_id=stream_id, tick=options.frames - 1, n_frames=options.frames)
    before = asker.engine.stats()
    n_window = asker.prefix(window).n_tokens
    n_warmed = (await asker.warm(stream_id, window)).n_prefilled if warm else 0
    answers = await ask_together(asker, window, options.questions, 0)
    after = asker.engine.stats()
    first, second = (
        asker.engine.prepare(asker.request(window, question(number))).identity for number in (0, 1)
    )
    n_common = common_prefix(first, second) - n_window
    asked = after.prompt_tokens - before.prompt_tokens
    reused = after.prefix_tokens_reused - before.prefix_tokens_reused
    return Work(
        window_tokens=n_window,
        own_tokens=sum(answer.prompt_tokens - n_window for answer in answers),
        shared_tokens=n_common * (len(answers) - 1),
        counted=asked - reused + after.warm_prefilled - before.warm_prefilled,
        used=n_warmed + sum(answer.prompt_tokens - answer.cached_tokens for answer in answers),
    )


async def ask_together(asker: Asker, window: Window, n: int, first: int) -> Sequence[Asked]:
    return await asyncio.gather(
        *(asker.ask(window, question(first + number)) for number in range(n))
    )


async def at_the_engine(asker: Asker, options: argparse.Namespace) -> Waits:
    window = Window(stream_id="timed", tick=options.frames - 1, n_frames=options.frames)
    await asker.warm("timed", window)
    waits, number = Waits(), 0
    for _ in range(options.rounds + 1):
        settle()
        single = await asker.ask(window, question(number))
        settle()
        answers = await ask_together(asker, window, options.questions, number + 1)
        number += options.questions + 1
        waits.single.append(single.ttft_ms)
        waits.together += [answer.ttft_ms for answer in answers]
    return without_the_first(waits, options.questions)


def without_the_first(waits: Waits, n_together: int) -> Waits:
    """The first round warms up code and caches."""
    return Waits(waits.single[1:], waits.together[n_together:])


async def over_http(folder: Path, options: argparse.Namespace, tape: Tape) -> tuple[Waits, int]:
    """(times, most tokens that any answer computed)."""
    flags = [f"--engine={options.engine}", "--no-standby", f"--max-sessions={options.questions}"]
    with running_server(model=str(folder), port=None, clock=SystemClock(), flags=flags) as server:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(LeanClient(server.url))
                for _ in range(options.questions)
            ]
            models = json.loads(await clients[0].fetch(clients[0].get("/v1beta/models")))
            live = LiveStream(clients[0], tape, model=models["data"][0]["id"], tick_s=TICK_S)
            await live.begin(options.frames)
            await live.until_warm(options.frames)
            return await http_rounds(live, clients, options)


async def http_rounds(
    live: LiveStream, clients: Sequence[LeanClient], options: argparse.Namespace
) -> tuple[Waits, int]:
    waits, number, most = Waits(), 0, 0
    for _ in range(options.rounds + 1):
        asked = [
            live.question(question(number + i), n_frames=options.frames, edge="grid")
            for i in range(len(clients) + 1)
        ]
        number += len(asked)
        settle()
        waits.single.append((await live.hear(asked[0])).ttft_ms)
        settle()
        heard = await asyncio.gather(
            *(live.hear(one, client) for one, client in zip(asked[1:], clients, strict=True))
        )
        waits.together += [one.ttft_ms for one in heard]
        most = max(most, *(one.usage["prompt_tokens"] - one.cached_tokens for one in heard))
    return without_the_first(waits, len(clients)), most


def check(work: Work) -> None:
    """The claim itself: nothing was computed twice."""
    least = work.expected - work.shared_tokens
    for who, n_tokens in (("the engine counts", work.counted), ("the answers say", work.used)):
        if not least <= n_tokens <= work.expected:
            raise SystemExit(
                f"{who} {n_tokens} prompt tokens computed; one window of {work.window_tokens} and "
                f"{work.own_tokens} of the questions are {work.expected}, of which the questions "
                f"share {work.shared_tokens}"
            )


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    folder = checkpoint(options.model)
    tape = Tape(n_ticks=options.frames, width=options.width, height=options.height)
    asked = settings(n_slots=options.questions, n_windows=2)
    async with running_engine(folder, options.engine, asked) as engine:
        asker = Asker(engine, tape)
        with undisturbed():
            # First, while nothing is resident that could be shared.
            work = await count_work(asker, options, warm=True)
            check(work)
            cold = await count_work(asker, options, warm=False)
            direct = await at_the_engine(asker, options)
    with undisturbed():
        http, most = await over_http(folder, options, tape)
    table(
        ("where", "one alone, median ms", "at once, median ms", "at once, p95 ms", "ratio"),
        [
            (name, waits.single_ms, statistics.median(waits.together), waits.p95_ms, waits.ratio)
            for name, waits in (("engine", direct), ("HTTP", http))
        ],
    )
    print(
        f"prompt tokens computed: {work.counted}; one window of {work.window_tokens} and "
        f"{work.own_tokens} of the questions are {work.expected}, of which {work.shared_tokens} "
        "can be taken from the question before"
    )
    print(f"the same with nothing warmed before: {cold.counted}")
    print(f"over HTTP no answer computed more than {most} tokens of its prompt\n")
    return {
        "model": Path(options.model).name,
        "questions": options.questions,
        "p95_ratio": direct.ratio,
        "single_ms": direct.single_ms,
        "p95_ms": direct.p95_ms,
        "work_tokens": work.counted,
        "expected_tokens": work.expected,
        "shared_tokens": work.shared_tokens,
        "unwarmed_work_tokens": cold.counted,
        "http_p95_ratio": http.ratio,
        "http_single_ms": http.single_ms,
        "http_p95_ms": http.p95_ms,
        "http_most_tokens": most,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_engine_options(parser)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--questions", type=int, default=8, help="asked at once")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="two rounds, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.frames = 2, 4
    announce()
    finish(asyncio.run(measure(options)))


if __name__ == "__main__":
    main()

"""Questions at the engine's async face, timed: what `service` sees, without HTTP."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from liveedge.core.clock import SystemClock
from liveedge.engine.client import load_engine
from liveedge.engine.interface import Engine, EngineSettings, PreparedRequest, Warmed, WindowPrefix
from liveedge.engine.process.supervisor import Patience
from liveedge.engine.request import Delta, Failed, Finished, GenerateRequest, Usage
from machine import SHIPPED
from tape import Tape, Window


@dataclass(slots=True, kw_only=True)
class Asked:
    """One answer and when its pieces came, in seconds of `time.perf_counter`."""

    prepare_ms: float
    sent_s: float  # when `generate` was called
    first_s: float = 0.0  # when its first event came
    text: str = ""
    usage: Usage | None = None
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (s, tokens) of each piece

    @property
    def ttft_ms(self) -> float:
        return (self.first_s - self.sent_s) * 1000

    @property
    def cached_tokens(self) -> int:
        assert self.usage is not None
        return self.usage.cached_tokens

    @property
    def prompt_tokens(self) -> int:
        assert self.usage is not None
        return self.usage.prompt_tokens


class Asker:
    """Asks one engine about one tape; every request has an id of its own."""

    def __init__(self, engine: Engine, tape: Tape) -> None:
        self.engine = engine
        self._tape = tape
        self._n_requests = 0

    def request(
        self, window: Window, text: str | None = None, *, max_tokens: int = 1
    ) -> GenerateRequest:
        self._n_requests += 1
        return self._tape.request(f"bench-{self._n_requests}", window, text, max_tokens=max_tokens)

    def prefix(self, window: Window) -> PreparedRequest:
        """What the engine holds of a window: its prompt up to the last visual token."""
        return self.engine.prepare_window(self.request(window))

    async def warm(self, window_id: str, window: Window) -> Warmed:
        """Bring a window up to date, as the service does at a tick."""
        prefix = WindowPrefix(window_id=window_id, prepared=self.prefix(window))
        done = await self.engine.warm(prefix)
        if done.superseded:
            raise SystemExit(f"window {window_id} was superseded and nothing else asked for it")
        return done

    async def ask(self, window: Window, text: str, *, max_tokens: int = 1) -> Asked:
        return await answered(self.engine, self.request(window, text, max_tokens=max_tokens))


async def answered(engine: Engine, request: GenerateRequest) -> Asked:
    """Ask and read to the end."""
    begun_s = time.perf_counter()
    prepared = engine.prepare(request)
    sent_s = time.perf_counter()
    asked = Asked(prepare_ms=(sent_s - begun_s) * 1000, sent_s=sent_s)
    async with contextlib.aclosing(engine.generate(prepared)) as events:
        async for event in events:
            now_s = time.perf_counter()
            asked.first_s = asked.first_s or now_s
            match event:
                case Delta(text=text, n_tokens=n_tokens):
                    asked.text += text
                    asked.arrivals.append((now_s, n_tokens))
                case Finished(usage=usage):
                    asked.usage = usage
                case Failed(error=error):
                    raise error
    return asked


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """What every program that opens an engine lets its user choose."""
    parser.add_argument(
        "--model", default=str(SHIPPED), help="checkpoint folder, random-9m or random-267m"
    )
    parser.add_argument(
        "--engine", choices=("process", "inproc"), default="process", help="where the engine runs"
    )
    parser.add_argument("--width", type=int, default=640, help="of the camera's frames")
    parser.add_argument("--height", type=int, default=480)


def settings(*, n_slots: int, n_windows: int) -> EngineSettings:
    """On the CPU with as many threads as the reference uses here."""
    threads = torch.get_num_threads()
    return EngineSettings(device="cpu", threads=threads, n_slots=n_slots, n_windows=n_windows)


@contextlib.asynccontextmanager
async def running_engine(folder: Path, kind: str, asked: EngineSettings) -> AsyncIterator[Engine]:
    """An engine that answers, ended on leaving."""
    engine = load_engine(
        folder,
        settings=asked,
        clock=SystemClock(),
        inproc=kind == "inproc",
        # A second process that imports torch while we measure helps nobody here.
        patience=Patience(standby=False),
    )
    try:
        await engine.ready()
        yield engine
    finally:
        engine.close()

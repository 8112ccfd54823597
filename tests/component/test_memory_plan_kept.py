"""The memory plan against reality: engine processes of the shipped model, as the system sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from liveedge.core.clock import SystemClock
from liveedge.core.machine import resident_bytes
from liveedge.engine.client import EngineClient, load_engine
from liveedge.engine.interface import EngineSettings
from liveedge.engine.memory.plan import (
    MIB,
    Budget,
    MemoryAsked,
    MemoryPlan,
    plan_memory,
    read_facts,
)
from liveedge.engine.process.supervisor import Patience
from liveedge.engine.request import Finished, GenerateRequest
from tests.engines import question
from tests.reference import clip, still

SHIPPED = Path(str(files("liveedge"))) / "assets" / "workcell-tiny"
SMALL = EngineSettings(
    device="cpu", n_slots=1, n_windows=0, max_model_len=512, encoder_cache_bytes=16 * MIB
)
LARGE = EngineSettings(
    device="cpu",
    n_slots=8,
    n_windows=4,
    max_model_len=8192,
    encoder_cache_bytes=256 * MIB,
    encode_tokens=512,
)
TOLERANCE = 0.15
# Beside the pools: tables and buffers that grow a little with them, page tables, allocators.
CONSTANT = 24 * MIB

pytestmark = pytest.mark.timeout(300)


def plan(settings: EngineSettings) -> MemoryPlan:
    budget = Budget(n_bytes=64 << 30, how="", most_bytes=64 << 30)
    return plan_memory(
        MemoryAsked(engine=settings, server=None, budget=budget, device="cpu"), read_facts(SHIPPED)
    )


def pools(of: MemoryPlan) -> int:
    """What is allocated at the start."""
    return sum(
        line.n_bytes
        for line in of.engine_lines
        if line.name in ("weights", "KV slots", "encoder cache")
    )


@asynccontextmanager
async def process(settings: EngineSettings) -> AsyncIterator[EngineClient]:
    engine = load_engine(
        SHIPPED,
        settings=settings,
        clock=SystemClock(),
        inproc=False,
        patience=Patience(standby=False),
    )
    try:
        await engine.ready()
        yield engine
    finally:
        await asyncio.to_thread(engine.close)


def resident(engine: EngineClient) -> int:
    assert engine.pid is not None
    n_bytes = resident_bytes(engine.pid)
    assert n_bytes is not None
    return n_bytes


async def ask(engine: EngineClient, request: GenerateRequest) -> None:
    async with aclosing(engine.generate(engine.prepare(request))) as events:
        last = [event async for event in events][-1]
    assert isinstance(last, Finished), last


async def test_an_engine_process_takes_what_was_planned():
    async with process(SMALL) as small, process(LARGE) as large:
        planned = pools(plan(LARGE)) - pools(plan(SMALL))
        measured = resident(large) - resident(small)
        assert planned > 400 * MIB
        assert abs(measured - planned) <= TOLERANCE * planned + CONSTANT
        for engine, settings in ((small, SMALL), (large, LARGE)):
            assert pools(plan(settings)) < resident(engine) <= plan(settings).host_bytes


async def test_work_of_every_kind_stays_within_the_plan():
    most = plan(LARGE)
    sizes = {line.name: line.n_bytes for line in most.engine_lines}
    async with process(LARGE) as engine:
        at_start = resident(engine)
        for turn in range(3):
            videos = [
                (f"{turn}-{n}", clip(480, 640, [0.5 * i for i in range(6)], seed=10 * turn + n))
                for n in range(3)
            ]
            videos.append((f"still-{turn}", still(1400, 1400, seed=turn)))  # as large as it takes
            asked = [
                question(f"{turn}-{n}", [video, "What?" * (1 + 200 * n)], max_tokens=30)
                for n, video in enumerate(videos)
            ]
            await asyncio.gather(*(ask(engine, request) for request in asked))
            grown = resident(engine) - at_start
            assert grown <= sizes["patches"] + sizes["workspace"] + sizes["frames"]
            assert at_start + grown <= most.host_bytes
        stats = engine.stats()
        assert stats.encoder_misses == 3 * (3 * 3 + 1)
        assert stats.shared_frame_bytes == 0
        assert stats.encoder_cache_bytes <= sizes["encoder cache"]

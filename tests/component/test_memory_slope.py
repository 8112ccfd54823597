"""Case 18: distinct frames by the thousand leave nothing behind, with departures and errors mixed in.

Shorter than the case, with a small model: the same three stores (pixels, patches, features) fill,
reach their caps and turn over many times. `bench/memory_slope.py` runs all of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from liveedge.core.clock import SystemClock
from liveedge.core.errors import MediaInvalid
from liveedge.core.machine import resident_bytes
from liveedge.engine.client import EngineClient, load_engine
from liveedge.engine.interface import EngineSettings
from liveedge.engine.process.supervisor import Patience
from liveedge.engine.request import (
    Failed,
    FrameInput,
    GenerateRequest,
    ImagePart,
    Message,
    SamplingParams,
    TextPart,
)
from tests.checkpoints import make_checkpoint

N_FRAMES = 3000
AT_ONCE = 6
MIB = 1 << 20
# One megabyte per thousand frames, and what an allocator moves up and down by.
ALLOWED = N_FRAMES // 1000 * MIB + 8 * MIB
SETTINGS = EngineSettings(
    device="cpu",
    n_slots=4,
    n_windows=1,
    max_model_len=512,
    encoder_cache_bytes=MIB,
    patch_bytes=2 * MIB,
    shared_frame_bytes=4 * MIB,
    threads=1,
)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EngineClient]:
    engine = load_engine(
        make_checkpoint(tmp_path, seed=5),
        settings=SETTINGS,
        clock=SystemClock(),
        inproc=False,
        patience=Patience(standby=False),
    )
    await engine.ready()
    yield engine
    await asyncio.to_thread(engine.close)


def broken() -> NDArray[np.uint8]:
    raise MediaInvalid("a frame that cannot be read")


def picture_request(number: int, rng: random.Random) -> GenerateRequest:
    """One picture of its own, of a random size; some cannot be read."""
    height, width = rng.randrange(40, 260), rng.randrange(40, 260)

    def load() -> NDArray[np.uint8]:
        return np.full((height, width, 3), number % 251, np.uint8)

    frame = FrameInput(
        key=f"frame-{number}",
        width=width,
        height=height,
        load=broken if number % 25 == 0 else load,
        time_s=0.0,
    )
    return GenerateRequest(
        request_id=f"request-{number}",
        messages=(Message(role="user", content=(ImagePart(frame=frame), TextPart("What?"))),),
        sampling=SamplingParams(max_tokens=2),
    )


async def ask(engine: EngineClient, request: GenerateRequest, *, leaves: bool) -> bool:
    """Whether it failed; a client that leaves does so at the first event."""
    async with aclosing(engine.generate(engine.prepare(request))) as events:
        async for event in events:
            if leaves:
                return False
            if isinstance(event, Failed):
                return True
    return False


async def work(engine: EngineClient, numbers: range, rng: random.Random) -> int:
    """How many of them failed."""
    waiting = iter(numbers)

    async def client() -> int:
        n_failed = 0
        for number in waiting:
            request = picture_request(number, rng)
            n_failed += await ask(engine, request, leaves=number % 10 == 3)
        return n_failed

    return sum(await asyncio.gather(*(client() for _ in range(AT_ONCE))))


def resident(engine: EngineClient) -> tuple[int, int]:
    """Of the engine's process and of this one."""
    return resident_bytes(engine.pid) or 0, resident_bytes() or 0


async def test_memory_is_flat_over_thousands_of_distinct_frames(engine: EngineClient) -> None:
    rng = random.Random(7)
    fifth = N_FRAMES // 5
    n_failed = await work(engine, range(fifth), rng)
    before = resident(engine)
    n_failed += await work(engine, range(fifth, N_FRAMES), rng)
    after = resident(engine)
    assert after[0] - before[0] <= ALLOWED
    assert after[1] - before[1] <= ALLOWED
    stats = engine.stats()
    assert n_failed == N_FRAMES // 25
    assert stats.encoder_cache_bytes <= stats.encoder_cache_capacity_bytes <= MIB
    assert stats.encoder_misses >= N_FRAMES - n_failed - N_FRAMES // 10
    for gauge in ("queue_depth", "running", "slots_used", "encoder_pinned_bytes", "patch_bytes"):
        assert getattr(stats, gauge) == 0, gauge
    assert stats.shared_frame_bytes == 0

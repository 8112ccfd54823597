"""Case 19: many large pictures at once are refused within the planned memory, and nothing else suffers.
Long texts neither."""

from __future__ import annotations

import asyncio
import io
import threading
from collections import Counter
from typing import Any

import numpy as np
from PIL import Image

from liveedge.core.clock import Clock
from liveedge.core.machine import resident_bytes
from liveedge.engine.interface import PreparedRequest
from liveedge.engine.request import GenerateRequest, TextPart
from liveedge.service.ask import LONG_PROMPT_CHARS
from liveedge.testing.engine import FakeEngine
from tests.serving import Serving, chat_body, data_url, image, picture, serving, until

N_REQUESTS = 500
DECODED_MB, BODIES_MB = 150, 24
SIZE = (3840, 2160)
DECODING = 2 * 4 * 3840 * 2160  # two workers hold a picture in the decoder's form as well
SLACK = 96 << 20  # threads, and what allocators keep


def large_jpeg() -> bytes:
    """4K, compressed to a few hundred kilobytes."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (68, 120, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize(SIZE, Image.Resampling.BICUBIC).save(out, "JPEG", quality=85)
    return out.getvalue()


async def watch(peak: list[int]) -> None:
    """Keep the largest memory of this process."""
    while True:
        peak[0] = max(peak[0], resident_bytes() or 0)
        await asyncio.sleep(0.005)  # of real time: it is the system that is looked at


async def ask_all(server: Serving, body: bytes) -> list[tuple[int, str | None]]:
    """Status and Retry-After of every answer."""

    async def one() -> tuple[int, str | None]:
        answer = await server.client.post("/v1/chat/completions", content=body)
        return answer.status_code, answer.headers.get("retry-after")

    return await asyncio.gather(*(one() for _ in range(N_REQUESTS)))


async def test_five_hundred_4k_pictures_at_once_are_answered_or_refused_within_the_plan():
    limits: dict[str, Any] = {
        "max_decoded_mb": DECODED_MB,
        "max_uploads_mb": BODIES_MB,
        "max_body_mb": 2,
    }
    async with serving(**limits) as server:
        request = server.client.build_request(
            "POST", "/", json=chat_body(image(data_url(large_jpeg(), "image/jpeg")))
        )
        base = resident_bytes() or 0
        peak = [base]
        watcher = asyncio.create_task(watch(peak))
        answers = await ask_all(server, request.content)
        watcher.cancel()

        counted = Counter(status for status, _ in answers)
        assert set(counted) <= {200, 429, 503}
        assert counted[200] >= 1
        assert counted[429] >= N_REQUESTS - server.built.questions.in_progress.capacity
        assert all(wait is not None for status, wait in answers if status != 200)
        assert peak[0] - base <= (DECODED_MB << 20) + 3 * (BODIES_MB << 20) + DECODING + SLACK

        assert server.built.questions.in_progress.used == 0
        assert server.built.questions.decoded_bytes.used == 0
        assert server.built.held_bytes.used == 0
        control = await server.ask(image(data_url(picture())))
        assert control.status_code == 200
        assert (await server.client.get("/health")).status_code == 200


class SlowCounter(FakeEngine):
    """Counts the tokens of a long text until the test has seen enough."""

    n_counting = 0
    may_end: threading.Event

    def prepare(self, request: GenerateRequest) -> PreparedRequest:
        parts = [part for message in request.messages for part in message.content]
        if sum(len(part.text) for part in parts if isinstance(part, TextPart)) > LONG_PROMPT_CHARS:
            self.n_counting += 1
            assert self.may_end.wait(30)
        return super().prepare(request)


async def test_ordinary_questions_are_prepared_beside_any_number_of_long_texts():
    may_end = threading.Event()

    def engine(clock: Clock) -> FakeEngine:
        made = SlowCounter(clock=clock)
        made.may_end = may_end
        return made

    async with serving(engine=engine) as server:
        long = {"type": "text", "text": "a" * (LONG_PROMPT_CHARS + 1)}
        floods = [asyncio.ensure_future(server.ask(long)) for _ in range(6)]
        try:
            assert isinstance(server.engine, SlowCounter)
            counter = server.engine
            await until(lambda: counter.n_counting > 0)
            answer = await server.ask({"type": "text", "text": "Is the door open?"})
            assert answer.status_code == 200
            assert not any(flood.done() for flood in floods)
        finally:
            may_end.set()
        assert [(await flood).status_code for flood in floods] == [200] * 6

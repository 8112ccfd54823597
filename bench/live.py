"""A live stream under the bench's control: pictures of a tape, pushed at moments of its choice.

Ticks of the grid come every `tick_s`; the frame of a tick is pushed a little after it, and a frame
off the grid can follow within the same tick. Between two pushes nothing moves: a question then
finds the window as the server has it, and no work for another tick beside it.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from lean_http import Heard, LeanClient
from liveedge.media.picture import encode_picture
from tape import Edge, Tape, question

AFTER_TICK = 0.1  # shares of a tick: late enough for any jitter of the push before it
OFF_GRID = 0.6
BEFORE_START = 0.8  # the window's start lies so far before its first tick's successor
TRIES = 20  # questions until the server must have warmed a window


class LiveStream:
    """One stream of a server, for as long as its client is open."""

    def __init__(self, client: LeanClient, tape: Tape, *, model: str, tick_s: float) -> None:
        self._client = client
        self._tape = tape
        self._model = model
        self._tick_s = tick_s
        self._id = ""
        self._began_s = 0.0
        self._tick = -1
        self._n_pushed = 0

    async def begin(self, n_ticks: int) -> None:
        """Create the stream and push a frame for each of the first ticks."""
        created = await self._post("/v1beta/streams", b'{"source": {"type": "push"}}')
        self._id = created["id"]
        for _ in range(n_ticks):
            await self.push_tick()

    async def push_tick(self) -> None:
        """Wait for the next tick and push its frame."""
        self._tick += 1
        if self._tick == 0:
            await self._push()  # the stream's clock starts with it
            self._began_s = time.perf_counter()
            return
        await self._sleep_until(self._tick + AFTER_TICK)
        await self._push()

    async def push_off_grid(self) -> None:
        """Push a frame that belongs to no tick of its own, later within the present one."""
        await self._sleep_until(self._tick + OFF_GRID)
        await self._push()

    def question(self, text: str, *, n_frames: int, edge: Edge, max_tokens: int = 1) -> bytes:
        """The request for the newest `n_frames` ticks, ready to send."""
        offset_ms = round((n_frames - 1 + BEFORE_START) * self._tick_s * 1000)
        query = f"start_offset_ms=-{offset_ms}&max_fps={1 / self._tick_s:g}&edge={edge}"
        media = {"url": f"ovs://streams/{self._id}?{query}"}
        content = [{"type": "video_url", "video_url": media}, {"type": "text", "text": text}]
        return self._client.chat(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": content}],
                "max_completion_tokens": max_tokens,
            }
        )

    async def hear(self, request: bytes, client: LeanClient | None = None) -> Heard:
        """The answer, over the stream's own connection or another one."""
        return checked(await (client or self._client).hear(request))

    async def until_warm(self, n_frames: int) -> None:
        """Ask until the server keeps the window warm; nothing may move meanwhile."""
        for number in range(TRIES):
            asked = self.question(question(number), n_frames=n_frames, edge="grid")
            if is_warm(await self.hear(asked)):
                return
        raise SystemExit(f"the server has not warmed a window after {TRIES} questions about it")

    async def _push(self) -> None:
        picture = self._tape.pictures[self._n_pushed % len(self._tape.pictures)]
        self._n_pushed += 1
        data = encode_picture(picture, "jpeg")
        await self._post(f"/v1beta/streams/{self._id}/frames", data, "image/jpeg")

    async def _post(self, path: str, data: bytes, kind: str = "application/json") -> Any:
        return json.loads(await self._client.fetch(self._client.post(path, data, kind)))

    async def _sleep_until(self, tick: float) -> None:
        left_s = self._began_s + tick * self._tick_s - time.perf_counter()
        await asyncio.sleep(max(0.0, left_s))


def checked(heard: Heard) -> Heard:
    """An answer, or the end of the run with what the server said instead."""
    if heard.status != 200 or heard.error:
        raise SystemExit(f"the server answered {heard.status}: {heard.error}")
    return heard


def is_warm(heard: Heard) -> bool:
    """Every frame was there already, and nearly all tokens."""
    frames = heard.evidence.get("frames", ())
    return bool(frames) and all(frame["warm"] for frame in frames) and heard.cached_tokens > 0

"""One signalling socket: messages in and out under bounds, until either side is done.

Owns    what waits to be sent, and the deadlines: of a silent client, of one that does not read.
Thread  the server's event loop. `send` and `finish` never block.
Never   looks into a message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from liveedge.core.clock import Clock
from liveedge.core.tasks import TaskSet
from liveedge.media.livekit.messages import PING_TIMEOUT_S, MessageInvalid

Over: TypeAlias = Literal["left", "told", "silent", "slow", "flood", "too_large", "malformed"]

_CLOSES: dict[Over, tuple[int, str]] = {
    "left": (1000, ""),
    "told": (1000, ""),
    "silent": (1001, f"no message for {PING_TIMEOUT_S} s"),
    "slow": (1008, "messages are not read"),
    "flood": (1008, "too many messages"),
    "too_large": (1009, "the message is too large"),
    "malformed": (1007, "not a message of a LiveKit client"),
}


class Socket(Protocol):
    """A WebSocket that has not been accepted yet, without its framework."""

    async def accept(self) -> None: ...

    async def receive(self) -> bytes | str | None:
        """The next message; None once the other side is gone."""
        ...

    async def send(self, data: bytes) -> bool:
        """Hand it to the network; waits while that is full. False once the other side is gone."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Again, or after the other side has gone, does nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a client may do; SDKs stay far below."""

    max_message_bytes: int = 512 * 1024
    messages_per_s: float = 25.0  # on the average
    burst: int = 250  # an SDK sends its candidates at once
    max_waiting: int = 64  # of ours, not sent yet
    silence_s: float = PING_TIMEOUT_S
    send_s: float = 5.0  # for one message to be taken by the network
    handle_s: float = 20.0  # for one message to be handled


class Connection:
    """A socket while it is served. `serve` ends for exactly one reason."""

    def __init__(self, socket: Socket, *, clock: Clock, bounds: Bounds | None = None) -> None:
        self._socket = socket
        self._clock = clock
        self._bounds = bounds or Bounds()
        self._waiting: deque[bytes] = deque()
        self._something = asyncio.Event()  # to send, or to finish
        self._is_finishing = False
        self._is_slow = False
        self._tokens = float(self._bounds.burst)
        self._filled_s = clock.monotonic_s()
        self._idle_since_s: float | None = clock.monotonic_s()
        self._busy_since_s: float | None = None
        self._sending_since_s: float | None = None

    def send(self, data: bytes) -> None:
        """Never blocks. A client that lets too many wait is given up."""
        if self._is_finishing:
            return
        if len(self._waiting) >= self._bounds.max_waiting:
            self._is_slow = self._is_finishing = True
            self._waiting.clear()
        else:
            self._waiting.append(data)
        self._something.set()

    def finish(self) -> None:
        """Close once everything is sent."""
        self._is_finishing = True
        self._something.set()

    async def serve(self, handle: Callable[[bytes], Awaitable[None]]) -> Over:
        """Give every message to `handle`, one after the other; return why it is over."""
        tasks = TaskSet("livekit")
        jobs = (
            tasks.start(self._read(handle), name="read"),
            tasks.start(self._write(), name="write"),
            tasks.start(self._watch(), name="watch"),
        )
        over: Over = "left"
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            over = next(job for job in jobs if job in done).result()
            self.finish()
            if over not in ("left", "slow"):
                await self._at_most_send_s(jobs[1])  # last words, also to who broke a rule
        finally:
            await tasks.close()
            if over != "slow":  # whoever does not read does not read this either
                closing = tasks.start(self._socket.close(*_CLOSES[over]), name="close")
                await self._at_most_send_s(closing)
                await tasks.close()
        return over

    async def _at_most_send_s(self, work: asyncio.Task[Any]) -> None:
        patience = TaskSet("livekit")
        timer = patience.start(self._clock.sleep(self._bounds.send_s), name="patience")
        await asyncio.wait((work, timer), return_when=asyncio.FIRST_COMPLETED)
        await patience.close()

    async def _read(self, handle: Callable[[bytes], Awaitable[None]]) -> Over:
        while True:
            message = await self._socket.receive()
            if message is None:
                return "left"
            self._idle_since_s = None
            if broken := self._broken_rule(message):
                return broken
            if isinstance(message, bytes):  # texts are of no use here, and of no harm
                self._busy_since_s = self._clock.monotonic_s()
                try:
                    await handle(message)
                except MessageInvalid:
                    return "malformed"
                self._busy_since_s = None
            self._idle_since_s = self._clock.monotonic_s()

    def _broken_rule(self, message: bytes | str) -> Over | None:
        if len(message) > self._bounds.max_message_bytes:
            return "too_large"
        now_s = self._clock.monotonic_s()
        gained = (now_s - self._filled_s) * self._bounds.messages_per_s
        self._tokens = min(self._bounds.burst, self._tokens + gained) - 1
        self._filled_s = now_s
        return "flood" if self._tokens < 0 else None

    async def _write(self) -> Over:
        while True:
            await self._something.wait()
            self._something.clear()
            while self._waiting:
                self._sending_since_s = self._clock.monotonic_s()
                if not await self._socket.send(self._waiting.popleft()):
                    return "left"
                self._sending_since_s = None
            if self._is_finishing:
                return "slow" if self._is_slow else "told"

    async def _watch(self) -> Over:
        bounds = self._bounds
        while True:
            await self._clock.sleep(1.0)
            if self._lasts_longer_than(bounds.send_s, self._sending_since_s) or self._is_slow:
                return "slow"
            if self._lasts_longer_than(bounds.silence_s, self._idle_since_s):
                return "silent"
            if self._lasts_longer_than(bounds.handle_s, self._busy_since_s):
                return "slow"

    def _lasts_longer_than(self, limit_s: float, since_s: float | None) -> bool:
        return since_s is not None and self._clock.monotonic_s() - since_s >= limit_s

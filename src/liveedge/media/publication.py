"""A publisher's media connection into a stream: attached together, ended together, once.

Made by WHIP and LiveKit alike. It ends by itself (the connection failed), by the stream (another
publisher came, or the stream is over) or by its owner; the owner is told of the first two.

Thread  the server's event loop. The stream may call from any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from liveedge.core.errors import QueueFull
from liveedge.media.published import LeaveReason, PublishedSource, Publisher
from liveedge.media.webrtc.session import (
    MediaSession,
    MediaSessions,
    OfferInvalid,
    SessionStats,
)

Cause: TypeAlias = Literal["replaced", "ended", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a publication is over, unless its owner ended it."""

    cause: Cause
    reason: str  # for people


class Publication:
    """Exists while its publisher is connected."""

    def __init__(self, *, on_end: Callable[[Ending], None]) -> None:
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._publisher: Publisher | None = None
        self._session: MediaSession | None = None
        self._is_over = False

    async def open(self, source: PublishedSource, sessions: MediaSessions, *, label: str) -> None:
        """Come in. Raises StreamStateInvalid or QueueFull."""
        publisher = source.enter(self._told_to_leave)
        self._publisher = publisher
        try:
            self._session = await sessions.open(publisher, on_end=self._failed, label=label)
        except QueueFull:
            self._is_over = True
            publisher.close("the server has no room for the publisher's connection")
            raise
        if self._is_over:  # replaced while it opened
            await self._session.close("another publisher took over")

    @property
    def session(self) -> MediaSession:
        assert self._session is not None, "open() first"
        return self._session

    async def answer(self, offer: str) -> str:
        """The answer to an offer, with the first of which it takes over from another publisher.

        Raises OfferInvalid.
        """
        assert self._publisher is not None, "open() first"
        answer = await self.session.answer(offer)
        if not self._publisher.answered():
            raise OfferInvalid("another publisher took over, or the stream has ended")
        return answer

    def stats(self) -> SessionStats | None:
        """The connection in numbers; None before there is one."""
        return None if self._session is None else self._session.stats()

    def leave(self, reason: str) -> None:
        """Out of the stream, at once; `reason` is shown until another publisher comes. To be called
        before the client is told: it closes then, too, and says less. `close` is still to come."""
        self._is_over = True
        if self._publisher is not None:
            self._publisher.close(reason)

    async def close(self, reason: str) -> None:
        """End it; `reason` as in `leave`. Again does nothing."""
        self.leave(reason)
        if self._session is not None:
            await self._session.close(reason)

    def _told_to_leave(self, reason: LeaveReason) -> None:
        text = "another publisher took over" if reason == "replaced" else "the stream has ended"
        ending = Ending(cause=reason, reason=text)
        try:
            self._loop.call_soon_threadsafe(self._end, ending)
        except RuntimeError:  # the server's loop is closed: nobody is left to be told
            return

    def _failed(self, reason: str) -> None:
        self._end(Ending(cause="failed", reason=reason))

    def _end(self, ending: Ending) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_end(ending)

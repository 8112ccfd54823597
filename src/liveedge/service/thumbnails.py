"""Thumbnails of frames, made in one thread and once for everybody who looks at the same frame.

Owns    the thread, and per stream the newest thumbnail that was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from liveedge.core.tasks import TaskSet
from liveedge.frames.frame import Frame
from liveedge.frames.store import FrameStore
from liveedge.service.change import Thumbnail, thumbnail
from liveedge.service.workers import Workers


@dataclass(frozen=True, slots=True)
class _Made:
    index: int
    task: asyncio.Task[Thumbnail]


class Thumbnails:
    """All thumbnails of a server. Used on the event loop."""

    def __init__(self) -> None:
        self.n_made = 0
        self._workers = Workers("thumbnails", n_threads=1)
        self._tasks = TaskSet("thumbnails")
        self._newest: dict[str, _Made] = {}  # by stream

    async def of(self, stream_id: str, frame: Frame) -> Thumbnail:
        """Of a frame that was the newest a moment ago."""
        made = self._newest.get(stream_id)
        if made is None or made.index != frame.index:
            task = self._tasks.start(
                self._make(lambda: thumbnail(frame.pixels.rgb())), name=stream_id
            )
            made = self._newest[stream_id] = _Made(frame.index, task)
        return await asyncio.shield(made.task)  # others may wait for it too

    async def at(self, store: FrameStore, index: int) -> Thumbnail:
        """Of a retained frame. Raises FrameEvicted or StreamNotFound."""
        made = self._newest.get(store.stream_id)
        if made is not None and made.index == index:
            return await asyncio.shield(made.task)
        return await self._make(lambda: thumbnail(store.load(index)))

    def keep_only(self, stream_ids: Collection[str]) -> None:
        """Nobody looks at the other streams any more."""
        for stream_id in self._newest.keys() - stream_ids:
            del self._newest[stream_id]

    async def close(self) -> None:
        await self._tasks.close()
        self._workers.close()

    async def _make(self, work: Callable[[], Thumbnail]) -> Thumbnail:
        self.n_made += 1
        return await self._workers.run(work)

"""Which moment each frame of a stream shows: read from its pixels, or known from its publisher.

Bounded: so many pictures are fetched after each step, and what they said is kept for later steps.
A publisher that is told the number of each frame that it pushed tells its moment too: then some are
fetched only to see that both agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from liveedge.bench.record import Record
from liveedge.bench.sources.streams import SourceFailed, Streams
from liveedge.bench.sources.truth import Moment, read_moment

MAX_READ = 800  # pictures after one step: 40 ms each at most on a server that has nothing to do
N_CHECKED = 40  # of those whose moment the publisher told
AT_ONCE = 4
MAX_KEPT = 100_000

Frame = Mapping[str, Any]
Key = tuple[int, int]  # source, frame index


class Sightings:
    """What is known about frames. `published` is called by the thread that hears the publisher."""

    def __init__(self, streams: Streams, *, max_published: int) -> None:
        self.n_read = 0
        self.n_unreadable = 0  # no code could be read: damaged, or a camera without one
        self.n_gone = 0  # not retained any more
        self.n_over = 0  # left out: more than are read after one step
        self.n_disagree = 0  # the publisher says that this frame shows another moment
        self._streams = streams
        self._max_published = max_published
        self._published: dict[Key, Moment] = {}
        self._read: dict[Key, Moment] = {}

    def published(self, source: int, index: int, moment: Moment) -> None:
        self._published[source, index] = moment
        if len(self._published) > self._max_published:
            del self._published[next(iter(self._published))]

    async def look(self, records: Sequence[Record], by_stream: Mapping[str, int]) -> None:
        """Read what these answers saw; the records that come first, where it is too much."""
        wanted = {
            key: stream_id
            for record in records
            for key, stream_id in _keys(record.frames, by_stream)
            if key not in self._read
        }
        unknown = [item for item in wanted.items() if item[0] not in self._published]
        known = [item for item in wanted.items() if item[0] in self._published]
        chosen = [*unknown[:MAX_READ], *known[:N_CHECKED]]
        self.n_over += max(0, len(unknown) - MAX_READ)
        for start in range(0, len(chosen), AT_ONCE):
            batch = chosen[start : start + AT_ONCE]
            await asyncio.gather(*(self._look_at(key, stream_id) for key, stream_id in batch))

    def of(self, frame: Frame, by_stream: Mapping[str, int]) -> Moment | None:
        """What is known of a frame that an answer names."""
        for key, _ in _keys([frame], by_stream):
            return self._read.get(key) or self._published.get(key)
        return None

    def report(self) -> dict[str, int]:
        return {
            "pictures_read": self.n_read,
            "pictures_unreadable": self.n_unreadable,
            "pictures_gone": self.n_gone,
            "pictures_not_read": self.n_over,
            "pictures_disagree": self.n_disagree,
        }

    async def _look_at(self, key: Key, stream_id: str) -> None:
        try:
            picture = await self._streams.picture(stream_id, key[1])
        except SourceFailed:  # the server is away, or has no such route
            picture = None
        if picture is None:
            self.n_gone += 1
            return
        self.n_read += 1
        moment = await asyncio.to_thread(read_moment, picture)
        if moment is None:
            self.n_unreadable += 1
            return
        told = self._published.get(key)
        self.n_disagree += told is not None and told != moment
        self._read[key] = moment
        if len(self._read) > MAX_KEPT:
            del self._read[next(iter(self._read))]


def _keys(frames: Sequence[Frame], by_stream: Mapping[str, int]) -> Iterator[tuple[Key, str]]:
    """Those that are of our streams."""
    for frame in frames:
        stream_id, index = frame.get("stream_id"), frame.get("frame_index")
        if isinstance(stream_id, str) and stream_id in by_stream and isinstance(index, int):
            yield (by_stream[stream_id], index), stream_id

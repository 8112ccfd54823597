"""Sums over all streams since the start: what ended streams counted stays counted.

Labels are closed sets of reasons, never a stream's id or a tenant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from liveedge.service.view import StreamView


@dataclass(slots=True, kw_only=True)
class StreamTotals:
    """Counters only ever rise; the gauges are about the streams that are active now."""

    active: int = 0
    opening: int = 0
    unsaved: int = 0  # of which the state folder does not know the newest yet
    retained_frames: int = 0
    memory_bytes: int = 0
    reserved_bytes: int = 0
    by_health: Counter[str] = field(default_factory=Counter)
    frames: int = 0  # that got an index
    evicted: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    corrupt_frames: int = 0
    reconnects: int = 0
    ended: Counter[str] = field(default_factory=Counter)

    def count(self, view: StreamView) -> None:
        """Add what a stream has counted so far."""
        self.frames += view.retained_frame_count + view.evicted_frame_count
        self.evicted.update(view.evicted)
        self.dropped.update(view.dropped)
        self.corrupt_frames += view.corrupt_frames
        self.reconnects += view.reconnects
        if view.end_reason is not None:
            self.ended[view.end_reason] += 1

    def discount(self, view: StreamView) -> None:
        """Take off what a stream had counted before this server was started."""
        self.frames -= view.retained_frame_count + view.evicted_frame_count
        self.evicted.subtract(view.evicted)
        self.dropped.subtract(view.dropped)
        self.corrupt_frames -= view.corrupt_frames
        self.reconnects -= view.reconnects

    def with_active(
        self, views: Iterable[StreamView], *, opening: int, unsaved: int
    ) -> StreamTotals:
        """These sums and those of the streams that are active now."""
        now = StreamTotals(
            opening=opening,
            unsaved=unsaved,
            frames=self.frames,
            evicted=self.evicted.copy(),
            dropped=self.dropped.copy(),
            corrupt_frames=self.corrupt_frames,
            reconnects=self.reconnects,
            ended=self.ended.copy(),
        )
        for view in views:
            now.count(view)
            now.active += 1
            now.retained_frames += view.retained_frame_count
            now.memory_bytes += view.memory_bytes
            now.reserved_bytes += view.reserved_bytes
            now.by_health[view.health] += 1
        return now

"""The way of every decoded frame of a pulled source to its stream."""

from __future__ import annotations

import threading
from collections.abc import Callable

from liveedge.media.decode import VideoReader
from liveedge.media.source import FrameSink

EARLY = "before_key_frame"


def deliver(
    reader: VideoReader,
    sink: FrameSink,
    stopping: threading.Event,
    *,
    await_due: Callable[[float], bool] | None = None,
) -> None:
    """Hand on every frame, and count what does not become one, until the end or `stopping`.

    `await_due` waits until a frame of this time is due; True: it was stopped meanwhile.
    """
    n_broken = n_early = 0
    for frame in reader.frames():
        if stopping.is_set():
            return
        if reader.n_broken > n_broken:
            sink.broken(reader.n_broken - n_broken)
            n_broken = reader.n_broken
        if reader.n_early > n_early:
            sink.dropped(EARLY, reader.n_early - n_early)
            n_early = reader.n_early
        if frame is None:
            continue
        if await_due is not None and await_due(frame.time_s):
            return
        sink.frame(
            frame.pixels, source_time_s=frame.time_s, corrupt=frame.corrupt, coded=frame.coded
        )

"""The way of every decoded frame of a pulled source to its stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import av

from liveedge.media.decode import DecodeCounts, DecodedFrame
from liveedge.media.source import FrameSink, SourceLost

EARLY = "before_key_frame"
BEHIND = "decoder_behind"
CUT_OFF = "cut_off"  # in the decoder when the connection broke


class FrameReader(Protocol):
    """Where decoded frames come from: `decode.VideoReader`, or a reader of one protocol."""

    @property
    def counts(self) -> DecodeCounts: ...

    def frames(self) -> Iterator[DecodedFrame | None]: ...


def deliver(
    reader: FrameReader,
    sink: FrameSink,
    stopping: threading.Event,
    *,
    await_due: Callable[[float], bool] | None = None,
) -> None:
    """Hand on every frame, and count what does not become one, until the end or `stopping`.

    `await_due` waits until a frame of this time is due; True: it was stopped meanwhile.
    """
    try:
        _deliver(reader, sink, stopping, await_due)
    except (av.FFmpegError, OSError, SourceLost):
        if reader.counts.inside:
            sink.dropped(CUT_OFF, reader.counts.inside)
        raise


def _deliver(
    reader: FrameReader,
    sink: FrameSink,
    stopping: threading.Event,
    await_due: Callable[[float], bool] | None,
) -> None:
    told = Told(reader.counts, sink)
    for frame in reader.frames():
        if stopping.is_set():
            return
        told.tell()
        if frame is None:
            continue
        if await_due is not None and await_due(frame.time_s):
            return
        sink.frame(
            frame.pixels, source_time_s=frame.time_s, corrupt=frame.corrupt, coded=frame.coded
        )


class Told:
    """What the stream has been told of frames that never came."""

    def __init__(self, counts: DecodeCounts, sink: FrameSink) -> None:
        self._counts = counts
        self._sink = sink
        self._told = replace(counts)

    def tell(self) -> None:
        """What is new."""
        counts, told = self._counts, self._told
        if counts == told:
            return
        self._told = replace(counts)
        if counts.broken > told.broken:
            self._sink.broken(counts.broken - told.broken)
        if counts.early > told.early:
            self._sink.dropped(EARLY, counts.early - told.early)
        if counts.behind > told.behind:
            self._sink.dropped(BEHIND, counts.behind - told.behind)

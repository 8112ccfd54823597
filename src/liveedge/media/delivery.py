"""The way of every decoded frame of a pulled source to its stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import av

from liveedge.media.decode import DecodedFrame
from liveedge.media.source import FrameSink, SourceLost

EARLY = "before_key_frame"
BEHIND = "decoder_behind"
CUT_OFF = "cut_off"  # in the decoder when the connection broke


class FrameReader(Protocol):
    """Where decoded frames come from: `decode.VideoReader`, or a reader of one protocol."""

    @property
    def n_broken(self) -> int: ...

    @property
    def n_early(self) -> int: ...

    @property
    def n_behind(self) -> int: ...

    @property
    def n_inside(self) -> int: ...

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
        if reader.n_inside:
            sink.dropped(CUT_OFF, reader.n_inside)
        raise


def _deliver(
    reader: FrameReader,
    sink: FrameSink,
    stopping: threading.Event,
    await_due: Callable[[float], bool] | None,
) -> None:
    told = _Told()
    for frame in reader.frames():
        if stopping.is_set():
            return
        told.tell(reader, sink)
        if frame is None:
            continue
        if await_due is not None and await_due(frame.time_s):
            return
        sink.frame(
            frame.pixels, source_time_s=frame.time_s, corrupt=frame.corrupt, coded=frame.coded
        )


class _Told:
    """What the stream has been told of frames that never came."""

    def __init__(self) -> None:
        self._n_broken = self._n_early = self._n_behind = 0

    def tell(self, reader: FrameReader, sink: FrameSink) -> None:
        if reader.n_broken > self._n_broken:
            sink.broken(reader.n_broken - self._n_broken)
            self._n_broken = reader.n_broken
        if reader.n_early > self._n_early:
            sink.dropped(EARLY, reader.n_early - self._n_early)
            self._n_early = reader.n_early
        if reader.n_behind > self._n_behind:
            sink.dropped(BEHIND, reader.n_behind - self._n_behind)
            self._n_behind = reader.n_behind

"""A source fed by its clients: one encoded picture (JPEG, PNG, WebP) per frame.

Thread  `push` runs in the caller's thread (a worker, never the event loop) and is serialised here.
"""

from __future__ import annotations

import threading

from liveedge.core.errors import StreamStateInvalid
from liveedge.frames.frame import Frame, RgbPixels
from liveedge.media.picture import PictureLimits, decode_picture
from liveedge.media.source import FrameSink, SourceKind


class PushSource:
    """Opens at once and waits; a pause of the client is shown as a stall and ends by itself."""

    kind: SourceKind = "push"
    stall_after_s: float | None = 5.0
    restart_on_stall = False

    def __init__(self, *, limits: PictureLimits) -> None:
        self._limits = limits
        self._sink: FrameSink | None = None
        self._turn = threading.Lock()

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        with self._turn:  # its client may push as soon as the stream counts as open
            sink.state("waiting_for_publisher", "no frame has been pushed yet")
            self._sink = sink
        stopping.wait()
        with self._turn:
            self._sink = None

    def push(self, data: bytes, *, captured_at_ms: int | None = None) -> Frame:
        """Decode a picture and make it the stream's newest frame."""
        rgb = decode_picture(data, limits=self._limits, what="the pushed frame")
        source_time_s = None if captured_at_ms is None else captured_at_ms / 1000
        with self._turn:
            frame = self._sink and self._sink.frame(RgbPixels(rgb), source_time_s=source_time_s)
        if not frame:
            raise StreamStateInvalid("the stream takes no frames: it is starting or has ended")
        return frame

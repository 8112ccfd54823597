"""A source that publishers feed: whoever connects last is the stream's only publisher.

The source opens at once and waits. Who comes while another one publishes waits beside it until it is
answered: an offer that comes to nothing ends nobody. A publisher that is replaced, or whose stream ends, is told to
leave, once; from that instant none of its frames gets through, so that frames of two never mix. A
publisher that leaves does not end the stream.

Thread  any. One lock orders publishers and frames; nobody is told anything while it is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from liveedge.core.errors import StreamStateInvalid
from liveedge.frames.frame import CodedFrame, Frame, Pixels
from liveedge.media.source import FrameSink, Health, SourceKind

LeaveReason: TypeAlias = Literal["replaced", "ended"]
WAITING = "no publisher is connected"


class PublishedSource:
    """The stream's side of WHIP and LiveKit."""

    stall_after_s: float | None = 5.0
    restart_on_stall = False

    def __init__(self, kind: SourceKind) -> None:
        self.kind: SourceKind = kind
        self._lock = threading.Lock()
        self._sink: FrameSink | None = None
        self._publisher: Publisher | None = None
        self._waiting: Publisher | None = None  # beside one that has been answered

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        with self._lock:
            before = self._emptied()  # of a run that has been cut off
            self._sink = sink
            sink.state("waiting_for_publisher", WAITING)
        _tell(before, "ended")
        stopping.wait()
        with self._lock:
            if self._sink is not sink:  # a later run has taken over
                return
            self._sink = None
            last = self._emptied()
        _tell(last, "ended")

    def enter(self, leave: Callable[[LeaveReason], None]) -> Publisher:
        """Become the stream's publisher, at once or, beside one that has been answered, when `answered`
        says so too. `leave` is called once if another one takes over or the stream ends, from any
        thread, and must not block. Raises StreamStateInvalid."""
        newest = Publisher(self, leave)
        with self._lock:
            if self._sink is None:
                raise StreamStateInvalid("the stream takes no publisher: it is starting or ended")
            before, self._waiting = self._waiting, None
            if self._publisher is not None and self._publisher.is_answered:
                self._waiting = newest
            else:
                before = self._begin(self._sink, newest) or before
        _tell([before], "replaced")
        return newest

    def attach(self, leave: Callable[[LeaveReason], None]) -> Publisher:
        """`enter` for somebody who needs no answer."""
        newest = self.enter(leave)
        newest.answered()
        return newest

    def _begin(self, sink: FrameSink, newest: Publisher) -> Publisher | None:
        """Called under the lock. Whom it replaces."""
        before, self._publisher = self._publisher, newest
        if before is not None:
            sink.gap()
        sink.state("waiting_for_keyframe", "the publisher is connecting")
        return before

    def _emptied(self) -> list[Publisher | None]:
        """Called under the lock. Who was there."""
        was = [self._publisher, self._waiting]
        self._publisher = self._waiting = None
        return was

    # ── called by Publisher ──

    def _of(self, publisher: Publisher) -> FrameSink | None:
        """The sink, for its present publisher. Called under the lock."""
        return self._sink if self._publisher is publisher else None

    def _answered(self, publisher: Publisher) -> bool:
        before = None
        with self._lock:
            if self._waiting is publisher and self._sink is not None:
                self._waiting = None
                before = self._begin(self._sink, publisher)
            is_current = publisher.is_answered = self._of(publisher) is not None
        _tell([before], "replaced")
        return is_current

    def _detach(self, publisher: Publisher, reason: str) -> None:
        with self._lock:
            if self._waiting is publisher:
                self._waiting = None
            sink = self._of(publisher)
            if sink is None:
                return
            self._publisher, waiting, self._waiting = None, self._waiting, None
            sink.gap()
            sink.state("waiting_for_publisher", reason)
            if waiting is not None:
                self._begin(sink, waiting)


class Publisher:
    """One connection's handle on a stream. Calls after it was replaced do nothing."""

    def __init__(self, source: PublishedSource, leave: Callable[[LeaveReason], None]) -> None:
        self.is_answered = False  # written under the source's lock
        self._source = source
        self._leave = leave

    @property
    def is_current(self) -> bool:
        with self._source._lock:
            return self._source._of(self) is not None

    def frame(
        self,
        pixels: Pixels,
        *,
        source_time_s: float | None = None,
        corrupt: bool = False,
        coded: CodedFrame | None = None,
    ) -> Frame | None:
        """Deliver a frame; None once replaced or ended."""
        with self._source._lock:
            sink = self._source._of(self)
            if sink is None:
                return None
            return sink.frame(pixels, source_time_s=source_time_s, corrupt=corrupt, coded=coded)

    def state(self, health: Health, reason: str = "", *, codec: str | None = None) -> None:
        with self._source._lock:
            sink = self._source._of(self)
            if sink is not None:
                sink.state(health, reason, codec=codec)

    def broken(self, count: int = 1) -> None:
        with self._source._lock:
            sink = self._source._of(self)
            if sink is not None:
                sink.broken(count)

    def dropped(self, reason: str, count: int = 1) -> None:
        with self._source._lock:
            sink = self._source._of(self)
            if sink is not None:
                sink.dropped(reason, count)

    def gap(self) -> None:
        with self._source._lock:
            sink = self._source._of(self)
            if sink is not None:
                sink.gap()

    def answered(self) -> bool:
        """Its offer is answered: it takes over from whoever publishes. False once it was replaced
        itself, or the stream has ended."""
        return self._source._answered(self)

    def close(self, reason: str = WAITING) -> None:
        """The publisher has left by itself; `reason` is shown to people until another comes."""
        self._source._detach(self, reason)

    def leave(self, reason: LeaveReason) -> None:
        """Called by the source, once, when the publisher is no longer wanted."""
        self._leave(reason)


def _tell(publishers: Iterable[Publisher | None], reason: LeaveReason) -> None:
    for publisher in publishers:
        if publisher is not None:
            publisher.leave(reason)

"""What a source of frames is, and what it may do.

A source is run by its supervisor in a thread of its own. It opens, delivers frames in order, and
either returns (nothing more will ever come) or raises `SourceLost` (trying again may help).
A reason never contains the URL: URLs carry passwords, and reasons reach users and logs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from liveedge.frames.frame import CodedFrame, Frame, Pixels

SourceKind: TypeAlias = Literal[
    "sim", "file", "rtsp", "rtmp", "hls", "device", "push", "whip", "livekit"
]
Health: TypeAlias = Literal[
    "waiting_for_publisher", "waiting_for_keyframe", "live", "stalled", "reconnecting", "ended"
]


class SourceLost(Exception):
    """The source could not be opened or went away. Caught by the supervisor, never shown as such.

    `hopeless`: the next attempt will fail in the same way, so an opening source gives up at once.
    `final`: the source is over with this reason, as a recording that breaks off: the next attempt
    would show what was shown.
    """

    def __init__(self, reason: str, *, hopeless: bool = False, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hopeless = hopeless or final
        self.final = final


class FrameTarget(Protocol):
    """Where frames end up: `frames.store.FrameStore`, or a list in a test."""

    def publish(
        self,
        pixels: Pixels,
        *,
        source_time_s: float | None = None,
        corrupt: bool = False,
        coded: CodedFrame | None = None,
    ) -> Frame | None:
        """Take in the newest frame; None once the stream has ended."""
        ...

    def count_dropped(self, reason: str, *, n: int = 1) -> None:
        """Count frames that the source sent and that never became frames here."""
        ...

    def mark_gap(self) -> None:
        """Nothing comes for now; the next frame ends the gap."""
        ...


class FrameSink(Protocol):
    """What a source sees of its stream. Methods may be called from one thread at a time."""

    def frame(
        self,
        pixels: Pixels,
        *,
        source_time_s: float | None = None,
        corrupt: bool = False,
        coded: CodedFrame | None = None,
    ) -> Frame | None:
        """Deliver one frame, upright. None: this session is over and the frame was not taken.

        `source_time_s` is the source's own clock (any origin); `corrupt` says that the picture may
        show damage from an earlier loss; `coded` is what it was decoded from, where the history may
        keep that.
        """
        ...

    def state(self, health: Health, reason: str = "", *, codec: str | None = None) -> None:
        """Tell what the source is doing. The first call or the first frame means it has opened."""
        ...

    def broken(self, count: int = 1) -> None:
        """Count frames that the source sent and that could not be decoded."""
        ...

    def dropped(self, reason: str, count: int = 1) -> None:
        """Count frames that the source sent and that were given up for another reason."""
        ...

    def gap(self) -> None:
        """Nothing comes for now (the publisher left); the next frame ends the gap."""
        ...


class Source(Protocol):
    """Frames from somewhere. One object serves all attempts.

    A `run` that ignores `stopping` may still be alive while the next one runs; its sink is dead.
    """

    @property
    def kind(self) -> SourceKind: ...

    @property
    def stall_after_s(self) -> float | None:
        """Without a frame for this long the source counts as stalled; None: silence is normal."""
        ...

    @property
    def restart_on_stall(self) -> bool:
        """Whether a stall ends the session and opens a new one (a camera), or not (a publisher)."""
        ...

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        """Open and deliver until `stopping` is set, the end, or `SourceLost`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """How a source is doing, for people."""

    health: Health
    reason: str = ""
    codec: str | None = None
    reconnects: int = 0
    received_frames: int = 0  # delivered to the stream's frame store
    broken_frames: int = 0  # sent by the source, undecodable
    abandoned: int = 0  # attempts that were told to end and have not ended

"""What signalling sees of a real-time connection: the seam between WHIP or LiveKit and aiortc."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from liveedge.media.published import Publisher


class OfferInvalid(Exception):
    """An offer that cannot be answered; `reason` is for people: wrong codec, no video, not SDP."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class IceServer:
    """A STUN or TURN server, for publishers and for us."""

    url: str  # stun:host:port, turn:host:port?transport=udp or turns:...
    username: str | None = None
    credential: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """A connection in numbers, for people and metrics."""

    state: str  # new, connecting, connected, failed, closed
    codec: str | None = None
    packets_received: int = 0
    packets_lost: int = 0
    packets_recovered: int = 0  # by retransmission
    packets_empty: int = 0  # received, without anything in them
    packets_unrouted: int = 0  # of no track
    packets_undecryptable: int = 0
    keyframe_requests: int = 0
    frames_decoded: int = 0
    seconds_since_packet: float | None = None
    candidate_pairs: tuple[str, ...] = ()  # tried, with their state: why ICE failed
    tracks: Mapping[str, str] = field(default_factory=dict)  # mid: what became of it


class MediaSession(Protocol):
    """One publisher's connection. Methods are called from the server's event loop."""

    async def answer(self, offer: str) -> str:
        """The SDP answer, with candidates, to the publisher's first or next offer.

        Raises OfferInvalid. Calls are serialised.
        """
        ...

    async def add_candidate(self, candidate: str, *, mid: str | None, line: int | None) -> None:
        """A trickled candidate; those that cannot be used (mDNS, TCP) are ignored."""
        ...

    def mute(self, *, muted: bool) -> None:
        """The publisher says that its picture is switched off, or on again."""
        ...

    def stats(self) -> SessionStats: ...

    async def close(self, reason: str) -> None:
        """End it; `reason` is shown as the stream's health. Again does nothing."""
        ...


class MediaSessions(Protocol):
    """Where connections come from: `media.webrtc.engine.WebRtc`."""

    async def open(
        self, publisher: Publisher, *, on_end: Callable[[str], None], label: str
    ) -> MediaSession:
        """A new connection that delivers to `publisher`; raises QueueFull at the cap.

        `on_end` is called once with the reason when the connection fails or is closed, in the
        server's event loop. `label` names it in logs.
        """
        ...

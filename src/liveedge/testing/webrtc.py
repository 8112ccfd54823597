"""Real-time connections that a test drives, with the promises of `media.webrtc.session`.

Answers have the shape of real ones: every section of the offer in its order, video that is sent and
can be decoded taken, everything else inactive. Nothing is received; the test delivers frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from liveedge.core.errors import QueueFull
from liveedge.frames.frame import Frame, Pixels
from liveedge.media.livekit.sdp import Section, sections
from liveedge.media.published import Publisher
from liveedge.media.webrtc.session import OfferInvalid, SessionStats
from liveedge.testing.source import plain_pixels

CANDIDATE = "candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host"
NO_VIDEO = "connected; the publisher sends no video"


class FakeMediaSession:
    """One publisher's connection."""

    def __init__(self, publisher: Publisher, *, on_end: Callable[[str], None], label: str) -> None:
        self.label = label
        self.publisher = publisher
        self.offers: list[str] = []
        self.candidates: list[tuple[str, str | None, int | None]] = []
        self.is_muted = False
        self.ended: str | None = None
        self.may_answer = asyncio.Event()  # cleared by a test: answers wait
        self.may_answer.set()
        self._on_end = on_end
        self._is_answering = False
        self._has_video = False
        self._stats = SessionStats(state="new")

    async def answer(self, offer: str) -> str:
        assert not self._is_answering, "calls of answer() need to be serialised"
        self._is_answering = True
        try:
            self.offers.append(offer)
            await self.may_answer.wait()
            if self.ended is not None:
                raise OfferInvalid(f"this connection has ended: {self.ended}")
            answer = _answer(sections(offer))
            self._note_video(has_video=any(section.is_video for section in sections(offer)))
            return answer
        finally:
            self._is_answering = False

    async def add_candidate(self, candidate: str, *, mid: str | None, line: int | None) -> None:
        words = candidate.lower().split()
        if "tcp" not in words and not any(word.endswith(".local") for word in words):
            self.candidates.append((candidate, mid, line))

    def mute(self, *, muted: bool) -> None:
        if muted and not self.is_muted:
            self.publisher.gap()
            self.publisher.state("stalled", "muted by the publisher")
        self.is_muted = muted

    def stats(self) -> SessionStats:
        return self._stats

    async def close(self, reason: str) -> None:
        self._end(reason, state="closed")

    def _note_video(self, *, has_video: bool) -> None:
        if self._has_video and not has_video:
            self.publisher.gap()
            self.publisher.state("waiting_for_keyframe", NO_VIDEO)
        self._has_video = has_video

    # ── what the network would do ──

    def connect(self, *, seconds_since_packet: float | None = 0.0) -> None:
        """ICE and DTLS are up; packets came that long ago."""
        self._stats = replace(
            self._stats, state="connected", seconds_since_packet=seconds_since_packet
        )

    def deliver(self, pixels: Pixels | None = None) -> Frame | None:
        """A frame arrives."""
        return self.publisher.frame(pixels or plain_pixels())

    def fail(self, reason: str) -> None:
        """The connection breaks."""
        self._end(reason, state="failed")

    def _end(self, reason: str, *, state: str) -> None:
        if self.ended is not None:
            return
        self.ended = reason
        self._stats = replace(self._stats, state=state)
        self.publisher.close(reason)
        self._on_end(reason)


class FakeMediaSessions:
    """Where connections come from. Keeps all that were opened."""

    def __init__(self, *, max_sessions: int = 64) -> None:
        self.opened: list[FakeMediaSession] = []
        self.may_open = asyncio.Event()  # cleared by a test: connections wait
        self.may_open.set()
        self._max_sessions = max_sessions

    async def open(
        self, publisher: Publisher, *, on_end: Callable[[str], None], label: str
    ) -> FakeMediaSession:
        if self.n_open >= self._max_sessions:
            raise QueueFull(
                f"the server has {self._max_sessions} publishers, its limit; retry in a moment"
            )
        await self.may_open.wait()
        session = FakeMediaSession(publisher, on_end=on_end, label=label)
        self.opened.append(session)
        return session

    @property
    def n_open(self) -> int:
        return sum(session.ended is None for session in self.opened)

    @property
    def newest(self) -> FakeMediaSession:
        return self.opened[-1]


def _answer(offered: tuple[Section, ...]) -> str:
    refused = next((s for s in offered if s.is_video and not s.is_decodable), None)
    if refused is not None:
        raise OfferInvalid(
            f"the publisher sends {', '.join(refused.codecs) or 'no codec'}; VP8 or H264 is needed"
        )
    lines = ["v=0", "o=- 0 0 IN IP4 127.0.0.1", "s=-", "t=0 0"]
    for section in offered:
        lines += _answered(section)
    return "".join(f"{line}\r\n" for line in lines)


def _answered(section: Section) -> list[str]:
    lines = [f"m={section.kind} 9 UDP/TLS/RTP/SAVPF 96", f"a=mid:{section.mid}", f"a={CANDIDATE}"]
    if section.kind == "application":
        return lines
    return [*lines, "a=recvonly" if section.is_video else "a=inactive"]

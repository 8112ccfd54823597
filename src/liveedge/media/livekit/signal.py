"""A LiveKit publisher: the protocol that it speaks with us, over one socket or several.

The publisher lives longer than its socket: its media goes on while the socket drops, and a new
socket may take it up again. It ends once: it leaves, its media fails, another publisher takes over,
the stream ends, or what it sends cannot be taken.

Owns    the publisher's tracks and its media connection.
Thread  the server's event loop. Offers are answered one after the other.
Never   touches a network: messages come by `receive`, and go to a `Wire`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from livekit.protocol import models, rtc

from liveedge.core.clock import Clock
from liveedge.core.errors import QueueFull
from liveedge.core.tasks import TaskSet
from liveedge.media.livekit import messages
from liveedge.media.livekit.join import Join
from liveedge.media.livekit.messages import LeaveKind
from liveedge.media.livekit.sdp import beside, narrowed, sections
from liveedge.media.livekit.tracks import Choice, TrackRefused, Tracks, unsupported
from liveedge.media.publication import Ending, Publication
from liveedge.media.published import PublishedSource
from liveedge.media.webrtc.session import IceServer, MediaSessions, OfferInvalid

RESUMABLE_S = 10.0  # without a packet for longer, the media connection is as good as gone
MAX_SECTIONS = 64  # a client adds some with every track that it publishes, and never takes any back
MAX_CANDIDATE_CHARS = 2048
LEFT = "the publisher left"

_LEAVES: dict[str, LeaveKind] = {
    "replaced": "replaced",
    "ended": "stream ended",
    "failed": "media failed",
}


class Wire(Protocol):
    """Where messages to the client go: `connection.Connection`."""

    def send(self, data: bytes) -> None:
        """Never blocks."""
        ...

    def finish(self) -> None:
        """Close once everything is sent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalParts:
    """What all publishers of a server share."""

    clock: Clock
    tasks: TaskSet
    new_id: Callable[[], str]
    ice_servers: tuple[IceServer, ...] = ()
    counters: Counter[str] = field(default_factory=Counter)


class Signal:
    """One publisher."""

    def __init__(
        self, *, room: str, identity: str, parts: SignalParts, on_over: Callable[[Signal], None]
    ) -> None:
        self.room = room
        self.sid = "PA_" + parts.new_id()
        self._identity = identity
        self._parts = parts
        self._on_over = on_over
        self._joined_at_ms = parts.clock.wall_ms()
        self._tracks = Tracks(new_id=parts.new_id)
        self._choice = Choice()
        self._is_muted = False
        self._publication = Publication(on_end=self._ended)
        self._wire: Wire | None = None
        self._newest_token: str | None = None
        self._offers = asyncio.Lock()
        self._is_over = False
        self._goodbye: LeaveKind | None = None
        self._handlers: Mapping[str, Callable[[Any], Awaitable[None]]] = {
            "offer": self._offer,
            "trickle": self._trickle,
            "add_track": self._add_track,
            "mute": self._mute,
            "ping": self._ping,
            "ping_req": self._ping_req,
            "leave": self._leave,
        }

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def has_wire(self) -> bool:
        return self._wire is not None

    @property
    def can_resume(self) -> bool:
        """Whether its media still comes, so that a new socket may take it up."""
        if self._is_over:
            return False
        stats = self._publication.stats()
        if stats is None or stats.state != "connected":
            return False
        quiet_s = stats.seconds_since_packet
        return quiet_s is not None and quiet_s < RESUMABLE_S

    # ── the socket ──

    async def open(self, source: PublishedSource, sessions: MediaSessions) -> None:
        """Come in, to publish once an offer is answered. Raises StreamStateInvalid or QueueFull."""
        await self._publication.open(source, sessions, label=self.room)

    async def join(self, wire: Wire, asked: Join) -> None:
        """Welcome the client, and answer what it asked at the door."""
        self._wire = wire
        if self._is_over:  # while it came in
            self._say_goodbye()
            return
        me = self._participant()
        self._send(messages.joined(me, room=self.room, ice_servers=self._parts.ice_servers))
        for track in asked.add_tracks:
            await self._add_track(track)
        if asked.offer is not None:
            await self._offer(asked.offer)

    def resume(self, wire: Wire) -> None:
        """Go on over another socket."""
        before, self._wire = self._wire, wire
        if before is not None:
            before.finish()
        self._send(messages.resumed(self._parts.ice_servers))
        self._send(messages.update(self._participant()))
        if self._newest_token is not None:  # it may have been renewed while there was no socket
            self._send(messages.refresh_token(self._newest_token))

    def detach(self, wire: Wire) -> None:
        """The socket is gone."""
        if self._wire is wire:
            self._wire = None

    def refresh(self, token: str) -> None:
        """Give the client the token with which it comes back."""
        self._newest_token = token
        self._send(messages.refresh_token(token))

    async def receive(self, data: bytes) -> None:
        """A message of the client. Raises MessageInvalid."""
        request = messages.request(data)
        kind = request.WhichOneof("message")
        if self._is_over or kind is None:  # None: newer than we are
            return
        handle = self._handlers.get(kind)
        if handle is not None:
            await handle(getattr(request, kind))
        elif (refusal := messages.not_allowed(request)) is not None:
            self._send(refusal)

    def end(self, kind: LeaveKind | None, reason: str) -> None:
        """End it. `kind` tells the client why, `reason` people. Again does nothing."""
        if self._is_over:
            return
        self._is_over = True
        self._goodbye = kind
        self._publication.leave(reason)
        self._say_goodbye()
        self._on_over(self)
        # Not awaited: the socket, whose message may have ended us, closes meanwhile.
        self._parts.tasks.start(self._publication.close(reason), name=f"close {self.sid}")

    def _ended(self, ending: Ending) -> None:
        self.end(_LEAVES[ending.cause], ending.reason)

    # ── messages ──

    async def _offer(self, offer: rtc.SessionDescription) -> None:
        """Answered to the end even if the socket drops meanwhile: half an answer is none."""
        answering = self._answer_in_turn(offer)
        await asyncio.shield(self._parts.tasks.start(answering, name=f"answer {self.sid}"))

    async def _answer_in_turn(self, offer: rtc.SessionDescription) -> None:
        async with self._offers:
            if not self._is_over:
                await self._answer(offer)

    async def _answer(self, offer: rtc.SessionDescription) -> None:
        try:
            found = await beside(offer.sdp, sections)
            if len(found) > MAX_SECTIONS:
                self.end("media failed", "the publisher starts afresh: its offer has grown")
                return
            choice = self._tracks.choose(found, offer.mid_to_track_id)
            if choice.section is None and choice.undecodable:
                raise OfferInvalid(unsupported(choice.undecodable))
            codec = None if choice.track is None else choice.track.codec
            narrow = await beside(
                offer.sdp, lambda sdp: narrowed(sdp, keep=choice.mid, codec=codec)
            )
            answer = await self._publication.answer(narrow)
        except OfferInvalid as error:
            self._refuse(error.reason)
            return
        except QueueFull as error:  # the media side stops
            self.end("shutdown", error.message)
            return
        if self._is_over:
            return
        self._send(messages.answer(answer, offer_id=offer.id))
        self._take(choice)

    def _take(self, choice: Choice) -> None:
        self._choice = choice
        ignored = choice.others + len(choice.undecodable)
        if ignored:
            self._parts.counters["tracks_ignored"] += ignored
        self._pass_on_mute()

    def _refuse(self, reason: str) -> None:
        """Nothing that it sends can be taken: say so, twice, since SDKs differ in what they show."""
        self._parts.counters["publishers_refused"] += 1
        self._send(messages.track_refused(None, reason, rtc.RequestResponse.UNSUPPORTED_TYPE))
        self.end("refused", reason)

    async def _add_track(self, asked: rtc.AddTrackRequest) -> None:
        try:
            track = self._tracks.announce(asked)
        except TrackRefused as refusal:
            self._parts.counters["tracks_refused"] += 1
            self._send(messages.track_refused(asked, refusal.message, refusal.reason))
            if not self._tracks.has_video:
                self.end("refused", refusal.message)
            return
        self._send(messages.track_published(asked.cid, track.info))

    async def _trickle(self, asked: rtc.TrickleRequest) -> None:
        candidate = _candidate(asked)
        if candidate is None:
            return
        text, mid, line = candidate
        try:
            await self._publication.session.add_candidate(text, mid=mid, line=line)
        except QueueFull as error:
            self.end("shutdown", error.message)

    async def _mute(self, asked: rtc.MuteTrackRequest) -> None:
        self._tracks.mute(asked.sid, muted=asked.muted)
        self._pass_on_mute()

    def _pass_on_mute(self) -> None:
        track = self._choice.track
        is_muted = track is not None and track.info.muted
        if is_muted != self._is_muted:
            self._is_muted = is_muted
            self._publication.session.mute(muted=is_muted)

    async def _ping(self, _sent_ms: int) -> None:
        self._send(messages.pong(self._parts.clock.wall_ms()))

    async def _ping_req(self, asked: rtc.Ping) -> None:
        self._send(messages.pong_resp(asked, self._parts.clock.wall_ms()))

    async def _leave(self, _asked: rtc.LeaveRequest) -> None:
        self.end(None, LEFT)

    # ── inside ──

    def _say_goodbye(self) -> None:
        if self._goodbye is not None:
            self._send(messages.leave(self._goodbye))
        if self._wire is not None:
            self._wire.finish()

    def _send(self, message: rtc.SignalResponse) -> None:
        if self._wire is not None:
            self._wire.send(message.SerializeToString())

    def _participant(self) -> models.ParticipantInfo:
        return messages.participant(
            sid=self.sid,
            identity=self._identity,
            joined_at_ms=self._joined_at_ms,
            tracks=self._tracks.infos(),
        )


def _candidate(asked: rtc.TrickleRequest) -> tuple[str, str | None, int | None] | None:
    """The candidate with its mid and line; None for what is none, or none of ours."""
    text = asked.candidateInit
    if asked.target != rtc.PUBLISHER or len(text) > MAX_CANDIDATE_CHARS:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # 2000 brackets are deep enough for that
        return None
    if not isinstance(found, dict):
        return None
    candidate, mid, line = (found.get(k) for k in ("candidate", "sdpMid", "sdpMLineIndex"))
    if not isinstance(candidate, str) or not candidate:
        return None
    return (
        candidate,
        mid if isinstance(mid, str) else None,
        line if isinstance(line, int) else None,
    )

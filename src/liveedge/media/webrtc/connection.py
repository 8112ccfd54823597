"""One publisher's connection: its offers, its health and its end.

Owns    the link, the tracks, and all tasks of these.
Thread  `liveedge-webrtc`, except `stats` and `mute`, which may be called from any.
Never   raises anything but OfferInvalid and PortsExhausted to whoever signals, and lets no frame
        through once closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from liveedge.core.clock import Clock
from liveedge.core.tasks import TaskSet
from liveedge.media.published import Publisher
from liveedge.media.source import Health
from liveedge.media.webrtc.answer import LocalTransport, SectionAnswer, decide, write_answer
from liveedge.media.webrtc.private import (
    Certificate,
    Link,
    LinkFailed,
    LocalCandidate,
    fingerprint_of,
)
from liveedge.media.webrtc.sdp import (
    MAX_CANDIDATES,
    Offer,
    RemoteTransport,
    read_candidate,
    read_offer,
)
from liveedge.media.webrtc.session import IceServer, OfferInvalid, SessionStats
from liveedge.media.webrtc.track import VideoTrack
from liveedge.media.webrtc.tracks import Tracks
from liveedge.media.webrtc.udp import UdpPorts

log = logging.getLogger("liveedge.media")

LARGE_OFFER_CHARS = 64 << 10  # the largest that is allowed takes 0.2 s to read
LOOK_S = 0.1  # at least this often; a missing packet brings it forward
LOOK_SOON_S = 0.008
REPORT_EVERY_S = 0.5
NO_VIDEO = "connected; the publisher sends no video"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """What connections of one server have in common."""

    announced_ips: tuple[str, ...] = ()  # instead of the machine's own
    ice_servers: tuple[IceServer, ...] = ()
    max_bitrate_bps: int = 6_000_000
    keyframe_every_s: float = 2.0
    connect_within_s: float = 20.0
    quiet_after_s: float = 5.0  # without a packet or a key frame, before it is said


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionParts:
    """What a connection is given by the engine."""

    ports: UdpPorts
    local_ips: Callable[[], Sequence[str]]
    certificate: Certificate
    clock: Clock
    random_id: Callable[[], int]  # 32 bits
    settings: ConnectionSettings


@dataclass(frozen=True, slots=True)
class _LastGood:
    """The counts of the shown track as they were when a picture was decoded last."""

    track: VideoTrack
    n_good: int
    n_tried: int
    at_s: float


class Connection:
    """See the module. `on_end` is called once, with the reason, when everything is freed."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        parts: ConnectionParts,
        label: str,
        on_end: Callable[[str], None],
        begin_end: Callable[[str], None],
    ) -> None:
        """`begin_end` is to start `close` with a reason, outside of this connection's own tasks."""
        self._publisher = publisher
        self._parts = parts
        self._clock = parts.clock
        self._settings = parts.settings
        self._label = label
        self._on_end = on_end
        self._begin_end = begin_end
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet(f"webrtc:{label}")
        self._lock = asyncio.Lock()
        self._tracks = Tracks(
            publisher,
            clock=parts.clock,
            label=label,
            keyframe_every_s=self._settings.keyframe_every_s,
            on_crash=lambda: self._fail("internal error in the decoder, see the log"),
        )
        self._link = Link(
            ports=parts.ports,
            certificate=parts.certificate,
            ice_servers=self._settings.ice_servers,
            on_rtp=self._packet,
            on_rtcp=self._tracks.control,
            wants=self._tracks.wants,
            on_down=self._fail,
        )
        self._ssrc = parts.random_id()
        self._session_id = parts.random_id()
        self._version = 0
        self._candidates: tuple[str, ...] | None = None  # ours, once gathered
        self._remote: RemoteTransport | None = None
        self._n_candidates = 0  # of the publisher
        self._role = "client"
        self._data_port: int | None = None
        self._is_data_open = False
        self._sections: dict[str, str] = {}
        self._state = "new"
        self._since_s = self._clock.monotonic_s()  # of the present state
        self._told = ""
        self._last_good: _LastGood | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._pairs: tuple[str, ...] = ()  # as they were at the end
        self._ended: asyncio.Event | None = None
        self._end_reason = ""

    @property
    def is_ending(self) -> bool:
        """Whether it is being closed: its sockets and its thread are not gone yet."""
        return self._ended is not None

    # ── signalling ──

    async def answer(self, text: str) -> str:
        """The answer to the first or the next offer; one at a time."""
        async with self._lock:
            self._check_open()
            offer = await _read(text)
            self._check_open()
            is_first = self._remote is None
            answers = decide(offer, is_first=is_first)
            self._check_same_peer(offer.transport)
            if self._candidates is None:
                found = await self._link.gather(self._parts.local_ips())
                self._candidates = tuple(written(found, announced=self._settings.announced_ips))
                self._check_open()
            await self._take_transport(offer)
            self._take_sections(answers)
            if is_first:
                self._begin(offer.transport)
            elif self._state == "connected":
                await self._open_data()
            self._version += 1
            return write_answer(
                offer,
                answers,
                local=self._local_transport(self._candidates),
                session_id=self._session_id,
                version=self._version,
                max_bitrate_bps=self._settings.max_bitrate_bps,
            )

    async def add_candidate(self, text: str) -> None:
        """One more address of the publisher; ignored if it cannot be used or is one too many."""
        candidate = read_candidate(text)
        if candidate is None or self._n_candidates >= MAX_CANDIDATES or self._ended is not None:
            return
        self._n_candidates += 1
        await self._link.add_candidate(candidate)

    def mute(self, *, muted: bool) -> None:
        if muted == self._tracks.is_muted:
            return
        self._tracks.mute(muted=muted)
        if muted:
            self._publisher.gap()
            self._publisher.state("stalled", "muted by the publisher")

    def stats(self) -> SessionStats:
        return replace(
            self._tracks.stats(state=self._state),
            packets_undecryptable=self._link.n_undecryptable,
            candidate_pairs=self._pairs if self._ended is not None else self._link.pairs(),
            tracks=dict(self._sections),
        )

    # ── an offer ──

    def _check_open(self) -> None:
        if self._ended is not None:
            raise OfferInvalid(f"this connection has ended: {self._end_reason}")

    def _check_same_peer(self, transport: RemoteTransport) -> None:
        known = self._remote
        if known is not None and set(known.fingerprints) != set(transport.fingerprints):
            raise OfferInvalid(
                "the offer is of another connection than the one before; connect anew instead"
            )

    async def _take_transport(self, offer: Offer) -> None:
        known = self._remote
        if known is None:
            self._role = "server" if offer.transport.setup == "active" else "client"
        if known is None or known.ufrag != offer.transport.ufrag:
            # New names on an old connection are an ICE restart. Ours stay, and the way in use too.
            self._link.remote(offer.transport)
            self._n_candidates = 0
        self._remote = offer.transport
        for candidate in offer.candidates[: MAX_CANDIDATES - self._n_candidates]:
            self._n_candidates += 1
            await self._link.add_candidate(candidate)

    def _take_sections(self, answers: Sequence[SectionAnswer]) -> None:
        self._sections = {a.section.mid: _fate(a) for a in answers if a.section.mid}
        for answer in answers:
            if answer.is_data:
                self._data_port = answer.section.sctp_port or 5000
        if self._tracks.take(answers):
            self._told = ""
            if self._tracks.shown is None and self._state == "connected":
                self._tell("waiting_for_keyframe", NO_VIDEO)

    def _local_transport(self, candidates: tuple[str, ...]) -> LocalTransport:
        return LocalTransport(
            ufrag=self._link.ufrag,
            password=self._link.password,
            fingerprint=fingerprint_of(self._parts.certificate),
            setup="active" if self._role == "client" else "passive",
            candidates=candidates,
        )

    # ── from the first offer to the end ──

    def _begin(self, remote: RemoteTransport) -> None:
        self._enter("connecting")
        self._tasks.start(self._connect(remote), name="connect")
        self._tasks.start(self._watch(), name="watch")

    async def _connect(self, remote: RemoteTransport) -> None:
        try:
            await self._link.connect(remote, role=self._role)
        except LinkFailed as failure:
            self._fail(failure.reason)
            return
        self._enter("connected")
        has_video = self._tracks.shown is not None
        self._tell("waiting_for_keyframe", "connected" if has_video else f"{NO_VIDEO} yet")
        await self._open_data()

    async def _open_data(self) -> None:
        if self._data_port is not None and not self._is_data_open:
            self._is_data_open = True
            await self._link.open_data(remote_port=self._data_port)

    def _enter(self, state: str) -> None:
        self._state = state
        self._since_s = self._clock.monotonic_s()

    def _fail(self, reason: str) -> None:
        """Something broke; the engine ends us."""
        if self._ended is None:
            self._state = "failed"
            self._begin_end(reason)

    async def close(self, reason: str) -> None:
        """Free everything, then tell. Calls during or after another one wait for that."""
        if self._ended is not None:
            await self._ended.wait()
            return
        self._ended = asyncio.Event()
        self._end_reason = reason
        self._pairs = self._link.pairs()
        log.info("webrtc %s ends: %s", self._label, reason)
        try:
            if self._soon is not None:
                self._soon.cancel()
            await self._tasks.close()
            self._publisher.close(reason)
            await self._tracks.close()
            async with self._lock:  # sockets may be opening
                await self._link.close()
        finally:
            self._state = "closed"
            self._ended.set()
            self._on_end(reason)

    # ── looking after it ──

    def _packet(self, data: bytes) -> None:
        if self._tracks.packet(data) and self._soon is None:
            self._soon = self._loop.call_later(LOOK_SOON_S, self._look_soon)

    async def _watch(self) -> None:
        reported_s = 0.0
        while True:
            await self._clock.sleep(LOOK_S)
            self._ask()
            now_s = self._clock.monotonic_s()
            if now_s - reported_s >= REPORT_EVERY_S:
                reported_s = now_s
                limit_bps = self._settings.max_bitrate_bps
                report = self._tracks.report(self._ssrc, max_bitrate_bps=limit_bps)
                if report is not None:
                    self._link.send(report)
                self._judge(now_s)

    def _look_soon(self) -> None:
        self._soon = None
        if self._ask():
            self._soon = self._loop.call_later(LOOK_SOON_S, self._look_soon)

    def _ask(self) -> bool:
        """For packets and key frames; whether to look again soon."""
        requests, is_urgent = self._tracks.requests(self._ssrc)
        for request in requests:
            self._link.send(request)
        return is_urgent

    def _judge(self, now_s: float) -> None:
        """Say why nothing is seen."""
        limit_s = self._settings.quiet_after_s
        if self._state == "connecting":
            if now_s - self._since_s > self._settings.connect_within_s:
                self._fail(self._link.failure())
            return
        track = self._tracks.shown
        if self._state != "connected" or track is None or self._tracks.is_muted:
            return
        undecodable_s, n_undecodable = self._undecodable(track, now_s)
        quiet_s = now_s - max(track.newest_packet_s or 0.0, track.shown_s or 0.0, self._since_s)
        waits_s = now_s - max(track.first_packet_s or now_s, track.shown_s or 0.0)
        if quiet_s > limit_s:
            self._tell("stalled", f"connected, but no video packet for {limit_s:g} s", gap=True)
        elif n_undecodable and undecodable_s > limit_s:
            self._tell(
                "stalled", f"what arrives cannot be decoded ({n_undecodable} pictures)", gap=True
            )
        elif not track.n_keys and waits_s > limit_s:
            self._tell(
                "waiting_for_keyframe",
                f"no key frame from the publisher for {limit_s:g} s, asked {track.keys.n_sent} times",
            )
        else:
            self._told = ""

    def _undecodable(self, track: VideoTrack, now_s: float) -> tuple[float, int]:
        """For how long nothing could be decoded, and how many pictures that could not be."""
        n_good, n_tried = track.n_decoded, track.n_tried
        last = self._last_good
        if last is None or last.track is not track or n_good != last.n_good:
            last = self._last_good = _LastGood(track, n_good, n_tried, now_s)
        return now_s - last.at_s, n_tried - last.n_tried

    def _tell(self, health: Health, reason: str, *, gap: bool = False) -> None:
        """Once, until something else is the matter."""
        kind = reason.partition(",")[0].partition("(")[0]  # without its numbers
        if self._told == kind:
            return
        self._told = kind
        if gap:
            self._publisher.gap()
        self._publisher.state(health, reason)


async def _read(text: str) -> Offer:
    """A large one beside our thread, so that the packets of other publishers do not wait for it."""
    if len(text) < LARGE_OFFER_CHARS:
        return read_offer(text)
    return await asyncio.to_thread(read_offer, text)


def _fate(answer: SectionAnswer) -> str:
    if answer.is_rejected:
        return "refused"
    if answer.is_data:
        return "data"
    if not answer.takes:
        return "inactive"
    return "video" if answer.is_video else "sound, thrown away"


def written(found: Sequence[LocalCandidate], *, announced: Sequence[str]) -> list[str]:
    """Our addresses as SDP has them. Announced ones stand in for all of the machine's own."""
    lines: list[str] = []
    for candidate in found:
        is_own = candidate.type != "relay"
        ips = [candidate.host]
        if announced and is_own:
            is_v6 = ":" in candidate.host
            ips = [ip for ip in announced if (":" in ip) == is_v6 and candidate.type == "host"]
        for ip in ips:
            line = (
                f"candidate:{candidate.foundation[:16]} 1 udp {candidate.priority} {ip}"
                f" {candidate.port} typ {candidate.type}"
            )
            if candidate.type != "host":
                line += f" raddr {candidate.related_address} rport {candidate.related_port}"
            if not any(_place(line) == _place(other) for other in lines):
                lines.append(line)
    return lines


def _place(line: str) -> list[str]:
    return line.split()[4:6]

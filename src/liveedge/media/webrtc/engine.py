"""The real-time receiver: all WHIP and LiveKit publishers of a server, in a thread of its own.

Owns    the thread `liveedge-webrtc` with its event loop, the UDP ports, the connections (at most
        `max_sessions`). Decoding has a thread per publisher.
Thread  `start` and `close` block and may be called from any; the rest from the server's loop.
Losing packets in tests: `filter_in` sees every datagram before SRTP does, and answers whether it
arrived. (aioice's own `data_received` is no place for that: media does not pass it.)
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from liveedge.core.clock import Clock
from liveedge.core.errors import QueueFull, SettingsInvalid
from liveedge.core.tasks import OwnedThread, TaskSet
from liveedge.media.published import Publisher
from liveedge.media.webrtc.connection import Connection, ConnectionParts, ConnectionSettings
from liveedge.media.webrtc.private import Certificate, host_addresses, new_certificate
from liveedge.media.webrtc.session import IceServer, OfferInvalid, SessionStats
from liveedge.media.webrtc.udp import PortsExhausted, UdpPorts

log = logging.getLogger("liveedge.media")
T = TypeVar("T")

START_WITHIN_S = 10.0
END_WITHIN_S = 10.0
RENEW_CERTIFICATE_S = 86_400.0  # aiortc's are valid for 30 days
STOPPING = "the server is stopping"
COUNTED = (
    "packets_received",
    "packets_lost",
    "packets_recovered",
    "packets_empty",
    "packets_unrouted",
    "packets_undecryptable",
    "keyframe_requests",
    "frames_decoded",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRtcSettings:
    """How publishers reach us, and how many may."""

    udp_ports: tuple[int, int] | None = None  # first and last; equal: one port for all
    announced_ips: tuple[str, ...] = ()  # what publishers are told; of our own: used alone
    ice_servers: tuple[IceServer, ...] = ()
    max_bitrate_bps: int = 6_000_000  # that one publisher is asked to keep to
    keyframe_every_s: float = 2.0
    max_sessions: int = 64
    connect_within_s: float = 20.0
    quiet_after_s: float = 5.0

    def of_connections(self) -> ConnectionSettings:
        return ConnectionSettings(
            announced_ips=self.announced_ips,
            ice_servers=self.ice_servers,
            max_bitrate_bps=self.max_bitrate_bps,
            keyframe_every_s=self.keyframe_every_s,
            connect_within_s=self.connect_within_s,
            quiet_after_s=self.quiet_after_s,
        )


def everything_arrives(_datagram: bytes) -> bool:
    """No packet is lost."""
    return True


class WebRtc:
    """See the module. Implements `session.MediaSessions`."""

    def __init__(
        self,
        settings: WebRtcSettings | None = None,
        *,
        clock: Clock,
        rng: random.Random | None = None,
        filter_in: Callable[[bytes], bool] = everything_arrives,
    ) -> None:
        self._settings = settings or WebRtcSettings()
        self._clock = clock
        self._rng = rng or random.Random()
        self._ports = UdpPorts(self._settings.udp_ports, rng=self._rng, filter_in=filter_in)
        self._thread = OwnedThread("liveedge-webrtc", self._run)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._halt: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._connections: set[Connection] = set()
        self._past: Counter[str] = Counter()  # of connections that have ended
        self._tasks = TaskSet("webrtc")
        self._certificate: Certificate | None = None
        self._certified_s = 0.0

    @property
    def n_sessions(self) -> int:
        return len(self._connections)

    def totals(self) -> Counter[str]:
        """What all connections since the start have counted, by the names of `SessionStats`, and what
        their sockets have."""
        totals = self._past.copy()
        for connection in tuple(self._connections):
            totals.update(_counted(connection.stats()))
        counts = self._ports.counts
        totals.update(
            datagrams_unknown=counts.unknown,
            datagrams_forged=counts.forged,
            datagrams_unsent=counts.unsent,
        )
        return totals

    def start(self) -> None:
        """Raises SettingsInvalid if the one UDP port cannot be had."""
        if self._ports.is_shared:
            assert self._settings.udp_ports is not None
            try:
                self._ports.bind_shared(self._local_ips())
            except OSError as error:
                self._ports.close()
                raise SettingsInvalid(
                    f"udp_ports: UDP port {self._settings.udp_ports[0]} cannot be opened"
                    f" ({error.strerror}); give another one, or a range"
                ) from error
        self._thread.start()
        if not self._is_ready.wait(START_WITHIN_S):
            raise SettingsInvalid("the real-time receiver did not start; see the log")

    def close(self) -> None:
        """End all connections and the thread."""
        loop, halt = self._loop, self._halt
        if loop is not None and halt is not None and self._thread.alive:
            loop.call_soon_threadsafe(halt.set)
        if not self._thread.stop(END_WITHIN_S):
            log.warning("%s did not end in time", self._thread.name)

    async def open(
        self, publisher: Publisher, *, on_end: Callable[[str], None], label: str
    ) -> Session:
        """See `session.MediaSessions`."""
        server = asyncio.get_running_loop()

        def tell(reason: str) -> None:
            if not server.is_closed():
                server.call_soon_threadsafe(on_end, reason)

        connection = await self.call(self._open(publisher, tell, label))
        return Session(self, connection)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in our loop, for a caller in another. Goes on if the caller gives up."""
        loop = self._loop
        if loop is None or self._halt is None or self._halt.is_set():
            work.close()
            raise QueueFull(STOPPING)
        return await asyncio.shield(
            asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
        )

    @property
    def is_running(self) -> bool:
        return self._loop is not None and self._halt is not None and not self._halt.is_set()

    # ── our own thread ──

    def _run(self, _stopping: threading.Event) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._halt = asyncio.Event()
        self._ports.open_shared()
        self._is_ready.set()
        await self._halt.wait()
        await asyncio.gather(*(connection.close(STOPPING) for connection in self._connections))
        await self._tasks.close()
        self._ports.close()

    async def _open(
        self, publisher: Publisher, tell: Callable[[str], None], label: str
    ) -> Connection:
        limit = self._settings.max_sessions
        n_ending = sum(connection.is_ending for connection in self._connections)
        # Those that end count apart: who is replaced is not to keep the next one out.
        if len(self._connections) - n_ending >= limit or n_ending > limit:
            raise QueueFull(
                f"{limit} publishers are connected already, which is the limit; try again when one"
                " has left",
                retry_after_s=5.0,
            )

        def ended(reason: str) -> None:
            self._connections.discard(connection)
            self._past.update(_counted(connection.stats()))
            tell(reason)

        def begin_end(reason: str) -> None:
            self._tasks.start(connection.close(reason), name=f"end:{label}")

        connection = Connection(
            publisher,
            parts=self._parts(),
            label=label,
            on_end=ended,
            begin_end=begin_end,
        )
        self._connections.add(connection)
        return connection

    def _parts(self) -> ConnectionParts:
        return ConnectionParts(
            ports=self._ports,
            local_ips=self._local_ips,
            certificate=self._current_certificate(),
            clock=self._clock,
            random_id=lambda: self._rng.getrandbits(32),
            settings=self._settings.of_connections(),
        )

    def _current_certificate(self) -> Certificate:
        """One for many connections: making a key takes longer than all else of an answer."""
        now_s = self._clock.monotonic_s()
        if self._certificate is None or now_s - self._certified_s > RENEW_CERTIFICATE_S:
            self._certificate, self._certified_s = new_certificate(), now_s
        return self._certificate

    def _local_ips(self) -> list[str]:
        """Where to listen: on the announced addresses if they are ours, else on all."""
        own = host_addresses()
        announced = self._settings.announced_ips
        if announced and all(ip in own or is_loopback(ip) for ip in announced):
            return list(announced)
        return own


class Session:
    """One connection, for the server's loop. Implements `session.MediaSession`."""

    def __init__(self, engine: WebRtc, connection: Connection) -> None:
        self._engine = engine
        self._connection = connection

    async def answer(self, offer: str) -> str:
        try:
            return await self._engine.call(self._connection.answer(offer))
        except PortsExhausted as error:
            raise OfferInvalid(str(error)) from error

    async def add_candidate(self, candidate: str, *, mid: str | None, line: int | None) -> None:
        await self._engine.call(self._connection.add_candidate(candidate))

    def mute(self, *, muted: bool) -> None:
        self._connection.mute(muted=muted)

    def stats(self) -> SessionStats:
        return self._connection.stats()

    async def close(self, reason: str) -> None:
        if self._engine.is_running:
            await self._engine.call(self._connection.close(reason))


def _counted(stats: SessionStats) -> dict[str, int]:
    return {name: getattr(stats, name) for name in COUNTED}


def is_loopback(ip: str) -> bool:
    return ip == "::1" or ip.startswith("127.")

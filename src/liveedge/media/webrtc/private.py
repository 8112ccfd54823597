"""Everything that is used of aiortc and aioice beyond what they promise, in one place.

Of aiortc we use DTLS and SCTP, of aioice the ICE agent. Peer connections, receivers, tracks and
their queues are not used: no frame and no packet of media ever enters them. `REQUIRED` names what
has to exist; tests/contract/test_aiortc.py checks it against the version that is pinned.

Thread  `liveedge-webrtc`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import pylibsrtp
from aioice import Candidate, Connection, ice, stun
from aioice.candidate import candidate_foundation, candidate_priority
from aiortc import RTCCertificate, RTCDtlsFingerprint, RTCDtlsParameters, RTCSctpTransport
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcsctptransport import (
    DATA_CHANNEL_OPEN,
    SCTP_COMMON_HEADER_LENGTH,
    WEBRTC_DCEP,
    DataChunk,
    ForwardTsnChunk,
    RTCSctpCapabilities,
    SackChunk,
    tsn_plus_one,
)
from OpenSSL import SSL

from liveedge.media.webrtc.rtp import is_rtcp
from liveedge.media.webrtc.sdp import RemoteCandidate, RemoteTransport
from liveedge.media.webrtc.session import IceServer
from liveedge.media.webrtc.udp import Address, UdpPort, UdpPorts

MAX_DTLS_WAITING = 256  # datagrams of the handshake and of data channels
GATHER_WITHIN_S = 2.0  # for servers that tell us our own address
MAX_PAIRS_NAMED = 8
MAX_REMOTE_ADDRESSES = 128  # of one connection: named in offers, or that checks came from
MAX_SENDERS = 256  # whose keys are held: every section that was ever published has a few
MAX_DATA_CHANNELS = 64
MAX_OUT_OF_ORDER = 64  # packets of data channels
CIPHERS = b":".join(
    b"ECDHE-%s-%s" % (key, cipher)
    for key in (b"ECDSA", b"RSA")
    for cipher in (b"AES128-GCM-SHA256", b"CHACHA20-POLY1305", b"AES128-SHA", b"AES256-SHA")
)
_SCTP_PARAMETERS_AT = {1: 16, 2: 16, 4: 0, 5: 0, 6: 0, 9: 0, 130: 0}  # by type of chunk
UFRAG_CHARS = 8  # aioice takes 4, and on one port two connections must not have the same
LOST = "the publisher is no longer reachable: no answer for 30 s"
CLOSED_BY_PUBLISHER = "the publisher closed the connection"

# aioice reads parts of a check with `struct`, and misses what a well-formed one has to have.
_MALFORMED = (ValueError, KeyError, IndexError, TypeError, struct.error)

# What is used, for the contract test: object, names that it must have.
REQUIRED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        ice.StunProtocol,
        ("close", "connection_lost", "connection_made", "datagram_received", "request"),
    ),
    (
        ice.Connection,
        (
            "add_remote_candidate",
            "close",
            "connect",
            "data_received",
            "recv",
            "request_received",
            "send",
        ),
    ),
    (
        ice,
        (
            "get_host_addresses",
            "relayed_candidate",
            "server_reflexive_candidate",
        ),
    ),
    (stun, ("parse_message", "TransactionError")),
    (stun.Message, ("check_message_integrity",)),
    (RTCDtlsTransport, ("_set_role", "start", "stop")),
    (RTCCertificate, ("_create_ssl_context",)),
    (
        RTCSctpTransport,
        (
            "start",
            "stop",
            "_handle_data",
            "_mark_received",
            "_receive",
            "_receive_data_chunk",
            "_receive_forward_tsn_chunk",
            "_receive_sack_chunk",
            "_reset_deferred_streams",
        ),
    ),
)
CONNECTION_ATTRIBUTES = (
    "_check_list",
    "_closed",
    "_local_candidates",
    "_local_candidates_end",
    "_local_candidates_start",
    "_nominated",
    "_protocols",
    "_queue",
    "_remote_candidates",
    "ice_controlling",
    "local_password",
    "local_username",
    "remote_is_lite",
    "remote_password",
    "remote_username",
)
DTLS_ATTRIBUTES = ("_rx_srtp", "_tx_srtp", "_task", "state")
SCTP_ATTRIBUTES = ("_data_channels", "_last_received_tsn", "_sack_misordered", "_sack_needed")
STUN_ATTRIBUTES = ("transactions",)


Certificate: TypeAlias = RTCCertificate
LocalCandidate: TypeAlias = Candidate


class LinkFailed(Exception):
    """There is no connection to the publisher. Caught by its session."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def host_addresses() -> list[str]:
    """The machine's addresses, loopback only if it has no other."""
    found = ice.get_host_addresses(use_ipv4=True, use_ipv6=True)
    return found or ["127.0.0.1"]


class _Certificate(RTCCertificate):
    """Ours is ECDSA; a publisher's may be RSA, as GStreamer's is, and aiortc offers no cipher for it."""

    def _create_ssl_context(self, srtp_profiles: list[Any]) -> SSL.Context:
        context = super()._create_ssl_context(srtp_profiles)
        context.set_cipher_list(CIPHERS)
        return context


def new_certificate() -> Certificate:
    return _Certificate.generateCertificate()


def fingerprint_of(certificate: Certificate) -> str:
    """Its SHA-256."""
    prints = {print_.algorithm: print_.value for print_ in certificate.getFingerprints()}
    return prints["sha-256"]


class _PortTransport:
    """What aioice calls a transport, on a port that others may use too."""

    def __init__(self, port: UdpPort, protocol: _StunEnd) -> None:
        self._port = port
        self._protocol = protocol
        self._is_closed = False

    def sendto(self, data: bytes, address: Address) -> None:
        if not self._is_closed:
            self._port.send(data, address)

    def get_extra_info(self, name: str) -> Any:
        return self._port.address if name == "sockname" else None

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._port.detach(self._protocol)
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


class _StunEnd(ice.StunProtocol):
    """One connection's end of a port."""

    def __init__(self, connection: Connection, port: UdpPort) -> None:
        super().__init__(connection)
        self._connection = connection
        transport = _PortTransport(port, self)
        self.connection_made(cast(asyncio.DatagramTransport, transport))
        port.attach(self)

    @property
    def ufrag(self) -> str:
        return self._connection.local_username

    def is_authentic(self, check: bytes) -> bool:
        try:
            message = stun.parse_message(check)
        except _MALFORMED:
            return False
        return message.check_message_integrity(self._connection.local_password.encode())

    def expects(self, transaction: bytes) -> bool:
        return transaction in self.transactions

    def stun(self, data: bytes, address: Address) -> None:
        try:
            self.datagram_received(data, address)
        except _MALFORMED:
            return

    def packet(self, data: bytes) -> None:
        self._connection.data_received(data, 1)


class _IceTransport:
    """What DTLS needs of ICE."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._recv = connection.recv
        self._send = connection.send

    @property
    def role(self) -> str:
        return "controlling" if self._connection.ice_controlling else "controlled"


def has_end(packet: bytes) -> bool:
    """Whether aiortc ever comes to the end of this packet of SCTP: it does not step over a parameter
    that has no length, and appends it again and again."""
    at = SCTP_COMMON_HEADER_LENGTH
    while at + 4 <= len(packet):
        kind, _, length = struct.unpack_from("!BBH", packet, at)
        end = at + length
        parameter = at + 4 + _SCTP_PARAMETERS_AT.get(kind, length)
        while parameter + 4 <= min(end, len(packet)):
            size = int.from_bytes(packet[parameter + 2 : parameter + 4], "big")
            if size == 0:
                return False
            parameter += size + -size % 4
        at = end + -length % 4 if length else len(packet)
    return True


class DataChannels(RTCSctpTransport):
    """Lets a publisher open data channels and throws away what comes through them.

    aiortc would hold pieces of messages that never end, and look through all of them at every
    packet; one packet could cost all other publishers seconds.
    """

    async def _handle_data(self, data: bytes) -> None:
        if has_end(data):
            await super()._handle_data(data)

    async def _receive_data_chunk(self, chunk: DataChunk) -> None:
        if self._last_received_tsn is None:  # the other end has not begun
            return
        self._sack_needed = True
        is_next = chunk.tsn == tsn_plus_one(self._last_received_tsn)
        if not is_next and len(self._sack_misordered) >= MAX_OUT_OF_ORDER:
            return  # it is sent again
        if self._mark_received(chunk.tsn):
            return
        if chunk.protocol == WEBRTC_DCEP and chunk.user_data[:1] == bytes([DATA_CHANNEL_OPEN]):
            channels = self._data_channels
            if chunk.stream_id not in channels and len(channels) < MAX_DATA_CHANNELS:
                await self._receive(chunk.stream_id, chunk.protocol, chunk.user_data)
        await self._reset_deferred_streams()

    async def _receive_sack_chunk(self, chunk: SackChunk) -> None:
        chunk.gaps = []  # hundreds, of 65536 packets each; what little we send is sent again instead
        await super()._receive_sack_chunk(chunk)

    async def _receive_forward_tsn_chunk(self, chunk: ForwardTsnChunk) -> None:
        chunk.streams = []  # nothing is held of any
        await super()._receive_forward_tsn_chunk(chunk)


class Link:
    """ICE, DTLS and SCTP of one connection."""

    def __init__(
        self,
        *,
        ports: UdpPorts,
        certificate: Certificate,
        ice_servers: Sequence[IceServer],
        on_rtp: Callable[[bytes], None],
        on_rtcp: Callable[[bytes], None],
        wants: Callable[[bytes], bool],
        on_down: Callable[[str], None],
    ) -> None:
        """`on_rtp` and `on_rtcp` get the packets, decrypted; `wants` may refuse one of RTP before
        that; `on_down` is called when an established connection breaks."""
        self.n_undecryptable = 0
        self.n_unwanted = 0  # before there are keys, or more than is waited for or remembered
        self._ports = ports
        self._on_rtp = on_rtp
        self._on_rtcp = on_rtcp
        self._wants = wants
        self._on_down = on_down
        self._senders: dict[int, None] = {}  # by SSRC, the newest last
        self._taken: list[UdpPort] = []
        self._connection = Connection(
            ice_controlling=False,
            local_username=secrets.token_hex(UFRAG_CHARS // 2),
            **_server_arguments(ice_servers),
        )
        # Every datagram comes through here instead of aioice's unbounded queue.
        self._queue_datagram = self._connection.data_received
        self._connection.data_received = self._datagram  # type: ignore[method-assign]
        self._take_check = self._connection.request_received
        self._connection.request_received = self._check  # type: ignore[method-assign]
        transport = cast(Any, _IceTransport(self._connection))
        self._dtls = RTCDtlsTransport(transport, [certificate])
        self._sctp: DataChannels | None = None
        self._is_up = False
        self._is_closed = False
        self._dtls.on("statechange", self._dtls_changed)

    @property
    def ufrag(self) -> str:
        return self._connection.local_username

    @property
    def password(self) -> str:
        return self._connection.local_password

    @property
    def is_up(self) -> bool:
        return self._is_up and not self._is_closed

    async def gather(self, ips: Iterable[str]) -> list[LocalCandidate]:
        """Open sockets; our addresses. Raises PortsExhausted."""
        connection = self._connection
        self._taken = self._ports.take(ips)
        ends: list[_StunEnd] = []
        found: list[Candidate] = []
        for index, port in enumerate(self._taken):
            end = _StunEnd(connection, port)
            ip, number = port.address
            end.local_candidate = Candidate(
                foundation=candidate_foundation("host", "udp", ip),
                component=1,
                transport="udp",
                priority=candidate_priority(1, "host", 65535 - index),
                host=ip,
                port=number,
                type="host",
            )
            ends.append(end)
            found.append(end.local_candidate)
        connection._protocols += ends
        found += await self._ask_servers(ends)
        connection._local_candidates += found
        connection._local_candidates_start = connection._local_candidates_end = True
        return found

    async def _ask_servers(self, ends: Sequence[_StunEnd]) -> list[Candidate]:
        connection = self._connection
        questions: list[Any] = []
        if connection.stun_server is not None:
            questions += [
                ice.server_reflexive_candidate(end, connection.stun_server)
                for end in ends
                if ipaddress.ip_address(end.local_candidate.host).version == 4
            ]
        if connection.turn_server is not None:
            questions.append(
                ice.relayed_candidate(
                    component=1,
                    hide_related_address=False,
                    protocol_factory=lambda: ice.StunProtocol(connection),
                    turn_server=connection.turn_server,
                    turn_username=connection.turn_username,
                    turn_password=connection.turn_password,
                    turn_ssl=connection.turn_ssl,
                    turn_transport=connection.turn_transport,
                )
            )
        found: list[Candidate] = []
        limited = [asyncio.wait_for(question, GATHER_WITHIN_S) for question in questions]
        for result in await asyncio.gather(*limited, return_exceptions=True):
            if isinstance(result, BaseException):  # an unreachable server: one way less
                continue
            candidate, relay = result
            found.append(candidate)
            if relay is not None:
                connection._protocols.append(relay)
        return found

    def remote(self, transport: RemoteTransport) -> None:
        """The publisher's name and password, also when it takes new ones (an ICE restart)."""
        self._connection.remote_username = transport.ufrag
        self._connection.remote_password = transport.password

    async def add_candidate(self, candidate: RemoteCandidate) -> None:
        """Never the last one: aioice would then refuse addresses that it learns by itself."""
        has_room = len(self._connection._remote_candidates) < MAX_REMOTE_ADDRESSES
        if has_room and not self._is_closed:
            await self._connection.add_remote_candidate(
                Candidate(
                    foundation=candidate.foundation,
                    component=1,
                    transport="udp",
                    priority=candidate.priority,
                    host=candidate.ip,
                    port=candidate.port,
                    type=candidate.kind,
                )
            )

    async def connect(self, transport: RemoteTransport, *, role: str) -> None:
        """Return once packets can be decrypted; raises LinkFailed. ICE by itself waits for ever."""
        self._connection.ice_controlling = transport.is_lite
        self._connection.remote_is_lite = transport.is_lite
        self._dtls._set_role(role)
        try:
            await self._connection.connect()
        except ConnectionError as error:
            raise LinkFailed(self.ice_failure()) from error
        prints = [RTCDtlsFingerprint(algorithm=a, value=v) for a, v in transport.fingerprints]
        await self._dtls.start(RTCDtlsParameters(fingerprints=prints))
        if self._dtls.state != "connected":
            raise LinkFailed(self.dtls_failure())
        self._is_up = True

    async def open_data(self, *, remote_port: int) -> None:
        """Let the publisher open data channels; what it sends there is thrown away."""
        self._sctp = DataChannels(self._dtls)
        try:
            await self._sctp.start(RTCSctpCapabilities(maxMessageSize=65536), remote_port)
        except ConnectionError:  # lost in this moment; `on_down` is called for it
            return

    def send(self, rtcp: bytes) -> None:
        """Never blocks; lost where there is no connection."""
        pair = self._connection._nominated.get(1)
        if pair is None or not self.is_up or self._dtls.state != "connected":
            return
        pair.protocol.transport.sendto(self._dtls._tx_srtp.protect_rtcp(rtcp), pair.remote_addr)

    def pairs(self) -> tuple[str, ...]:
        """The ways that were tried, with what became of them."""
        named = []
        for pair in self._connection._check_list[:MAX_PAIRS_NAMED]:
            state = pair.state.name.lower().replace("_", " ")
            ours, theirs = _written(pair.local_addr), _written(pair.remote_addr)
            named.append(f"{ours} to {theirs}: {'in use' if pair.nominated else state}")
        return tuple(named)

    def failure(self) -> str:
        """Why there is no connection yet."""
        return self.dtls_failure() if self._connection._nominated else self.ice_failure()

    def ice_failure(self) -> str:
        tried = ", ".join(self.pairs())
        if tried:
            return f"ICE failed: no packet gets through; tried {tried}"
        return (
            "ICE failed: the publisher named no address that can be reached, and nothing came from"
            " it; are our UDP ports open to it (udp_ports, announced_ip)?"
        )

    def dtls_failure(self) -> str:
        used = ", ".join(pair for pair in self.pairs() if pair.endswith("in use"))
        return f"DTLS failed: packets get through and keys do not ({used or 'no way in use'})"

    async def close(self) -> None:
        """Frees everything; may be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._dtls.remove_all_listeners()
        if self._sctp is not None:
            try:
                await self._sctp.stop()
            except (ConnectionError, SSL.Error):  # nobody is there any more to be told
                pass
            self._sctp.remove_all_listeners()
        pump = self._dtls._task
        await self._dtls.stop()
        await self._connection.close()
        if pump is not None:
            await asyncio.gather(pump, return_exceptions=True)
        self._ports.give_back(self._taken)

    # ── datagrams ──

    def _check(self, message: stun.Message, addr: Address, protocol: ice.StunProtocol) -> None:
        """aioice remembers every address that a check came from, and checks it in turn."""
        known = self._connection._remote_candidates
        if len(known) < MAX_REMOTE_ADDRESSES or any(
            addr == (one._network_host, one.port) for one in known
        ):
            self._take_check(message, addr, protocol)
        else:
            self.n_unwanted += 1

    def _datagram(self, data: bytes, component: int) -> None:
        first = data[0] if len(data) > 1 else 0
        if 127 < first < 192:
            self._secured(data)
        elif 19 < first < 64 and self._connection._queue.qsize() < MAX_DTLS_WAITING:
            self._queue_datagram(data, component)
        else:
            self.n_unwanted += 1

    def _secured(self, data: bytes) -> None:
        keys = cast("pylibsrtp.Session | None", self._dtls._rx_srtp)
        rtcp = is_rtcp(data)
        if keys is None or self._is_closed or len(data) < 12 or not (rtcp or self._wants(data)):
            self.n_unwanted += 1
            return
        try:
            plain = keys.unprotect_rtcp(data) if rtcp else keys.unprotect(data)
        except (pylibsrtp.Error, ValueError):  # forged, sent twice, or too long
            self.n_undecryptable += 1
            return
        self._remember(keys, int.from_bytes(data[4:8] if rtcp else data[8:12], "big"))
        (self._on_rtcp if rtcp else self._on_rtp)(plain)

    def _remember(self, keys: pylibsrtp.Session, ssrc: int) -> None:
        """libsrtp never forgets a sender by itself, and looks through all of them at every packet."""
        self._senders.pop(ssrc, None)
        self._senders[ssrc] = None
        if len(self._senders) > MAX_SENDERS:
            oldest = next(iter(self._senders))
            del self._senders[oldest]
            keys.remove_stream(oldest)

    def _dtls_changed(self) -> None:
        if self._is_up and self._dtls.state in ("closed", "failed"):
            self._is_up = False
            is_lost = self._connection._closed  # by aioice: nothing answers its checks
            self._on_down(LOST if is_lost else CLOSED_BY_PUBLISHER)


def _written(address: Address) -> str:
    ip, port = address
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _server_arguments(servers: Sequence[IceServer]) -> dict[str, Any]:
    """One STUN and one TURN server, as aioice takes them."""
    arguments: dict[str, Any] = {}
    for server in servers:
        scheme, _, rest = server.url.partition(":")
        where, _, query = rest.partition("?")
        host, _, port = where.rpartition(":")
        if not host:
            host, port = where, "5349" if scheme.endswith("s") else "3478"
        address = (host.strip("[]"), int(port))
        if scheme == "stun":
            arguments.setdefault("stun_server", address)
        elif scheme in ("turn", "turns") and "turn_server" not in arguments:
            over_tcp = scheme == "turns" or query == "transport=tcp"
            arguments |= {
                "turn_server": address,
                "turn_username": server.username,
                "turn_password": server.credential,
                "turn_ssl": scheme == "turns",
                "turn_transport": "tcp" if over_tcp else "udp",
            }
    return arguments

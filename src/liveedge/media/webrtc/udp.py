"""The UDP sockets of publishers: one per connection and address, or one per address for all.

Who a datagram is for is known by the name in a signed connectivity check, and from then on by the
address it comes from; an answer to a check of ours by its number. What cannot be told is dropped
and counted. Nobody's address is believed before a check that only the right publisher can sign.

Thread  `liveedge-webrtc`, except `bind_shared`.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Address: TypeAlias = tuple[str, int]

_RECEIVE_BUFFER_BYTES = 4 << 20  # a key frame comes as a burst
_MAX_DATAGRAM_BYTES = 2048
_MAX_AT_ONCE = 64  # datagrams, before others of the loop get their turn
_MAX_ADDRESSES = 16  # of one publisher; the oldest is forgotten

_STUN_HEADER_BYTES = 20
_STUN_COOKIE = b"\x21\x12\xa4\x42"
_STUN_CLASS = 0x0110
_STUN_REQUEST = 0x0000
_STUN_INDICATION = 0x0010
_STUN_USERNAME = 0x0006


class PortsExhausted(Exception):
    """No socket could be had. Caught by whoever opens a connection."""


class Endpoint(Protocol):
    """A connection's end of a socket."""

    @property
    def ufrag(self) -> str:
        """The name by which checks for it are known."""
        ...

    def is_authentic(self, check: bytes) -> bool:
        """Whether a connectivity check is signed as only our publisher can."""
        ...

    def expects(self, transaction: bytes) -> bool:
        """Whether a check of ours with this number waits for its answer."""
        ...

    def stun(self, data: bytes, address: Address) -> None: ...

    def packet(self, data: bytes) -> None:
        """Everything else, from an address that is known to be our publisher's."""
        ...


@dataclass(slots=True)
class UdpCounts:
    """What could not be delivered."""

    unknown: int = 0  # to nobody in particular
    forged: int = 0  # checks that were not signed as they should be
    unsent: int = 0  # the system had no room


class UdpPort:
    """A bound socket and those who share it."""

    def __init__(
        self,
        bound: socket.socket,
        *,
        filter_in: Callable[[bytes], bool],
        counts: UdpCounts | None = None,
    ) -> None:
        """`filter_in` sees every datagram that comes, before all else, and may lose it. `counts` may
        be those of other ports too."""
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        name = bound.getsockname()
        self.address: Address = (str(name[0]), int(name[1]))
        self.counts = counts or UdpCounts()
        self._socket = bound
        self._filter_in = filter_in
        self._loop: asyncio.AbstractEventLoop | None = None
        self._by_ufrag: dict[str, Endpoint] = {}
        self._by_address: dict[Address, Endpoint] = {}

    def open(self) -> None:
        """Begin to receive, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._receive)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def attach(self, endpoint: Endpoint) -> None:
        self._by_ufrag[endpoint.ufrag] = endpoint

    def detach(self, endpoint: Endpoint) -> None:
        self._by_ufrag.pop(endpoint.ufrag, None)
        for address in [a for a, owner in self._by_address.items() if owner is endpoint]:
            del self._by_address[address]

    def send(self, data: bytes, address: Address) -> None:
        """Never blocks; what the system does not take is lost, as it might be on the way."""
        try:
            self._socket.sendto(data, address)
        except OSError:
            self.counts.unsent += 1

    def _receive(self) -> None:
        for _ in range(_MAX_AT_ONCE):
            try:
                data, sender = self._socket.recvfrom(_MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError:  # somebody we sent to has no such port
                continue
            if len(data) > 1 and self._filter_in(data):
                self._dispatch(data, (str(sender[0]), int(sender[1])))

    def _dispatch(self, data: bytes, address: Address) -> None:
        endpoint: Endpoint | None
        if data[0] > 3:
            endpoint = self._by_address.get(address)
            if endpoint is None:
                self.counts.unknown += 1
            else:
                endpoint.packet(data)
            return
        if len(data) < _STUN_HEADER_BYTES or data[4:8] != _STUN_COOKIE:
            self.counts.unknown += 1
            return
        endpoint = self._stun_owner(data, address)
        if endpoint is not None:
            endpoint.stun(data, address)

    def _stun_owner(self, data: bytes, address: Address) -> Endpoint | None:
        kind = int.from_bytes(data[:2], "big") & _STUN_CLASS
        if kind == _STUN_INDICATION:
            return None
        if kind != _STUN_REQUEST:
            transaction = data[8:20]
            for candidate in self._by_ufrag.values():
                if candidate.expects(transaction):
                    return candidate
            self.counts.unknown += 1
            return None
        endpoint = self._by_ufrag.get(stun_username(data).partition(":")[0])
        if endpoint is None:
            self.counts.unknown += 1
        elif endpoint.is_authentic(data):
            self._learn(address, endpoint)
        else:
            self.counts.forged += 1
        return endpoint

    def _learn(self, address: Address, endpoint: Endpoint) -> None:
        if self._by_address.get(address) is endpoint:
            return
        known = [a for a, owner in self._by_address.items() if owner is endpoint]
        if len(known) >= _MAX_ADDRESSES:
            del self._by_address[known[0]]
        self._by_address[address] = endpoint


def stun_username(data: bytes) -> str:
    """Whom a connectivity check names; empty if it names nobody."""
    at = _STUN_HEADER_BYTES
    while at + 4 <= len(data):
        kind = int.from_bytes(data[at : at + 2], "big")
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == _STUN_USERNAME:
            return data[at + 4 : at + 4 + length].decode("utf-8", "replace")
        at += 4 + length + -length % 4
    return ""


class UdpPorts:
    """Sockets for connections, as configured: any port, a range, or one port for all."""

    def __init__(
        self,
        ports: tuple[int, int] | None,
        *,
        rng: random.Random,
        filter_in: Callable[[bytes], bool],
    ) -> None:
        self._ports = ports
        self._rng = rng
        self._filter_in = filter_in
        self.counts = UdpCounts()  # of all ports since the start
        self._shared: dict[str, UdpPort] = {}

    @property
    def is_shared(self) -> bool:
        return self._ports is not None and self._ports[0] == self._ports[1]

    def bind_shared(self, ips: Iterable[str]) -> None:
        """Take the one port early, so that a server that cannot have it says so at its start.

        Raises OSError. `open_shared` follows in the loop.
        """
        assert self._ports is not None
        for ip in ips:
            self._shared[ip] = self._port(_bind(ip, self._ports[0]))

    def open_shared(self) -> None:
        for port in self._shared.values():
            port.open()

    def take(self, ips: Iterable[str]) -> list[UdpPort]:
        """One open port per address that can be had. Raises PortsExhausted if there is none."""
        taken = [port for port in map(self._take, ips) if port is not None]
        if taken:
            return taken
        if self._ports is not None and not self.is_shared:
            raise PortsExhausted(
                f"all UDP ports from {self._ports[0]} to {self._ports[1]} are in use; widen"
                " udp_ports, or give one port for all publishers"
            )
        raise PortsExhausted("no UDP socket could be opened: the machine has no usable address")

    def give_back(self, ports: Iterable[UdpPort]) -> None:
        if not self.is_shared:
            for port in ports:
                port.close()

    def close(self) -> None:
        for port in self._shared.values():
            port.close()
        self._shared.clear()

    def _port(self, bound: socket.socket) -> UdpPort:
        return UdpPort(bound, filter_in=self._filter_in, counts=self.counts)

    def _take(self, ip: str) -> UdpPort | None:
        if self.is_shared:
            return self._shared.get(ip) or self._late_shared(ip)
        port = self._first_free(ip)
        if port is not None:
            port.open()
        return port

    def _late_shared(self, ip: str) -> UdpPort | None:
        """An address that the machine did not have at the start."""
        assert self._ports is not None
        bound = _bind_or_none(ip, self._ports[0])
        if bound is None:
            return None
        port = self._shared[ip] = self._port(bound)
        port.open()
        return port

    def _first_free(self, ip: str) -> UdpPort | None:
        low, high = self._ports or (0, 0)
        n_ports = high - low + 1
        start = self._rng.randrange(n_ports)
        for step in range(n_ports):
            bound = _bind_or_none(ip, low + (start + step) % n_ports)
            if bound is not None:
                return self._port(bound)
        return None


def _bind(ip: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        bound.bind((ip, port))
    except OSError:
        bound.close()
        raise
    return bound


def _bind_or_none(ip: str, port: int) -> socket.socket | None:
    try:
        return _bind(ip, port)
    except OSError:  # taken, not ours any more, or no room for another file
        return None

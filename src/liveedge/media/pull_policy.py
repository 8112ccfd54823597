"""Which addresses the server may pull from: pure decisions, no look-up, no connection.

Cameras live on private networks, so those are allowed. Never allowed are the addresses under
which clouds hand out credentials (link-local and friends) and the server's own ports.
`check_pull_url` judges what is written in a URL, `check_pull_address` what a name resolved to.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from liveedge.core.errors import SourceUnavailable

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

DEFAULT_PORTS = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443, "rtmp": 1935, "rtmps": 443}

_METADATA_NETWORKS = tuple(
    ipaddress.ip_network(text)
    for text in (
        "169.254.0.0/16",  # AWS, Azure, Google and most others
        "fe80::/10",
        "fd00:ec2::/32",  # AWS over IPv6
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure's host agent
        "192.0.0.192/32",  # Oracle
    )
)
# Versions of Python differ in what they call global; these never are.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",  # protocol assignments
        "192.88.99.0/24",  # relays of 6to4
        "::/96",  # IPv4 inside IPv6, as it was once written
        "64:ff9b:1::/48",  # NAT64 inside a network
        "100::/64",  # discarded
        "2001::/23",  # Teredo and other protocols
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fec0::/10",  # the private addresses of old
    )
)
_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "instance-data"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# 2130706433, 0x7f.1, 017700000001: old spellings of IPv4 that resolvers still accept.
_OLD_IPV4 = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPolicy:
    """What the configuration says about pulled sources."""

    own_ports: frozenset[int] = frozenset()  # refused on this machine's addresses
    own_addresses: frozenset[str] = frozenset()  # besides loopback
    allow_private: bool = True  # LAN and loopback
    ports: frozenset[int] | None = None  # the only ones; None: any
    private_setting: str = "allow_private_sources"  # what messages name as the way out


@dataclass(frozen=True, slots=True)
class PullTarget:
    """Where a URL points."""

    scheme: str
    host: str  # as written, without brackets
    port: int
    address: Address | None  # None: a name, to be resolved and checked by `check_pull_address`


def check_pull_url(
    url: str, *, policy: PullPolicy, schemes: Collection[str] = ("rtsp", "rtsps")
) -> PullTarget:
    """Where a URL points; `SourceUnavailable` if it is malformed or must not be pulled.

    No message contains any part of the URL but its scheme.
    """
    try:
        parts = urlsplit(url.strip())
        scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
    except ValueError as error:
        raise SourceUnavailable("the URL of the source is malformed") from error
    if _CONTROL.search(url.strip()):
        raise SourceUnavailable("the URL of the source is malformed: it holds control characters")
    if scheme not in schemes:
        expected = " or ".join(f"{name}://" for name in schemes)
        raise SourceUnavailable(f"the URL of the source needs to begin with {expected}")
    if not host:
        raise SourceUnavailable("the URL of the source has no host")
    host = host.rstrip(".")
    port = DEFAULT_PORTS[scheme] if port is None else port
    if policy.ports is not None and port not in policy.ports:
        raise _forbidden(f"its port is none of {_listed(policy.ports)} (remote_media_ports)")
    if host in _METADATA_NAMES:
        raise _forbidden("metadata addresses are never pulled")
    address = _literal(host)
    if host == "localhost" or host.endswith(".localhost"):
        address = ipaddress.IPv4Address("127.0.0.1")
    if address is not None:
        check_pull_address(address, port=port, policy=policy)
    return PullTarget(scheme, host, port, address)


def check_pull_address(address: Address, *, port: int, policy: PullPolicy) -> None:
    """Raise `SourceUnavailable` if this address and port must not be pulled."""
    address = _unwrapped(address)
    if any(address in network for network in _METADATA_NETWORKS):
        raise _forbidden("link-local and metadata addresses are never pulled")
    own = {ipaddress.ip_address(text) for text in policy.own_addresses}
    is_own = address.is_loopback or address.is_unspecified or address in own
    if is_own and port in policy.own_ports:
        raise _forbidden("it is a port of this server")
    if address.is_multicast or (address.is_reserved and not is_own):
        raise _forbidden("multicast and reserved addresses cannot be pulled")
    if not policy.allow_private and not _is_public(address):
        raise _forbidden(f"private addresses need the setting {policy.private_setting}")


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    if _OLD_IPV4.fullmatch(host):
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError as error:
            raise SourceUnavailable("the host of the source is not a valid address") from error
    return None


def _unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one, where that is what will be reached."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_public(address: Address) -> bool:
    return address.is_global and not any(address in network for network in _NOT_PUBLIC)


def _listed(ports: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(ports)))


def _forbidden(why: str) -> SourceUnavailable:
    return SourceUnavailable(f"the address of the source is not allowed: {why}")

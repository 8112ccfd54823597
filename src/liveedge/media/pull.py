"""Cameras and servers that FFmpeg connects to itself, by one address and port: RTMP, and RTSP where
the video is one that `rtsp.py` does not read itself.

Every wait has an end: opening and each read are interrupted by FFmpeg's own deadline, so a silent
camera costs its own thread some seconds and nobody else anything.
Where it may connect is decided here: the host is looked up and judged at each attempt, and FFmpeg
is given the address instead of the name. With TLS it needs the name and looks it up once more. An
RTSP redirect is not followed, as FFmpeg would do so unasked.
FFmpeg's messages may repeat the URL; they are never shown, only their kind.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

import av
from av.container import InputContainer

from liveedge.core.clock import Clock
from liveedge.core.errors import SourceUnavailable
from liveedge.media import av_log, refusals
from liveedge.media.decode import VideoLimits, VideoReader, VideoUnreadable
from liveedge.media.delivery import deliver
from liveedge.media.pull_policy import (
    Address,
    PullPolicy,
    PullTarget,
    check_pull_address,
    check_pull_url,
)
from liveedge.media.source import FrameSink, SourceKind, SourceLost

_PROBE_S = 3.0  # for one connection that only finds out something
MAX_PROBED = 4  # addresses of one name; it may have thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """Patience with a camera."""

    open_timeout_s: float = 5.0
    read_timeout_s: float = 5.0  # a camera slower than one frame in this time cannot be used


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProtocol:
    """How FFmpeg is asked for one kind of source."""

    kind: SourceKind
    schemes: tuple[str, ...]  # the one with TLS last
    demuxer: str
    whitelist: str  # what FFmpeg may open underneath
    options: Mapping[str, str] = field(default_factory=dict)
    what: str  # "an RTSP camera": said of what answers and is none


class PulledSource:
    """One camera. The URL stays inside; `repr` and messages do not show it."""

    stall_after_s: float | None = 5.0
    restart_on_stall = True

    def __init__(
        self,
        protocol: PullProtocol,
        url: str,
        *,
        policy: PullPolicy,
        clock: Clock,
        settings: PullSettings | None = None,
        limits: VideoLimits | None = None,
    ) -> None:
        self.kind: SourceKind = protocol.kind
        self._protocol = protocol
        self._target = check_pull_url(url, policy=policy, schemes=protocol.schemes)
        self._url = url.strip()
        self._policy = policy
        self._clock = clock
        self._settings = settings or PullSettings()
        self._limits = limits or VideoLimits()
        av_log.listen()

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        address = resolve(self._target, self._policy)
        with self._open(address) as container:
            try:
                reader = VideoReader(container, limits=self._limits, keeps_packets=True)
                sink.state("waiting_for_keyframe", "connected", codec=reader.codec)
                deliver(reader, sink, stopping)
            except VideoUnreadable as error:
                raise SourceLost(error.reason, hopeless=True) from error
            except (av.FFmpegError, OSError) as error:
                raise self._lost(error) from error
        if not stopping.is_set():
            raise SourceLost(refusals.CLOSED)

    def _open(self, address: Address) -> InputContainer:
        started_s = self._clock.monotonic_s()
        patience_s = self._settings.open_timeout_s
        protocol = self._protocol
        is_redirected = threading.Event()

        def hold() -> None:
            # FFmpeg takes no answer here. But it waits for this to return, and ends once its time
            # (which is real time) is over: before it sends the new host a byte.
            is_redirected.set()
            threading.Event().wait(patience_s + 0.1)

        try:
            with av_log.held_at_redirect(hold):
                return av.open(
                    pinned(self._url, self._target, address),
                    format=protocol.demuxer,
                    metadata_errors="replace",
                    timeout=(patience_s, self._settings.read_timeout_s),
                    options={
                        "protocol_whitelist": protocol.whitelist,
                        **protocol.options,
                        **self._more_options(self._target),
                        **self._limits.decoder_options(),
                    },
                )
        except (av.FFmpegError, OSError) as error:
            if is_redirected.is_set():
                raise SourceLost(refusals.REDIRECTED, hopeless=True) from error
            # A camera that accepts and stays silent is reported as invalid data after the deadline.
            if self._clock.monotonic_s() - started_s > 0.9 * patience_s:
                raise SourceLost(refusals.TIMED_OUT) from error
            raise self._lost(error, address) from error

    def _more_options(self, target: PullTarget) -> dict[str, str]:
        """Options that depend on the URL."""
        return {}

    def _lost(self, error: Exception, address: Address | None = None) -> SourceLost:
        for kind, reason, hopeless in _REASONS:
            if isinstance(error, kind):
                return SourceLost(reason.format(what=self._protocol.what), hopeless=hopeless)
        number = getattr(error, "errno", None)
        if number in _NO_ROUTE:
            return SourceLost(refusals.NO_ROUTE)
        if number == errno.EPROTONOSUPPORT:
            return SourceLost(refusals.NOT_OVER_TCP, hopeless=True)
        if address is not None and self._target.scheme == self._protocol.schemes[-1]:
            return SourceLost(_tls_trouble(address, self._target.port) or self._unexplained(error))
        return SourceLost(self._unexplained(error))

    def _unexplained(self, error: Exception) -> str:
        return f"connection failed ({type(error).__name__})"


def look_up(target: PullTarget) -> list[Address]:
    """The addresses of a name. Blocks; raises SourceLost."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise SourceLost("unknown host") from error
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


LookUp: TypeAlias = Callable[[PullTarget], list[Address]]


def resolve(target: PullTarget, policy: PullPolicy) -> Address:
    """The address to connect to, judged as it is now, because names change between attempts.

    Blocks for as long as the resolver does. Raises SourceLost.
    """
    addresses = judged_addresses(target, policy)
    return addresses[0] if len(addresses) == 1 else first_that_accepts(addresses, target.port)


def judged_addresses(
    target: PullTarget, policy: PullPolicy, look_up: LookUp = look_up
) -> list[Address]:
    """All that the host has now, none of which is forbidden. Blocks; raises SourceLost."""
    addresses = [target.address] if target.address is not None else look_up(target)
    for address in addresses:
        try:
            check_pull_address(address, port=target.port, policy=policy)
        except SourceUnavailable as error:
            raise SourceLost(error.message, hopeless=True) from error
        if target.port in policy.own_ports and _is_of_this_machine(address):
            raise SourceLost(_OWN_PORT, hopeless=True)
    return addresses


def _is_of_this_machine(address: Address) -> bool:
    """Names tell only some of its addresses; one can be bound to where it is ours."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
        return True


def first_that_accepts(addresses: Sequence[Address], port: int) -> Address:
    """Of a host with several, as only one of them is handed on. If none does, the first."""
    return next((a for a in addresses[:MAX_PROBED] if _accepts(a, port)), addresses[0])


def _accepts(address: Address, port: int) -> bool:
    try:
        with socket.create_connection((str(address), port), timeout=_PROBE_S):
            return True
    except OSError:
        return False


def pinned(url: str, target: PullTarget, address: Address) -> str:
    """The URL with the judged address in place of the host, and its scheme in small letters: to FFmpeg
    `RTSPS` is not TLS. With TLS a name stays, as some servers want to be told it."""
    parts = urlsplit(url)  # this makes the letters small
    if target.address is None and target.scheme.endswith("s"):
        return parts.geturl()
    login, at, _ = parts.netloc.rpartition("@")
    host = f"[{address}]" if address.version == 6 else str(address)
    return parts._replace(netloc=f"{login}{at}{host}:{target.port}").geturl()


def _tls_trouble(address: Address, port: int) -> str | None:
    """Why TLS does not work there, if that is what does not work."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((str(address), port), timeout=_PROBE_S) as connection,
            context.wrap_socket(connection),
        ):
            return None
    except (ssl.SSLError, ConnectionError, TimeoutError):
        return refusals.TLS_FAILED
    except OSError:
        return None


_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH)
_CODEC = "codec not supported; use H.264, H.265 or MJPEG"
_OWN_PORT = "the address of the source is not allowed: it is a port of this server"
# From the particular to the general: PyAV's errors are also Python's.
_REASONS: tuple[tuple[type[Exception], str, bool], ...] = (
    (av.HTTPUnauthorizedError, refusals.UNAUTHORIZED, True),
    (av.HTTPForbiddenError, refusals.FORBIDDEN, True),
    (av.HTTPNotFoundError, refusals.NOT_FOUND, False),
    (av.HTTPClientError, refusals.REQUEST_REFUSED, False),
    (av.HTTPServerError, refusals.FAULT_OF_ITS_OWN, False),
    (av.ExitError, refusals.TIMED_OUT, False),
    (TimeoutError, refusals.TIMED_OUT, False),
    (ConnectionRefusedError, refusals.CONNECTION_REFUSED, False),
    (ConnectionError, refusals.BROKE, False),
    (av.ProtocolNotFoundError, "this build cannot speak the protocol of the URL", True),
    (av.DecoderNotFoundError, _CODEC, True),
    (av.InvalidDataError, refusals.NOT_A_CAMERA, False),
    (EOFError, refusals.CLOSED, False),
)

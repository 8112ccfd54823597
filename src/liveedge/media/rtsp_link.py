"""The one socket to a camera: every wait has an end, and ends soon when it is told to.

Owns    the connection, to an address that was judged before: nothing here looks up a name.
Thread  the attempt's own; it waits in slices, so that no other thread has to touch the socket.
TLS     without a check of the certificate: cameras have one of their own making. It keeps out who
        only listens, not who answers in the camera's place.
"""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import ssl
import threading

from liveedge.core.clock import Clock
from liveedge.media import refusals
from liveedge.media.pull_policy import Address, PullTarget
from liveedge.media.source import SourceLost

_SLICE_S = 0.1  # so much later than told a wait ends


class Stopped(Exception):
    """The attempt was told to end. Caught by the source."""


class Link:
    """Bytes to and from one camera. Its methods raise `SourceLost` and `Stopped`."""

    def __init__(
        self, target: PullTarget, address: Address, *, clock: Clock, stopping: threading.Event
    ) -> None:
        """`address` is that of the target, as it was judged."""
        self._target = target
        self._address = address
        self._clock = clock
        self._stopping = stopping
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._waiting = select.poll()  # by descriptor, which TLS keeps

    def connect(self, *, by_s: float) -> None:
        """Once, before anything else; with TLS, where the URL asks for it."""
        try:
            self._connect_plain(self._socket, by_s)
            if self._target.scheme == "rtsps":
                self._secure(self._target.host, by_s)
        except OSError as error:
            raise refusals.by_error(error) from error

    def _connect_plain(self, plain: socket.socket, by_s: float) -> None:
        plain.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            plain.connect((str(self._address), self._target.port))
        waiting = select.poll()
        waiting.register(plain, select.POLLOUT)
        while not waiting.poll(_SLICE_S * 1000):
            self._look_up(by_s)
        number = plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, "connecting failed")
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(_SLICE_S)
        self._waiting.register(plain, select.POLLIN)

    def _secure(self, host: str, by_s: float) -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        secured = context.wrap_socket(
            self._socket,
            do_handshake_on_connect=False,
            server_hostname=None if _is_address(host) else host,
        )
        self._socket = secured
        while True:
            try:
                secured.do_handshake()
            except TimeoutError:
                self._look_up(by_s)
            except (ssl.SSLError, ConnectionError) as error:
                raise SourceLost(refusals.TLS_FAILED) from error
            else:
                return

    def send(self, data: bytes, *, by_s: float) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                self._look_up(by_s)
            except OSError as error:
                raise refusals.by_error(error) from error

    def receive_into(self, room: memoryview, *, by_s: float) -> int:
        """Wait for the next bytes: how many they are, 0 at the end of the connection."""
        while True:
            self._look_up(by_s)  # also where a camera sends a byte now and then
            try:
                return self._socket.recv_into(room)
            except TimeoutError:
                continue
            except OSError as error:
                raise refusals.by_error(error) from error

    def has_more(self) -> bool:
        """Whether bytes are waiting to be received."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(self._waiting.poll(0))

    def close(self, last_words: bytes = b"") -> None:
        """Never waits longer than a slice, and never fails."""
        with contextlib.suppress(OSError):
            if last_words:
                self._socket.send(last_words)
        self._socket.close()

    def _look_up(self, by_s: float) -> None:
        if self._stopping.is_set():
            raise Stopped
        if self._clock.monotonic_s() > by_s:
            raise SourceLost(refusals.TIMED_OUT)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True

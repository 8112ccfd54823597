"""HTTP for what playlists name: every address is judged, every wait has an end.

Owns    one connection per request; nothing is kept open, no proxy is used.
Judged  each URL, those of redirects too, and the address that its name resolves to; the connection
        goes to that very address.
Never   opens anything but http and https, sends a password to another host than the one it was
        given for, or repeats a URL in a message.
"""

from __future__ import annotations

import base64
import errno
import io
import os
import select
import socket
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin, urlsplit

from liveedge.core.clock import Clock
from liveedge.core.errors import SourceUnavailable
from liveedge.media.playlist import MAX_URL_CHARS, Part, PlaylistInvalid
from liveedge.media.pull import MAX_PROBED, LookUp, judged_addresses, look_up
from liveedge.media.pull_policy import (
    DEFAULT_PORTS,
    Address,
    PullPolicy,
    PullTarget,
    check_pull_url,
)
from liveedge.media.source import SourceLost

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_SCHEMES = ("http", "https")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AS_WRITTEN = "/%:=&?~#+!$,;'@()*[]-._"
_TINY_BYTES = 64
_MAX_TINY = 30_000  # pieces; a playlist may be sent line by line
_LOOK_S = 0.1  # how soon whatever waits notices that it shall stop


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Patience with a web server."""

    connect_s: float = 5.0
    answer_s: float = 10.0  # until its headers have come
    silence_s: float = 5.0  # between two pieces of a body
    whole_s: float = 120.0  # for one body, as fast as it is read
    max_redirects: int = 5


class Web:
    """Fetches for one source. One thread at a time."""

    def __init__(
        self,
        url: str,
        *,
        policy: PullPolicy,
        clock: Clock,
        limits: WebLimits | None = None,
        tls: ssl.SSLContext | None = None,
        look_up: LookUp = look_up,
    ) -> None:
        self._policy = policy
        self._look_up = look_up
        self._clock = clock
        self._limits = limits or WebLimits()
        self._tls = tls  # made when it is first needed: it reads all certificates of the machine
        target = check_pull_url(url, policy=policy, schemes=_SCHEMES)
        self._origin = (target.scheme, target.host, target.port)
        self._login = _login(url)
        self._url = url.strip()

    def get(self, part: Part, stopping: threading.Event, *, reading_s: float = 0.0) -> WebBody:
        """The answer's body, once its headers are there. Raises SourceLost.

        `reading_s` is how long the reader itself takes.
        """
        try:
            url = part.url
        except PlaylistInvalid as error:
            raise SourceLost(error.reason, hopeless=True) from error
        named_by = None if url == self._url else "the playlist names"
        for _ in range(self._limits.max_redirects + 1):
            target, addresses = self._judged(url, named_by)
            response, connection = self._ask(url, target, addresses, part, stopping)
            if response.status not in _REDIRECTS:
                connection.allow(self._limits.whole_s + reading_s)
                return self._body(url, response, connection, part)
            where = response.headers.get("Location", "")
            connection.close()
            url = _redirected(url, where)
            named_by = "the server redirects to"
        raise SourceLost("the server redirects in circles")

    def _judged(self, url: str, named_by: str | None) -> tuple[PullTarget, list[Address]]:
        """Where to connect. `named_by`: who wants it, if that is not the user."""
        try:
            target = check_pull_url(url, policy=self._policy, schemes=_SCHEMES)
            return target, judged_addresses(target, self._policy, self._look_up)
        except SourceUnavailable as error:
            raise SourceLost(_named(error.message, named_by), hopeless=True) from error
        except SourceLost as loss:
            raise SourceLost(_named(loss.reason, named_by), hopeless=loss.hopeless) from loss

    def _ask(
        self,
        url: str,
        target: PullTarget,
        addresses: Sequence[Address],
        part: Part,
        stopping: threading.Event,
    ) -> tuple[HTTPResponse, _Connection]:
        connection = self._connect(target, addresses, stopping)
        try:
            connection.send(self._request(url, target, part))
            response = HTTPResponse(connection, method="GET")  # type: ignore[arg-type]  # makefile is all it uses
            response.begin()
        except (HTTPException, ValueError) as error:
            connection.close()
            raise SourceLost("what answers there is not a web server") from error
        except OSError as error:
            connection.close()
            raise _lost(error) from error
        return response, connection

    def _connect(
        self, target: PullTarget, addresses: Sequence[Address], stopping: threading.Event
    ) -> _Connection:
        patience = _Patience(self._clock, self._limits.connect_s, stopping)
        plain = _first_connected(addresses[:MAX_PROBED], target.port, patience)
        sock = plain
        try:
            if target.scheme == "https":
                self._tls = self._tls or ssl.create_default_context()
                sock = _secured(plain, self._tls, target.host, patience)
        except OSError as error:
            plain.close()
            raise _lost(error) from error
        return _Connection(sock, clock=self._clock, limits=self._limits, stopping=stopping)

    def _request(self, url: str, target: PullTarget, part: Part) -> bytes:
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        path = quote(path, safe=_AS_WRITTEN)  # what its author did not escape
        host = f"[{target.host}]" if ":" in target.host else target.host
        if target.port != DEFAULT_PORTS[target.scheme]:  # else signed addresses would not fit
            host = f"{host}:{target.port}"
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Accept: */*",
            "Accept-Encoding: identity",
            "User-Agent: liveedge",
            "Connection: close",
        ]
        if self._login and (target.scheme, target.host, target.port) == self._origin:
            lines.append(f"Authorization: Basic {self._login}")
        if part.n_bytes is not None:
            first = part.first_byte or 0
            lines.append(f"Range: bytes={first}-{first + part.n_bytes - 1}")
        return "\r\n".join([*lines, "", ""]).encode()

    def _body(
        self, url: str, response: HTTPResponse, connection: _Connection, part: Part
    ) -> WebBody:
        status = response.status
        if status == (206 if part.n_bytes is not None else 200):
            return WebBody(url, response, connection)
        connection.close()
        if status == 200:
            raise SourceLost("the server cannot send parts of a file")
        for statuses, reason, hopeless in _STATUSES:
            if status in statuses:
                raise SourceLost(reason, hopeless=hopeless)
        raise SourceLost(f"the server answers with status {status}")


class _Patience:
    """How long connecting may go on."""

    def __init__(self, clock: Clock, seconds: float, stopping: threading.Event) -> None:
        self._clock = clock
        self._until_s = clock.monotonic_s() + seconds
        self._stopping = stopping

    def require(self) -> None:
        """Raises TimeoutError when it is at an end."""
        if self._stopping.is_set() or self._clock.monotonic_s() > self._until_s:
            raise TimeoutError("no more time to connect")


def _first_connected(addresses: Sequence[Address], port: int, patience: _Patience) -> socket.socket:
    """To the first that accepts. Raises SourceLost, for the last one's reason."""
    trouble: OSError = TimeoutError()
    for address in addresses:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            _connect_to(sock, address, port, patience)
        except OSError as error:
            sock.close()
            trouble = error
        else:
            return sock
    raise _lost(trouble) from trouble


def _connect_to(sock: socket.socket, address: Address, port: int, patience: _Patience) -> None:
    sock.setblocking(False)
    status = sock.connect_ex((str(address), port))
    waiting = status == errno.EINPROGRESS
    while waiting:
        patience.require()
        waiting = not select.select([], [sock], [], _LOOK_S)[1]
        status = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if status:
        raise OSError(status, os.strerror(status))


def _secured(
    plain: socket.socket, tls: ssl.SSLContext, host: str, patience: _Patience
) -> ssl.SSLSocket:
    plain.settimeout(_LOOK_S)
    sock = tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
    while True:
        patience.require()
        try:
            sock.do_handshake()
        except TimeoutError:  # a look at the clock, then it goes on where it was
            continue
        except OSError:
            sock.close()
            raise
        return sock


class WebBody:
    """The bytes of one answer, and where they were found in the end."""

    def __init__(self, url: str, response: HTTPResponse, connection: _Connection) -> None:
        self.url = url
        self._response = response
        self._connection = connection

    def header(self, name: str) -> str:
        """The first of this name, in small letters; empty if there is none."""
        return (self._response.headers.get(name) or "").strip().lower()

    @property
    def n_bytes(self) -> int | None:
        """How many are announced."""
        return self._response.length

    def read(self, n_bytes: int) -> bytes:
        """Up to so many bytes; empty at the end. Raises SourceLost."""
        try:
            data = self._response.read(n_bytes)
        except HTTPException as error:
            raise SourceLost("the connection broke") from error
        except OSError as error:
            raise _lost(error) from error
        if not data and self._response.length:
            raise SourceLost("the connection broke")
        return data

    def read_all(self, *, limit_bytes: int) -> bytes:
        """All that is still to come."""
        data = b""
        while more := self.read(65_536):
            data += more
            if len(data) > limit_bytes:
                raise SourceLost(f"the server sends more than {limit_bytes} bytes", hopeless=True)
        return data

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def __enter__(self) -> WebBody:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Connection(io.RawIOBase):
    """A socket whose reads end: by deadline, by silence, or because the source shall stop."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        clock: Clock,
        limits: WebLimits,
        stopping: threading.Event,
    ) -> None:
        self._sock = sock
        self._clock = clock
        self._silence_s = limits.silence_s
        self._stopping = stopping
        self._sock.settimeout(limits.silence_s)
        self._until_s = clock.monotonic_s() + limits.answer_s

    def allow(self, seconds: float) -> None:
        """A new deadline, from now."""
        self._until_s = self._clock.monotonic_s() + seconds

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return _Reader(self, 65_536)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        silent_until_s = self._clock.monotonic_s() + self._silence_s
        self._sock.settimeout(_LOOK_S)
        while True:
            # At every piece: a server that sends one byte a second is never silent.
            if self._stopping.is_set() or self._clock.monotonic_s() > self._until_s:
                raise TimeoutError("no more time for this answer")
            try:
                return self._sock.recv_into(buffer)
            except TimeoutError:
                if self._clock.monotonic_s() > silent_until_s:
                    raise

    def close(self) -> None:
        self._sock.close()
        super().close()


class _Reader(io.BufferedReader):
    """Never reads all there is: `http.client` asks for that where a chunk claims a length below 0.
    Nor pieces of a byte, of which a megabyte would take the processor for seconds."""

    def __init__(self, raw: io.RawIOBase, buffer_size: int) -> None:
        super().__init__(raw, buffer_size)
        self._n_lines = self._n_bytes = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        self._n_lines += 1  # one before each piece
        if self._n_lines > _MAX_TINY and self._n_bytes < _TINY_BYTES * self._n_lines:
            raise HTTPException("tiny pieces without end")
        return super().readline(size)

    def read(self, n_bytes: int | None = -1, /) -> bytes:
        if n_bytes is None or n_bytes < 0:
            raise HTTPException("a piece of unknown length")
        data = super().read(n_bytes)
        self._n_bytes += len(data)
        return data


def _redirected(url: str, where: str) -> str:
    try:
        url = urljoin(url, where)
    except ValueError as error:
        raise SourceLost("the server redirects to an address that is none") from error
    if len(url) > MAX_URL_CHARS:  # what the playlist names would be relative to it
        raise SourceLost(
            f"the server redirects to an address of more than {MAX_URL_CHARS} characters",
            hopeless=True,
        )
    return url


def _named(reason: str, named_by: str | None) -> str:
    """The reason for a refusal; one that speaks of the source's own URL would mislead."""
    if named_by is None:
        return reason
    return f"{named_by} what cannot be fetched: {reason.replace(' of the source', '')}"


def _login(url: str) -> str | None:
    parts = urlsplit(url.strip())
    if parts.username is None:
        return None
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return base64.b64encode(login.encode()).decode()


def _lost(error: OSError) -> SourceLost:
    for kind, reason, hopeless in _FAILURES:
        if isinstance(error, kind):
            return SourceLost(reason, hopeless=hopeless)
    return SourceLost(f"connection failed ({type(error).__name__})")


_FAILURES: tuple[tuple[type[OSError], str, bool], ...] = (
    (
        ssl.SSLCertVerificationError,
        "TLS failed: the certificate of the server is not valid for its name, or not trusted",
        True,
    ),
    (
        ssl.SSLError,
        "TLS failed: what answers there does not speak it, or not a version of today",
        False,
    ),
    (TimeoutError, "timed out", False),
    (ConnectionRefusedError, "connection refused", False),
    (ConnectionError, "the connection broke", False),
)
_STATUSES: tuple[tuple[tuple[int, ...], str, bool], ...] = (
    ((401,), "401 from the server: user name or password is missing or wrong", True),
    ((403,), "403 from the server: this user may not see the video", True),
    ((404, 410), "404 from the server: it has no such path", False),
    (tuple(range(500, 600)), "the server reports an error of its own", False),
)

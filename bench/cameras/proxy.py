"""The network between an RTSP camera and a server, under the bench's control.

RTSP over TCP carries RTP packets between its answers, so that a proxy can lose single packets, cut
one in half, change time stamps, or swallow everything while the connection stays open.

Owns    a listening port of this machine, and two threads per connection.
"""

from __future__ import annotations

import io
import random
import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType

from liveedge.core.tasks import OwnedThread

POLL_S = 0.05
MARK = 0x24  # of a packet between the answers
SENDER_REPORT = 200
WRAP = 2**32
RTP_HZ = 90_000


class Retimer:
    """Changes the time stamps of one camera, over reconnects. One thread at a time."""

    def __init__(self) -> None:
        self.shift = 0  # added to every stamp
        self._ask: str | None = None
        self._odd_s = 0.0  # the next picture alone is so far off
        self._odd_stamp: int | None = None

    def reset(self) -> None:
        """The next picture has stamp 0, and those after it go on from there."""
        self._ask = "reset"

    def wrap_soon(self, in_s: float) -> None:
        """The 32 bits of the stamps overflow after that time."""
        self._ask, self._odd_s = "wrap", in_s

    def jump(self, seconds: float) -> None:
        """From the next picture on everything is so much later, or earlier."""
        self.shift += round(seconds * RTP_HZ)

    def outlier(self, seconds: float) -> None:
        """One picture claims a moment so far away; the next one is right again."""
        self._ask, self._odd_s = "outlier", seconds

    def apply(self, stamp: int) -> int:
        ask, self._ask = self._ask, None
        if ask == "reset":
            self.shift = -stamp
        elif ask == "wrap":
            self.shift = WRAP - round(self._odd_s * RTP_HZ) - stamp
        elif ask == "outlier":
            self._odd_stamp = stamp
        odd = round(self._odd_s * RTP_HZ) if stamp == self._odd_stamp else 0
        return (stamp + self.shift + odd) % WRAP


class Proxy:
    """One way to one camera. Faults hold for every connection through it, until they are ended."""

    def __init__(self, port: int, *, seed: int = 0) -> None:
        self.retimer: Retimer | None = None
        self.loss = 0.0  # share of the RTP packets that never arrive
        self.frozen = False  # nothing of the camera arrives, and nobody is told
        self.n_passed = 0
        self.n_lost = 0
        self._camera = ("127.0.0.1", port)
        self._chance = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(POLL_S)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._accepting = OwnedThread("proxy", self._accept)
        self._accepting.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def n_connections(self) -> int:
        return len(self._links)

    def cut(self) -> None:
        """Break every connection in the middle of its next packet."""
        for link in self._all():
            link.cut.set()

    def close(self) -> None:
        self._accepting.stop()
        self._listener.close()
        for link in self._all():
            link.end()

    def treated(self, packet: bytes, channel: int) -> bytes | None:
        """What arrives of a packet; None: nothing. Even channels are RTP, odd ones RTCP."""
        if self.frozen:
            return None
        is_media = channel % 2 == 0
        if is_media and self._chance.random() < self.loss:
            self.n_lost += 1
            return None
        self.n_passed += is_media
        if self.retimer is None:
            return packet
        return retimed(packet, self.retimer, at=_stamp_at(packet, is_media=is_media))

    def forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def _all(self) -> list[_Link]:
        with self._lock:
            return list(self._links)

    def _accept(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            try:
                camera = socket.create_connection(self._camera, timeout=2)
            except OSError:  # the camera is away: so are we
                client.close()
                continue
            link = _Link(self, client, camera)
            with self._lock:
                self._links.add(link)
            link.start()


class _Link:
    """One connection."""

    def __init__(self, proxy: Proxy, client: socket.socket, camera: socket.socket) -> None:
        self.cut = threading.Event()
        self._proxy = proxy
        self._client = client
        self._camera = camera
        for end in (client, camera):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = (
            OwnedThread("proxy-up", lambda _: self._upward()),
            OwnedThread("proxy-down", lambda _: self._downward()),
        )
        self._n_left = len(self._threads)
        self._lock = threading.Lock()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._shut()
        for thread in self._threads:
            thread.stop()

    def _upward(self) -> None:
        try:
            while data := self._client.recv(65536):
                self._camera.sendall(data)
        except OSError:  # either end has gone
            pass
        self._hang_up()

    def _downward(self) -> None:
        try:
            for head, packet in _messages(self._camera):
                self._pass_on(head, packet)
        except OSError:
            pass
        self._hang_up()

    def _pass_on(self, head: bytes, packet: bytes | None) -> None:
        if packet is None:
            self._client.sendall(head)
            return
        treated = self._proxy.treated(packet, head[1])
        if treated is None:
            return
        if self.cut.is_set() and head[1] % 2 == 0:
            self._client.sendall(head + treated[: len(treated) // 2])
            raise ConnectionAbortedError("cut as asked")
        self._client.sendall(head + treated)

    def _shut(self) -> None:
        """Both threads come to their end."""
        for end in (self._client, self._camera):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed already
                pass

    def _hang_up(self) -> None:
        """What each thread does last; the second one closes."""
        self._shut()
        with self._lock:
            self._n_left -= 1
            if self._n_left:
                return
        self._client.close()
        self._camera.close()
        self._proxy.forget(self)


def retimed(packet: bytes, retimer: Retimer, *, at: int | None) -> bytes:
    """The packet with its time stamp, which stands `at` there, changed."""
    if at is None:
        return packet
    changed = bytearray(packet)
    (stamp,) = struct.unpack_from(">I", changed, at)
    struct.pack_into(">I", changed, at, retimer.apply(stamp))
    return bytes(changed)


def _stamp_at(packet: bytes, *, is_media: bool) -> int | None:
    if is_media:
        return 4
    is_report = len(packet) >= 20 and packet[1] == SENDER_REPORT
    return 16 if is_report else None


def _messages(connection: socket.socket) -> Iterator[tuple[bytes, bytes | None]]:
    """(head, packet) of everything that RTP travels in; (text, None) of an answer."""
    with connection.makefile("rb") as stream:
        while first := stream.read(1):
            if first[0] == MARK:
                rest = stream.read(3)
                packet = stream.read(int.from_bytes(rest[1:], "big")) if len(rest) == 3 else b""
                yield first + rest, packet
            else:
                yield first + _answer(stream), None


def _answer(stream: io.BufferedReader) -> bytes:
    """An RTSP answer without its first byte, body included."""
    lines = []
    n_body = 0
    while line := stream.readline():
        lines.append(line)
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            n_body = int(value)
        if not line.strip():
            break
    return b"".join(lines) + (stream.read(n_body) if n_body else b"")

"""An RTSP camera of a few lines, whose every RTP packet is the test's to send, lose or change.

It plays encoded pictures as fast as they are read, over TCP, from any picture on, and hangs up.
"""

from __future__ import annotations

import base64
import contextlib
import io
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import av

from liveedge.core.tasks import OwnedThread

Packets: TypeAlias = Callable[[int, list[bytes]], list[bytes]]  # picture number, payloads

_MTU = 1200
_CLOCK_HZ = 90_000
_FIRST_STAMP = 123_456  # to FFmpeg a clock that begins at 0 has not begun


@dataclass(frozen=True)
class Video:
    """Encoded pictures, as units without start codes."""

    codec: str  # h264 or hevc
    pictures: tuple[tuple[bytes, ...], ...]
    fps: float

    @property
    def sets(self) -> tuple[bytes, ...]:
        """Parameter sets of the first picture."""
        return tuple(unit for unit in self.pictures[0] if self.is_set(unit))

    def is_set(self, unit: bytes) -> bool:
        if self.codec == "h264":
            return unit[0] & 31 in (7, 8)
        return unit[0] >> 1 & 63 in (32, 33, 34)


def video_of(ts: bytes, *, fps: float) -> Video:
    """The pictures of an MPEG-TS file, whose units begin with start codes."""
    with av.open(io.BytesIO(ts), "r") as file:
        stream = file.streams.video[0]
        codec = stream.codec_context.name
        data = [bytes(packet) for packet in file.demux(stream) if packet.size]
    return Video(codec, tuple(tuple(_units(picture)) for picture in data), fps)


def _units(data: bytes) -> list[bytes]:
    return [unit.rstrip(b"\x00") for unit in data.split(b"\x00\x00\x01") if unit.strip(b"\x00")]


class RtpCamera:
    """Serves one video to every viewer, from picture `first` on."""

    def __init__(
        self,
        video: Video,
        *,
        first: int = 0,
        sends: Packets = lambda _number, payloads: payloads,
        stamps: Callable[[int], int] | None = None,
        out_of_band_sets: bool = True,
    ) -> None:
        self._video = video
        self._first = first
        self._sends = sends
        self._stamps = stamps or (lambda n: round(n / video.fps * _CLOCK_HZ))
        self._out_of_band = out_of_band_sets
        self.n_lost = 0  # RTP packets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.02)
        self.port = self._listener.getsockname()[1]
        self._thread = OwnedThread("rtp-camera", self._serve)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"rtsp://127.0.0.1:{self.port}/live"

    def close(self) -> None:
        self._thread.stop(5)
        self._listener.close()

    def _serve(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        requests = connection.makefile("rb")
        while True:
            lines = []
            while line := requests.readline().strip():
                lines.append(line.decode())
            if not lines:
                return
            number = next(ln[5:].strip() for ln in lines if ln.startswith("CSeq:"))
            method = lines[0].split()[0]
            connection.sendall(self._reply(method, number))
            if method == "PLAY":
                self._play(connection)
                connection.shutdown(socket.SHUT_WR)
                while requests.read(4096):
                    pass
                return

    def _reply(self, method: str, number: str) -> bytes:
        headers = [f"RTSP/1.0 200 OK\r\nCSeq: {number}", "Session: 1;timeout=60"]
        body = ""
        if method == "OPTIONS":
            headers.append("Public: DESCRIBE, SETUP, PLAY, TEARDOWN")
        elif method == "DESCRIBE":
            body = self._description()
            headers += ["Content-Type: application/sdp", f"Content-Length: {len(body)}"]
        elif method == "SETUP":
            headers.append("Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
        return ("\r\n".join([*headers, "", ""]) + body).encode()

    def _description(self) -> str:
        coded = [base64.b64encode(unit).decode() for unit in self._video.sets]
        if self._video.codec == "h264":
            name, extra = "H264", f";sprop-parameter-sets={','.join(coded)}"
        else:
            name = "H265"
            extra = "".join(
                f";sprop-{kind}={text}"
                for kind, text in zip(("vps", "sps", "pps"), coded, strict=True)
            )
        return (
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n"
            f"m=video 0 RTP/AVP 96\r\na=rtpmap:96 {name}/{_CLOCK_HZ}\r\na=control:t0\r\n"
            f"a=fmtp:96 packetization-mode=1{extra if self._out_of_band else ''}\r\n"
        )

    def _play(self, connection: socket.socket) -> None:
        sequence = 65_000  # wraps soon
        for n, units in enumerate(self._video.pictures[self._first :]):
            payloads = [p for unit in units for p in self._payloads(unit)]
            sent = self._sends(self._first + n, list(payloads))
            self.n_lost += len(payloads) - len(sent)
            stamp = (_FIRST_STAMP + self._stamps(n)) & 0xFFFF_FFFF
            kept = iter(sent)
            following = next(kept, None)
            for i, payload in enumerate(payloads):
                if payload is following:
                    marker = 0x80 if i == len(payloads) - 1 else 0
                    head = struct.pack(">BBHII", 0x80, 96 | marker, sequence, stamp, 7)
                    packet = head + payload
                    connection.sendall(struct.pack(">BBH", 0x24, 0, len(packet)) + packet)
                    following = next(kept, None)
                sequence = (sequence + 1) & 0xFFFF

    def _payloads(self, unit: bytes) -> list[bytes]:
        if len(unit) <= _MTU:
            return [unit]
        if self._video.codec == "h264":
            indicator, kind, body = bytes([unit[0] & 0xE0 | 28]), unit[0] & 31, unit[1:]
        else:
            indicator = bytes([unit[0] & 0x81 | 49 << 1, unit[1]])
            kind, body = unit[0] >> 1 & 63, unit[2:]
        pieces = [body[at : at + _MTU] for at in range(0, len(body), _MTU)]
        last = len(pieces) - 1
        return [
            indicator + bytes([kind | 0x80 * (i == 0) | 0x40 * (i == last)]) + piece
            for i, piece in enumerate(pieces)
        ]


def loses(*, picture: int, part: int) -> Packets:
    """Loses one RTP packet of one picture."""

    def sends(number: int, payloads: list[bytes]) -> list[bytes]:
        if number != picture:
            return payloads
        gone = part % len(payloads)
        return payloads[:gone] + payloads[gone + 1 :]

    return sends


def loses_whole(pictures: Sequence[int]) -> Packets:
    """Loses every packet of some pictures."""
    return lambda number, payloads: [] if number in pictures else payloads

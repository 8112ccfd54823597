"""What the camera benches rest on: the truth about pictures, the network they break, and the sums."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from cameras.footage import Footage, Footages, Shape
from cameras.proxy import Proxy, Retimer
from cameras.rig import Rig, Seen
from cameras.scene import CALM_S, Failed, Shot, Span
from cameras.threads import kind_of, spent_s
from liveedge.core.tasks import OwnedThread

SHAPE = Shape(width=320, height=180, n_frames=20, gop=10)


@pytest.fixture(scope="module")
def footage(tmp_path_factory: pytest.TempPathFactory) -> Footage:
    return Footages(tmp_path_factory.mktemp("loops"))(SHAPE)


# ── pictures ──


def decoded(packets: list[bytes]) -> list[Any]:
    decoder: Any = av.CodecContext.create("h264", "r")
    decoder.thread_count = 1
    fed = [*map(av.Packet, packets), None]
    return [f.to_ndarray(format="rgb24") for packet in fed for f in decoder.decode(packet)]


def test_a_whole_loop_is_known_to_be_whole(footage: Footage) -> None:
    pictures = decoded(footage.packets())
    assert [footage.number_of(rgb) for rgb in pictures] == list(range(20))
    assert not any(footage.is_smeared(rgb) for rgb in pictures)


def test_what_follows_a_lost_picture_is_known_to_be_smeared_until_the_next_key_frame(
    footage: Footage,
) -> None:
    packets = footage.packets()
    pictures = decoded(packets[:4] + packets[5:])
    assert [footage.is_smeared(rgb) for rgb in pictures] == [4 <= n < 9 for n in range(19)]


def test_damage_in_one_corner_is_noticed(footage: Footage) -> None:
    rgb = footage.picture(3).copy()
    assert not footage.is_smeared(rgb)
    rgb[:16, :16] = 0
    assert footage.is_smeared(rgb)


def test_publishers_are_told_apart_by_their_variant(tmp_path: Path) -> None:
    other = Footage(tmp_path, replace(SHAPE, variant=2))
    own = Footage(tmp_path, SHAPE)
    assert own.read(other.picture(7)) == (2, 7)
    assert own.number_of(other.picture(7)) is None
    assert own.is_smeared(other.picture(7))


def test_brightness_alone_tells_the_number(footage: Footage) -> None:
    grey = footage.picture(11).mean(axis=2, keepdims=True).astype(np.uint8)
    assert footage.number_of(grey) == 11


def test_the_wall_clock_says_which_picture_is_due_and_how_old_one_is(footage: Footage) -> None:
    wall_ms = 1_750_000_000_123.0
    number = footage.number_at(wall_ms)
    assert 0 <= footage.age_ms(number, wall_ms) < footage.period_ms
    assert footage.age_ms(number, wall_ms + 300) >= 300
    key_ms = footage.next_key_ms(wall_ms)
    assert 0 <= key_ms - wall_ms <= 10 * footage.period_ms
    assert footage.number_at(key_ms + 1) % 10 == 0


def test_a_loop_of_broken_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="25 pictures"):
        Shape(n_frames=25, gop=10)


# ── the network ──


class TinyCamera:
    """Answers whatever is asked with a body, then sends packets of rising stamps until it is left."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self.port = self._listener.getsockname()[1]
        self._thread = OwnedThread("tiny", self._serve)
        self._thread.start()

    def _serve(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection, contextlib.suppress(OSError):
                connection.recv(100)
                connection.sendall(b"RTSP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n$$$$")
                for number in range(100):
                    body = struct.pack(">BBHII", 0x80, 96, number, 3000 * number, 7) + b"x" * 50
                    connection.sendall(struct.pack(">BBH", 0x24, 0, len(body)) + body)
                connection.recv(100)

    def close(self) -> None:
        self._thread.stop()
        self._listener.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    camera = TinyCamera()
    with Proxy(camera.port) as proxy:
        yield proxy
    camera.close()


ANSWER = b"RTSP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n$$$$"


def received(proxy: Proxy) -> bytes:
    """Everything until the connection ends, or until all 100 packets could have come."""
    got = b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=0.5) as viewer:
        viewer.sendall(b"PLAY\r\n\r\n")
        try:
            while more := viewer.recv(65536):
                got += more
        except TimeoutError:
            pass
    return got


def stamps(data: bytes) -> list[int]:
    assert data.startswith(ANSWER)
    packets = data[len(ANSWER) :]
    return [struct.unpack_from(">I", packets, at + 8)[0] for at in range(0, len(packets), 66)]


def test_answers_and_packets_pass_unchanged(proxy: Proxy) -> None:
    assert stamps(received(proxy)) == [3000 * n for n in range(100)]
    assert proxy.n_passed == 100


def test_a_share_of_the_packets_is_lost_and_answers_never(proxy: Proxy) -> None:
    proxy.loss = 0.3
    arrived = stamps(received(proxy))
    assert len(arrived) == 100 - proxy.n_lost
    assert 10 < proxy.n_lost < 60


def test_what_is_frozen_sends_nothing_and_stays_connected(proxy: Proxy) -> None:
    proxy.frozen = True
    assert received(proxy) == ANSWER


def test_a_cut_comes_in_the_middle_of_a_packet(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as viewer:
        while proxy.n_connections == 0:
            threading.Event().wait(0.005)
        proxy.cut()
        viewer.sendall(b"PLAY\r\n\r\n")
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := viewer.recv(65536):
                got += more
    assert len(got) == len(ANSWER) + 4 + 62 // 2


def test_stamps_are_changed_on_the_way(proxy: Proxy) -> None:
    proxy.retimer = Retimer()
    proxy.retimer.jump(1.0)
    assert stamps(received(proxy)) == [90_000 + 3000 * n for n in range(100)]


def test_each_kind_of_leap_does_what_it_says() -> None:
    retimer = Retimer()
    assert retimer.apply(5000) == 5000
    retimer.outlier(-1.0)
    # Every packet of that picture is off, and no other one.
    assert [retimer.apply(s) for s in (90_000, 90_000, 93_000)] == [0, 0, 93_000]
    retimer.reset()
    assert [retimer.apply(s) for s in (96_000, 99_000)] == [0, 3000]
    retimer.wrap_soon(0.05)
    assert [retimer.apply(s) for s in (102_000, 105_000, 108_000)] == [
        2**32 - 4500,
        2**32 - 1500,
        1500,
    ]


# ── the sums ──


@dataclass
class FakeRig:
    """Has seen what the test says."""

    rows: list[Seen] = field(default_factory=list)

    def watch(self, _stream_id: str, _footage: Footage, *, truth: bool) -> None:
        assert truth

    def seen(self, _stream_id: str) -> list[Seen]:
        rows, self.rows = self.rows, []
        return rows

    @property
    def client(self) -> FakeRig:
        return self

    def stream(self, _stream_id: str) -> dict[str, Any]:
        return {"health": "live"}


def shot_of(footage: Footage, rows: list[Seen]) -> Shot:
    shot = Shot(cast(Rig, FakeRig(rows)), "s", footage)
    shot.watch(truth=True)
    return shot


def row(n: int, **changes: Any) -> Seen:
    """Picture `n` after a full group of the wall clock, 5 ms after it was sent."""
    period_ms = 1000 / SHAPE.fps
    plain = Seen(n, n * period_ms + 5, round(n * period_ms), n % SHAPE.n_frames, False, False)
    return replace(plain, **changes)


def test_lost_pictures_are_those_that_were_sent_and_never_came(footage: Footage) -> None:
    rows = [row(n) for n in range(18) if n not in (4, 5, 12)]
    period_ms = footage.period_ms
    shot = shot_of(footage, rows)
    outcome = shot.outcome(Span(0, 3 * period_ms), settled=False)
    assert outcome.lost == 3
    assert outcome.recover_s == pytest.approx((13 * period_ms + 5 - 3 * period_ms) / 1000)
    off = Span(3.5 * period_ms, 5.5 * period_ms)
    assert shot.outcome(Span(0, 0), unsent=[off], settled=False).lost == 1


def test_smears_are_counted_apart_from_what_the_server_flags(footage: Footage) -> None:
    rows = [row(n) for n in range(18)]
    rows[6] = row(6, smeared=True, corrupt=True, number=None)
    rows[7] = row(7, smeared=True)
    rows[8] = row(8, corrupt=True)
    outcome = shot_of(footage, rows).outcome(Span(0, 0), settled=False)
    assert (outcome.flagged, outcome.shown_clean, outcome.lost) == (2, 1, 0)
    assert not outcome.is_right
    assert outcome.recover_s == pytest.approx(rows[9].arrived_ms / 1000)


def test_without_a_frame_there_is_no_recovery(footage: Footage) -> None:
    outcome = shot_of(footage, []).outcome(Span(0, 0), settled=False)
    assert math.isnan(outcome.recover_s)


def test_a_stream_clock_that_runs_back_is_an_error(footage: Footage) -> None:
    shot = shot_of(footage, [row(0), row(1, time_ms=-5)])
    shot.look()
    with pytest.raises(Failed, match="backwards"):
        shot.clock_error_ms()
    steady = shot_of(footage, [row(n) for n in range(5)])
    steady.look()
    assert steady.clock_error_ms() < 1


def test_delays_are_taken_from_the_pictures(footage: Footage) -> None:
    shot = shot_of(footage, [row(n, arrived_ms=n * footage.period_ms + 20) for n in range(9)])
    shot.look()
    assert shot.delay_ms(95) == pytest.approx(20)
    assert CALM_S > 0


def test_threads_are_grouped_by_what_they_do() -> None:
    first, second = (f"source:{'ab12' * 2}-1111-4222-8333-{'0' * 11}{n}:3" for n in (1, 2))
    assert kind_of(first) == kind_of(second) == "source:…"
    assert kind_of("liveedge-frames_0") == "liveedge-frames"
    assert kind_of("MainThread") == "MainThread"
    spent = spent_s({first: 1.0}, {first: 1.5, second: 0.25, "MainThread": 0.0})
    assert spent == {"source:…": 0.75}

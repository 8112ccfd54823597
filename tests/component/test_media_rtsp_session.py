"""Our own reader of RTSP against cameras whose every byte the test decides."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import random
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from liveedge.core.clock import Clock, SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.media.pull import PullSettings
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.rtsp import RtspSource
from liveedge.media.source import SourceLost
from liveedge.testing.clock import FakeClock
from tests.media_files import encode_numbered
from tests.media_sinks import ListSink, run_to_end
from tests.rtp_camera import Video, video_of

QUICK = PullSettings(open_timeout_s=0.5, read_timeout_s=0.5)
STEPS = ["OPTIONS", "DESCRIBE", "SETUP", "PLAY"]
NOT_A_CAMERA = "what answers there is not an RTSP camera"


@dataclass(frozen=True)
class Asked:
    """One request that a camera got."""

    method: str
    url: str
    headers: Mapping[str, str]


Reply = Callable[[Asked], bytes | None]  # None: nothing is answered


@dataclass
class ScriptedCamera:
    """Answers requests by functions, and sends what the test puts on the line."""

    video: Video
    replies: dict[str, Reply] = field(default_factory=dict)
    context: ssl.SSLContext | None = None
    piece_bytes: int = 1 << 20  # so much is sent at once

    def __post_init__(self) -> None:
        self.asked: list[Asked] = []
        self.playing = threading.Event()
        self.line: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.02)
        self.port: int = self._listener.getsockname()[1]
        self._sequence = 0
        self._thread = OwnedThread("scripted-camera", self._serve)
        self._thread.start()

    def _serve(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with contextlib.suppress(OSError):
                connection.settimeout(10)
                if self.context is not None:
                    connection = self.context.wrap_socket(connection, server_side=True)
                self.line = connection
                self._talk(connection, stopping)
            connection.close()

    def _talk(self, connection: socket.socket, stopping: threading.Event) -> None:
        connection.settimeout(0.05)
        seen = b""
        while not stopping.is_set():
            while b"\r\n\r\n" in seen:
                head, _, seen = seen.partition(b"\r\n\r\n")
                self._answer(head.decode("latin-1"))
            try:
                more = connection.recv(4096)
            except TimeoutError:
                continue
            if not more:
                return
            seen += more

    def _answer(self, head: str) -> None:
        lines = head.split("\r\n")
        words = lines[0].split()
        if words[0].startswith("RTSP/"):  # to a request of ours
            self.asked.append(Asked(words[0], words[1], {}))
            return
        pairs = (line.partition(":")[::2] for line in lines[1:])
        asked = Asked(words[0], words[1], {name: value.strip() for name, value in pairs})
        self.asked.append(asked)
        reply = self.replies.get(asked.method, self.usual)(asked)
        if reply is not None:
            self.send(reply)
        if asked.method == "PLAY":
            self.playing.set()

    def usual(self, asked: Asked) -> bytes:
        match asked.method:
            case "DESCRIBE":
                body = self.description()
                kind = "Content-Type: application/sdp"
                return ok(asked, kind, f"Content-Length: {len(body)}") + body
            case "SETUP":
                transport = "Transport: RTP/AVP/TCP;unicast;interleaved=2-3;ssrc=1234"
                return ok(asked, transport, "Session: abc;timeout=6")
            case "OPTIONS":
                return ok(asked, "Public: DESCRIBE, SETUP, PLAY, GET_PARAMETER, TEARDOWN")
            case _:
                return ok(asked, "Session: abc")

    def description(self, *, control: str = "t0") -> bytes:
        sets = ",".join(base64.b64encode(unit).decode() for unit in self.video.sets)
        return (
            "v=0\r\nm=audio 0 RTP/AVP 0\r\na=control:sound\r\n"
            f"m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=control:{control}\r\n"
            f"a=fmtp:96 packetization-mode=1;sprop-parameter-sets={sets}\r\n"
        ).encode()

    def send(self, data: bytes) -> None:
        assert self.line is not None
        for at in range(0, len(data), self.piece_bytes):
            self.line.sendall(data[at : at + self.piece_bytes])

    def picture(self, n: int, *, marker: bool = True, with_sets: bool = True) -> bytes:
        """Interleaved packets of one picture."""
        units = [u for u in self.video.pictures[n] if with_sets or not self.video.is_set(u)]
        return self.packets(n, units, marker=marker)

    def packets(self, n: int, units: Sequence[bytes], *, marker: bool = True) -> bytes:
        sent = b""
        for i, unit in enumerate(units):
            kind = 96 | 0x80 * (marker and i == len(units) - 1)
            head = struct.pack(">BBHII", 0x80, kind, self._sequence & 0xFFFF, 3000 * n, 7)
            self._sequence += 1
            sent += struct.pack(">BBH", 0x24, 2, len(head + unit)) + head + unit
        return sent

    def hang_up(self) -> None:
        assert self.line is not None
        with contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)

    def beats(self) -> list[Asked]:
        """What kept the session alive."""
        return [asked for asked in self.asked if asked.method == "GET_PARAMETER"]

    def methods(self) -> list[str]:
        return [asked.method for asked in self.asked]

    def close(self) -> None:
        assert self._thread.stop(10)
        self._listener.close()


def ok(asked: Asked, *headers: str) -> bytes:
    return answer(asked, "200 OK", *headers)


def answer(asked: Asked, status: str, *headers: str) -> bytes:
    lines = [f"RTSP/1.0 {status}", f"CSeq: {asked.headers['CSeq']}", *headers, "", ""]
    return "\r\n".join(lines).encode()


@pytest.fixture(scope="module")
def video() -> Video:
    data = encode_numbered(8, container="mpegts", gop=4, codec="libx264", tune="zerolatency")
    return video_of(data, fps=30)


@pytest.fixture
def start(video: Video) -> Iterator[Callable[..., ScriptedCamera]]:
    cameras: list[ScriptedCamera] = []

    def make(*, shows: Video | None = None, **options: object) -> ScriptedCamera:
        cameras.append(ScriptedCamera(shows or video, **options))  # type: ignore[arg-type]
        return cameras[-1]

    yield make
    for camera in cameras:
        camera.close()


def source_of(
    camera: ScriptedCamera,
    *,
    login: str = "",
    settings: PullSettings = QUICK,
    scheme: str = "rtsp",
    clock: Clock | None = None,
) -> RtspSource:
    return RtspSource(
        f"{scheme}://{login}127.0.0.1:{camera.port}/live",
        policy=PullPolicy(),
        clock=clock or SystemClock(),
        settings=settings,
    )


def loss_of(source: RtspSource, sink: ListSink | None = None) -> SourceLost:
    with pytest.raises(SourceLost) as caught:
        run_to_end(source, sink or ListSink(FakeClock()))
    return caught.value


def until(condition: Callable[[], bool]) -> None:
    for _ in range(4000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("the condition never came true")


@contextlib.contextmanager
def running(source: RtspSource, sink: ListSink) -> Iterator[OwnedThread]:
    losses: list[SourceLost] = []

    def work(stopping: threading.Event) -> None:
        try:
            source.run(sink, stopping)
        except SourceLost as loss:
            losses.append(loss)

    thread = OwnedThread("watch", work)
    thread.start()
    yield thread
    assert thread.stop(5)
    assert thread.error is None


# ── what it is for ──


def test_a_picture_is_delivered_before_the_camera_sends_anything_more(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera = start()
    sink = ListSink(FakeClock())
    with running(source_of(camera, settings=PullSettings()), sink):
        assert camera.playing.wait(10)
        for n in range(6):
            camera.send(camera.picture(n))
            until(lambda n=n: len(sink.pixels) == n + 1)  # type: ignore[misc]
    assert sink.numbers() == list(range(6))
    assert sink.source_times_s == pytest.approx([n / 30 for n in range(6)])
    assert not any(sink.corrupt)
    assert all(coded is not None for coded in sink.coded)
    assert sink.states == [("waiting_for_keyframe", "connected")]
    assert sink.codec == "h264"


def test_without_markers_a_picture_is_delivered_with_the_next_one(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera = start()
    sink = ListSink(FakeClock())
    with running(source_of(camera, settings=PullSettings()), sink) as thread:
        assert camera.playing.wait(10)
        for n in range(8):
            camera.send(camera.picture(n, marker=False))
        until(lambda: len(sink.pixels) == 7)
        camera.hang_up()
        until(lambda: not thread.alive)
    assert sink.numbers() == list(range(8))
    assert not any(sink.corrupt)


def test_sets_that_only_the_description_holds_are_enough(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera = start()
    sink = ListSink(FakeClock())
    with running(source_of(camera, settings=PullSettings()), sink):
        assert camera.playing.wait(10)
        for n in range(8):
            camera.send(camera.picture(n, with_sets=False))
        until(lambda: len(sink.pixels) == 8)
    assert sink.numbers() == list(range(8))
    coded = sink.coded[0]
    assert coded is not None
    assert camera.video.sets[0] in coded.params.extradata


def test_a_stream_that_comes_byte_by_byte_is_read_all_the_same(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera = start(piece_bytes=1)
    sink = ListSink(FakeClock())
    patient = PullSettings(open_timeout_s=10, read_timeout_s=10)
    with running(source_of(camera, settings=patient), sink):
        assert camera.playing.wait(20)
        for n in range(3):
            camera.send(camera.picture(n))
        until(lambda: len(sink.pixels) == 3)
    assert sink.numbers() == [0, 1, 2]


def test_pictures_that_overtake_the_answer_to_play_are_not_lost(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera = start()
    camera.replies["PLAY"] = lambda asked: (
        camera.picture(0) + ok(asked) + camera.picture(1) + b"\r\n"
    )
    sink = ListSink(FakeClock())
    with running(source_of(camera, settings=PullSettings()), sink):
        until(lambda: len(sink.pixels) == 2)
    assert sink.numbers() == [0, 1]


def test_packets_of_other_channels_and_requests_of_the_camera_are_no_trouble(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera = start()
    sink = ListSink(FakeClock())
    with running(source_of(camera, settings=PullSettings()), sink):
        assert camera.playing.wait(10)
        sound = struct.pack(">BBH", 0x24, 0, 500) + b"s" * 500
        camera.send(sound + b"SET_PARAMETER * RTSP/1.0\r\nCSeq: 77\r\n\r\n" + camera.picture(0))
        camera.send(sound + b"RTSP/1.0 200 OK\r\n\r\n" + camera.picture(1))
        until(lambda: len(sink.pixels) == 2)
        until(lambda: Asked("RTSP/1.0", "501", {}) in camera.asked)


def test_who_joins_in_the_middle_of_a_key_frame_sees_it_flagged_and_the_next_one_clean(
    start: Callable[..., ScriptedCamera],
) -> None:
    """No packet is missing: the first slice came before the camera was asked to play."""
    options: dict[str, Any] = {"tune": "zerolatency", "x264-params": "slices=3"}
    data = encode_numbered(8, container="mpegts", gop=4, codec="libx264", **options)
    camera = start(shows=video_of(data, fps=30))
    first = [unit for unit in camera.video.pictures[0] if unit[0] & 31 == 5]
    assert len(first) == 3
    sink = ListSink(FakeClock())
    with running(source_of(camera, settings=PullSettings()), sink):
        assert camera.playing.wait(10)
        camera.send(camera.packets(0, first[1:]))
        for n in range(1, 8):
            camera.send(camera.picture(n))
        until(lambda: 7 in sink.numbers())
    assert sink.numbers()[-4:] == [4, 5, 6, 7]
    assert sink.corrupt[-4:] == [False] * 4
    assert all(sink.corrupt[:-4])


# ── the session ──


def test_the_session_is_kept_alive_and_torn_down(start: Callable[..., ScriptedCamera]) -> None:
    """The camera gives it up after 6 s: it is told every 3 s that somebody watches."""
    camera, clock = start(), FakeClock()
    sink = ListSink(FakeClock())
    with running(source_of(camera, settings=PullSettings(), clock=clock), sink):
        assert camera.playing.wait(10)
        for n in range(4):
            camera.send(camera.picture(n))
            until(lambda n=n: len(sink.pixels) == n + 1)  # type: ignore[misc]
            clock.move(2)
        camera.send(camera.picture(4))
        until(lambda: len(camera.beats()) == 2)
    until(lambda: "TEARDOWN" in camera.methods())
    assert {asked.headers["Session"] for asked in camera.beats()} == {"abc"}


def test_a_nonce_that_grows_old_while_watching_is_replaced(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera, clock = start(), FakeClock()
    lock_with_digest(camera)
    fresh = 'WWW-Authenticate: Digest realm="cam", nonce="second", stale=true'
    camera.replies["GET_PARAMETER"] = lambda asked: (
        ok(asked)
        if 'nonce="second"' in asked.headers["Authorization"]
        else answer(asked, "401 Unauthorized", fresh) + camera.picture(2)
    )
    sink = ListSink(FakeClock())
    with running(
        source_of(camera, login="bob:s3cret@", settings=PullSettings(), clock=clock), sink
    ):
        assert camera.playing.wait(10)
        camera.send(camera.picture(0))
        until(lambda: len(sink.pixels) == 1)
        clock.move(4)
        camera.send(camera.picture(1))
        until(lambda: len(sink.pixels) == 3)  # the third comes behind the refusal
        clock.move(2)
        camera.send(camera.picture(3))
        until(lambda: len(camera.beats()) == 2)
    assert ['nonce="second"' in asked.headers["Authorization"] for asked in camera.beats()] == [
        *(False, True)
    ]


def test_names_of_other_hosts_are_only_said_never_connected_to(
    start: Callable[..., ScriptedCamera],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        away = f"rtsp://127.0.0.1:{elsewhere.getsockname()[1]}/x"
        camera = start()

        def describe(asked: Asked) -> bytes:
            body = camera.description(control=f"{away}/track1")
            return ok(asked, f"Content-Base: {away}", f"Content-Length: {len(body)}") + body

        camera.replies["DESCRIBE"] = describe
        sink = ListSink(FakeClock())
        with running(source_of(camera, settings=PullSettings()), sink):
            assert camera.playing.wait(10)
            camera.send(camera.picture(0))
            until(lambda: len(sink.pixels) == 1)
        assert [asked.url for asked in camera.asked if asked.method == "SETUP"] == [
            f"{away}/track1"
        ]
        elsewhere.settimeout(0.1)
        with pytest.raises(TimeoutError):
            elsewhere.accept()


def test_frames_that_the_decoder_holds_when_a_camera_falls_silent_are_counted(
    start: Callable[..., ScriptedCamera],
) -> None:
    """Case 34: received = used + dropped."""
    data = encode_numbered(16, container="mpegts", gop=16, codec="libx264", bf="2")
    camera = start(shows=video_of(data, fps=30))
    sink = ListSink(FakeClock())
    with running(source_of(camera, settings=QUICK), sink) as thread:
        assert camera.playing.wait(10)
        for n in range(16):
            camera.send(camera.picture(n))
        until(lambda: not thread.alive)
    assert 0 < len(sink.pixels) < 16
    assert sink.n_dropped == {"cut_off": 16 - len(sink.pixels)}


# ── passwords ──


def md5(*parts: str) -> str:
    return hashlib.md5(":".join(parts).encode()).hexdigest()


def lock_with_digest(
    camera: ScriptedCamera, *, user: str = "bob", password: str = "s3cret"
) -> None:
    challenge = 'WWW-Authenticate: Digest realm="cam", nonce="first"'

    def guarded(asked: Asked) -> bytes:
        said = asked.headers.get("Authorization", "")
        response = re.search(r'response="(\w+)"', said)
        secret = md5(user, "cam", password)
        if response and response[1] == md5(secret, "first", md5(asked.method, asked.url)):
            return camera.usual(asked)
        return answer(asked, "401 Unauthorized", 'WWW-Authenticate: Basic realm="cam"', challenge)

    for method in (*STEPS, "TEARDOWN", "GET_PARAMETER"):
        camera.replies[method] = guarded


def test_a_camera_with_digest_authentication_opens_and_never_hears_the_password(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera = start()
    lock_with_digest(camera, password="pa/ss:ö")
    sink = ListSink(FakeClock())
    with running(source_of(camera, login="bob:pa%2Fss%3A%C3%B6@", settings=PullSettings()), sink):
        assert camera.playing.wait(10)
        camera.send(camera.picture(0))
        until(lambda: len(sink.pixels) == 1)
    assert camera.methods()[:5] == ["OPTIONS", "OPTIONS", "DESCRIBE", "SETUP", "PLAY"]
    assert not any("bob" in asked.url or "@" in asked.url for asked in camera.asked)
    assert not any("pa/ss" in str(asked.headers) for asked in camera.asked)


@pytest.mark.parametrize(("stale", "n_asked"), [("false", 2), ("true", 3)])
def test_a_camera_that_asks_for_a_password_for_ever_is_left(
    start: Callable[..., ScriptedCamera], stale: str, n_asked: int
) -> None:
    camera = start()
    n = iter(range(1000))

    def refuses(asked: Asked) -> bytes:
        nonce = f'WWW-Authenticate: Digest realm="cam", nonce="{next(n)}", stale={stale}'
        return answer(asked, "401 Unauthorized", nonce)

    camera.replies = dict.fromkeys(STEPS, refuses)
    loss = loss_of(source_of(camera, login="bob:s3cret@"))
    assert "401 from the camera" in loss.reason
    assert loss.hopeless
    assert camera.methods() == ["OPTIONS"] * n_asked


# ── trouble ──


@pytest.mark.parametrize("step", STEPS)
def test_a_camera_that_falls_silent_at_any_step_is_left_in_time(
    start: Callable[..., ScriptedCamera], step: str
) -> None:
    camera = start(replies={step: lambda asked: None})
    clock = SystemClock()
    began_s = clock.monotonic_s()
    assert loss_of(source_of(camera)).reason == "timed out"
    assert clock.monotonic_s() - began_s < 4
    assert camera.methods()[: STEPS.index(step) + 1] == STEPS[: STEPS.index(step) + 1]


@pytest.mark.parametrize("step", [*STEPS, None])
def test_an_attempt_ends_at_once_when_it_is_told_to_however_silent_the_camera(
    start: Callable[..., ScriptedCamera], step: str | None
) -> None:
    camera = start(replies={step: lambda asked: None} if step else {})
    patient = PullSettings(open_timeout_s=60, read_timeout_s=60)
    clock, sink = SystemClock(), ListSink(FakeClock())
    with running(source_of(camera, settings=patient), sink) as thread:
        until(lambda: (step or "PLAY") in camera.methods())
        began_s = clock.monotonic_s()
        assert thread.stop(5)
        assert clock.monotonic_s() - began_s < 2


@pytest.mark.parametrize("step", STEPS)
def test_a_redirect_at_any_step_is_not_followed(
    start: Callable[..., ScriptedCamera], step: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        where = f"Location: rtsp://127.0.0.1:{elsewhere.getsockname()[1]}/x"
        camera = start(replies={step: lambda asked: answer(asked, "301 Moved", where)})
        loss = loss_of(source_of(camera))
        assert "redirects to another URL" in loss.reason
        assert loss.hopeless
        elsewhere.settimeout(0.1)
        with pytest.raises(TimeoutError):
            elsewhere.accept()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"RTSP/1.0 200 OK\r\n" + b"X: y\r\n" * 5000, id="never-ending header"),
        pytest.param(b"RTSP/1.0 200 OK\r\nContent-Length: 2000000000\r\n\r\n", id="huge length"),
        pytest.param(b"RTSP/1.0 200 OK\r\nContent-Length: -5\r\n\r\n", id="negative length"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", id="another protocol"),
        pytest.param(b"\x00" * 100, id="zeros"),
    ],
)
@pytest.mark.parametrize("step", STEPS)
def test_garbage_instead_of_an_answer_is_told_as_such(
    start: Callable[..., ScriptedCamera], step: str, reply: bytes
) -> None:
    camera = start(replies={step: lambda asked: reply})
    assert loss_of(source_of(camera)).reason == NOT_A_CAMERA


def test_packets_whose_length_is_wrong_end_the_attempt_with_the_frames_before_them_kept(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera = start()

    def plays(asked: Asked) -> bytes:
        third = bytearray(camera.picture(2))
        third[2:4] = (100).to_bytes(2, "big")
        return ok(asked) + camera.picture(0) + camera.picture(1) + bytes(third)

    camera.replies["PLAY"] = plays
    sink = ListSink(FakeClock())
    assert loss_of(source_of(camera), sink).reason == NOT_A_CAMERA
    assert sink.numbers()[:2] == [0, 1]


def test_a_camera_that_sends_only_sound_or_one_byte_now_and_then_times_out(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera = start()
    sink = ListSink(FakeClock())
    with running(source_of(camera), sink) as thread:
        assert camera.playing.wait(10)
        for _ in range(2000):
            if not thread.alive:
                break
            with contextlib.suppress(OSError):
                camera.send(struct.pack(">BBH", 0x24, 0, 8) + b"sound..." + b"\r")
            threading.Event().wait(0.005)
        assert not thread.alive
    assert sink.pixels == []


@pytest.mark.parametrize(
    ("replies", "reason", "hopeless"),
    [
        ({"SETUP": "RTP/AVP;unicast;client_port=5000-5001"}, "its video over TCP", True),
        ({"DESCRIBE": "v=0\r\nm=audio 0 RTP/AVP 0\r\n"}, "no video track", True),
        ({"DESCRIBE": "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=control:a b"}, NOT_A_CAMERA, False),
    ],
)  # fmt: skip
def test_what_a_camera_cannot_give_has_its_own_reason(
    start: Callable[..., ScriptedCamera], replies: dict[str, str], reason: str, hopeless: bool
) -> None:
    def says(asked: Asked) -> bytes:
        text = replies[asked.method]
        if asked.method == "SETUP":
            return ok(asked, f"Transport: {text}", "Session: 1")
        return ok(asked, f"Content-Length: {len(text)}") + text.encode()

    loss = loss_of(source_of(start(replies=dict.fromkeys(replies, says))))
    assert reason in loss.reason
    assert loss.hopeless is hopeless


def test_a_camera_that_knows_no_options_opens_all_the_same(
    start: Callable[..., ScriptedCamera],
) -> None:
    camera = start(replies={"OPTIONS": lambda asked: answer(asked, "405 Method Not Allowed")})
    sink = ListSink(FakeClock())
    with running(source_of(camera, settings=PullSettings()), sink):
        assert camera.playing.wait(10)
        camera.send(camera.picture(0))
        until(lambda: len(sink.pixels) == 1)


def test_a_video_that_is_not_ours_is_left_to_ffmpeg_even_if_the_camera_is_busy_for_a_moment(
    start: Callable[..., ScriptedCamera],
) -> None:
    """As GStreamer's server is, while it clears up after the connection that only asked."""
    camera = start()

    def describe(asked: Asked) -> bytes:
        if camera.methods().count("DESCRIBE") == 2:
            return answer(asked, "503 Service Unavailable")
        body = b"v=0\r\ns=-\r\nt=0 0\r\nm=video 0 RTP/AVP 26\r\na=control:t0\r\n"
        kind = "Content-Type: application/sdp"
        return ok(asked, kind, f"Content-Length: {len(body)}") + body

    camera.replies["DESCRIBE"] = describe
    source = source_of(camera)
    assert loss_of(source).reason == "timed out"  # it sends no picture
    assert camera.methods().count("DESCRIBE") == 3
    assert camera.methods().count("PLAY") == 1
    loss_of(source)
    assert camera.methods().count("DESCRIBE") == 4  # not asked again by us


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bits_and_missing_bytes_end_as_a_loss_at_worst(
    start: Callable[..., ScriptedCamera], seed: int
) -> None:
    camera, chance = start(), random.Random(seed)
    stream = bytearray(b"".join(camera.picture(n % 8) for n in range(24)))
    for _ in range(20):
        at = chance.randrange(len(stream))
        stream[at] ^= 1 << chance.randrange(8)
        if seed % 2:
            del stream[at : at + chance.randrange(40)]
    sink = ListSink(FakeClock())
    with running(source_of(camera), sink) as thread:
        assert camera.playing.wait(10)
        with contextlib.suppress(OSError):
            camera.send(bytes(stream))
        camera.hang_up()
        until(lambda: not thread.alive)


# ── TLS ──


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "camera")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now - datetime.timedelta(days=1))  # cameras' have often run out, too
        .sign(key, hashes.SHA256())
    )
    path: Path = tmp_path_factory.mktemp("tls") / "camera.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def test_a_camera_with_tls_and_a_certificate_of_its_own_making_delivers(
    start: Callable[..., ScriptedCamera], self_signed: ssl.SSLContext
) -> None:
    camera = start(context=self_signed)
    sink = ListSink(FakeClock())
    with running(source_of(camera, scheme="rtsps", settings=PullSettings()), sink):
        assert camera.playing.wait(10)
        for n in range(3):
            camera.send(camera.picture(n))
            until(lambda n=n: len(sink.pixels) == n + 1)  # type: ignore[misc]
    assert sink.numbers() == [0, 1, 2]
    until(lambda: "TEARDOWN" in camera.methods())
    assert camera.asked[0].url.startswith("rtsps://")

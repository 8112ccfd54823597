"""HLS from a small web server: finished and live, TS and MP4, and what strangers' playlists try."""

from __future__ import annotations

import gc
import re
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from liveedge.core.clock import Clock, SystemClock
from liveedge.core.errors import SourceUnavailable
from liveedge.core.tasks import OwnedThread
from liveedge.media.hls import HlsSettings, HlsSource, Pace
from liveedge.media.playlist import MAX_URL_CHARS, Part
from liveedge.media.pull_http import Web, WebLimits
from liveedge.media.pull_policy import PullPolicy, check_pull_url
from liveedge.media.source import SourceLost
from liveedge.media.supervisor import Supervisor, SupervisorSettings
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import ListTarget
from tests.media_files import TIME_BASE, number_of, numbered
from tests.media_sinks import ListSink, run_to_end
from tests.raw_server import RawServer
from tests.web_server import Answer, Request, WebServer, until

FPS = 20
QUICK = HlsSettings(
    dead_after_s=2.0, web=WebLimits(connect_s=0.5, answer_s=0.5, silence_s=0.5, whole_s=2.0)
)
Start = Callable[[Callable[[Request], Answer]], WebServer]


class LeapingClock(FakeClock):
    """Every wait is over at once, and time has passed."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.move(max(timeout_s, 0.0))
        return event.is_set()


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[WebServer] = []

    def make(answer: Callable[[Request], Answer]) -> WebServer:
        servers.append(WebServer(answer))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def write_hls(folder: Path, n_frames: int, *, first: int = 0, **options: str) -> dict[str, bytes]:
    """A playlist `index.m3u8` with segments of half a second, written by FFmpeg."""
    folder.mkdir(exist_ok=True)
    path = folder / "index.m3u8"
    settings = {"hls_time": "0.5", "hls_list_size": "0", "hls_playlist_type": "vod", **options}
    with av.open(str(path), "w", format="hls", options=settings) as file:
        stream = file.add_stream(
            "libx264", rate=FPS, options={"preset": "ultrafast", "tune": "zerolatency"}
        )
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        stream.codec_context.gop_size = FPS // 2
        for n in range(n_frames):
            frame = av.VideoFrame.from_ndarray(numbered(first + n), format="rgb24")
            frame.pts, frame.time_base = round(n / FPS / TIME_BASE), TIME_BASE
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return {f"/{found.name}": found.read_bytes() for found in folder.iterdir()}


@pytest.fixture(scope="module")
def ts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return write_hls(tmp_path_factory.mktemp("ts"), 60)


def serves(files: dict[str, bytes]) -> Callable[[Request], Answer]:
    def answer(request: Request) -> Answer:
        body = files.get(request.path.partition("?")[0])
        return Answer(status=404) if body is None else Answer(body)

    return answer


def source(url: str, *, clock: Clock | None = None, settings: HlsSettings = QUICK) -> HlsSource:
    return HlsSource(url, policy=PullPolicy(), clock=clock or SystemClock(), settings=settings)


def play(url: str) -> ListSink:
    clock = LeapingClock()
    sink = ListSink(clock)
    run_to_end(source(url, clock=clock, settings=HlsSettings()), sink)
    return sink


def loss_of(url: str, *, policy: PullPolicy | None = None) -> SourceLost:
    hls = HlsSource(url, policy=policy or PullPolicy(), clock=SystemClock(), settings=QUICK)
    with pytest.raises(SourceLost) as caught:
        run_to_end(hls, ListSink(FakeClock()))
    return caught.value


def test_a_finished_playlist_is_played_like_a_file(start: Start, ts: dict[str, bytes]) -> None:
    """Case 33: every frame, in order, at its own time, then the end."""
    server = start(serves(ts))
    clock = LeapingClock()
    sink = ListSink(clock)
    began_s = clock.monotonic_s()
    run_to_end(source(server.url("/index.m3u8"), clock=clock, settings=HlsSettings()), sink)
    assert sink.numbers() == list(range(60))
    assert [at_s - began_s for at_s in sink.arrived_s] == pytest.approx(
        [n / FPS for n in range(60)], abs=0.01
    )
    assert not any(sink.corrupt)
    assert sink.codec == "h264"
    assert all(coded is not None for coded in sink.coded)


def test_fragmented_mp4_is_played_too(start: Start, tmp_path: Path) -> None:
    server = start(serves(write_hls(tmp_path / "mp4", 40, hls_segment_type="fmp4")))
    assert play(server.url("/index.m3u8")).numbers() == list(range(40))


def test_parts_of_one_file_are_fetched_by_their_bytes(start: Start, tmp_path: Path) -> None:
    files = write_hls(tmp_path / "one", 40, hls_flags="single_file")
    assert b"#EXT-X-BYTERANGE" in files["/index.m3u8"]
    server = start(serves(files))
    assert play(server.url("/index.m3u8")).numbers() == list(range(40))


def test_an_encrypted_stream_is_read_with_its_key(start: Start, ts: dict[str, bytes]) -> None:
    key = bytes(range(16))
    files = {"/key": key}
    for n, name in enumerate(sorted(name for name in ts if name.endswith(".ts"))):
        n_pad = 16 - len(ts[name]) % 16
        cipher = Cipher(algorithms.AES(key), modes.CBC(n.to_bytes(16, "big"))).encryptor()
        files[name] = cipher.update(ts[name] + bytes([n_pad]) * n_pad) + cipher.finalize()
    tag = b'#EXT-X-KEY:METHOD=AES-128,URI="key"\n#EXTINF'
    files["/index.m3u8"] = ts["/index.m3u8"].replace(b"#EXTINF", tag, 1)
    server = start(serves(files))
    assert play(server.url("/index.m3u8")).numbers() == list(range(60))
    assert server.paths.count("/key") == 1


def test_of_several_qualities_the_largest_picture_is_taken(
    start: Start, ts: dict[str, bytes]
) -> None:
    master = (
        b"#EXTM3U\n"
        b'#EXT-X-STREAM-INF:BANDWIDTH=9000000,CODECS="mp4a.40.2"\nsound.m3u8\n'
        b"#EXT-X-STREAM-INF:BANDWIDTH=800000,RESOLUTION=160x120\nsmall.m3u8\n"
        b"#EXT-X-STREAM-INF:BANDWIDTH=700000,RESOLUTION=320x240\nindex.m3u8\n"
    )
    server = start(serves({**ts, "/master.m3u8": master}))
    assert len(play(server.url("/master.m3u8")).pixels) == 60
    assert server.paths[:2] == ["/master.m3u8", "/index.m3u8"]


def test_addresses_are_relative_to_where_a_redirect_led(start: Start, ts: dict[str, bytes]) -> None:
    moved = {f"/deep/er{name}": body for name, body in ts.items()}

    def answer(request: Request) -> Answer:
        if request.path == "/here.m3u8":
            return Answer(status=302, headers={"Location": "/deep/er/index.m3u8"})
        return serves(moved)(request)

    assert len(play(start(answer).url("/here.m3u8")).pixels) == 60


def test_after_a_discontinuity_the_stream_goes_on_with_its_new_clock_and_size(
    start: Start, ts: dict[str, bytes], tmp_path: Path
) -> None:
    other = write_hls(
        tmp_path / "other", 20, first=60, hls_segment_filename=str(tmp_path / "other/o%d.ts")
    )
    first = ts["/index.m3u8"].replace(b"#EXT-X-ENDLIST\n", b"#EXT-X-DISCONTINUITY\n")
    second = other["/index.m3u8"]
    server = start(
        serves({**other, **ts, "/index.m3u8": first + second[second.index(b"#EXTINF") :]})
    )
    sink = play(server.url("/index.m3u8"))
    assert sink.numbers() == list(range(80))
    assert sink.n_gaps == 1
    spacing = [b - a for a, b in zip(sink.arrived_s, sink.arrived_s[1:], strict=False)]
    assert max(spacing) < 0.2


class LivePlaylist:
    """Reveals one more segment whenever `grow` is called, and keeps the newest few."""

    def __init__(self, files: dict[str, bytes], *, window: int = 3) -> None:
        self._files = files
        text = files["/index.m3u8"].decode()
        self._entries = re.findall(r"(#EXTINF:[^\n]*\n[^\n#]+\n)", text)
        self._window = window
        self.n_shown = 3
        self.is_over = False

    def __call__(self, request: Request) -> Answer:
        if request.path != "/live.m3u8":
            return serves(self._files)(request)
        first = max(self.n_shown - self._window, 0)
        lines = ["#EXTM3U", "#EXT-X-TARGETDURATION:1", f"#EXT-X-MEDIA-SEQUENCE:{first}"]
        lines += [entry.strip() for entry in self._entries[first : self.n_shown]]
        lines += ["#EXT-X-ENDLIST"] if self.is_over else []
        return Answer("\n".join([*lines, ""]).encode())

    def grow(self, n: int = 1) -> None:
        self.n_shown = min(self.n_shown + n, len(self._entries))


def test_a_live_playlist_is_joined_at_its_newest_segment_and_followed(
    start: Start, ts: dict[str, bytes]
) -> None:
    live = LivePlaylist(ts)
    server = start(live)
    sink = ListSink(FakeClock())
    hls = source(server.url("/live.m3u8"))
    thread = OwnedThread("hls", lambda stopping: hls.run(sink, stopping))
    thread.start()
    # FFmpeg knows the last two frames of a segment to be whole when the next one begins.
    for n in range(1, 4):
        until(lambda n=n: len(sink.pixels) >= 10 * n - 2)  # type: ignore[misc]
        live.grow()
    until(lambda: len(sink.pixels) >= 38)
    live.is_over = True
    until(lambda: not thread.alive)
    assert thread.error is None
    assert sink.numbers() == list(range(20, 60))
    assert sink.n_gaps == 0
    assert not any(sink.corrupt)


def test_who_falls_behind_a_live_playlist_goes_on_at_its_newest_segment(
    start: Start, ts: dict[str, bytes]
) -> None:
    live = LivePlaylist(ts, window=9)
    server = start(live)
    live.n_shown = 1
    sink = ListSink(FakeClock())
    hls = source(server.url("/live.m3u8"), settings=HlsSettings(max_behind=3))
    thread = OwnedThread("hls", lambda stopping: hls.run(sink, stopping))
    thread.start()
    until(lambda: len(sink.pixels) >= 8)
    live.grow(5)
    until(lambda: len(sink.pixels) >= 15)
    assert thread.stop(5)
    assert sink.numbers()[:15] == [*range(10), *range(50, 55)]
    assert sink.n_gaps == 1
    assert not any(sink.corrupt)


def test_a_live_playlist_that_does_not_go_on_is_lost_with_that_reason(
    start: Start, ts: dict[str, bytes]
) -> None:
    loss = loss_of(start(LivePlaylist(ts)).url("/live.m3u8"))
    assert loss.reason == "the live playlist has not gone on for 3 s"
    assert not loss.hopeless


def test_a_finished_playlist_goes_on_where_it_broke_off(start: Start, ts: dict[str, bytes]) -> None:
    broken = {"left": 2}

    def answer(request: Request) -> Answer:
        if request.path == "/index3.ts" and broken["left"]:
            broken["left"] -= 1
            return Answer(status=503)
        return serves(ts)(request)

    clock = SystemClock()
    target = ListTarget(clock)
    supervisor = Supervisor(
        source(start(answer).url("/index.m3u8")),
        target,
        clock=clock,
        name="vod",
        settings=SupervisorSettings(backoff_first_s=0.1, jitter=0.0),
    )
    supervisor.start()
    until(lambda: supervisor.status().health == "ended")
    assert supervisor.stop()
    assert [number_of(frame.pixels.rgb()) for frame in target.frames] == list(range(60))
    assert supervisor.status().reconnects == 2


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("file:///etc/passwd", "http"),
        ("FILE:/etc/passwd", "http"),
        ("concat:a.ts|b.ts", "http"),
        ("crypto+file:///etc/passwd", "http"),
        ("data:video/mp2t;base64,AAAA", "http"),
        ("rtsp://127.0.0.1/x", "http"),
        ("http://169.254.169.254/latest/meta-data", "metadata addresses are never pulled"),
        ("http://[::ffff:169.254.169.254]/x", "metadata addresses are never pulled"),
        ("http://127.0.0.1:8080/health", "a port of this server"),
        ("http://localhost:8080/health", "a port of this server"),
        ("http://2130706433:8080/health", "a port of this server"),
        ("http://bad:port/x", "malformed"),
    ],
)
def test_a_playlist_leads_to_no_forbidden_place(start: Start, where: str, why: str) -> None:
    """Case 7's kind: by a segment, a key, a head, a quality or a redirect, it is refused."""
    policy = PullPolicy(own_ports=frozenset({8080}))
    ways = {
        "/segment.m3u8": PLAYLIST.format(where),
        "/key.m3u8": PLAYLIST.format("x.ts").replace(
            "#EXTINF", f'#EXT-X-KEY:METHOD=AES-128,URI="{where}"\n#EXTINF'
        ),
        "/head.m3u8": PLAYLIST.format("x.mp4").replace(
            "#EXTINF", f'#EXT-X-MAP:URI="{where}"\n#EXTINF'
        ),
        "/master.m3u8": f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{where}\n",
        "/redirect.m3u8": "",
    }

    def answer(request: Request) -> Answer:
        if request.path == "/redirect.m3u8":
            return Answer(status=302, headers={"Location": where})
        return Answer(ways[request.path].encode())

    server = start(answer)
    for path in ways:
        loss = loss_of(server.url(path), policy=policy)
        assert why in loss.reason, path
        by = "the server redirects to" if path == "/redirect.m3u8" else "the playlist names"
        assert by in loss.reason or "malformed" in loss.reason, path
        assert "source" not in loss.reason  # whose URL the user gave, and it is in order
        assert loss.hopeless
        assert "passwd" not in loss.reason
    assert server.paths == list(ways)  # nothing else was asked for


@pytest.mark.parametrize(
    ("answer", "why", "hopeless"),
    [
        (Answer(b"<html>hello</html>"), "not an HLS playlist", True),
        (Answer(b""), "not an HLS playlist", True),
        (Answer(b"\0\0\0\x18ftypmp42" + b"x" * (5 * 2**20)), "not an HLS playlist", True),
        (Answer(b"#EXTM3U\n" + b"x" * (2 * 2**20)), "sends more than", True),
        (Answer(status=401), "401 from the server", True),
        (Answer(status=403), "403 from the server", True),
        (Answer(status=404), "404 from the server", False),
        (Answer(status=500), "an error of its own", False),
        (Answer(status=418), "status 418", False),
        (Answer(status=302, headers={"Location": "/again"}), "redirects in circles", False),
        (
            Answer(status=302, headers={"Location": "/" + "p" * MAX_URL_CHARS}),
            "redirects to an address of more than",
            True,
        ),
        (Answer(b"#EXTM3U\n#EXTINF:1,\n" + b"p" * MAX_URL_CHARS), "an address of more than", True),
        (Answer(b"#EXTM3U\n#EXTINF:1,\na", headers={"Content-Length": "99"}), "broke", False),
        (Answer(b"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\na.m3u8\n"), "playlists only", True),
        (
            Answer(b'#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1,CODECS="mp4a"\na.m3u8\n'),
            "no video track",
            True,
        ),
        (
            Answer(b'#EXTM3U\n#EXT-X-KEY:METHOD=SAMPLE-AES,URI="k"\n#EXTINF:1,\na.ts\n'),
            "protected in a way",
            True,
        ),
    ],
)
def test_each_failure_has_its_own_reason(
    start: Start, answer: Answer, why: str, hopeless: bool
) -> None:
    loss = loss_of(start(lambda _: answer).url("/x.m3u8"))
    assert why in loss.reason
    assert loss.hopeless is hopeless


def test_a_refused_list_is_freed_with_the_loss_that_it_caused(start: Start) -> None:
    """Case 7's kind: frames of errors that hold each other wait for a collector that may be off."""
    server = start(lambda _: Answer(b"#EXTM3U\n" + b"#" * 900_000))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        losses = [loss_of(server.url("/x.m3u8")) for _ in range(5)]
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert "a line of the playlist" in losses[0].reason
    assert kept < 2**19


@pytest.mark.parametrize(
    "segment",
    [
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"v=0\r\nm=video 5000 RTP/AVP 96\r\n",
        b"\x00" * 5000,
        b"",
    ],
)
def test_a_segment_is_only_ever_read_as_video(start: Start, segment: bytes) -> None:
    server = start(serves({"/x.m3u8": PLAYLIST.format("a.ts").encode(), "/a.ts": segment}))
    assert "neither MPEG-TS nor MP4" in loss_of(server.url("/x.m3u8")).reason
    assert server.paths == ["/x.m3u8", "/a.ts"]


def test_a_password_goes_to_its_own_host_only_and_shows_nowhere(
    start: Start, ts: dict[str, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere = start(lambda request: serves(ts)(request))
    playlist = ts["/index.m3u8"].replace(b"index0.ts", elsewhere.url("/index0.ts").encode())
    server = start(serves({**ts, "/index.m3u8": playlist}))
    url = server.url("/index.m3u8", login="bob:hunter2@")
    assert len(play(url).pixels) == 60
    assert all("Authorization" in request.headers for request in server.requests)
    assert elsewhere.paths == ["/index0.ts"]
    assert "Authorization" not in elsewhere.requests[0].headers
    assert "hunter2" not in repr(source(url))
    assert "hunter2" not in loss_of(server.url("/none.m3u8", login="bob:hunter2@")).reason
    printed = capfd.readouterr()
    assert "hunter2" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://cam/x", "cam"),
        ("https://cam:443/x", "cam"),
        ("https://cam:80/x", "cam:80"),
        ("http://[fd00::7]/x", "[fd00::7]"),
        ("http://[fd00::7]:81/x", "[fd00::7]:81"),
    ],
)
def test_the_host_is_written_as_signed_addresses_have_it(url: str, host: str) -> None:
    """The signature of a stored file's address covers the header, without the usual port."""
    web = Web(url, policy=PullPolicy(), clock=FakeClock())
    target = check_pull_url(url, policy=PullPolicy(), schemes=("http", "https"))
    request = web._request(url, target, Part(url))
    assert f"\r\nHost: {host}\r\n".encode() in request


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (None, "timed out"),  # accepts and stays silent
        (b"H", "timed out"),  # one byte at a time
        (
            b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50,
            "timed out|not a web server",
        ),  # endless headers
        (b"RTSP/1.0 200 OK\r\n\r\n", "not a web server"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n" + b"x" * 65_536,
            "the connection broke",
        ),  # a chunk without end, read as one piece
    ],
)
def test_a_server_that_wastes_time_is_left_in_time(piece: bytes | None, why: str) -> None:
    """Case 28."""
    server = RawServer(piece, every_s=0.05)
    try:
        loss = loss_of(f"http://127.0.0.1:{server.port}/x.m3u8")
    finally:
        server.close()
    assert re.search(why, loss.reason)


def test_a_body_in_pieces_of_a_byte_is_given_up_before_it_costs_seconds() -> None:
    begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n#EXTM3U\r\n"
    server = RawServer(b"1\r\n#\r\n" * 10_000, every_s=0.001, begin=begin)
    try:
        loss = loss_of(f"http://127.0.0.1:{server.port}/x.m3u8")
    finally:
        server.close()
    assert loss.reason == "the connection broke"


def test_a_stop_ends_a_wait_for_a_silent_server_at_once() -> None:
    server = RawServer(None, every_s=0.05)
    try:
        slow = HlsSettings(web=WebLimits(answer_s=60, silence_s=60))
        hls = source(f"http://127.0.0.1:{server.port}/x.m3u8", settings=slow)
        thread = OwnedThread("hls", lambda stop: run_quietly(hls, stop))
        thread.start()
        assert thread.stop(2)
    finally:
        server.close()


def run_quietly(hls: HlsSource, stopping: threading.Event) -> None:
    try:
        hls.run(ListSink(FakeClock()), stopping)
    except SourceLost:
        return


def test_a_server_without_tls_is_told_as_such(start: Start) -> None:
    server = start(lambda _: Answer(b"#EXTM3U\n"))
    assert "TLS failed" in loss_of(server.url("/x.m3u8", scheme="https")).reason


def test_a_closed_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert loss_of(f"http://127.0.0.1:{port}/x.m3u8").reason == "connection refused"


@pytest.mark.parametrize("url", ["rtsp://camera/x", "file:///x", "x.m3u8", "hls://x"])
def test_a_wrong_scheme_is_refused_before_anything_is_opened(url: str) -> None:
    with pytest.raises(SourceUnavailable, match="http://"):
        HlsSource(url, policy=PullPolicy(), clock=FakeClock())


def test_no_time_stamp_makes_anybody_wait_long() -> None:
    """Case 31: a leap in either direction begins anew, at once."""
    clock = FakeClock()
    pace = Pace(clock, is_live=True)
    assert pace.wait_s(100.0) == 0
    assert pace.wait_s(100.5) == pytest.approx(0.5)
    assert pace.wait_s(37_600.0) == 0
    assert pace.wait_s(37_600.1) == pytest.approx(0.1)
    assert pace.wait_s(-9_800.0) == 0
    clock.move(3)
    assert pace.wait_s(-9_799.9) == 0
    assert pace.wait_s(-9_799.8) == pytest.approx(0.1)  # what came late moved the rest

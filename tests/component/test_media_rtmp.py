"""RTMP: nginx with its module as the server, FFmpeg as the publisher, and servers that are none."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from liveedge.core.clock import SystemClock
from liveedge.core.errors import SourceUnavailable
from liveedge.core.tasks import OwnedThread
from liveedge.media.pull import PullSettings
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.rtmp import NO_STREAM, RtmpSource
from liveedge.media.source import SourceLost
from liveedge.testing.clock import FakeClock
from tests.media_files import encode_numbered
from tests.media_sinks import ListSink, run_to_end
from tests.raw_server import RawServer
from tests.web_server import until

MODULE = Path("/usr/lib/nginx/modules/ngx_rtmp_module.so")
CONFIG = """
load_module {module};
daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;
events {{ worker_connections 64; }}
rtmp {{ server {{ listen 127.0.0.1:{port}; application live {{ live on; record off; }} }} }}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of an RTMP server."""
    if not (MODULE.exists() and shutil.which("nginx") and shutil.which("ffmpeg")):
        missing = "no RTMP server: apt-get install nginx libnginx-mod-rtmp ffmpeg"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    config = folder / "conf"
    config.write_text(CONFIG.format(module=MODULE, folder=folder, port=port))
    process = subprocess.Popen(
        ["nginx", "-p", str(folder), "-c", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: _listens(port))
    yield port
    process.terminate()
    process.wait(10)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def publish(server: int, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a publisher that sends numbered pictures in real time, for ever."""
    path = tmp_path / "numbered.flv"
    path.write_bytes(
        encode_numbered(60, fps=30, container="flv", gop=15, tune="zerolatency", codec="libx264")
    )
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        where = f"rtmp://127.0.0.1:{server}/live/{name}"
        command = ["ffmpeg", "-v", "quiet", "-re", "-stream_loop", "-1", "-i", str(path)]
        started.append(
            subprocess.Popen([*command, "-c", "copy", "-f", "flv", where], stdin=subprocess.DEVNULL)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(10)


def source(port: int, name: str, **patience: float) -> RtmpSource:
    return RtmpSource(
        f"rtmp://127.0.0.1:{port}/live/{name}",
        policy=PullPolicy(),
        clock=SystemClock(),
        settings=PullSettings(**patience),
    )


def loss_of(rtmp: RtmpSource) -> SourceLost:
    with pytest.raises(SourceLost) as caught:
        run_to_end(rtmp, ListSink(FakeClock()))
    return caught.value


def test_a_live_stream_is_joined_at_a_key_frame_and_followed(
    server: int, publish: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    publish("door")
    stopping = threading.Event()
    sink = ListSink(FakeClock(), stop_after=50, stopping=stopping)
    rtmp = source(server, "door", open_timeout_s=10, read_timeout_s=5)
    losses: list[SourceLost] = []

    def run() -> bool:
        try:
            rtmp.run(sink, stopping)
        except SourceLost as loss:  # the publisher is not there yet
            losses.append(loss)
        return stopping.is_set()

    thread = OwnedThread("rtmp", lambda _: until(run, within_s=5))
    thread.start()
    until(lambda: not thread.alive)
    assert thread.error is None
    numbers = sink.numbers()
    assert len(numbers) == 50
    assert sink.codec == "h264"
    assert numbers[0] is not None
    assert numbers == [(numbers[0] + i) % 60 for i in range(50)]
    assert not any(sink.corrupt)
    assert sum(coded is not None for coded in sink.coded) == 50


def test_a_publisher_that_stops_is_noticed_in_time(
    server: int, publish: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    publisher = publish("gone")
    sink = ListSink(FakeClock())
    losses: list[SourceLost] = []

    def run(stopping: threading.Event) -> None:
        while not sink.pixels and not stopping.is_set():
            try:
                source(server, "gone", open_timeout_s=10, read_timeout_s=1).run(sink, stopping)
            except SourceLost as loss:
                losses.append(loss)

    thread = OwnedThread("rtmp", run)
    thread.start()
    until(lambda: len(sink.pixels) > 5)
    publisher.kill()
    until(lambda: not thread.alive)
    assert losses[-1].reason in ("timed out", "the camera closed the connection")


def test_a_stream_that_nobody_publishes_is_told_in_time(server: int) -> None:
    loss = loss_of(source(server, "nobody", open_timeout_s=1))
    assert loss.reason == NO_STREAM
    assert not loss.hopeless


@pytest.mark.parametrize(("begin", "why"), [(b"\x03", NO_STREAM), (b"\x04", "timed out")])
def test_a_server_that_greets_and_sends_nothing_is_told_from_a_silent_one(
    begin: bytes, why: str
) -> None:
    server = RawServer(None, every_s=0.05, begin=begin)
    try:
        assert loss_of(source(server.port, "x", open_timeout_s=0.5)).reason == why
    finally:
        server.close()


def test_a_closed_port_is_refused() -> None:
    assert loss_of(source(free_port(), "x")).reason == "connection refused"


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 5000])
@pytest.mark.parametrize(
    ("scheme", "why"), [("rtmp", "not an RTMP server"), ("rtmps", "TLS failed")]
)
def test_a_server_of_another_kind_is_told_as_such(reply: bytes, scheme: str, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = OwnedThread("other", lambda stopping: _replies(listener, reply, stopping))
        thread.start()
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/live/x"
        loss = loss_of(RtmpSource(url, policy=PullPolicy(), clock=SystemClock()))
        thread.stop()
    assert why in loss.reason


def _replies(listener: socket.socket, reply: bytes, stopping: threading.Event) -> None:
    while not stopping.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, contextlib.suppress(OSError):
            connection.settimeout(2)
            connection.recv(4096)
            connection.sendall(reply)


def test_a_server_that_accepts_and_stays_silent_times_out() -> None:
    """Case 28."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert loss_of(source(port, "x", open_timeout_s=0.5)).reason == "timed out"


@pytest.mark.parametrize(
    "url", ["rtsp://camera/live/x", "rtmp://camera/live", "rtmp://camera/", "rtmp:///live/x", "x"]
)
def test_what_cannot_name_a_stream_is_refused_before_anything_is_opened(url: str) -> None:
    with pytest.raises(SourceUnavailable):
        RtmpSource(url, policy=PullPolicy(), clock=FakeClock())


@pytest.mark.parametrize(
    ("path", "app"), [("live/x", "live"), ("live/one/x", "live/one"), ("a/b/c/d", "a/b")]
)
def test_the_server_is_told_the_name_that_the_url_gave(path: str, app: str) -> None:
    rtmp = RtmpSource(
        f"rtmp://bob:secret@cam.example/{path}", policy=PullPolicy(), clock=FakeClock()
    )
    assert rtmp._more_options(rtmp._target) == {"rtmp_tcurl": f"rtmp://cam.example:1935/{app}"}
    assert "secret" not in repr(rtmp)

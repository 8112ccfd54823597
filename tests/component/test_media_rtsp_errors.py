"""Why a camera could not be opened is told in a word, soon, and never with its URL.

No RTSP server is needed here: a few lines of the protocol are spoken by the tests themselves.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest

from liveedge.core.clock import SystemClock
from liveedge.core.errors import SourceUnavailable
from liveedge.core.tasks import OwnedThread
from liveedge.media.pull import PullSettings, first_that_accepts, pinned, resolve
from liveedge.media.pull_policy import PullPolicy, PullTarget
from liveedge.media.rtsp import RtspSource
from liveedge.media.source import SourceLost
from liveedge.media.supervisor import Supervisor, SupervisorSettings
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import ListTarget
from tests.media_sinks import ListSink, run_to_end
from tests.raw_server import RawServer

Answer = Callable[[str, str], str]  # method, CSeq -> whole answer; "" closes the connection
QUICK = PullSettings(open_timeout_s=0.5, read_timeout_s=0.5)


class TinyServer:
    """Accepts connections on a port of its own and answers by a function; None: stays silent."""

    def __init__(self, answer: Answer | None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self.port = self._listener.getsockname()[1]
        self._answer = answer
        self._open: list[socket.socket] = []
        self._thread = OwnedThread("tiny-rtsp", self._serve)
        self._thread.start()

    def _serve(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            self._open.append(connection)
            if self._answer is not None:
                self._talk(connection, self._answer)

    def _talk(self, connection: socket.socket, answer: Answer) -> None:
        connection.settimeout(5)
        seen = b""
        while True:
            while b"\r\n\r\n" not in seen:
                try:
                    more = connection.recv(4096)
                except OSError:  # the client has gone its own way
                    return
                if not more:
                    return
                seen += more
            head, _, seen = seen.partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            sequence = next((ln[5:].strip() for ln in lines if ln.startswith("CSeq:")), "0")
            reply = answer(lines[0].split()[0], sequence)
            if not reply:
                connection.close()
                return
            connection.sendall(reply.encode())
            if reply.startswith("HTTP/"):
                connection.close()
                return

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._thread.stop(10)
        self._listener.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Answer | None], int]]:
    servers: list[TinyServer] = []

    def start(answer: Answer | None) -> int:
        servers.append(TinyServer(answer))
        return servers[-1].port

    yield start
    for server in servers:
        server.close()


def status(line: str, *headers: str) -> Answer:
    """The same answer to every request."""

    def answer(method: str, sequence: str) -> str:
        return "\r\n".join([f"RTSP/1.0 {line}", f"CSeq: {sequence}", *headers, "", ""])

    return answer


def describes(media: str) -> Answer:
    """A camera that plays what its description says, and sends nothing."""
    sdp = f"v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n{media}"

    def answer(method: str, sequence: str) -> str:
        ok = f"RTSP/1.0 200 OK\r\nCSeq: {sequence}\r\n"
        match method:
            case "OPTIONS":
                return f"{ok}Public: DESCRIBE, SETUP, PLAY, TEARDOWN\r\n\r\n"
            case "DESCRIBE":
                head = f"{ok}Content-Type: application/sdp\r\nContent-Length: {len(sdp)}\r\n\r\n"
                return head + sdp
            case "SETUP":
                transport = "RTP/AVP/TCP;unicast;interleaved=0-1"
                return f"{ok}Session: 1;timeout=60\r\nTransport: {transport}\r\n\r\n"
            case _:
                return f"{ok}Session: 1\r\n\r\n"

    return answer


def over_udp_only(method: str, sequence: str) -> str:
    if method == "SETUP":
        return status("461 Unsupported Transport")(method, sequence)
    return describes("m=video 0 RTP/AVP 26\r\na=control:t0\r\n")(method, sequence)


def garbage(method: str, sequence: str) -> str:
    return "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


def hangs_up(method: str, sequence: str) -> str:
    return ""


def camera(port: int, *, settings: PullSettings = QUICK) -> RtspSource:
    url = f"rtsp://admin:hunter2@127.0.0.1:{port}/secret-path"
    return RtspSource(url, policy=PullPolicy(), clock=SystemClock(), settings=settings)


def loss_of(source: RtspSource) -> SourceLost:
    with pytest.raises(SourceLost) as caught:
        run_to_end(source, ListSink(FakeClock()))
    for part in ("hunter2", "admin", "secret-path"):
        assert part not in caught.value.reason
    return caught.value


SOUND = "m=audio 0 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\na=control:t0\r\n"
ODD = "m=video 0 RTP/AVP 96\r\na=rtpmap:96 X-NOVEL/90000\r\na=control:t0\r\n"
OLD = "m=video 0 RTP/AVP 31\r\na=control:t0\r\n"  # H.261


@pytest.mark.parametrize(
    ("answer", "why", "hopeless"),
    [
        pytest.param(
            status("401 Unauthorized", 'WWW-Authenticate: Basic realm="x"'), "401", True, id="401"
        ),
        pytest.param(status("403 Forbidden"), "403", True, id="403"),
        pytest.param(status("404 Not Found"), "404 from the camera", False, id="404"),
        pytest.param(status("400 Bad Request"), "refused the request", False, id="400"),
        pytest.param(status("503 Busy"), "error of its own", False, id="503"),
        pytest.param(describes(SOUND), "no video track", True, id="only sound"),
        pytest.param(describes(ODD), "codec not supported", True, id="unknown codec"),
        pytest.param(describes(OLD), "codec not supported (h261)", True, id="old codec"),
        pytest.param(over_udp_only, "video over TCP", True, id="only UDP"),
        pytest.param(garbage, "not an RTSP camera", False, id="a web server"),
        pytest.param(hangs_up, "", False, id="hangs up"),
    ],
)
def test_each_refusal_has_its_own_reason(
    serve: Callable[[Answer | None], int], answer: Answer, why: str, hopeless: bool
) -> None:
    loss = loss_of(camera(serve(answer)))
    assert why in loss.reason
    assert loss.reason
    assert loss.hopeless is hopeless


def test_a_closed_port_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    loss = loss_of(camera(port, settings=PullSettings(open_timeout_s=60)))
    assert (loss.reason, loss.hopeless) == ("connection refused", False)


def test_a_server_that_accepts_and_stays_silent_times_out(
    serve: Callable[[Answer | None], int],
) -> None:
    assert loss_of(camera(serve(None))).reason == "timed out"


@pytest.mark.parametrize("asked", ["OPTIONS", "DESCRIBE"])
def test_a_redirect_is_not_followed(serve: Callable[[Answer | None], int], asked: str) -> None:
    """It would lead around the policy: FFmpeg follows it unasked."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        where = f"rtsp://127.0.0.1:{elsewhere.getsockname()[1]}/secret-path"
        moved = status("302 Moved Temporarily", f"Location: {where}")

        def answer(method: str, sequence: str) -> str:
            return (moved if method == asked else describes(SOUND))(method, sequence)

        loss = loss_of(camera(serve(answer)))
        assert "redirects to another URL" in loss.reason
        assert loss.hopeless
        elsewhere.settimeout(0.2)
        with contextlib.suppress(TimeoutError):  # not even a connection is better still
            connection, _ = elsewhere.accept()
            with connection:
                connection.settimeout(5)
                assert connection.recv(4096) == b""


def test_a_silent_server_of_tls_is_left_in_time() -> None:
    """Case 28."""
    server = RawServer(None, every_s=0.05)
    url = f"rtsps://admin:hunter2@127.0.0.1:{server.port}/secret-path"
    try:
        loss = loss_of(RtspSource(url, policy=PullPolicy(), clock=SystemClock(), settings=QUICK))
    finally:
        server.close()
    assert loss.reason == "timed out"


def test_tls_is_spoken_however_its_scheme_is_written() -> None:
    """To FFmpeg `RTSPS` is RTSP, with the password for all to read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"RTSPS://admin:hunter2@127.0.0.1:{listener.getsockname()[1]}/secret-path"
        loss_of(RtspSource(url, policy=PullPolicy(), clock=SystemClock(), settings=QUICK))
        listener.settimeout(5)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(5)
            assert connection.recv(1) == b"\x16"  # the greeting of TLS


OK = b"RTSP/1.0 200 OK\r\nCSeq: 1\r\n"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        pytest.param(b"", b"R", id="one byte at a time"),
        pytest.param(OK, b"X-Header: y\r\n" * 100, id="endless headers"),
        pytest.param(OK, b"x" * 1000, id="an endless line"),
        pytest.param(OK + b"Content-Length: 2000000000\r\n\r\n", b"v=0\r\n", id="an endless body"),
        pytest.param(b"", b"$\x00\xff\xff" + b"x" * 100, id="data before any answer"),
        pytest.param(OK + b"\r\n", None, id="stops after the first answer"),
    ],
)
def test_a_server_that_wastes_time_is_left_in_time(begin: bytes, piece: bytes | None) -> None:
    """Case 28."""
    clock = SystemClock()
    server = RawServer(piece, every_s=0.02, begin=begin)
    began_s = clock.monotonic_s()
    try:
        loss = loss_of(camera(server.port))
    finally:
        server.close()
    assert loss.reason in ("timed out", "what answers there is not an RTSP camera")
    assert clock.monotonic_s() - began_s < 4


def test_tls_towards_a_camera_without_it_is_told_as_such() -> None:
    server = RawServer(None, every_s=0.05, begin=b"RTSP/1.0 400 Bad Request\r\n\r\n")
    url = f"rtsps://admin:hunter2@127.0.0.1:{server.port}/secret-path"
    try:
        loss = loss_of(RtspSource(url, policy=PullPolicy(), clock=SystemClock(), settings=QUICK))
    finally:
        server.close()
    assert "TLS failed" in loss.reason


def test_a_name_is_looked_up_once_and_its_address_used() -> None:
    """What was judged is what is connected to."""
    target = PullTarget("rtsp", "cam.example", 8554, None)
    address = ipaddress.ip_address("192.0.2.7")
    url = "rtsp://bob:a%40b@cam.example:8554/live?x=1"
    assert pinned(url, target, address) == "rtsp://bob:a%40b@192.0.2.7:8554/live?x=1"
    six = ipaddress.ip_address("2001:db8::7")
    assert pinned(url, target, six) == "rtsp://bob:a%40b@[2001:db8::7]:8554/live?x=1"
    secure = PullTarget("rtsps", "cam.example", 322, None)
    assert pinned("rtsps://cam.example/x", secure, address) == "rtsps://cam.example/x"
    assert pinned("RTSPS://cam.example/x", secure, address) == "rtsps://cam.example/x"
    here = ipaddress.ip_address("127.0.0.1")
    local = PullTarget("rtsp", "x.localhost", 554, here)  # never looked up, not even by FFmpeg
    assert pinned("rtsp://x.localhost/y", local, here) == "rtsp://127.0.0.1:554/y"


def test_of_a_name_with_thousands_of_addresses_only_a_few_are_tried() -> None:
    """Each may take seconds, in which nothing can stop the attempt."""
    closed = [ipaddress.ip_address(f"127.0.0.{n}") for n in range(2, 6)]
    with socket.create_server(("127.0.0.9", 0)) as listener:
        port = listener.getsockname()[1]
        open_ = ipaddress.ip_address("127.0.0.9")
        assert first_that_accepts([*closed[:3], open_], port) == open_
        assert first_that_accepts([*closed, open_], port) == closed[0]


def test_a_camera_that_describes_itself_and_sends_nothing_times_out(
    serve: Callable[[Answer | None], int],
) -> None:
    video = "m=video 0 RTP/AVP 26\r\na=control:t0\r\n"  # JPEG
    source = camera(serve(describes(video)))
    sink = ListSink(FakeClock())
    with pytest.raises(SourceLost, match="timed out"):
        run_to_end(source, sink)
    assert sink.codec in (None, "mjpeg")


def test_an_unknown_host_is_named_as_such() -> None:
    source = RtspSource("rtsp://host.invalid/x", policy=PullPolicy(), clock=SystemClock())
    assert loss_of(source).reason == "unknown host"


def test_a_name_that_leads_to_a_forbidden_address_is_refused_when_it_is_resolved() -> None:
    """`localhost` written as another name: its address is only known once it is looked up."""
    name = socket.gethostname()
    found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, 1)}
    policy = PullPolicy(own_ports=frozenset({8080}), own_addresses=frozenset(found))
    source = RtspSource(f"rtsp://{name}:8080/x", policy=policy, clock=SystemClock())
    loss = loss_of(source)
    assert "a port of this server" in loss.reason
    assert loss.hopeless


def test_an_address_of_this_machine_that_nobody_named_is_known_when_it_is_connected_to() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.7", 9))  # sends nothing: only asks for the way out
        except OSError:
            pytest.skip("this machine has no address but loopback")
        here = probe.getsockname()[0]
    policy = PullPolicy(own_ports=frozenset({8080}))
    loss = loss_of(RtspSource(f"rtsp://{here}:8080/x", policy=policy, clock=SystemClock()))
    assert "a port of this server" in loss.reason
    assert loss.hopeless
    other = ipaddress.ip_address("198.51.100.7")
    assert resolve(PullTarget("rtsp", str(other), 8080, other), policy) == other


@pytest.mark.parametrize("url", ["http://camera/x", "file:///x", "camera", "rtmp://camera/x"])
def test_a_wrong_scheme_is_refused_before_anything_is_opened(url: str) -> None:
    with pytest.raises(SourceUnavailable, match="rtsp://"):
        RtspSource(url, policy=PullPolicy(), clock=FakeClock())


def test_the_url_shows_nowhere(
    serve: Callable[[Answer | None], int],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Not in messages, logs, representations, nor on the terminal, through the whole supervisor."""
    caplog.set_level(0)
    source = camera(serve(status("404 Not Found")))
    supervisor = Supervisor(
        source,
        ListTarget(FakeClock()),
        clock=SystemClock(),
        name="test",
        settings=SupervisorSettings(open_within_s=0.3, backoff_first_s=0.1),
    )
    supervisor.start()
    with pytest.raises(SourceUnavailable) as caught:
        supervisor.wait_opened(10)
    assert supervisor.stop()
    assert "404 from the camera" in caught.value.message
    printed = capfd.readouterr()
    told = [
        caught.value.message,
        "".join(traceback.format_exception(caught.value)),
        repr(supervisor.status()),
        repr(source),
        caplog.text,
        printed.out,
        printed.err,
    ]
    for text in told:
        assert "hunter2" not in text
        assert "secret-path" not in text

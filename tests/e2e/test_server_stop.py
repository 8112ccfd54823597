"""A server that stops: what it cuts off is told, and nothing of it looks like a crash."""

import json
import logging
import socket
import threading

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from liveedge.core.clock import SystemClock
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.testing.engine import FakeEngine
from tests.serving import SMALL, chat_body, sse_events

JOIN_S = 20.0


class Asking:
    """A question in a thread of its own, which is there until the server ends it."""

    def __init__(self, url, *parts, **options):
        self.text = ""
        self.status = None
        self.has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url, chat_body(*parts, **options)))
        self._thread.start()

    def _run(self, url, body):
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as answer:
            self.status = answer.status_code
            for text in answer.iter_text():
                self.text += text
                self.has_begun.set()

    def join(self):
        self._thread.join(JOIN_S)
        assert not self._thread.is_alive()


@pytest.fixture
def parts():
    clock = SystemClock()
    engine = FakeEngine(clock=clock)
    settings = Settings(port=0, **SMALL)
    return engine, BackgroundServer(settings, clock=clock, load_engine=lambda: engine, drain_s=0.3)


def wait_until(condition):
    clock = SystemClock()
    limit_s = clock.monotonic_s() + JOIN_S
    while not condition():
        assert clock.monotonic_s() < limit_s, "it never happened"


def unexpected(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info]


def test_an_event_stream_that_is_cut_off_ends_with_one_error(parts, caplog):
    engine, background = parts
    engine.hold("decode")
    with background as server:
        asking = Asking(server.url, stream=True)
        assert asking.has_begun.wait(JOIN_S)
    asking.join()
    events = sse_events(asking.text)
    assert [event["error"]["code"] for event in events if "error" in event] == ["model_unavailable"]
    assert "error" in events[-1]
    assert engine.stats().running == 0
    assert unexpected(caplog) == []


def test_an_answer_that_has_not_begun_is_a_flat_503(parts, caplog):
    engine, background = parts
    engine.hold("prefill")
    with background as server:
        asking = [Asking(server.url), Asking(server.url, stream=True)]
        wait_until(lambda: engine.stats().running == 2)
    for one in asking:
        one.join()
        assert one.status == 503
        assert_stopping(json.loads(one.text))
    assert unexpected(caplog) == []


def test_a_request_outside_the_model_is_cut_off_with_a_503_too(parts, caplog):
    _, background = parts
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
        "Expect: 100-continue\r\n\r\n"
    )
    with background as server:
        port = int(server.url.rpartition(":")[2])
        raw = socket.create_connection(("127.0.0.1", port), timeout=JOIN_S)
        raw.sendall(head.encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 100")  # the body is waited for
    with raw, raw.makefile("rb") as answer:
        text = answer.read()
    assert text.startswith(b"HTTP/1.1 503")
    assert b"x-request-id: " in text
    assert_stopping(json.loads(text.partition(b"\r\n\r\n")[2]))
    assert unexpected(caplog) == []


def test_while_answers_in_progress_end_new_requests_are_sent_elsewhere(parts, caplog):
    clock = SystemClock()
    engine = FakeEngine(clock=clock)
    engine.hold("decode")
    settings = Settings(port=0, drain_s=30, **SMALL)
    background = BackgroundServer(settings, clock=clock, load_engine=lambda: engine)
    with background as server, httpx.Client(base_url=server.url, trust_env=False) as kept:
        assert kept.get("/v1/ready").status_code == 200
        asking = Asking(server.url, stream=True)
        assert asking.has_begun.wait(JOIN_S)
        server.stop()
        wait_until(lambda: server.built.drain.is_stopping)
        for path in ("/health", "/v1beta/health", "/metrics", "/version"):
            assert httpx.get(f"{server.url}{path}", trust_env=False).status_code == 200
        for path in ("/ready", "/v1/models", "/v1/streams/x"):
            refused = kept.get(path)
            assert refused.status_code == 503
            assert_stopping(refused.json())
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["connection"] == "close"
            assert refused.headers["x-request-id"]
        with (
            pytest.raises(InvalidStatus) as caught,
            connect(f"ws{server.url[4:]}/v1/streams/x/frames"),
        ):
            pass
        assert caught.value.response.status_code == 503
        engine.release("decode")
        asking.join()
        began_s = clock.monotonic_s()
    assert clock.monotonic_s() - began_s < 5  # not the whole drain
    assert sse_events(asking.text)[-1] == "[DONE]"
    assert unexpected(caplog) == []


def test_without_anything_in_progress_the_end_is_at_once():
    clock = SystemClock()
    settings = Settings(port=0, drain_s=30, **SMALL)
    background = BackgroundServer(
        settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock)
    )
    with background as server, httpx.Client(base_url=server.url, trust_env=False) as idle:
        idle.get("/health")
        stream_id = idle.post("/v1/streams", json={"source": {"type": "push"}}).json()["id"]
        with connect(f"ws{server.url[4:]}/v1/streams/{stream_id}/frames"):
            began_s = clock.monotonic_s()
            server.stop()
            wait_until(lambda: not background.is_running)
    assert clock.monotonic_s() - began_s < 5


def assert_stopping(body):
    assert isinstance(body["detail"], str)
    assert body["error"]["code"] == "model_unavailable"


def test_an_answer_that_ends_within_the_drain_is_complete(parts):
    engine, background = parts
    engine.hold("decode")
    with background as server:
        asking = Asking(server.url, stream=True)
        assert asking.has_begun.wait(JOIN_S)
        engine.release("decode")
    asking.join()
    assert sse_events(asking.text)[-1] == "[DONE]"


@pytest.mark.parametrize("path", ["/nowhere", "/v1/streams", "/v1/streams/x/frames/y"])
def test_an_unknown_websocket_is_refused_without_noise(parts, path, caplog):
    _, background = parts
    with background as server:
        url = server.url.replace("http", "ws") + path
        with pytest.raises(InvalidStatus) as caught, connect(url):
            pass
        assert caught.value.response.status_code == 404
        assert json.loads(caught.value.response.body)["error"]["code"] == "not_found"
    assert unexpected(caplog) == []


def test_listeners_of_a_watch_are_told_and_end_by_themselves(parts, caplog):
    _, server = parts
    heard: list[str] = []
    with server, httpx.Client(base_url=server.url, timeout=30) as client:
        wait_until(lambda: client.get("/ready").status_code == 200)
        stream = client.post("/v1/streams", json={"source": {"type": "push"}}).json()
        part = {
            "type": "image_url",
            "image_url": {"url": f"ovs://streams/{stream['id']}?frame_index=-1"},
        }
        watch = client.post("/v1/watches", json=chat_body(part, every_ms=3_600_000)).json()
        has_begun = threading.Event()

        def listen():
            with httpx.stream("GET", f"{server.url}/v1/watches/{watch['id']}/events") as answer:
                has_begun.set()
                heard.extend(answer.iter_lines())

        listener = threading.Thread(target=listen)
        listener.start()
        assert has_begun.wait(JOIN_S)
    listener.join(JOIN_S)
    assert heard[-3:-1] == ["event: ended", heard[-2]]
    assert json.loads(heard[-2].removeprefix("data: "))["reason"] == "server_stopping"
    assert unexpected(caplog) == []

"""A real server on a real port: pictures over a WebSocket, leaving clients, the start."""

import json
import logging
import socket

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from liveedge.assembly import build_app, find_model
from liveedge.core.clock import SystemClock
from liveedge.core.errors import SettingsInvalid
from liveedge.server import BackgroundServer, listening_socket
from liveedge.settings import Settings
from liveedge.testing.engine import FakeEngine
from tests.serving import MODEL, SMALL, chat_body, picture

KEY = {"Authorization": "Bearer sk-hush"}


class Running:
    """A server, its engine and a client with the key."""

    def __init__(self, url, engine, client):
        self.url, self.engine, self.client = url, engine, client

    def new_stream(self):
        answer = self.client.post("/streams", json={"source": {"type": "push"}})
        return answer.json()["id"]

    def socket(self, stream_id, headers=KEY):
        url = f"{self.url.replace('http', 'ws')}/v1beta/streams/{stream_id}/frames"
        return connect(url, additional_headers=headers, compression=None)


@pytest.fixture(scope="module")
def running():
    clock = SystemClock()
    engine = FakeEngine(clock=clock)
    settings = Settings(port=0, api_key="sk-hush", **SMALL)
    with (
        BackgroundServer(settings, clock=clock, load_engine=lambda: engine) as server,
        httpx.Client(base_url=server.url, headers=KEY, timeout=30) as client,
    ):
        yield Running(server.url, engine, client)


def test_pictures_come_in_over_a_websocket_each_acknowledged(running):
    stream_id = running.new_stream()
    with running.socket(stream_id) as ws:
        for i in range(3):
            ws.send(picture((i, 0, 0)))
            said = json.loads(ws.recv(timeout=30))
            assert (said["frame_index"], said["width"], said["height"]) == (i, 64, 48)
        ws.send("{}")
        assert json.loads(ws.recv(timeout=30))["error"]["code"] == "validation_error"
        ws.send(b"no picture")
        assert json.loads(ws.recv(timeout=30))["error"]["code"] == "media_invalid"
        ws.send('{"captured_at_ms": 1700000000000}')
        said = json.loads(ws.recv(timeout=30))["error"]
        assert said["code"] == "validation_error"
        assert "captured_at_ms" in said["message"]
        ws.send(json.dumps({"captured_at_ms": SystemClock().wall_ms()}))
        ws.send(picture())
        assert json.loads(ws.recv(timeout=30))["frame_index"] == 3
    view = running.client.get(f"/streams/{stream_id}").json()
    assert view["retained_frame_count"] == 4


def test_a_websocket_of_an_ended_stream_is_closed(running):
    stream_id = running.new_stream()
    with running.socket(stream_id) as ws:
        running.client.delete(f"/streams/{stream_id}")
        ws.send(picture())
        assert json.loads(ws.recv(timeout=30))["error"]["code"] == "stream_not_found"
        with pytest.raises(ConnectionClosed):
            ws.recv(timeout=30)


@pytest.mark.parametrize(
    ("headers", "stream", "status"), [({}, "mine", 401), (KEY, "unknown", 404)]
)
def test_a_websocket_that_may_not_be_is_refused_in_json(running, headers, stream, status):
    stream_id = running.new_stream() if stream == "mine" else stream
    with pytest.raises(InvalidStatus) as caught, running.socket(stream_id, headers):
        pass
    assert caught.value.response.status_code == status
    assert "error" in json.loads(caught.value.response.body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_ends_the_work(running, stream):
    running.engine.hold("decode")
    cancelled = running.engine.stats().cancelled
    body = json.dumps(chat_body(stream=stream)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: {KEY['Authorization']}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    port = int(running.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(head.encode() + body)
        wait_until(lambda: running.engine.stats().running == 1)
    wait_until(lambda: running.engine.stats().cancelled == cancelled + 1)
    assert running.engine.stats().running == 0
    running.engine.release("decode")


def wait_until(condition):
    clock = SystemClock()
    limit_s = clock.monotonic_s() + 20
    while not condition():
        assert clock.monotonic_s() < limit_s, "it never happened"


def test_the_log_of_the_whole_server_holds_no_key_no_query_and_no_payload(running, caplog):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A*" * 2_500_000}}
    assert running.client.post("/v1/chat/completions", json=chat_body(part)).status_code == 400
    running.client.get("/streams?token=pass-word")
    source = {"type": "rtsp", "url": "rtsp://user:pass-word@169.254.0.1/"}
    running.client.post("/streams", json={"source": source})
    logged = "\n".join(r.getMessage() for r in caplog.records)
    assert "sk-hush" not in logged
    assert "pass-word" not in logged
    assert 0 < len(logged) < 2000


def test_polls_of_supervisors_are_not_worth_a_line(running, caplog):
    caplog.set_level(logging.INFO, logger="liveedge.http")
    root = running.url
    assert running.client.get(f"{root}/health").status_code == 200
    assert running.client.get(f"{root}/ready").status_code == 200
    assert [r for r in caplog.records if r.name == "liveedge.http"] == []
    running.client.get("/models")
    assert "GET /models 200" in caplog.text


def test_a_simulated_camera_can_be_watched_and_asked(running):
    source = {"type": "sim", "url": "sim://workcell?fps=20&width=96&height=64&seed=3"}
    created = running.client.post("/v1/streams", json={"source": source})
    assert created.status_code == 201
    stream_id = created.json()["id"]
    wait_until(
        lambda: running.client.get(f"/streams/{stream_id}").json()["retained_frame_count"] >= 5
    )
    part = {
        "type": "video_url",
        "video_url": {"url": f"ovs://streams/{stream_id}?start_offset_ms=-200&max_fps=10"},
    }
    said = running.client.post("/v1/chat/completions", json=chat_body(part)).json()
    frames = said["liveedge"]["frames"]
    assert len(frames) >= 2
    assert (frames[0]["width"], frames[0]["height"]) == (96, 64)
    view = running.client.get(f"/streams/{stream_id}").json()
    assert view["last_pull"] is not None
    assert (
        view["retained_frame_count"] + view["evicted_frame_count"] == view["last_frame_index"] + 1
    )
    assert running.client.delete(f"/streams/{stream_id}").json() == {
        "id": stream_id,
        "deleted": True,
    }


def test_a_port_in_use_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsInvalid, match=str(port)), listening_socket(Settings(port=port)):
            pass


def test_a_model_is_the_shipped_one_or_a_folder(tmp_path):
    folder, model_id = find_model(Settings())
    assert (folder.name, model_id) == ("workcell-tiny", MODEL)
    (tmp_path / "My-Model").mkdir()
    assert find_model(Settings(model=str(tmp_path / "My-Model")))[1] == "local/My-Model"
    assert find_model(Settings(model=str(tmp_path), model_id="a/b"))[1] == "a/b"
    with pytest.raises(SettingsInvalid, match="neither a folder"):
        find_model(Settings(model=str(tmp_path / "none")))


def test_an_alias_of_a_model_that_is_not_served_is_an_error():
    with pytest.raises(SettingsInvalid, match="not served"):
        build_app(Settings(aliases={"x": "local/other"}), SystemClock())

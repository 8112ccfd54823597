"""Keys that come and go while a real server runs: the command line in one process, clients on sockets."""

from __future__ import annotations

import time

import httpx
import pytest

from liveedge.cli import main
from liveedge.core.clock import SystemClock
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.testing.engine import FakeEngine

LIMIT_S = 10.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.sqlite"


@pytest.fixture
def server(path):
    clock = SystemClock()
    settings = Settings(port=0, keys_file=path, hot_mb=4, history_mb=1, streams_mb=50)
    with BackgroundServer(
        settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock)
    ) as running:
        yield running


def keys(capsys, *arguments):
    assert main(["keys", *arguments], {}) == 0
    return capsys.readouterr().out.strip()


def within(condition, *, seconds=LIMIT_S):
    """How long it took."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < seconds
        time.sleep(0.02)
    return time.monotonic() - began_s


def test_a_key_opens_and_closes_a_running_server(capsys, path, server):
    place = ("--keys-file", str(path))
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
        assert client.get("/v1/streams").status_code == 401
        key = keys(capsys, "create", "camera", *place)
        client.headers["authorization"] = f"Bearer {key}"
        assert within(lambda: client.get("/v1/streams").status_code == 200) < 2
        answer = client.post(
            "/v1/streams", json={"source": {"type": "sim", "url": "sim://workcell"}}
        )
        stream_id = answer.json()["id"]
        with client.stream("GET", f"/v1/streams/{stream_id}/preview.mjpeg") as preview:
            assert preview.status_code == 200
            pictures = preview.iter_raw()
            next(pictures)
            keys(capsys, "revoke", key.split("_")[1], *place)
            began_s = time.monotonic()
            for _ in pictures:  # it ends by itself
                assert time.monotonic() - began_s < LIMIT_S
        assert client.get("/v1/streams").status_code == 401
        within(lambda: server.built.streams.n_active == 0)

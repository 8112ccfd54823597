"""Idle connections: the server closes them after the clients would, so no question meets a closed one."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from liveedge.core.clock import SystemClock
from liveedge.server import KEEP_ALIVE_S, BackgroundServer, http_config
from liveedge.settings import Settings
from liveedge.testing.engine import FakeEngine
from tests.serving import SMALL

# How long they keep an idle connection, in seconds.
CLIENTS = {
    "httpx, and the OpenAI SDK on it": httpx.Limits().keepalive_expiry,
    "undici (fetch of Node)": 4.0,
    "aiohttp": 15.0,
    "nginx before a server": 60.0,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_give_an_idle_connection_up_before_the_server_does(client: str) -> None:
    keeps_s = CLIENTS[client]
    assert keeps_s is not None
    config = http_config(FastAPI())
    assert config.timeout_keep_alive == KEEP_ALIVE_S
    assert config.timeout_keep_alive > keeps_s + 5  # a busy client is late


def test_an_idle_connection_stays_open_for_the_time_that_is_set_and_no_longer() -> None:
    clock = SystemClock()
    with (
        BackgroundServer(
            Settings(port=0, **SMALL),
            clock=clock,
            load_engine=lambda: FakeEngine(clock=clock),
            keep_alive_s=1,
        ) as server,
        closing(HTTPConnection(urlsplit(server.url).netloc, timeout=20)) as connection,
    ):
        for _ in range(2):  # an answer begins the time anew
            connection.request("GET", "/health")
            assert connection.getresponse().read()
        answered_s = clock.monotonic_s()
        assert connection.sock.recv(1) == b""  # its end
        idle_s = clock.monotonic_s() - answered_s
    assert 0.9 <= idle_s < 4.0  # uvicorn's own would be 5

"""`liveedge serve` in its two processes: what the engine's death costs cameras and clients."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from liveedge.client.http import Client, image_part
from liveedge.client.local_server import Started, running_server
from liveedge.core.clock import SystemClock

CLOCK = SystemClock()
LIMIT_S = 120.0
ENGINE = "liveedge.engine.process.main"
STORY = {
    "type": "object",
    "properties": {"story": {"type": "string", "minLength": 20000}},
    "required": ["story"],
}

pytestmark = pytest.mark.timeout(400)


class Running:
    """A server with a camera."""

    def __init__(self, server: Started, http: httpx.Client, client: Client) -> None:
        self.server, self.http, self.client = server, http, client
        self.model = client.models()[0]["id"]
        source = {"type": "sim", "url": "sim://workcell?seed=7"}
        self.stream_id = client.create_stream(source)["id"]
        until(lambda: self.stream()["last_frame_at_ms"] is not None)

    def stream(self) -> dict[str, Any]:
        return self.client.stream(self.stream_id)

    def ask(self) -> str:
        part = image_part(self.stream_id, frame_index=-1)
        content = [part, {"type": "text", "text": "Is the door open or closed?"}]
        return self.client.ask(content, model=self.model, max_tokens=8).text

    def body(self, **options: Any) -> dict[str, Any]:
        message = {"role": "user", "content": "Tell me a story."}
        return {"model": self.model, "messages": [message], "max_tokens": 4000, **options}

    def engines(self) -> list[int]:
        """Processes of engines, the oldest first: it is the one that answers."""
        children = [
            int(pid)
            for task in Path(f"/proc/{self.server.pid}/task").iterdir()
            for pid in (task / "children").read_text().split()
            if ENGINE in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        return sorted(children, key=lambda pid: int(stat(pid)[19]))


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def until(condition: Any) -> None:
    never = threading.Event()
    limit_s = CLOCK.monotonic_s() + LIMIT_S
    while not condition():
        assert CLOCK.monotonic_s() < limit_s, "it never happened"
        CLOCK.wait(never, 0.01)


@contextmanager
def server_with_camera() -> Iterator[Running]:
    with (
        running_server(model=None, port=None, clock=CLOCK) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http,
        Client(server.url, clock=CLOCK) as client,
    ):
        yield Running(server, http, client)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with server_with_camera() as running:
        yield running


def test_the_servers_process_never_loads_torch(running: Running) -> None:
    assert running.ask()
    server = Path(f"/proc/{running.server.pid}/maps").read_text()
    assert not re.search(r"libtorch|libc10", server)
    assert "libtorch" in Path(f"/proc/{running.engines()[0]}/maps").read_text()


def test_a_killed_engine_costs_its_answers_and_nothing_else(running: Running) -> None:
    before = running.stream()
    schema = {"name": "story", "schema": STORY}
    wanted = {"type": "json_schema", "json_schema": schema}
    body = running.body(stream=True, response_format=wanted)
    with running.http.stream("POST", "/v1beta/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        # Two pieces of text: the answer is being written.
        pieces = (line for line in lines if '"content":"' in line and '"content":""' not in line)
        next(pieces), next(pieces)
        os.kill(running.engines()[0], signal.SIGKILL)
        *_, last = (line for line in lines if line)
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "model_unavailable"

    refused = running.http.post("/v1beta/chat/completions", json=running.body(max_tokens=1))
    if refused.status_code != 200:  # a standby may have taken over already
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["detail"] == refused.json()["error"]["message"]
        assert running.http.get("/health").status_code == 200

    until(lambda: running.http.get("/ready").status_code == 200)
    assert running.ask()
    after = running.stream()
    assert after["last_frame_index"] > before["last_frame_index"]
    assert after["expires_at_ms"] == before["expires_at_ms"]  # the lease is the same one
    assert after["first_frame_at_ms"] == before["first_frame_at_ms"]


def test_the_engine_and_its_standby_end_with_a_killed_server() -> None:
    with server_with_camera() as running:
        until(lambda: len(running.engines()) == 2)  # one answers, one stands by
        engines = running.engines()
        os.kill(running.server.pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, engines)))


def is_alive(pid: int) -> bool:
    try:
        return stat(pid)[0] != "Z"
    except FileNotFoundError:
        return False

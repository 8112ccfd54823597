"""`liveedge serve` as a process: how it ends, and that it does not outlive who started it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from liveedge.client.http import Client
from liveedge.client.local_server import ServerFailed, running_server
from liveedge.core.clock import SystemClock
from tests.certificates import self_signed

SERVE = (sys.executable, "-m", "liveedge", "serve", "--port", "0")
LIMIT_S = 120.0
# Starts a server, tells its address and waits to be killed.
PARENT = """
from liveedge.core.clock import SystemClock
from liveedge.client.local_server import running_server
with running_server(model=None, port=None, clock=SystemClock()) as server:
    print(server.url, flush=True)
    input()
"""

pytestmark = pytest.mark.timeout(240)


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """It with pipes for all that it says; killed in the end, and where it says nothing for long."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as child:
        limit = threading.Timer(LIMIT_S, child.kill)
        limit.start()
        try:
            yield child
        finally:
            limit.cancel()
            child.kill()


def read_until(child: subprocess.Popen[str], words: str) -> str:
    """The first line with the words; what came before is skipped."""
    assert child.stdout is not None
    for line in child.stdout:
        if words in line:
            return line
    pytest.fail(f"it never said {words!r}")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_the_server_with_one_line_while_its_model_still_loads(
    number: signal.Signals, status: int
):
    with process(*SERVE) as child:
        read_until(child, "listens on http://127.0.0.1:")
        child.send_signal(number)
        assert child.stdout is not None
        *_, last = child.stdout.read().splitlines()
        assert last.endswith("liveedge.server: stopped")
        assert child.wait() == status


def test_a_second_signal_ends_a_server_that_still_waits_for_an_answer():
    with process(*SERVE) as child:
        url = read_until(child, "listens on ").partition("listens on ")[2].split()[0]
        host, port = url.removeprefix("http://").split(":")
        half = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(half.encode())
            httpx.get(f"{url}/health", trust_env=False)  # the half is being waited for now
            child.send_signal(signal.SIGINT)
            child.send_signal(signal.SIGTERM)
            assert child.wait() > 128
            assert child.stdout is not None
            assert "stopped" not in child.stdout.read()


def test_a_server_can_end_with_its_standard_input():
    with process(*SERVE, "--until-stdin-closes") as child:
        read_until(child, "listens on ")
        assert child.stdin is not None
        child.stdin.close()
        read_until(child, "stopped")
        assert child.wait() == 0


def test_the_server_of_a_killed_demonstration_ends():
    with process(sys.executable, "-c", PARENT) as parent:
        url = read_until(parent, "http://").strip()
        parent.kill()
        parent.wait()
        clock, never = SystemClock(), threading.Event()
        limit_s = clock.monotonic_s() + 60
        while is_there(url):
            assert clock.monotonic_s() < limit_s, "it still answers"
            clock.wait(never, 0.05)


def is_there(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=30).is_success
    except httpx.TransportError:
        return False


def test_the_end_of_the_server_is_told_with_its_last_words_and_its_stages_before():
    clock = SystemClock()

    def lose_the_server() -> None:
        with (
            running_server(model=None, port=None, clock=clock) as server,
            Client(server.url, clock=clock) as client,
        ):
            stages.extend(server.model_stages_ms())
            server.check()
            os.kill(server.pid, signal.SIGKILL)
            while is_there(server.url):
                clock.wait(threading.Event(), 0.01)
            client.get("/health")

    stages: list[str] = []
    with pytest.raises(ServerFailed, match=r"ended with status -9:\n(.|\n)*answers after"):
        lose_the_server()
    assert stages[:2] == ["tokenizer", "imports"]


def test_a_hangup_renews_the_certificate_and_every_line_is_an_object(tmp_path: Path):
    pair, renewed = self_signed(tmp_path), self_signed(tmp_path, "renewed")
    tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    with process(*SERVE, "--log-format", "json", "--no-standby", *tls) as child:
        url = read_until(child, "listens on ").partition("listens on ")[2].split()[0]
        assert url.startswith("https://127.0.0.1:")
        shutil.copy(renewed.cert, pair.cert)
        shutil.copy(renewed.key, pair.key)
        child.send_signal(signal.SIGHUP)
        read_until(child, "HTTPS with a certificate of localhost")
        context = ssl.create_default_context(cafile=renewed.cert)
        httpx.get(
            f"{url}/version", verify=context, headers={"X-Request-Id": "mine"}, trust_env=False
        )
        line = json.loads(read_until(child, "/version"))
        assert (line["request_id"], line["status"], line["level"]) == ("mine", 200, "info")
        read_until(child, "answers after")  # the engine's process has said what it says
        child.send_signal(signal.SIGTERM)
        assert child.stdout is not None
        lines = [json.loads(line) for line in child.stdout.read().splitlines()]
        assert lines[-1]["message"] == "stopped"
        assert child.wait() == 0

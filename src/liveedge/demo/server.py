"""The server of the demonstration: a child process on a free port of this machine.

Owns    the child and the file with its output; leaving the `with` block ends both.
A child of its own is what users run: nothing of it is shared with the client that measures it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from liveedge.client.http import Client, Refused
from liveedge.core.clock import Clock

START_LIMIT_S = 180.0  # a large checkpoint from a slow disk
STOP_LIMIT_S = 15.0
POLL_S = 0.05  # often enough to time a start, seldom enough not to slow it
N_LOG_LINES = 30  # shown when the server does not start


class ServerFailed(Exception):
    """The server ended or did not become ready; the message ends with its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A running server: where it is and where the time of its start went."""

    url: str
    pid: int
    process_ms: float  # start of the process to the first HTTP answer
    model_ms: float  # from there until the model answers


def free_port() -> int:
    """A port of the loopback interface that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running_server(
    *, model: str | None, port: int | None, clock: Clock, flags: Sequence[str] = ()
) -> Iterator[Started]:
    """Start `liveedge serve`, wait until it is ready, stop it at the end whatever happens."""
    chosen = port or free_port()
    command = [sys.executable, "-m", "liveedge", "serve", *([model] if model else [])]
    command += ["--host", "127.0.0.1", "--port", str(chosen), *flags]
    # Settings of a real server (a key, another port) must not leak into the demonstration.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LIVEEDGE_")}
    with tempfile.TemporaryFile(mode="w+") as output:
        begun_s = clock.monotonic_s()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            url = f"http://127.0.0.1:{chosen}"
            with Client(url, clock=clock) as client:
                wait = _Wait(child, clock, begun_s + START_LIMIT_S)
                alive_s = wait.until(lambda: _answers(client, "/health"))
                ready_s = wait.until(lambda: _answers(client, "/ready"))
            yield Started(
                url=url,
                pid=child.pid,
                process_ms=(alive_s - begun_s) * 1000,
                model_ms=(ready_s - alive_s) * 1000,
            )
        except ServerFailed as error:
            output.seek(0)
            tail = output.read().splitlines()[-N_LOG_LINES:]
            raise ServerFailed("\n  ".join([str(error), *tail])) from error
        finally:
            _stop(child)


@dataclass(frozen=True, slots=True)
class _Wait:
    child: subprocess.Popen[bytes]
    clock: Clock
    limit_s: float

    def until(self, done: Callable[[], bool]) -> float:
        """The moment at which `done` is true."""
        never = threading.Event()
        while not done():
            if self.child.poll() is not None:
                raise ServerFailed(f"the server ended with status {self.child.returncode}:")
            if self.clock.monotonic_s() > self.limit_s:
                raise ServerFailed(f"the server was not ready within {START_LIMIT_S:.0f} s:")
            self.clock.wait(never, POLL_S)
        return self.clock.monotonic_s()


def _answers(client: Client, path: str) -> bool:
    try:
        client.get(path)
    except Refused:  # not listening yet, or 503 while the model loads
        return False
    return True


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask, then insist. A terminal's Ctrl-C has reached the child already: asking again is harmless."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()

"""A server under measurement: a child process on a free port of this machine.

Owns    the child, whatever the child starts, and the file with its output; leaving the `with`
        block ends them all. One server runs at a time, so that each has every core to itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, NoReturn

import httpx

START_LIMIT_S = 900.0  # a peer that compiles at its first start takes minutes
STOP_LIMIT_S = 20.0
POLL_S = 0.02
N_LOG_LINES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How one server is started."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health"  # answers 200 once the model answers, not before

    def become(self) -> NoReturn:
        """Replace this program by the server, so that signals to one reach the other."""
        os.execvpe(self.command[0], list(self.command), {**os.environ, **self.environment})


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that is ready."""

    url: str
    begun_s: float  # `time.perf_counter` when its process was started
    ready_s: float  # from there until it said that it is ready
    pid: int
    check: Callable[[], None]  # ends this program with the server's last words if it has ended


def end_on_sigterm() -> None:
    """Make SIGTERM end this program as Ctrl-C does, by way of its `with` blocks."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def free_port() -> int:
    """A port of the loopback interface that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(launch: Launch, *, port: int) -> Iterator[Running]:
    """Start it, wait until it is ready, stop it at the end whatever happens."""
    url = f"http://127.0.0.1:{port}"
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:  # its answers would be taken for the child's
            raise SystemExit(f"port {port} is taken by another server")
    with tempfile.TemporaryFile() as output:
        begun_s = time.perf_counter()
        child = subprocess.Popen(
            launch.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **launch.environment},
            start_new_session=True,  # a group of its own: its children are ended with it
        )
        try:
            _wait(child, url + launch.ready_path, output)
            yield Running(
                url=url,
                begun_s=begun_s,
                ready_s=time.perf_counter() - begun_s,
                pid=child.pid,
                check=functools.partial(_check, child, output),
            )
        finally:
            _stop(child)


def _wait(child: subprocess.Popen[bytes], url: str, output: IO[bytes]) -> None:
    deadline_s = time.perf_counter() + START_LIMIT_S
    with httpx.Client(trust_env=False, timeout=5.0) as client:
        while not _answers(client, url):
            _check(child, output)
            if time.perf_counter() > deadline_s:
                raise SystemExit(f"{url} not ready in {START_LIMIT_S:.0f} s:\n{_tail(output)}")
            time.sleep(POLL_S)


def _check(child: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    if child.poll() is not None:
        raise SystemExit(f"{child.args!r} ended with {child.returncode}:\n{_tail(output)}")


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).is_success
    except httpx.TransportError:  # not listening yet
        return False


def _tail(output: IO[bytes]) -> str:
    """By position: the child writes at the offset that it shares with us."""
    size = os.fstat(output.fileno()).st_size
    text = os.pread(output.fileno(), size, 0).decode(errors="replace")
    return "\n".join(text.splitlines()[-N_LOG_LINES:])


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask, then insist; at last whatever of its group has stayed behind."""
    child.terminate()
    try:
        child.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    with contextlib.suppress(ProcessLookupError):  # nothing has stayed
        os.killpg(child.pid, signal.SIGKILL)

"""A server of one's own: a child process on a free port of this machine.

Owns    the child and the file with its output; leaving the `with` block ends both. A pipe to the
        child's standard input ends the child also where this process is killed.
A child of its own is what users run: nothing of it is shared with the client that measures it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from liveedge.client.http import Client, Refused
from liveedge.core.clock import Clock

START_LIMIT_S = 180.0  # a large checkpoint from a slow disk
STOP_LIMIT_S = 15.0
POLL_S = 0.05  # often enough to time a start, seldom enough not to slow it
LOG_LIMIT_S = 2.0  # the server tells of its start right after it is ready
MAX_LOG_BYTES = 64_000
END_GRACE_S = 2.0
N_LOG_LINES = 30  # shown when the server has ended by itself
_MODEL_STAGES = re.compile(r" answers after .*\((.+)\)$", re.MULTILINE)

Progress: TypeAlias = Callable[[str, float], None]  # what is being done, for how many seconds


class ServerFailed(Exception):
    """The server ended or did not become ready; the message ends with its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A running server: where it is and where the time of its start went."""

    url: str
    pid: int
    process_ms: float  # start of the process to the first HTTP answer
    model_ms: float  # from there until the model answers
    model_stages_ms: Callable[[], Mapping[str, float]]  # what that went into, as the server says
    check: Callable[[], None]  # raises ServerFailed once the child has ended


def free_port() -> int:
    """A port of the loopback interface that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ends(child: subprocess.Popen[bytes]) -> bool:
    """Whether the child has ended or is ending: its port closes before its memory is given back."""
    try:
        child.wait(END_GRACE_S)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextlib.contextmanager
def running_server(
    *,
    model: str | None,
    port: int | None,
    clock: Clock,
    flags: Sequence[str] = (),
    progress: Progress = lambda _what, _seconds: None,
    log_path: Path | None = None,
) -> Iterator[Started]:
    """Start `liveedge serve`, wait until it is ready, stop it at the end whatever happens.

    What it says goes to a new file at `log_path`, or to one that is gone at the end. A refused call within the block is told as the end of the server where that is its reason.
    """
    chosen = port or free_port()
    command = [sys.executable, "-m", "liveedge", "serve", *([model] if model else [])]
    command += ["--host", "127.0.0.1", "--port", str(chosen), "--until-stdin-closes", *flags]
    # Settings of a real server (a key, another port) must not leak into the demonstration.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LIVEEDGE_")}
    with _output(log_path) as output:
        begun_s = clock.monotonic_s()
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which then stops the child
        )
        try:
            url = f"http://127.0.0.1:{chosen}"
            with Client(url, clock=clock) as client:
                wait = _Wait(child, clock, begun_s, progress)
                alive_s = wait.until(lambda: _answers(client, "/health"), "starting the server")
                ready_s = wait.until(lambda: _answers(client, "/ready"), "loading the model")
            yield Started(
                url=url,
                pid=child.pid,
                process_ms=(alive_s - begun_s) * 1000,
                model_ms=(ready_s - alive_s) * 1000,
                model_stages_ms=lambda: _model_stages_ms(output, clock),
                check=lambda: _check(child),
            )
        except (ServerFailed, Refused) as error:
            if isinstance(error, Refused) and not _ends(child):
                raise
            status = f"the server ended with status {child.poll()}:"
            message = str(error) if isinstance(error, ServerFailed) else status
            tail = _text(output).splitlines()[-N_LOG_LINES:]
            raise ServerFailed("\n  ".join([message, *tail])) from error
        finally:
            _stop(child)


def _output(path: Path | None) -> IO[str]:
    return tempfile.TemporaryFile(mode="w+") if path is None else path.open(mode="w+")


@dataclass(frozen=True, slots=True)
class _Wait:
    child: subprocess.Popen[bytes]
    clock: Clock
    begun_s: float
    progress: Progress

    def until(self, done: Callable[[], bool], what: str) -> float:
        """The moment at which `done` is true."""
        never = threading.Event()
        while not done():
            _check(self.child)
            waited_s = self.clock.monotonic_s() - self.begun_s
            self.progress(what, waited_s)
            if waited_s > START_LIMIT_S:
                raise ServerFailed(f"the server was not ready within {START_LIMIT_S:.0f} s:")
            self.clock.wait(never, POLL_S)
        return self.clock.monotonic_s()


def _check(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        raise ServerFailed(f"the server ended with status {child.returncode}:")


def _model_stages_ms(output: IO[str], clock: Clock) -> dict[str, float]:
    """The stages that the server writes into its log; empty where it has not within the limit."""
    never = threading.Event()
    limit_s = clock.monotonic_s() + LOG_LIMIT_S
    while not (found := _MODEL_STAGES.search(_text(output))):
        if clock.monotonic_s() > limit_s:
            return {}
        clock.wait(never, POLL_S)
    return {name: float(ms) for name, ms in re.findall(r"([a-z][a-z -]*) (\d+) ms", found[1])}


def _text(output: IO[str]) -> str:
    """The end of the log. By position: the child writes at the offset that it shares with us."""
    start = max(0, os.fstat(output.fileno()).st_size - MAX_LOG_BYTES)
    return os.pread(output.fileno(), MAX_LOG_BYTES, start).decode(errors="replace")


def _answers(client: Client, path: str) -> bool:
    try:
        client.get(path)
    except Refused:  # not listening yet, or 503 while the model loads
        return False
    return True


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask, then insist."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    finally:
        if child.stdin is not None:
            child.stdin.close()

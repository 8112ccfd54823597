"""A publisher in a process of its own, so that drawing and encoding never delay the load generator.

Owns    the process and the thread that reads what it tells. Its standard input is its life line:
        it ends where that is closed, also by the end of this process.
Wire    each message is a line of JSON; `n_bytes` in it says how many raw bytes follow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeAlias

from liveedge.core.tasks import OwnedThread

STOP_LIMIT_S = 10.0
LAST_WORDS_S = 2.0
MAX_LINE_BYTES = 1 << 20
N_LAST_WORDS = 20
N_BYTES = "n_bytes"

Message: TypeAlias = Mapping[str, Any]
Hear: TypeAlias = Callable[[Message, bytes], None]


class Child:
    """One process. `hear` gets every message with its bytes, in the thread that reads."""

    def __init__(self, module: str, job: Mapping[str, Any], *, hear: Hear) -> None:
        self._name = module.rpartition(".")[2]
        self._hear = hear
        self._last_words: deque[str] = deque(maxlen=N_LAST_WORDS)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which then ends the child
        )
        self._threads = [
            OwnedThread(f"bench-{self._name}", self._read),
            OwnedThread(f"bench-{self._name}-errors", self._read_errors),
        ]
        for thread in self._threads:
            thread.start()
        stdin = self._pipe(self._process.stdin)
        try:
            stdin.write(json.dumps(job).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:  # it has ended already: `failure` says why
            return

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def failure(self) -> str | None:
        """Why it has ended by itself; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        self._threads[1].stop(LAST_WORDS_S)  # they may still be in the pipe
        said = next(reversed(self._last_words), "it said nothing")
        return f"the {self._name} ended with status {status}: {said}"

    def stop(self) -> None:
        """Let it clean up, then insist. Blocks; twice is fine."""
        stdin = self._pipe(self._process.stdin)
        try:
            stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.stop()
        for pipe in (self._process.stdout, self._process.stderr):
            self._pipe(pipe).close()

    def _read(self, _stopping: threading.Event) -> None:
        stdout = self._pipe(self._process.stdout)
        while line := stdout.readline(MAX_LINE_BYTES):
            message = json.loads(line)
            self._hear(message, stdout.read(message.get(N_BYTES, 0)))

    def _read_errors(self, _stopping: threading.Event) -> None:
        for line in self._pipe(self._process.stderr):
            self._last_words.append(line.decode(errors="replace").rstrip()[:300])

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

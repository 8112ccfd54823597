"""The child's end of `child`: its job, what it tells, and the end of its life line."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from liveedge.bench.sources.child import N_BYTES
from liveedge.core.tasks import OwnedThread

_lock = threading.Lock()


def read_job() -> dict[str, Any]:
    """The first line of standard input."""
    job: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    return job


def when_abandoned(end: Callable[[], object]) -> OwnedThread:
    """Call `end` in a thread once the parent has closed standard input, or is gone."""

    def wait(_stopping: threading.Event) -> None:
        # Not through the buffer: its lock, held by a thread, would abort the end of the interpreter.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        end()

    thread = OwnedThread("bench-life-line", wait)
    thread.start()
    return thread


def tell(message: Mapping[str, Any], data: bytes = b"") -> None:
    """From any thread; a parent that is gone is noticed by the life line."""
    head = {**message, N_BYTES: len(data)} if data else message
    try:
        with _lock:
            sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + data)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        return

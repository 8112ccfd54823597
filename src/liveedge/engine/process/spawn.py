"""Starts an engine process: a Python that imports torch and then waits to be told what to run.

Imports nothing but the standard library, so that it can be the very first thing a server does: the
process then imports torch on one core while the server imports the rest on another.
Nothing has a name that outlives its owners: one socket pair, one anonymous memory file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field

MODULE = "liveedge.engine.process.main"
SOCKET_BYTES = 1 << 20  # of each direction, as far as the system allows
# Threads that wait for each other by spinning take the cores from cameras and HTTP, and then from
# themselves. Encoding a frame on two cores, idle / with three other busy threads / with eleven:
# spinning as long as libgomp does 24 / - / 1,650 ms, 10,000 turns 22 / 124 / -, none 37 / 50 / 135.
# Each malloc arena keeps its own free pages; with one per thread they are what grows over hours.
ENVIRONMENT = {"GOMP_SPINCOUNT": "10000", "MALLOC_ARENA_MAX": "2"}


@dataclass(slots=True, eq=False)
class Child:
    """An engine process and our end of its socket."""

    process: subprocess.Popen[bytes]
    socket: socket.socket

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        """Kill it, whatever it does, and wait until the system has its memory back."""
        # Shut before it is closed: a thread of ours that reads from it ends.
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end is gone already
            pass
        self.process.kill()
        self.process.wait()

    def wait(self, timeout_s: float) -> bool:
        """Wait for it to end by itself; True if it did."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


@dataclass(slots=True, eq=False)
class Nursery:
    """Starts engine processes that share one memory for frames.

    The memory is made with the first process and sized when it is known how large it must be.
    """

    frames_fd: int | None = field(default_factory=lambda: os.memfd_create("liveedge-frames"))
    waiting: Child | None = None  # one that nobody took yet

    def prepare(self) -> None:
        """Start a process that imports and then waits; returns at once."""
        assert self.waiting is None, "one waits already"
        self.waiting = self._spawn()

    def take(self) -> Child:
        """The one that waits, or a new one."""
        child, self.waiting = self.waiting, None
        return child or self._spawn()

    def check(self) -> bool:
        """Forget one that ended while it waited; False where that happened."""
        if self.waiting is None or self.waiting.process.poll() is None:
            return True
        self._end_waiting()
        return False

    def _end_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.end()
            self.waiting.socket.close()
            self.waiting = None

    def _spawn(self) -> Child:
        ours, theirs = _pair()
        assert self.frames_fd is not None, "it was closed"
        with theirs:
            try:
                return Child(_start(theirs, self.frames_fd), ours)
            except OSError:
                ours.close()
                raise

    def close(self) -> None:
        """End the one that waits and give the memory back. May be called again."""
        self._end_waiting()
        if self.frames_fd is not None:
            os.close(self.frames_fd)
            self.frames_fd = None


def _pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    return pair


def _start(theirs: socket.socket, frames_fd: int) -> subprocess.Popen[bytes]:
    fds = (theirs.fileno(), frames_fd)
    return subprocess.Popen(
        # -P: what lies in the working directory is not ours to import.
        [sys.executable, "-P", "-m", MODULE, *map(str, fds)],
        pass_fds=fds,
        env={**ENVIRONMENT, **os.environ},
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else None,
        process_group=0,  # Ctrl-C in a terminal is for the server, which decides
    )

"""The engine process: `python -m liveedge.engine.process.main SOCKET_FD FRAMES_FD`.

Threads  main: imports torch, then is the engine thread. `liveedge-from-client` reads messages from
         the first moment on, so that the process ends at once when its parent does, however that
         ended, and so that the weights come from the disk while torch is imported. `liveedge-heap`
         gives free memory back.
Never    outlives its parent, or ends by a signal that was meant for it: the parent decides.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from liveedge.core.clock import Clock, SystemClock, clock_at
from liveedge.core.errors import InternalError, LiveEdgeError
from liveedge.core.log import configure
from liveedge.core.machine import keep_giving_back
from liveedge.core.startup import process_started_s
from liveedge.core.tasks import OwnedThread
from liveedge.engine.process.channel import Channel, ChannelClosed
from liveedge.engine.process.messages import FromEngine, Opened, OpenFailed
from liveedge.engine.process.shared import map_frames
from liveedge.engine.process.wire import Open, pack, unpack_to_engine

CAPACITY = 8 << 20  # bytes of events on their way; more than that and the engine waits
START = "liveedge.engine.process.start"  # the modules that import torch: they take seconds
CORE = "liveedge.engine.process.core"
WEIGHTS = "*.safetensors"


@dataclass(slots=True, eq=False)
class Inlet:
    """What came from the parent, before and after there is a core."""

    channel: Channel
    opening: Open | None = None
    core: Any = None  # `core.EngineCore`, known when torch is
    arrived: threading.Event = field(default_factory=threading.Event)

    def read(self, _stopping: threading.Event) -> None:
        """Until the parent is gone; then this process is, without further ado."""
        try:
            for data in self.channel.messages():
                self._take(data)
        finally:
            # Whatever runs would be for nobody, and may take minutes to notice.
            os._exit(0)

    def _take(self, data: bytes) -> None:
        message = unpack_to_engine(data)
        if isinstance(message, Open):
            read_ahead(Path(message.folder))
            self.opening = message
            self.arrived.set()
        elif self.core is not None:
            self.core.take(message)

    def send(self, message: FromEngine) -> None:
        try:
            self.channel.send(pack(message))
        except ChannelClosed:
            os._exit(0)


def read_ahead(folder: Path) -> None:
    """Ask the system to bring the weights into memory; returns at once."""
    for path in folder.glob(WEIGHTS):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(fd)


def main(arguments: list[str]) -> None:
    """Serve one engine until the parent ends it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    socket_fd, frames_fd = map(int, arguments)
    clock = SystemClock()
    channel = Channel(
        socket.socket(fileno=socket_fd), name="liveedge-to-client", capacity=CAPACITY, blocking=True
    )
    inlet = Inlet(channel)
    OwnedThread("liveedge-from-client", inlet.read).start()
    imports_ms = _import(clock)
    inlet.arrived.wait()
    try:
        _run(inlet, frames_fd, imports_ms)
    except LiveEdgeError as error:
        inlet.send(OpenFailed(error))
    channel.flush()
    os._exit(0)


def _import(clock: Clock) -> float:
    """Import torch and the engine; milliseconds since the process began."""
    began_s = process_started_s(clock) or clock.monotonic_s()
    gc.disable()  # a hundred thousand objects that all stay: looking through them finds nothing
    importlib.import_module(CORE)
    gc.freeze()
    gc.enable()
    return (clock.monotonic_s() - began_s) * 1000


def _run(inlet: Inlet, frames_fd: int, imports_ms: float) -> None:
    asked = inlet.opening
    assert asked is not None
    configure(asked.log_level, asked.log_format)
    clock = clock_at(asked.settings.clock_speed)
    opening = importlib.import_module(START).Opening(Path(asked.folder), asked.settings, clock)
    core = importlib.import_module(CORE).EngineCore(
        opening.open(),
        settings=asked.settings,
        send=inlet.send,
        clock=clock,
        memory=map_frames(frames_fd, asked.frame_bytes),
        first_ticket=asked.first_ticket,
    )
    core.start()
    OwnedThread("liveedge-heap", partial(keep_giving_back, clock)).start()
    inlet.core = core
    inlet.send(Opened({"imports": imports_ms, **opening.startup_ms}))
    core.run()
    raise InternalError("the engine's loop ended")


if __name__ == "__main__":
    main(sys.argv[1:])

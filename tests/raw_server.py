"""A server that speaks no protocol, only bytes at its own speed."""

from __future__ import annotations

import socket
import threading

from liveedge.core.tasks import OwnedThread


class RawServer:
    """Sends every connection a beginning and then a piece every so often; None: nothing ever."""

    def __init__(self, piece: bytes | None, *, every_s: float, begin: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.02)
        self.port = self._listener.getsockname()[1]
        self._piece = piece
        self._every_s = every_s
        self._begin = begin
        self.n_accepted = 0
        self._thread = OwnedThread("raw", self._serve)
        self._thread.start()

    def _serve(self, stopping: threading.Event) -> None:
        open_: list[socket.socket] = []
        while not stopping.is_set():
            try:
                open_.append(self._listener.accept()[0])
                self.n_accepted += 1
                open_[-1].sendall(self._begin)
            except TimeoutError:
                pass
            if self._piece is not None and not stopping.wait(self._every_s):
                for connection in open_:
                    try:
                        connection.sendall(self._piece)
                    except OSError:
                        continue
        for connection in open_:
            connection.close()

    def close(self) -> None:
        self._thread.stop(5)
        self._listener.close()

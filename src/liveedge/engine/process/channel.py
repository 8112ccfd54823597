"""Messages over a local socket: each a length and that many bytes.

Threads  any thread sends; one reads. A send goes straight to the socket where there is room, so
         that no other thread must wake up; what does not fit is left to a writer thread, in order.
Bound    `capacity` bytes wait for the writer. At the bound a blocking channel makes the sender
         wait; another one is broken: the other side has not read for very long.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator

from liveedge.core.tasks import OwnedThread

LENGTH = struct.Struct("<I")
MAX_MESSAGE = 256 << 20  # bytes; more is a broken stream
READ_BYTES = 256 << 10


class ChannelClosed(Exception):
    """The other side is gone, or does not read."""


class Channel:
    """One end."""

    def __init__(self, end: socket.socket, *, name: str, capacity: int, blocking: bool) -> None:
        self._socket = end
        self._capacity = capacity
        self._blocking = blocking
        self._waiting: deque[memoryview] = deque()
        self._n_waiting = 0  # bytes
        self._is_open = True
        self._changed = threading.Condition()  # over the three above
        self._writer = OwnedThread(name, self._write)
        self._writer.start()

    def send(self, payload: bytes) -> None:
        """Any thread. Raises ChannelClosed."""
        with self._changed:
            if self._blocking:
                self._changed.wait_for(
                    lambda: self._n_waiting < self._capacity or not self._is_open
                )
            if not self._is_open:
                raise ChannelClosed
            rest = memoryview(LENGTH.pack(len(payload)) + payload)
            if not self._waiting:
                rest = rest[self._try_send(rest) :]
            if not rest:
                return
            if not self._blocking and self._n_waiting >= self._capacity:
                self._shut()
                raise ChannelClosed
            self._waiting.append(rest)
            self._n_waiting += len(rest)
            self._changed.notify_all()

    def _try_send(self, data: memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._shut()
            raise ChannelClosed from error

    def _write(self, _stopping: threading.Event) -> None:
        while (data := self._next()) is not None:
            try:
                self._socket.sendall(data, socket.MSG_NOSIGNAL)
            except OSError:
                self.close()
                return
            with self._changed:
                if self._waiting:  # it was not closed meanwhile
                    self._waiting.popleft()
                    self._n_waiting -= len(data)
                    self._changed.notify_all()

    def _next(self) -> memoryview | None:
        """The oldest that waits; it stays there until it is sent, so that nothing overtakes it."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._is_open)
            return self._waiting[0] if self._is_open else None

    def flush(self, timeout_s: float = 5.0) -> None:
        """Wait until everything is with the system, or the other side is gone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def messages(self) -> Iterator[bytes]:
        """Everything the other side sends, until it is gone. One thread."""
        buffer = bytearray()
        scratch = bytearray(READ_BYTES)
        while n_read := self._read(scratch):
            buffer += memoryview(scratch)[:n_read]
            start = 0
            while (end := _end_of_message(buffer, start)) is not None:
                yield bytes(memoryview(buffer)[start + LENGTH.size : end])
                start = end
            if start:
                del buffer[:start]

    def _read(self, scratch: bytearray) -> int:
        try:
            return self._socket.recv_into(scratch)
        except OSError:  # closed by us, or reset
            return 0

    def close(self) -> None:
        """Nothing is sent or received any more; what waits is lost. Joins the writer."""
        with self._changed:
            self._shut()
        self._writer.stop()
        self._socket.close()

    def _shut(self) -> None:
        self._is_open = False
        self._waiting.clear()
        self._n_waiting = 0
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other side is gone
            pass
        self._changed.notify_all()


def _end_of_message(buffer: bytearray, start: int) -> int | None:
    """Where the message that begins at `start` ends; None while it is not complete."""
    if len(buffer) - start < LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(buffer, start)
    if length > MAX_MESSAGE:
        raise ValueError(f"a message of {length} bytes was announced: the stream is broken")
    end = start + LENGTH.size + int(length)
    return end if end <= len(buffer) else None

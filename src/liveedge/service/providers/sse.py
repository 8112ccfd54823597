"""Server-sent events as another server sends them: bytes to the data of events, within bounds. Pure."""

from __future__ import annotations

from liveedge.service.providers.wire import Malformed

MAX_EVENT_BYTES = 1 << 20
MAX_ANSWER_BYTES = 32 << 20


class EventParser:
    """Give it bytes as they come; it gives the data of every event that is complete."""

    def __init__(
        self, *, max_event_bytes: int = MAX_EVENT_BYTES, max_bytes: int = MAX_ANSWER_BYTES
    ) -> None:
        self._max_event_bytes = max_event_bytes
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._rest = bytearray()  # of a line that has not ended
        self._data: list[bytes] = []  # of an event that has not ended
        self._data_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Raises Malformed for what is larger than any answer."""
        self._n_bytes += len(data)
        if self._n_bytes > self._max_bytes:
            raise Malformed(f"its answer is longer than {self._max_bytes} bytes")
        # Only the new bytes are searched: a long line that comes in crumbs costs no square of it.
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        found = [event for line in lines if (event := self._line(line.removesuffix(b"\r")))]
        if len(self._rest) + self._data_bytes > self._max_event_bytes:
            raise Malformed(f"an event of its answer is longer than {self._max_event_bytes} bytes")
        return found

    def finish(self) -> list[bytes]:
        """What the end of the bytes completes: some leave out the last empty line."""
        line = bytes(self._rest).removesuffix(b"\r")
        self._rest.clear()
        return [event for one in (line, b"") if (event := self._line(one))]

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            event = b"\n".join(self._data)
            self._data, self._data_bytes = [], 0
            return event or None
        if line.startswith(b"data:"):
            value = line.removeprefix(b"data:").removeprefix(b" ")
            self._data.append(value)
            self._data_bytes += len(value)
            if self._data_bytes > self._max_event_bytes:
                raise Malformed(
                    f"an event of its answer is longer than {self._max_event_bytes} bytes"
                )
        return None

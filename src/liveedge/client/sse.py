"""Server-sent events: bytes in pieces of any size to whole events. Pure, and within bounds.

As the WHATWG reads them: lines end with CRLF, LF or CR; a BOM at the beginning is skipped; several
`data` lines are one text with LF between; lines that begin with a colon are comments, counted and
never an event. Where the network cuts, inside a character or between CR and LF, makes no difference.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

MAX_EVENT_BYTES = 1 << 20
MAX_STREAM_BYTES = 64 << 20
DONE = "[DONE]"  # the data by which OpenAI's servers end a stream


class StreamTooLarge(Exception):
    """An event or the whole stream exceeds its bound."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `data` has no line end at its end."""

    data: str
    event: str = "message"
    id: str = ""  # the last that was given, as the WHATWG defines it


class EventReader:
    """Give it bytes as they come; it gives every event that they complete."""

    def __init__(
        self, *, max_event_bytes: int = MAX_EVENT_BYTES, max_bytes: int = MAX_STREAM_BYTES
    ) -> None:
        self.n_comments = 0
        self._max_event_bytes = max_event_bytes
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._rest = bytearray()  # of a line that has not ended
        self._after_cr = False  # an LF at the beginning of the next piece belongs to it
        self._at_start = True  # a BOM may come
        self._data: list[bytes] = []  # of an event that has not ended
        self._data_bytes = 0
        self._event = ""
        self._id = ""

    def feed(self, piece: bytes) -> list[Event]:
        """Raises StreamTooLarge."""
        self._n_bytes += len(piece)
        if self._n_bytes > self._max_bytes:
            raise StreamTooLarge(f"the stream is longer than {self._max_bytes} bytes")
        *lines, rest = self._with_lf(piece).split(b"\n")
        if lines:
            # Only new bytes are searched: a long line that comes in crumbs costs no square of it.
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        found = [event for line in lines if (event := self._line(line)) is not None]
        self._check_event()
        return found

    def finish(self) -> list[Event]:
        """What the end of the stream completes: some servers leave out the last empty line."""
        lines = (bytes(self._rest), b"")
        self._rest.clear()
        return [event for line in lines if (event := self._line(line)) is not None]

    def _with_lf(self, piece: bytes) -> bytes:
        if self._after_cr and piece.startswith(b"\n"):
            piece, self._after_cr = piece[1:], False
        if piece:
            self._after_cr = piece.endswith(b"\r")
        if b"\r" not in piece:
            return piece
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _line(self, line: bytes) -> Event | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line:
            return self._dispatch() if self._data or self._event else None
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            self._check_event()
        elif not name:
            self.n_comments += 1
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        return None

    def _dispatch(self) -> Event | None:
        data, event = self._data, self._event or "message"
        self._data, self._data_bytes, self._event = [], 0, ""
        if not data:
            return None
        text = data[0] if len(data) == 1 else b"\n".join(data)
        return Event(text.decode(errors="replace"), event, self._id)

    def _check_event(self) -> None:
        if self._data_bytes + len(self._rest) > self._max_event_bytes:
            raise StreamTooLarge(f"an event is longer than {self._max_event_bytes} bytes")

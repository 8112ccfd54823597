"""Token bytes to text: whole characters only, and never a part of a stop string.

Pure, torch-free; one `TextStream` per sequence.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of one answer into text that may be shown at once.

    Held back: bytes of an unfinished UTF-8 character, and text that may turn out to be the
    beginning of a stop string. Bytes that are no UTF-8 at all become U+FFFD.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stopped = False  # a stop string was met; nothing more comes out
        self._stop = tuple(s for s in stop if s)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def push(self, data: bytes) -> str:
        """The text that became certain with these bytes."""
        return self._advance(self._decoder.decode(data))

    def finish(self) -> str:
        """The rest, once no more bytes come."""
        text = self._advance(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _advance(self, new: str) -> str:
        if self.stopped:
            return ""
        self._held += new
        found = [at for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        cut = len(self._held) - self._possible_stop()
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins some stop string."""
        longest = 0
        for stop in self._stop:
            for n in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:n]):
                    longest = n
                    break
        return longest

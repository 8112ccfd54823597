"""The connections of one server that count less than others: free ones, and those that were refused.

Owns    the order in which they go. Every call takes the same time, however many there are.
Thread  the server's event loop.
"""

from __future__ import annotations

import asyncio

MAX_LEAVING = 100  # with `ConnectionLimits.max_connections` below the files that a process may have


class Crowd:
    """Free is a connection that has no request, and leaving one that was refused and may still be
    sending: what it sends is thrown away until it has read why."""

    def __init__(self) -> None:
        self._free: dict[asyncio.Transport, float] = {}  # since when, by the loop; oldest first
        self._leaving: dict[asyncio.Transport, None] = {}  # oldest first
        self._cut_off: set[asyncio.Transport] = set()  # until their sockets are closed

    @property
    def n_leaving(self) -> int:
        """Whose sockets are still open."""
        return len(self._leaving) + len(self._cut_off)

    def free(self, transport: asyncio.Transport, now_s: float) -> None:
        """It has no request. Again and again, it is free since the first time."""
        self._free.setdefault(transport, now_s)

    def busy(self, transport: asyncio.Transport) -> None:
        """It has a request."""
        self._free.pop(transport, None)

    def make_room(self, *, free_before_s: float) -> bool:
        """Close the one that has been free for the longest, if that began so long ago."""
        while self._free:
            transport, since_s = next(iter(self._free.items()))
            if since_s > free_before_s:
                return False
            del self._free[transport]
            if not transport.is_closing():
                transport.close()
                return True
        return False

    def leave(self, transport: asyncio.Transport) -> None:
        """It was refused. Where too many are leaving, the first of them has to have read."""
        self._free.pop(transport, None)
        self._leaving[transport] = None
        if len(self._leaving) > MAX_LEAVING:
            oldest = next(iter(self._leaving))
            del self._leaving[oldest]
            self._cut_off.add(oldest)
            oldest.abort()

    def gone(self, transport: asyncio.Transport) -> None:
        """Its socket is closed."""
        self._free.pop(transport, None)
        self._leaving.pop(transport, None)
        self._cut_off.discard(transport)

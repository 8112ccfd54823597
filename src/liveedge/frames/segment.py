"""Frames of one segment, each chunk of the history decoded once however many frames it gives.

Owns    decoders, a few for all readers of a stream, and frames decoded on the way to another.
Thread  any number: who asks for a frame decodes up to it while others wait for that chunk, and
        converts it to RGB without any lock.
Bound   `MAX_CURSORS` decoders per stream, each with `MAX_READY_BYTES` of frames that wait to be
        asked for. Beyond that the oldest are given up; what they would have given is decoded again
        from the beginning of its chunk, and counted.

Frames are best asked for in rising order, about as many at once as there are threads.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from liveedge.frames.chunks import HistoryCodec, StoredRun
from liveedge.frames.frame import Frame, Pixels
from liveedge.frames.tiers import InChunk

MAX_READY_BYTES = 12 * 2**20  # 9 decoded frames of 1280x720
MAX_CURSORS = 6  # of a stream; a decoder of two threads holds some 10 MB for 1280x720


class FramePlaces(Protocol):
    """Where frames are: the side of the store."""

    def locate(self, index: int) -> Frame | InChunk:
        """Raises FrameEvicted or StreamNotFound."""
        ...

    def read_chunk(self, index: int, *, until: int) -> StoredRun:
        """The chunk of the frame, up to the frame `until`. Raises as `locate` does."""
        ...

    def undecodable(self, index: int) -> Exception:
        """What to raise for a frame whose bytes do not give it."""
        ...


class CursorPool:
    """Keeps the decoders of a stream's readers few. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[weakref.ref[_Cursor]] = []  # the oldest first; readers own them

    def __len__(self) -> int:
        return sum(ref() is not None for ref in self._open)

    def admit(self, cursor: _Cursor) -> None:
        """Let a new one in; the oldest that nobody is using make room."""
        with self._lock:
            alive = [one for ref in self._open if (one := ref()) is not None and not one.is_over]
            n_over = len(alive) + 1 - MAX_CURSORS
            for one in alive:
                n_over -= n_over > 0 and one.give_up()
            self._open = [weakref.ref(one) for one in (*alive, cursor) if not one.is_over]


class SegmentReader:
    """Loads the frames of one segment."""

    def __init__(
        self,
        indices: Iterable[int],
        *,
        places: FramePlaces,
        codec: HistoryCodec,
        pool: CursorPool,
    ) -> None:
        self._wanted = Counter(indices)  # how often each will still be asked for
        self._places = places
        self._codec = codec
        self._pool = pool
        self._lock = threading.Lock()  # over the two below and `_wanted`
        self._cursors: dict[int, _Cursor] = {}  # by chunk
        self.n_restarts = 0  # of a chunk, from its beginning: order, bounds, or it had grown

    def load(self, index: int) -> NDArray[np.uint8]:
        """RGB [height, width, 3]; nobody may write to it. Raises FrameEvicted or StreamNotFound."""
        found = self._places.locate(index)
        if isinstance(found, Frame):
            self._served(index)
            return found.pixels.rgb()
        pixels = self._decoded(index, found)
        if (pixels.width, pixels.height) != (found.width, found.height):
            raise self._places.undecodable(index)
        return pixels.rgb()

    def _decoded(self, index: int, found: InChunk) -> Pixels:
        while True:
            cursor = self._cursor(index, found.first_index)
            with cursor.lock:
                if not cursor.can_give(index):
                    self._drop(found.first_index, cursor)
                    continue
                pixels = cursor.take(index)
            if self._served(index):
                cursor.keep(index, pixels)
            self._end_if_done(found.first_index, cursor)
            if pixels is None:
                raise self._places.undecodable(index)
            return pixels

    def _cursor(self, index: int, first_index: int) -> _Cursor:
        """The chunk's decoder; where it is past the frame, or the chunk has grown, a new one."""
        with self._lock:
            cursor = self._cursors.get(first_index)
            if cursor is not None:
                return cursor
            wanted = {i for i, n in self._wanted.items() if n > 0} | {index}
        run = self._places.read_chunk(index, until=max(wanted))
        fresh = _Cursor(run, wanted, self._codec)
        with self._lock:
            cursor = self._cursors.setdefault(first_index, fresh)
        if cursor is fresh:
            self._pool.admit(fresh)
        return cursor

    def _drop(self, first_index: int, cursor: _Cursor) -> None:
        with self._lock:
            self.n_restarts += 1
            if self._cursors.get(first_index) is cursor:
                del self._cursors[first_index]

    def _served(self, index: int) -> bool:
        """Count it; True if the frame will be asked for again."""
        with self._lock:
            if self._wanted[index] > 0:
                self._wanted[index] -= 1
            return self._wanted[index] > 0

    def _end_if_done(self, first_index: int, cursor: _Cursor) -> None:
        """Free a decoder from which nothing more is wanted."""
        with self._lock:
            if not any(self._wanted[index] for index in cursor.indices):
                self._cursors.pop(first_index, None)


class _Cursor:
    """One pass over a chunk."""

    def __init__(self, run: StoredRun, wanted: set[int], codec: HistoryCodec) -> None:
        self.lock = threading.Lock()
        self.indices = frozenset(index for index, _ in run.pieces) & wanted
        self._frames = codec.replay(run)
        self._position = -1  # the last frame that was decoded
        self._last = run.pieces[-1][0]  # that it can give
        self._ready: dict[int, Pixels] = {}
        self._ready_bytes = 0
        self.is_over = False

    def give_up(self) -> bool:
        """Free everything, unless somebody is using it."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self._frames.close()
            self._ready.clear()
            self._ready_bytes = 0
            self._position = self._last
            self.is_over = True
        finally:
            self.lock.release()
        return True

    def can_give(self, index: int) -> bool:
        """Whether the frame is at hand or still to come."""
        return index in self._ready or self._position < index <= self._last

    def take(self, index: int) -> Pixels | None:
        """The frame, or None when its bytes do not give it. Hold the lock."""
        ready = self._ready.pop(index, None)
        if ready is not None:
            self._ready_bytes -= ready.nbytes
            return ready
        for at, pixels in self._frames:
            self._position = at
            if at == index:
                return pixels
            if at > index:
                self._put(at, pixels)
                return None
            if at in self.indices:
                self._put(at, pixels)
        self._position = self._last
        return None

    def keep(self, index: int, pixels: Pixels | None) -> None:
        """Have it at hand for the next who asks."""
        if pixels is not None:
            with self.lock:
                self._put(index, pixels)

    def _put(self, index: int, pixels: Pixels) -> None:
        if index in self._ready or self.is_over:
            return
        self._ready[index] = pixels
        self._ready_bytes += pixels.nbytes
        while self._ready_bytes > MAX_READY_BYTES and len(self._ready) > 1:
            oldest = min(self._ready)
            self._ready_bytes -= self._ready.pop(oldest).nbytes

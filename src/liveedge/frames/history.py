"""The bytes of the history: the one buffer that holds them, and the plainest way to fill it.

The arena is a ring of bytes allocated once per stream, so that ten minutes of video can neither grow
nor fragment the process. What stands in it is the business of `chunks`.
"""

from __future__ import annotations

import io
import mmap
from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PREFAULT_STEP_BYTES = 256 * 1024  # 0.1 ms under the store's lock


class PictureCodec(Protocol):
    """Turns one picture into few bytes and back. Called from one thread and many readers."""

    def encode(self, rgb: NDArray[np.uint8]) -> bytes:
        """Compress [height, width, 3] RGB; OSError or ValueError when it cannot."""
        ...

    def decode(self, data: bytes) -> NDArray[np.uint8]:
        """[height, width, 3] RGB of the size that was encoded."""
        ...


class JpegCodec:
    """Baseline JPEG, 4:2:0: 854x480 of a noisy scene in 2 ms to about 50 kB on one core, back in
    2 ms (Pillow with libjpeg-turbo)."""

    def __init__(self, *, quality: int = 80) -> None:
        if not 1 <= quality <= 95:
            raise ValueError(f"JPEG quality is {quality}, needs 1 to 95")
        self._quality = quality

    def encode(self, rgb: NDArray[np.uint8]) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(rgb).save(buffer, "JPEG", quality=self._quality, subsampling="4:2:0")
        return buffer.getvalue()

    def decode(self, data: bytes) -> NDArray[np.uint8]:
        with Image.open(io.BytesIO(data)) as picture:
            return np.array(picture.convert("RGB"))  # a copy: readers get a writable array


class Arena:
    """A ring of bytes, first in first out: entries are contiguous, and the oldest make room.

    `memory` is a shared map of a file of that size; without it the ring is the process's own.

    Thread  none of its own; callers hold the store's lock.
    """

    def __init__(self, capacity_bytes: int, *, memory: mmap.mmap | None = None) -> None:
        if capacity_bytes < 0:
            raise ValueError(f"history capacity is {capacity_bytes} bytes, needs 0 or more")
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.touched_bytes = 0  # from the start: taken of the machine's memory, and kept
        self._is_file = memory is not None
        self._memory = memory
        if memory is None and capacity_bytes:
            self._memory = mmap.mmap(-1, capacity_bytes)
        self._entries: deque[tuple[int, int, int]] = deque()  # frame index, offset, size
        self._next_offset = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest(self) -> int | None:
        """Frame index of the oldest entry."""
        return self._entries[0][0] if self._entries else None

    def prefault_step(self) -> bool:
        """Touch a little of what no entry ever reached; True while more remains.

        Afterwards the process has its final size; without it memory rises until the ring is full.
        """
        if self._memory is None or self.touched_bytes == self.capacity_bytes:
            return False
        start = self.touched_bytes
        stop = min(start + PREFAULT_STEP_BYTES, self.capacity_bytes)
        if self._is_file:  # reading maps a page; writing would send zeros to the disk
            _ = self._memory[start : stop : mmap.PAGESIZE]
        else:
            self._memory[start:stop] = bytes(stop - start)
        self.touched_bytes = stop
        return stop < self.capacity_bytes

    def fits(self, size: int) -> bool:
        """Whether `size` bytes could be held if everything else went."""
        return 0 < size <= self.capacity_bytes

    def offset_for(self, size: int) -> int | None:
        """Where `size` bytes can go now; None when the oldest entry has to go first."""
        if not self._entries:
            return 0
        oldest_offset = self._entries[0][1]
        if self._next_offset <= oldest_offset:  # wrapped, or full
            return self._next_offset if size <= oldest_offset - self._next_offset else None
        if size <= self.capacity_bytes - self._next_offset:
            return self._next_offset
        return 0 if size <= oldest_offset else None

    def write(self, index: int, data: bytes) -> int:
        """Append the entry of a frame and return its offset; room has been made."""
        offset = self.offset_for(len(data))
        assert offset is not None, f"no room was made for {len(data)} bytes of frame {index}"
        assert self._memory is not None, "the arena is closed"
        self._memory[offset : offset + len(data)] = data
        self._entries.append((index, offset, len(data)))
        self._next_offset = offset + len(data)
        self.touched_bytes = max(self.touched_bytes, self._next_offset)
        self.used_bytes += len(data)
        return offset

    def read(self, place: tuple[int, int]) -> bytes:
        """A copy of the entry at (offset, size)."""
        assert self._memory is not None
        offset, size = place
        return self._memory[offset : offset + size]

    def pop_oldest(self) -> int:
        """Drop the oldest entry and return its frame index."""
        index, _, size = self._entries.popleft()
        self.used_bytes -= size
        return index

    def restore(self, entries: list[tuple[int, int, int]]) -> None:
        """Take over entries (frame index, offset, size) that are there already, oldest first."""
        assert not self._entries, "entries would be lost"
        self._entries.extend(entries)
        self.used_bytes = sum(size for _, _, size in entries)
        if entries:
            self._next_offset = entries[-1][1] + entries[-1][2]

    def close(self) -> None:
        """Give the memory back to the system at once."""
        self._entries.clear()
        self.used_bytes = self.touched_bytes = 0
        if self._memory is not None:
            self._memory.close()
            self._memory = None

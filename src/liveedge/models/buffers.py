"""Memory for large tensors that come and go: fresh pages cost more than what is written to them.

A lent tensor needs no return: its memory comes back when the last tensor over it is gone.
Thread    any; a tensor may die on another thread, or in the middle of `take`.
Bound     what is lent and what waits to be lent again stay below `max_bytes` together, unless more
          than that is lent at once, which is the caller's to bound. At the bound what comes back is
          let go, and counted.
"""

from __future__ import annotations

import math
import threading
import weakref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK_BYTES = 4096  # lengths are rounded up to it: near sizes can take each other's place
LINE_BYTES = 64  # of the processor's cache: where a buffer begins


class BufferPool:
    """Lends tensors with arbitrary contents."""

    def __init__(self, *, max_bytes: int, pinned: bool = False) -> None:
        """`pinned`: a CUDA device reads the buffers directly. Who lends one to it must hold the
        tensor until the device has read it."""
        self.lent_bytes = 0
        self.idle_bytes = 0
        self.n_made = 0
        self.n_reused = 0
        self.n_released = 0
        self._max_bytes = max_bytes
        self._make = _pinned if pinned else _aligned
        self._idle: list[NDArray[np.uint8]] = []  # the longest unused first
        # Not a plain lock: a collection inside `take` may bring a buffer back on the same thread.
        self._lock = threading.RLock()

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        n_bytes = math.prod(shape) * dtype.itemsize
        buffer = self._reuse(n_bytes)
        if buffer is None:
            buffer = self._make(-(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES)
        with self._lock:
            self.lent_bytes += buffer.nbytes
        lent = buffer[:n_bytes]
        # The tensor's storage holds `lent`, and every tensor over it holds the storage.
        weakref.finalize(lent, self._put, buffer).atexit = False
        return torch.from_numpy(lent).view(dtype).view(shape)

    def _reuse(self, n_bytes: int) -> NDArray[np.uint8] | None:
        """An idle buffer that is long enough and not much too long; else the oldest makes room."""
        with self._lock:
            for index in reversed(range(len(self._idle))):  # the warmest in the cache first
                if n_bytes <= self._idle[index].nbytes <= 2 * n_bytes + BLOCK_BYTES:
                    self.n_reused += 1
                    return self._pop(index)
            self.n_made += 1
            while self._idle and self.lent_bytes + self.idle_bytes + n_bytes > self._max_bytes:
                self._pop(0)
                self.n_released += 1
            return None

    def _pop(self, index: int) -> NDArray[np.uint8]:
        buffer = self._idle.pop(index)
        self.idle_bytes -= buffer.nbytes
        return buffer

    def _put(self, buffer: NDArray[np.uint8]) -> None:
        with self._lock:
            self.lent_bytes -= buffer.nbytes
            if self.lent_bytes + self.idle_bytes + buffer.nbytes > self._max_bytes:
                self.n_released += 1
                return
            self._idle.append(buffer)
            self.idle_bytes += buffer.nbytes


def _pinned(n_bytes: int) -> NDArray[np.uint8]:
    return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True).numpy()


def _aligned(n_bytes: int) -> NDArray[np.uint8]:
    memory = np.empty(n_bytes + LINE_BYTES, np.uint8)
    offset = -memory.ctypes.data % LINE_BYTES
    return memory[offset : offset + n_bytes]

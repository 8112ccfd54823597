"""Which tokens may come next, computed beside the forward pass that scores them. Torch-free.

Thread   `liveedge-masks`, begun with the first form. It takes the interpreter's lock only to start
         and to end a piece of work; in between the library runs without it.
Bound    two pieces of work at once, one of the running answers and one of those that begin: the
         engine thread waits for each before it begins the next of its kind.
Life     ends by `close`, or with its owner.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import InternalError
from liveedge.core.tasks import OwnedThread

if TYPE_CHECKING:  # whoever has a matcher has the library: nobody else must have it
    from llguidance import LLExecutor

    from liveedge.engine.form.grammar import Matcher

log = logging.getLogger("liveedge.engine")

MAX_THREADS: Final = 8  # more rows than this at once are rare, and each is some 50 us


class _Work:
    """The masks of some rows, each with its own matcher."""

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self._matchers = [(matcher.library, row) for row, matcher in enumerate(matchers)]
        self._bits = np.empty((len(matchers), matchers[0].n_words), np.int32)
        self._done = threading.Event()
        self._failed = False

    def run(self, executor: LLExecutor) -> None:
        n_rows, n_words = self._bits.shape
        try:
            executor.unsafe_compute_mask_ptr(
                self._matchers, self._bits.ctypes.data, 4 * n_words, n_rows
            )
        except Exception:  # the library's; the thread goes on with the work of others
            log.exception("masks could not be computed")
            self._failed = True
        finally:
            self._done.set()

    def bits(self, row: int) -> NDArray[np.int32]:
        self._done.wait()
        if self._failed:
            raise InternalError("the grammar failed: its mask could not be computed")
        mask: NDArray[np.int32] = self._bits[row]
        return mask


class _Row:
    """One row of a piece of work: see `grammar.Mask`."""

    def __init__(self, work: _Work, row: int) -> None:
        self._work = work
        self._row = row

    def bits(self) -> NDArray[np.int32]:
        return self._work.bits(self._row)


_Jobs: TypeAlias = SimpleQueue[_Work | None]


class Masks:
    """Computes masks ahead. Called on the engine thread only."""

    def __init__(self, *, n_threads: int) -> None:
        self._n_threads = max(1, min(n_threads, MAX_THREADS))
        self._thread: OwnedThread | None = None
        self._jobs: _Jobs = SimpleQueue()
        self._end = weakref.finalize(self, self._jobs.put, None)

    def begin(self, matchers: Sequence[Matcher]) -> None:
        """Compute what may come next for each of these; `Matcher.forbidden` waits for it."""
        if not matchers:
            return
        if self._thread is None:
            # The thread must not keep its owner.
            jobs, executor = self._jobs, matchers[0].open_executor(self._n_threads)
            self._thread = OwnedThread("liveedge-masks", lambda _: _run(jobs, executor))
            self._thread.start()
        work = _Work(matchers)
        for row, matcher in enumerate(matchers):
            matcher.ahead = _Row(work, row)
        self._jobs.put(work)

    def close(self) -> None:
        """End the thread; what was begun is computed first."""
        self._end()
        if self._thread is not None:
            self._thread.stop()


def _run(jobs: _Jobs, executor: LLExecutor) -> None:
    while (work := jobs.get()) is not None:
        work.run(executor)

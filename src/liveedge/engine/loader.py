"""Worker threads that fetch pixels and make patches, so that the engine thread never does.

Threads  `liveedge-load-N`. `submit`, `drop` and `close` are called by the engine thread.
Bound    the scheduler never has more than `Limits.max_loading` groups here.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from liveedge.core.errors import InternalError, LiveEdgeError, MediaInvalid
from liveedge.core.tasks import OwnedThread
from liveedge.engine.plan import LoadJob
from liveedge.engine.request import FrameInput

log = logging.getLogger("liveedge.engine")


class Preprocess(Protocol):
    """Pixels of a temporal group to what the encoder reads."""

    def __call__(self, frames: Sequence[NDArray[np.uint8]], *, size: tuple[int, int]) -> object: ...


class Loader:
    """Runs load jobs; tells `done` about each that was not dropped in time, on a worker thread."""

    def __init__(
        self,
        *,
        preprocess: Preprocess,
        n_threads: int,
        done: Callable[[LoadJob, object | LiveEdgeError], None],
    ) -> None:
        self._preprocess = preprocess
        self._done = done
        self._jobs: deque[LoadJob] = deque()
        self._changed = threading.Condition()
        self._threads = [OwnedThread(f"liveedge-load-{n}", self._work) for n in range(n_threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, jobs: Iterable[LoadJob]) -> None:
        with self._changed:
            self._jobs.extend(jobs)
            self._changed.notify_all()

    def drop(self, jobs: Sequence[LoadJob]) -> None:
        """Nobody waits for these: those that no worker has begun are forgotten."""
        if jobs:
            with self._changed:
                self._jobs = deque(job for job in self._jobs if job not in jobs)

    def close(self) -> None:
        """Let every worker end after its present job."""
        with self._changed:
            self._jobs.clear()
            for thread in self._threads:
                thread.stopping.set()
            self._changed.notify_all()
        for thread in self._threads:
            thread.stop()

    def _work(self, stopping: threading.Event) -> None:
        torch.set_num_threads(1)  # of this thread alone: the engine thread keeps its own
        while (job := self._next(stopping)) is not None:
            self._done(job, self._run(job))

    def _next(self, stopping: threading.Event) -> LoadJob | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or stopping.is_set())
            return None if stopping.is_set() else self._jobs.popleft()

    def _run(self, job: LoadJob) -> object | LiveEdgeError:
        group = job.group
        try:
            frames = [load_frame(frame) for frame in group.frames]
            return self._preprocess(frames, size=(group.height, group.width))
        except LiveEdgeError as error:
            return error
        except Exception:
            log.exception("a frame could not be loaded")
            return InternalError("a frame could not be loaded")


def load_frame(frame: FrameInput) -> NDArray[np.uint8]:
    """The pixels of a frame, checked against what was promised."""
    pixels = frame.load()
    expected = (frame.height, frame.width, 3)
    if pixels.shape != expected or pixels.dtype != np.uint8:
        raise MediaInvalid(
            f"a frame announced as {frame.width}x{frame.height} RGB came as {pixels.dtype} "
            f"{list(pixels.shape)}"
        )
    return pixels

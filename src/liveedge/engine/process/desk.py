"""Where the engine asks for pixels: the side that has the frames.

Owns     which live request can give the frames of which group, and every range that was handed out.
Threads  `enter` is called by whoever submits; `take`, `reset` and `close` by the link's thread;
         frames are loaded by workers, `liveedge-desk-N`.
Bound    the engine asks for `Limits.max_loading` groups at most; ranges wait in order for room.
Invariants
1. A fetch is answered once, or withdrawn by the engine, or forgotten together with the engine.
2. A range is given back when the engine says `Freed`, when its fetch failed or was withdrawn before
   it was answered, and when the engine is gone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import FrameEvicted, InternalError, LiveEdgeError, MediaInvalid
from liveedge.core.tasks import OwnedThread
from liveedge.engine.interface import FeatureGroup, PreparedRequest
from liveedge.engine.process.messages import (
    DropFetch,
    Fetch,
    Fetched,
    Freed,
    Pixels,
    Released,
    SharedPixels,
)
from liveedge.engine.process.shared import FrameRoom, frame_bytes
from liveedge.engine.request import FrameInput

log = logging.getLogger("liveedge.engine")


@dataclass(slots=True, eq=False)
class _Order:
    """One fetch. Its identity is the owner of its range."""

    ticket: int
    group: FeatureGroup
    only_exact: bool
    withdrawn: bool = False
    answered: bool = False  # the engine has its range now


class Desk:
    """Loads frames of live requests for the engine. Without a room, arrays are passed as they are."""

    def __init__(
        self, *, send: Callable[[Fetched], None], n_threads: int, room: FrameRoom | None
    ) -> None:
        self._send = send
        self._room = room
        self._lock = threading.Condition()  # over the four below
        self._groups: dict[str, dict[str, FeatureGroup]] = {}  # by key, by request
        self._keys: dict[str, tuple[str, ...]] = {}  # of each live request
        self._orders: dict[int, _Order] = {}  # by ticket, from fetch to the end of its range
        self._waiting: deque[_Order] = deque()
        self._threads = [OwnedThread(f"liveedge-desk-{n}", self._work) for n in range(n_threads)]
        for thread in self._threads:
            thread.start()

    @property
    def n_live(self) -> int:
        """Requests whose frames can be fetched."""
        return len(self._keys)

    @property
    def used_bytes(self) -> int:
        return 0 if self._room is None else self._room.used_bytes

    def enter(self, prepared: PreparedRequest) -> None:
        """The engine may ask for the frames of this request from now on."""
        request_id = prepared.request.request_id
        with self._lock:
            self._keys[request_id] = tuple(group.key for group in prepared.groups)
            for group in prepared.groups:
                self._groups.setdefault(group.key, {})[request_id] = group

    def take(self, message: Fetch | DropFetch | Freed | Released) -> None:
        match message:
            case Fetch():
                self._fetch(message)
            case DropFetch(tickets):
                self._withdraw(tickets)
            case Freed(ticket):
                self._free(ticket)
            case Released(request_ids):
                self._release(request_ids)

    def reset(self) -> None:
        """The engine is gone, and with it everything that it asked and held."""
        with self._lock:
            orders = list(self._orders.values())
            self._orders.clear()
            self._waiting.clear()
            self._groups.clear()
            self._keys.clear()
            for order in orders:
                order.withdrawn = True
        # First those that wait for room, so that none is given to them now.
        for order in sorted(orders, key=lambda order: order.answered):
            self._let_go(order)

    def close(self) -> None:
        """Let every worker end after its present frame."""
        self.reset()
        with self._lock:
            for thread in self._threads:
                thread.stopping.set()
            self._lock.notify_all()
        for thread in self._threads:
            if not thread.stop():
                log.warning("a frame is still being loaded; its thread is left behind")

    def _fetch(self, message: Fetch) -> None:
        with self._lock:
            group = next(iter(self._groups.get(message.key, {}).values()), None)
            if group is not None:
                order = _Order(message.ticket, group, message.only_exact)
                self._orders[message.ticket] = order
                self._waiting.append(order)
                self._lock.notify()
        if group is None:
            error = InternalError("the engine asked for frames that no live request has")
            self._send(Fetched(message.ticket, error))

    def _withdraw(self, tickets: Iterable[int]) -> None:
        """Those that were answered already come back as `Freed`."""
        with self._lock:
            known = [self._orders[ticket] for ticket in tickets if ticket in self._orders]
            orders = [order for order in known if not order.answered]
            for order in orders:
                order.withdrawn = True
                del self._orders[order.ticket]
            self._waiting = deque(order for order in self._waiting if not order.withdrawn)
        for order in orders:
            self._let_go(order)

    def _let_go(self, order: _Order) -> None:
        """Of a withdrawn order: a worker that is writing gives the range back itself."""
        if self._room is None:
            return
        if order.answered:
            self._room.free(order)
        else:
            self._room.cancel(order)

    def _free(self, ticket: int) -> None:
        with self._lock:
            order = self._orders.pop(ticket, None)
        if order is not None and self._room is not None:
            self._room.free(order)

    def _release(self, request_ids: Iterable[str]) -> None:
        with self._lock:
            for request_id in request_ids:
                for key in self._keys.pop(request_id, ()):
                    holders = self._groups.get(key, {})
                    holders.pop(request_id, None)
                    if not holders:
                        self._groups.pop(key, None)

    # workers

    def _work(self, stopping: threading.Event) -> None:
        while (order := self._next(stopping)) is not None:
            self._answer(order, self._try_load(order))

    def _next(self, stopping: threading.Event) -> _Order | None:
        with self._lock:
            self._lock.wait_for(lambda: self._waiting or stopping.is_set())
            return None if stopping.is_set() else self._waiting.popleft()

    def _answer(self, order: _Order, outcome: Pixels | LiveEdgeError | None) -> None:
        """None: withdrawn while it waited for room."""
        with self._lock:
            wanted = not order.withdrawn
            failed = isinstance(outcome, LiveEdgeError)
            order.answered = wanted and not failed
            if wanted and failed:
                del self._orders[order.ticket]
        if not order.answered and self._room is not None:
            self._room.free(order)
        if wanted and outcome is not None:
            self._send(Fetched(order.ticket, outcome))

    def _try_load(self, order: _Order) -> Pixels | LiveEdgeError | None:
        try:
            return self._load(order)
        except LiveEdgeError as error:
            return error
        except Exception:  # whatever a source raises is told to its own request alone
            log.exception("a frame could not be loaded")
            return InternalError("a frame could not be loaded")

    def _load(self, order: _Order) -> Pixels | None:
        frames = order.group.frames
        if self._room is None:
            return tuple(load_frame(frame, only_exact=order.only_exact) for frame in frames)
        # Room first: what waits for it holds no pixels.
        sizes = tuple((frame.height, frame.width) for frame in frames)
        place = self._room.take(order, sum(frame_bytes(*size) for size in sizes))
        if place is None:
            return None
        pixels = SharedPixels(place, sizes)
        for frame, target in zip(frames, self._room.arrays(pixels), strict=True):
            if order.withdrawn:
                return None
            np.copyto(target, load_frame(frame, only_exact=order.only_exact))
        return pixels


def load_frame(frame: FrameInput, *, only_exact: bool = False) -> NDArray[np.uint8]:
    """The pixels of a frame, checked against what was promised."""
    pixels = frame.load()
    if only_exact and not frame.is_exact():  # asked after: exact now was exact then
        raise FrameEvicted(f"of frame {frame.key} only a compressed copy is left")
    expected = (frame.height, frame.width, 3)
    if pixels.shape != expected or pixels.dtype != np.uint8:
        raise MediaInvalid(
            f"a frame announced as {frame.width}x{frame.height} RGB came as {pixels.dtype} "
            f"{list(pixels.shape)}"
        )
    return pixels

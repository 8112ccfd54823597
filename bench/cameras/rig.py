"""A whole server in a process of its own, with somebody inside who looks at its frames.

Clients and cameras talk to it as to any server. Beside that the bench may ask, over a pipe: which
pictures came into a stream, when, and whether they are what was sent; what each thread has
computed; what the process holds. There is no model: these benches ask no question.

Owns    the child process; leaving the `with` block ends it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cameras.footage import Footage, Footages, Shape
from liveedge.client.http import Client
from liveedge.core.clock import SystemClock
from liveedge.core.errors import FrameEvicted, StreamNotFound
from liveedge.core.machine import resident_bytes, steady_heap
from liveedge.core.tasks import OwnedThread
from liveedge.frames.frame import Pixels, RgbPixels
from liveedge.frames.store import FrameStore
from liveedge.media.pixels import AS_STORED, AvPixels
from liveedge.server import BackgroundServer
from liveedge.service.keys import OPEN
from liveedge.settings import Settings
from liveedge.sim.clockcode import read_code
from liveedge.testing.engine import FakeEngine

START_LIMIT_S = 60.0
SETTLE_LIMIT_S = 20.0
POLL_S = 0.02
LOOK_S = 0.2
SAMPLES_PER_S = 10.0
MAX_SEEN = 200_000  # two hours of a stream; the oldest go
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DEFAULTS: Mapping[str, Any] = {
    "port": 0,
    "hot_mb": 48,
    "history_mb": 32,
    "retention_s": 36,  # as much for a second as a server has by default
    "streams_mb": 4096,
    "max_streams": 32,
    "max_streams_per_key": 32,
    "log_level": "error",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One frame as a reader found it."""

    index: int
    arrived_ms: float  # wall clock
    time_ms: int  # on the stream's clock
    number: int | None  # what the picture says; None: it cannot be read
    corrupt: bool  # what the server says
    smeared: bool  # what the truth says
    variant: int = 0  # which publisher's it is
    evicted: bool = False  # gone before the reader came to it: nothing is known of the picture


@dataclass(frozen=True, slots=True)
class Age:
    """Of the newest frame at one moment, by the clock burned into it."""

    at_s: float  # monotonic
    ms: float


@dataclass(frozen=True, slots=True)
class Held:
    """What the process holds."""

    fds: int
    threads: int
    rss_mb: float


class Rig:
    """The bench's side."""

    def __init__(self, **settings: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._child = context.Process(
            target=_run, args=(theirs, {**DEFAULTS, **settings}), daemon=True
        )
        self._stack = ExitStack()
        self.url = ""

    def __enter__(self) -> Rig:
        self._child.start()
        self._stack.callback(self._end)
        if not self._pipe.poll(START_LIMIT_S):
            raise SystemExit(f"the server did not start within {START_LIMIT_S:.0f} s")
        self.url = self._pipe.recv()
        self.client = self._stack.enter_context(Client(self.url, clock=SystemClock()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        assert self._child.pid is not None
        return self._child.pid

    # ── what can be asked ──

    def watch(self, stream_id: str, footage: Footage, *, truth: bool = True) -> None:
        """Begin to look at every frame; without `truth` at its number only, which costs little."""
        self._ask("watch", stream_id, footage.path.parent, footage.shape, truth)

    def seen(self, stream_id: str) -> list[Seen]:
        """What was seen since the last call."""
        found: list[Seen] = self._ask("seen", stream_id)
        return found

    def sample_ages(self, stream_id: str, footage: Footage) -> None:
        """Begin to look at the age of the newest frame, at moments of chance."""
        self._ask("sample_ages", stream_id, footage.path.parent, footage.shape)

    def ages(self, stream_id: str) -> list[Age]:
        """What was sampled since the last call."""
        found: list[Age] = self._ask("ages", stream_id)
        return found

    def subscribe_and_forget(self, stream_id: str) -> None:
        """Wait for a newer frame, take it, and keep it without a look, for as long as there are any."""
        self._ask("subscribe_and_forget", stream_id)

    def counters(self, stream_id: str) -> dict[str, Any]:
        """Of the frame store, read at one instant."""
        found: dict[str, Any] = self._ask("counters", stream_id)
        return found

    def held(self) -> Held:
        """Once streams that ended are gone."""
        found: Held = self._ask("held")
        return found

    def cpu_s(self) -> dict[str, float]:
        """Processor time by thread, by name; of equal names the sum."""
        found: dict[str, float] = self._ask("cpu_s")
        return found

    def delete(self, stream_id: str) -> None:
        """End a stream and wait until nothing of it is left."""
        self._ask("forget", stream_id)
        self.client.delete_stream(stream_id)

    def _ask(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, arguments))
        worked, answer = self._pipe.recv()
        if not worked:
            raise SystemExit(f"the server's side could not {name}: {answer}")
        return answer

    def _end(self) -> None:
        self._pipe.close()  # which ends the child
        self._child.join(SETTLE_LIMIT_S)
        if self._child.is_alive():
            self._child.kill()
            self._child.join()


# ── the server's side ──


def _run(pipe: Connection, settings: Mapping[str, Any]) -> None:
    steady_heap()
    clock = SystemClock()
    server = BackgroundServer(
        Settings(**settings), clock=clock, load_engine=lambda: FakeEngine(clock=clock)
    )
    with server:
        inside = _Inside(server, clock)
        pipe.send(server.url)
        try:
            while True:
                name, arguments = pipe.recv()
                pipe.send(_answer(inside, name, arguments))
        except EOFError:  # the bench has ended
            inside.close()


def _answer(inside: _Inside, name: str, arguments: Any) -> tuple[bool, Any]:
    try:
        return True, getattr(inside, name)(*arguments)
    except (StreamNotFound, KeyError, OSError) as error:
        return False, repr(error)


class _Inside:
    """Answers the bench; its methods are called by name."""

    def __init__(self, server: BackgroundServer, clock: SystemClock) -> None:
        self._server = server
        self._clock = clock
        self._watchers: dict[str, _Watcher] = {}
        self._samplers: dict[str, _Sampler] = {}
        self._threads: dict[str, list[OwnedThread]] = defaultdict(list)
        self._footages: dict[Path, Footages] = {}

    def watch(self, stream_id: str, folder: Path, shape: Shape, truth: bool) -> None:  # noqa: FBT001  called by name over the pipe
        watcher = _Watcher(self._store(stream_id), self._clock, self._footage(folder, shape), truth)
        self._watchers[stream_id] = watcher
        self._run(stream_id, "watch", watcher.work)

    def seen(self, stream_id: str) -> list[Seen]:
        found = self._watchers[stream_id].seen
        return [found.popleft() for _ in range(len(found))]

    def sample_ages(self, stream_id: str, folder: Path, shape: Shape) -> None:
        sampler = _Sampler(self._store(stream_id), self._clock, self._footage(folder, shape))
        self._samplers[stream_id] = sampler
        self._run(stream_id, "sample", sampler.work)

    def ages(self, stream_id: str) -> list[Age]:
        found = self._samplers[stream_id].ages
        return [found.popleft() for _ in range(len(found))]

    def subscribe_and_forget(self, stream_id: str) -> None:
        store = self._store(stream_id)
        self._run(stream_id, "forget", lambda stopping: _take_one(store, stopping))

    def forget(self, stream_id: str) -> None:
        for thread in self._threads.pop(stream_id, ()):
            thread.stop()
        self._watchers.pop(stream_id, None)
        self._samplers.pop(stream_id, None)

    def counters(self, stream_id: str) -> dict[str, Any]:
        counters = self._store(stream_id).counters()
        return asdict(counters) | {"dropped": counters.dropped}

    def held(self) -> Held:
        deadline_s = time.monotonic() + SETTLE_LIMIT_S
        while self._server.built.streams.n_closing and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        fds = len(list(Path("/proc/self/fd").iterdir()))
        threads = len(list(Path("/proc/self/task").iterdir()))
        return Held(fds, threads, (resident_bytes() or 0) / 2**20)

    def cpu_s(self) -> dict[str, float]:
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        found: dict[str, float] = {}
        for task in Path("/proc/self/task").iterdir():
            name = names.get(int(task.name), "(libraries)")
            stat = (task / "stat").read_text().rpartition(")")[2].split()
            spent_s = (int(stat[11]) + int(stat[12])) / TICKS_PER_S
            found[name] = found.get(name, 0.0) + spent_s
        return found

    def close(self) -> None:
        for stream_id in list(self._threads):
            self.forget(stream_id)

    def _run(self, stream_id: str, name: str, work: Callable[[threading.Event], None]) -> None:
        thread = OwnedThread(f"bench-{name}", work)
        self._threads[stream_id].append(thread)
        thread.start()

    def _footage(self, folder: Path, shape: Shape) -> Footage:
        if folder not in self._footages:
            self._footages[folder] = Footages(folder)
        return self._footages[folder](shape)

    def _store(self, stream_id: str) -> FrameStore:
        return self._server.built.streams.own_store(OPEN.tenant, stream_id)


@dataclass(slots=True)
class _Watcher:
    """Looks at every frame of one stream, in order."""

    store: FrameStore
    clock: SystemClock
    footage: Footage
    truth: bool
    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=MAX_SEEN))
    siblings: dict[int, Footage] = field(default_factory=dict)
    offset_s: float = field(init=False)  # of the wall clock against the monotonic one

    def __post_init__(self) -> None:
        self.offset_s = self.clock.wall_ms() / 1000 - self.clock.monotonic_s()

    def work(self, stopping: threading.Event) -> None:
        newest: int | None = None
        while not stopping.is_set():
            frame = self.store.wait_newer_blocking(newest, LOOK_S)
            if frame is None:
                continue
            if newest is not None and frame.index > newest + 1:
                self._look_back(newest + 1, frame.index)
            place = (frame.index, frame.arrived_s, frame.stream_time_ms)
            self._add(place, frame.pixels, corrupt=frame.corrupt)
            newest = frame.index

    def _look_back(self, first: int, end: int) -> None:
        """Frames that came in one burst: they are found in the index."""
        snapshot = self.store.snapshot()
        rows = {int(index): row for row, index in enumerate(snapshot.index)}
        for index in range(first, end):
            row = rows.get(index)
            loaded = None if row is None else self._loaded(index)
            if row is None or loaded is None:
                self.seen.append(Seen(index, math.nan, 0, None, False, False, evicted=True))
                continue
            place = (index, float(snapshot.arrived_s[row]), int(snapshot.stream_time_ms[row]))
            self._add(place, RgbPixels(loaded), corrupt=bool(snapshot.corrupt[row]))

    def _loaded(self, index: int) -> NDArray[np.uint8] | None:
        try:
            return self.store.load(index)
        except (FrameEvicted, StreamNotFound):
            return None

    def _add(self, place: tuple[int, float, int], pixels: Pixels, *, corrupt: bool) -> None:
        index, arrived_s, time_ms = place
        rgb = pixels.rgb() if self.truth else brightness(pixels)
        variant, number = self.footage.read(rgb) or (self.footage.shape.variant, None)
        smeared = self.truth and self._sibling(variant).is_smeared(rgb)
        at_ms = (arrived_s + self.offset_s) * 1000
        self.seen.append(Seen(index, at_ms, time_ms, number, corrupt, smeared, variant))

    def _sibling(self, variant: int) -> Footage:
        """The same loop of another publisher."""
        shape = replace(self.footage.shape, variant=variant)
        if variant not in self.siblings:
            self.siblings[variant] = Footage(self.footage.path.parent, shape)
        return self.siblings[variant]


@dataclass(slots=True)
class _Sampler:
    """Takes the newest frame at moments that have nothing to do with the camera's."""

    store: FrameStore
    clock: SystemClock
    footage: Footage
    ages: deque[Age] = field(default_factory=lambda: deque(maxlen=MAX_SEEN))

    def work(self, stopping: threading.Event) -> None:
        chance = random.Random(0)
        while not stopping.wait(chance.uniform(0, 2 / SAMPLES_PER_S)):
            frame = self.store.latest
            if frame is None:
                continue
            now_s, now_ms = self.clock.monotonic_s(), time.time() * 1000
            reading = read_code(brightness(frame.pixels))
            if reading is None:
                continue
            by_loop_ms = self.footage.age_ms(reading.frame_number, now_ms)
            age_ms = now_ms - reading.wall_ms if reading.wall_ms else by_loop_ms
            self.ages.append(Age(now_s, age_ms))


def _take_one(store: FrameStore, stopping: threading.Event) -> None:
    """The worst consumer inside: it has subscribed, and holds what it got for ever."""
    frame = store.wait_newer_blocking(None, LOOK_S)
    stopping.wait()
    del frame


def brightness(pixels: Pixels) -> NDArray[np.uint8]:
    """[height, width, 1] of a frame as its decoder left it: no conversion, no copy."""
    if not isinstance(pixels, AvPixels) or pixels.turn != AS_STORED:
        return pixels.rgb()
    plane = pixels.frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)  # type: ignore[call-overload]
    shown: NDArray[np.uint8] = rows[: plane.height, : plane.width, None]
    return shown

"""How the two halves of an engine reach each other: in one process, or through a socket.

`ThreadLink` runs the engine's half in a thread, `ProcessLink` in a process that it watches and
replaces. The client is the same on both.
Threads  `send` may be called by any thread and never blocks. The `Listener` is called by the engine
         thread and, where pixels are given back, its workers; or by a socket's reader alone.
Invariants
1. `down` comes after the last message of an engine and before the first of the next one.
2. After `down` nothing of the ended engine is alive: neither its thread nor its process.
"""

from __future__ import annotations

import importlib
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from liveedge.core.clock import Clock
from liveedge.core.errors import InternalError, LiveEdgeError, ModelUnavailable
from liveedge.core.log import present_format
from liveedge.core.tasks import OwnedThread
from liveedge.engine.interface import EngineSettings, EngineStatus
from liveedge.engine.process.channel import Channel, ChannelClosed
from liveedge.engine.process.messages import (
    FromEngine,
    Opened,
    OpenFailed,
    Ping,
    Pong,
    Stop,
    ToEngine,
    most_messages,
)
from liveedge.engine.process.shared import FrameRoom
from liveedge.engine.process.spawn import Child, Nursery
from liveedge.engine.process.supervisor import SHORTEST_RETRY_S, Action, Patience, Supervision
from liveedge.engine.process.wire import Open, pack, unpack_from_engine
from liveedge.models.qwen3_vl.vocabulary import Vocabulary

log = logging.getLogger("liveedge.engine")

STOP_TIMEOUT_S = 10.0
LAST_BREATH_S = 0.5  # between the end of a process's socket and its own
START = "liveedge.engine.process.start"  # the modules that import torch, by name: see `ThreadLink`
CORE = "liveedge.engine.process.core"
# A prompt of 32,000 tokens takes 1.3 MB on the wire. More than all of them means nobody reads.
MESSAGE_BYTES = 2 << 20


class Listener(Protocol):
    """The client."""

    def take(self, message: FromEngine) -> None: ...

    def down(self, error: LiveEdgeError, status: EngineStatus) -> None:
        """The engine is gone: every request ends with `error`. `loading`: another one comes."""
        ...


class Link(Protocol):
    """The client's way to an engine."""

    @property
    def n_restarts(self) -> int: ...

    @property
    def pid(self) -> int | None:
        """Of the engine process, while there is one."""
        ...

    @property
    def standby_pid(self) -> int | None:
        """Of the process that waits for its turn, if there is one."""
        ...

    def retry_after_s(self) -> float:
        """While there is no engine that answers: when to ask again, roughly. Any thread."""
        ...

    @property
    def room(self) -> FrameRoom | None:
        """Where pixels are written for the engine; None where arrays are passed as they are."""
        ...

    def start(self, listener: Listener) -> None: ...

    def send(self, message: ToEngine) -> None:
        """Lost where there is no engine: whoever waits for an answer gets `down`."""
        ...

    def close(self) -> None:
        """The engine ends; `down` was called with `closed` when this returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What runs at the other end. `settings.device` is one that was found."""

    folder: Path
    settings: EngineSettings
    model_id: str
    clock: Clock


class ThreadLink:
    """The engine's half in a thread of this process. A crash is its end."""

    n_restarts = 0
    pid: int | None = None
    standby_pid: int | None = None
    room: FrameRoom | None = None

    def __init__(self, engine: Engine, *, vocabulary: Vocabulary) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._listener: Listener | None = None
        self._core: _Core | None = None
        self._thread = OwnedThread("liveedge-engine", self._run)

    def retry_after_s(self) -> float:
        return SHORTEST_RETRY_S

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._thread.start()

    def send(self, message: ToEngine) -> None:
        core = self._core
        if core is not None:
            core.take(message)

    def close(self) -> None:
        self._thread.stopping.set()
        self.send(Stop())
        if not self._thread.stop(STOP_TIMEOUT_S):
            log.error("the engine thread did not end within %.0f s", STOP_TIMEOUT_S)

    def _run(self, stopping: threading.Event) -> None:
        listener = self._listener
        assert listener is not None
        error: LiveEdgeError = ModelUnavailable("the engine was stopped")
        status: EngineStatus = "closed"
        try:
            core = self._open(listener)
            if stopping.is_set():
                core.take(Stop())
            core.run()
        except LiveEdgeError as failure:
            status, error = "failed", failure
            log.error("the engine cannot run: %s", failure)  # noqa: TRY400  a user's mistake
        except BaseException:
            status, error = "failed", InternalError("the engine failed")
            raise  # OwnedThread reports it
        finally:
            self._core = None
            listener.down(error, status)

    def _open(self, listener: Listener) -> _Core:
        # By name, because torch takes seconds to import and the other link never needs it here.
        engine, clock = self._engine, self._engine.clock
        began_s = clock.monotonic_s()
        start, core = importlib.import_module(START), importlib.import_module(CORE)
        imported_s = clock.monotonic_s()
        opening = start.Opening(engine.folder, engine.settings, clock, vocabulary=self._vocabulary)
        made: _Core = core.EngineCore(
            opening.open(), settings=engine.settings, send=listener.take, clock=clock
        )
        made.start()
        self._core = made
        imports_ms = (imported_s - began_s) * 1000
        listener.take(Opened({"imports": imports_ms, **opening.startup_ms}))
        return made


class _Core(Protocol):
    """See `core.EngineCore`, which cannot be named here without torch."""

    def start(self) -> None: ...

    def run(self) -> None: ...

    def take(self, message: ToEngine) -> None: ...


@dataclass(slots=True, eq=False)
class _Session:
    """One process from its first message to its end."""

    child: Child
    channel: Channel
    reader: OwnedThread
    cannot_run: LiveEdgeError | None = None
    over: bool = False  # the reader saw the end


class ProcessLink:
    """The engine's half in a process of its own, replaced when it crashes or hangs.

    Threads  `liveedge-supervise` starts, watches and ends processes; each has a reader,
             `liveedge-from-engine`, and a writer, `liveedge-to-engine`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        patience: Patience,
        nursery: Nursery,
    ) -> None:
        """The nursery is ours now, with the process that may wait in it."""
        assert nursery.frames_fd is not None
        self._engine = engine
        self._nursery = nursery
        self._supervision = Supervision(patience)
        self._frame_bytes = engine.settings.shared_frame_bytes
        self.room: FrameRoom | None = FrameRoom(nursery.frames_fd, self._frame_bytes)
        self._listener: Listener | None = None
        self._session: _Session | None = None
        self._changed = threading.Event()
        self._n_pings = 0
        self._lock = threading.Lock()  # over the supervision
        self._thread = OwnedThread("liveedge-supervise", self._supervise)

    @property
    def n_restarts(self) -> int:
        return self._supervision.n_restarts

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        session = self._session
        return None if session is None else session.child.pid

    @property
    def standby_pid(self) -> int | None:
        child = self._nursery.waiting
        return None if child is None else child.pid

    def retry_after_s(self) -> float:
        with self._lock:
            return self._supervision.retry_after_s(self._engine.clock.monotonic_s())

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._thread.start()

    def send(self, message: ToEngine) -> None:
        session = self._session
        if session is not None:
            try:
                session.channel.send(pack(message))
            except ChannelClosed:
                self._changed.set()  # the supervisor finds out why

    def close(self) -> None:
        self._thread.stopping.set()
        self._changed.set()
        if not self._thread.stop(STOP_TIMEOUT_S):
            log.error("the engine's supervisor did not end within %.0f s", STOP_TIMEOUT_S)

    # the supervisor's thread

    def _supervise(self, stopping: threading.Event) -> None:
        error: LiveEdgeError = ModelUnavailable("the engine was stopped")
        status: EngineStatus = "closed"
        try:
            while not stopping.is_set():
                self._look()
                self._engine.clock.wait(self._changed, self._wait_s())
                self._changed.clear()
        except LiveEdgeError as failure:
            status, error = "failed", failure
            log.error("the engine cannot run: %s", failure)  # noqa: TRY400  a user's mistake
        except BaseException:
            status, error = "failed", InternalError("the engine's supervisor failed")
            raise  # OwnedThread reports it
        finally:
            self._end_session()
            self._nursery.close()
            self._tell_down(error, status)

    def _look(self) -> None:
        """Find out what happened and do what is due."""
        session = self._session
        if session is not None and session.over:
            session.child.wait(LAST_BREATH_S)  # for its own exit status
            self._bury(session)
        if not self._nursery.check():
            log.warning("the standby engine process ended; another one is started")
            self._note_standby()
        while (action := self._next()) != "nothing":
            match action:
                case "start":
                    self._try_start()
                case "ping":
                    self._n_pings += 1
                    self.send(Ping(self._n_pings))
                case "kill":
                    self._kill_hung()
                case "prepare":
                    self._try_prepare()

    def _next(self) -> Action:
        with self._lock:
            return self._supervision.next(self._engine.clock.monotonic_s())

    def _wait_s(self) -> float:
        return self._supervision.wait_s(self._engine.clock.monotonic_s())

    def _try_start(self) -> None:
        try:
            self._start_session()
        except OSError as error:  # no memory or no process left: as bad as a crash, and as passing
            log.error("no engine process can be started: %s", error)  # noqa: TRY400
            with self._lock:
                self._supervision.ended(self._engine.clock.monotonic_s())

    def _try_prepare(self) -> None:
        try:
            self._nursery.prepare()
        except OSError as error:
            log.warning("no engine process can stand by: %s", error)
        self._note_standby()

    def _start_session(self) -> None:
        child = self._nursery.take()
        self._note_standby()
        with self._lock:
            self._supervision.started()
        capacity = most_messages(self._engine.settings) * MESSAGE_BYTES
        channel = Channel(
            child.socket, name="liveedge-to-engine", capacity=capacity, blocking=False
        )
        reader = OwnedThread("liveedge-from-engine", lambda _stopping: self._read(session))
        session = _Session(child, channel, reader)
        reader.start()
        self._session = session
        opening = Open(
            folder=str(self._engine.folder.resolve()),
            settings=self._engine.settings,
            frame_bytes=self._frame_bytes,
            log_level=logging.getLogger().getEffectiveLevel(),
            log_format=present_format(),
            first_ticket=(self._supervision.n_restarts << 32) + 1,
        )
        try:
            channel.send(pack(opening))
        except ChannelClosed:
            self._changed.set()  # it died while it waited

    def _kill_hung(self) -> None:
        session = self._session
        assert session is not None
        log.error("the engine process %d gives no sign of life: it is killed", session.child.pid)
        self._bury(session)

    def _bury(self, session: _Session) -> None:
        """Invariants 1 and 2."""
        self._end_session()
        if session.cannot_run is not None:
            raise session.cannot_run
        now_s = self._engine.clock.monotonic_s()
        with self._lock:
            self._supervision.ended(now_s)
        code = session.child.process.returncode
        log.error("the engine process ended with status %s; it is started again", code)
        self._tell_down(
            ModelUnavailable(
                f"the engine of {self._engine.model_id} ended and is started again; retry",
                retry_after_s=self._supervision.retry_after_s(now_s),
            ),
            "loading",
        )

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.child.end()
            session.reader.stop()
            session.channel.close()

    def _note_standby(self) -> None:
        with self._lock:
            self._supervision.standby(present=self._nursery.waiting is not None)

    def _tell_down(self, error: LiveEdgeError, status: EngineStatus) -> None:
        assert self._listener is not None
        self._listener.down(error, status)

    # a session's reader

    def _read(self, session: _Session) -> None:
        try:
            for data in session.channel.messages():
                self._take(session, unpack_from_engine(data))
        finally:
            session.over = True
            self._changed.set()

    def _take(self, session: _Session, message: FromEngine) -> None:
        assert self._listener is not None
        match message:
            case Opened():
                with self._lock:
                    self._supervision.opened(self._engine.clock.monotonic_s())
                self._listener.take(message)
            case OpenFailed(error):
                session.cannot_run = error
            case Pong():
                with self._lock:
                    self._supervision.heard()
            case _:
                self._listener.take(message)

"""Serving: sockets, signals, HTTP, HTTPS, and the end of it all.

Serves at once, while the model loads. What is served is put together by `assembly.py`.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from liveedge.api.connection import ConnectionLimits, HttpProtocol
from liveedge.api.crowd import Crowd
from liveedge.api.last_words import LastWords
from liveedge.api.websocket import WebSocketProtocol
from liveedge.assembly import TLS, Built, LoadEngine, build_app
from liveedge.core.clock import Clock, clock_at
from liveedge.core.errors import LiveEdgeError, SettingsInvalid
from liveedge.core.log import configure as configure_log
from liveedge.core.machine import keep_giving_back, steady_heap
from liveedge.core.startup import Startup, process_started_s
from liveedge.core.tasks import OwnedThread, TaskSet
from liveedge.core.version import VERSION
from liveedge.engine.process.spawn import Nursery
from liveedge.media.picture import PictureLimits
from liveedge.settings import Settings, is_loopback, port_range

log = logging.getLogger("liveedge.server")

# How long an idle connection stays open. Clients keep theirs for seconds (httpx: 5), and one that is
# closed at the moment of the next question loses it: ours must be the last to close.
KEEP_ALIVE_S = 75
LAST_WORDS_S = 2  # after the drain, to tell clients; connections that take longer are dropped
GOODBYE_S = 1.0  # of these, for sockets to end by themselves where nothing else is in progress
# Connections that are taken in one turn of the event loop: between two turns they are read, and closed
# ones give their files back. So many more wait in the system's queue; beyond it a client's attempts
# are a second and more apart.
ACCEPTED_AT_ONCE = 64
WAITING_TO_BE_ACCEPTED = 4096
# Otherwise the tokenizer makes a pool of its own, with a thread per core, to count one text.
ONE_THREAD_PER_TEXT = ("TOKENIZERS_PARALLELISM", "false")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    settings: Settings, *, clock: Clock | None = None, nursery: Nursery | None = None
) -> signal.Signals | None:
    """Serve until SIGINT or SIGTERM, and return which; None where the start failed. Blocks.

    A process that waits in `nursery` becomes the engine. The first signal lets answers in progress
    end; a second one ends the process at once.
    """
    clock = clock or clock_at(settings.clock_speed)
    steady_heap()  # before there are threads
    os.environ.setdefault(*ONE_THREAD_PER_TEXT)
    _configure_logging(settings)
    startup = Startup(clock, say=log.info)
    startup.passed("imports", since_s=process_started_s(clock))
    with listening_socket(settings) as listener:
        require_udp_port(settings)
        built = build_app(
            settings,
            clock,
            nursery=nursery,
            own_ports=frozenset({listener.getsockname()[1]}),
        )
        startup.passed("build")
        drain_s = settings.drain_s
        server = _Server(built, settings, listener, startup, clock=clock, drain_s=drain_s)
        server.run(sockets=[listener])
    return server.stopped_by


class BackgroundServer:
    """A server in a thread of this process, for tests and programs that bring their own client."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        load_engine: LoadEngine | None = None,
        drain_s: float | None = None,
        keep_alive_s: int = KEEP_ALIVE_S,
    ) -> None:
        """`drain_s` in place of the setting."""
        self._settings = settings
        self._keep_alive_s = keep_alive_s
        self._clock = clock
        self._drain_s = settings.drain_s if drain_s is None else drain_s
        self._load_engine = load_engine
        self._server: _Server | None = None
        self._thread: OwnedThread | None = None
        self.url = ""

    @property
    def built(self) -> Built:
        """What runs in there, for programs that look inside."""
        assert self._server is not None, "the server has not been started"
        return self._server.built

    def __enter__(self) -> BackgroundServer:
        listener = socket.create_server((self._settings.host, self._settings.port))
        built = build_app(
            self._settings,
            self._clock,
            load_engine=self._load_engine,
            own_ports=frozenset({listener.getsockname()[1]}),
        )
        startup = Startup(self._clock, say=log.info)
        server = _Server(
            built,
            self._settings,
            listener,
            startup,
            clock=self._clock,
            drain_s=self._drain_s,
            keep_alive_s=self._keep_alive_s,
        )
        self._server = server
        self._thread = OwnedThread("liveedge-http", lambda _stopping: _run(server, listener))
        self._thread.start()
        self.url = _url(listener, is_tls=server.built.certificate is not None)
        return self

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.alive

    def stop(self) -> None:
        """Begin to end, as at a signal."""
        assert self._server is not None
        self._server.should_exit = True

    def __exit__(self, kind: object, error: object, at: object) -> None:
        assert self._thread is not None
        self.stop()
        self._thread.stop(self._drain_s + LAST_WORDS_S + 5.0)


def http_config(
    app: FastAPI,
    *,
    keep_alive_s: int = KEEP_ALIVE_S,
    limits: ConnectionLimits | None = None,
    ended: Counter[str] | None = None,
    certificate: Any = None,
) -> uvicorn.Config:
    """How HTTP is spoken. `ended` counts the connections that were ended at a limit."""
    tls: dict[str, Any] = {}
    if certificate is not None:
        loop = importlib.import_module(TLS).TlsLoop
        tls = {"loop": loop, "ssl_context_factory": lambda _config, _make: certificate.context}
    http: Any = partial(
        HttpProtocol,
        limits=limits or ConnectionLimits(),
        ended=Counter() if ended is None else ended,
        crowd=Crowd(),
    )
    return uvicorn.Config(
        LastWords(app),
        log_config=None,
        access_log=False,
        http=http,
        ws=WebSocketProtocol,
        ws_max_size=PictureLimits().max_bytes,
        server_header=False,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=LAST_WORDS_S,
        backlog=ACCEPTED_AT_ONCE,
        **{"loop": "asyncio", **tls},
    )


class _Server(uvicorn.Server):
    """uvicorn without its own log lines (they hold URLs), and with ours about start and end."""

    def __init__(
        self,
        built: Built,
        settings: Settings,
        listener: socket.socket,
        startup: Startup,
        *,
        clock: Clock,
        drain_s: float,
        keep_alive_s: int = KEEP_ALIVE_S,
    ) -> None:
        super().__init__(
            http_config(
                built.app,
                keep_alive_s=keep_alive_s,
                ended=built.connections_ended,
                certificate=built.certificate,
            )
        )
        # Its lines hold URLs with their queries, whatever the options say where a root logger exists.
        logging.getLogger("uvicorn.access").disabled = True
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)
        self.built = built
        self._settings = settings
        self._url = _url(listener, is_tls=built.certificate is not None)
        self._startup = startup
        self._clock = clock
        self._drain_s = drain_s
        self._tasks = TaskSet("server")
        self._heap = OwnedThread("liveedge-heap", partial(keep_giving_back, clock))
        self.stopped_by: signal.Signals | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """In place of uvicorn's, which raises the signal again at the end: that is a traceback."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in STOP_SIGNALS}
        if self.built.certificate is not None:  # else the end of the terminal ends the server
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._renew)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self.stopped_by is not None:
            os._exit(128 + number)
        self.stopped_by = signal.Signals(number)
        self.should_exit = True

    def _renew(self, _number: int, _frame: FrameType | None) -> None:
        """Between two turns of the event loop, which runs in this thread."""
        self.built.certificate.reload()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.should_exit:
            return
        for listener in sockets or ():
            listener.listen(WAITING_TO_BE_ACCEPTED)
        self._startup.passed("listen")
        self._startup.say(self.built.memory.table())
        self._startup.breakdown(f"liveedge {VERSION} listens on {self._url}")
        if self.built.keys.is_open:
            self._startup.say(_open_notice(self._settings))
        if self._settings.clock_speed != 1.0:
            log.warning(
                "FOR TESTS ONLY: time runs %g times as fast here (clock_speed); times that are"
                " measured and told are of that clock",
                self._settings.clock_speed,
            )
        self._heap.start()
        self._tasks.start(self._tell_when_ready(), name="ready")
        if self.built.certificate is not None:
            self._tasks.start(self.built.certificate.watch(), name="certificate")
        if self._settings.udp_ports is not None:
            self._tasks.start(self._expect_publishers(), name="publishers")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._heap.stopping.set()
        await self._tasks.close()
        drain = self.built.drain
        drain.begin()
        # Their connections have no end of their own to be waited for.
        self.built.previews.stop()
        self.built.watches.stop()
        await self.built.publishing.close()
        if drain.n_in_progress:
            log.info(
                "stopping: %d requests may go on for %g s; a second signal ends them",
                drain.n_in_progress,
                self._drain_s,
            )
            await self._drained()
        self._tasks.start(self._cut_off(0.0 if drain.n_in_progress else GOODBYE_S), name="end")
        await super().shutdown(sockets)
        await self._tasks.close()
        log.info("stopped")

    async def _drained(self) -> None:
        """Until nothing is in progress, or the time for it is over."""
        waits = [
            self._tasks.start(self.built.drain.idle(), name="drain"),
            self._tasks.start(self._clock.sleep(self._drain_s), name="patience"),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await self._tasks.close()

    async def _cut_off(self, after_s: float) -> None:
        """End what still runs. `LastWords` tells its clients."""
        await self._clock.sleep(after_s)
        for task in list(self.server_state.tasks):
            task.cancel()

    async def _expect_publishers(self) -> None:
        """Where ports were chosen for them, one that is taken is told now, not to the first."""
        try:
            await self.built.publishing.ingest()
        except SettingsInvalid as error:
            self._startup.say(f"nobody can publish: {error.message}")

    async def _tell_when_ready(self) -> None:
        models = self.built.models
        try:
            engine = await models.ready()
        except LiveEdgeError as error:
            self._startup.say(f"{models.model_id} could not be loaded: {error.message}")
            return
        self._startup.passed("model")
        self._startup.breakdown(f"{models.model_id} answers", engine.startup_ms())


@contextmanager
def listening_socket(settings: Settings) -> Iterator[socket.socket]:
    """A bound socket; taken before anything is built, so that a used port is told at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise SettingsInvalid(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error};"
            " choose another host or port"
        ) from error
    with listener:
        # Inherited by every connection; asyncio sets it only on sockets that name their protocol.
        # Without it a client's delayed acknowledgement holds the first words back by 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


def require_udp_port(settings: Settings) -> None:
    """Tell at once that the one UDP port of all publishers is taken: they need it only later. Raises
    SettingsInvalid. Of a range there may be ports in use."""
    if settings.udp_ports is None:
        return
    lowest, highest = port_range(settings.udp_ports)
    if lowest != highest:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", lowest))
        except OSError as error:
            raise SettingsInvalid(
                f"udp_ports: UDP port {lowest} cannot be opened ({error.strerror}); give another one,"
                " or a range"
            ) from error


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """uvicorn takes a WebSocket that was refused with a response for one that was forgotten."""
    return record.getMessage() != "ASGI callable returned without completing handshake."


def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    with listener:
        server.run(sockets=[listener])


def _url(listener: socket.socket, *, is_tls: bool) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _open_notice(settings: Settings) -> str:
    if is_loopback(settings.host):
        return "no api_key is set: open to everybody on this machine, closed to others"
    return f"INSECURE: no api_key is set, and {settings.host} can be reached by others"


def _configure_logging(settings: Settings) -> None:
    configure_log(settings.log_level.upper(), settings.log_format)
    # Several lines per publisher, with the addresses of both ends; one per request to a provider.
    for chatty in ("aioice", "aiortc", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

"""The models that can be asked, by id and alias, while they load, while they answer and while their
engine is replaced.

Owns    the loader thread and, once loaded, the engine.
Thread  `liveedge-load` loads; everything else is called from the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from liveedge.core.clock import Clock
from liveedge.core.errors import (
    LiveEdgeError,
    ModelNotFound,
    ModelUnavailable,
    ParameterUnsupported,
)
from liveedge.core.tasks import OwnedThread
from liveedge.engine.interface import Engine, EngineStatus

log = logging.getLogger("liveedge.models")

RETRY_WHILE_LOADING_S = 2.0
RETRY_AFTER_FAILURE_S = 30.0
SOON_S = 3.0  # what "a moment" means
MAX_NAMED = 5  # ids in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One line of `GET /models`. Facts that only a loaded model knows are None before."""

    id: str
    created_s: int
    status: Literal["ready", "unavailable"]
    max_model_len: int | None
    modalities: tuple[str, ...] | None
    alias_of: str | None = None
    owned_by: str = "liveedge"


class ModelHost:
    """One local model. It can be named at once and asked as soon as it has loaded."""

    def __init__(
        self,
        *,
        model_id: str,
        load: Callable[[], Engine],
        clock: Clock,
        aliases: Mapping[str, str] | None = None,
        elsewhere: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """`elsewhere` names the provider of a model that is not ours."""
        self.model_id = model_id
        self._load = load
        self._aliases = dict(aliases or {})
        self._elsewhere = elsewhere
        self._created_s = clock.wall_ms() // 1000
        self._engine: Future[Engine] = Future()
        self._thread = OwnedThread("liveedge-load", self._run)
        self._closed = False

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._thread.start()

    @property
    def engine(self) -> Engine | None:
        """The engine once it exists, which may be before it is ready."""
        if self._engine.done() and self._engine.exception() is None:
            return self._engine.result()
        return None

    def status(self) -> EngineStatus:
        if self._closed:
            return "closed"
        if not self._engine.done():
            return "loading"
        return "failed" if self.engine is None else self.engine.status()

    @property
    def _has_started(self) -> bool:
        """It answered before: its engine crashed or hung, and another one is on its way."""
        return self.engine is not None and self.engine.n_starts > 0

    async def ready(self) -> Engine:
        """The engine, once it answers. Raises what made loading fail."""
        engine = await asyncio.shield(asyncio.wrap_future(self._engine))
        await engine.ready()
        return engine

    def serves(self, name: str) -> bool:
        """Whether this is our model, by id or alias."""
        return name == self.model_id or self._aliases.get(name) == self.model_id

    def require(self, name: str) -> Engine:
        """The engine behind an id or alias. Raises ModelNotFound or ModelUnavailable, and
        ParameterUnsupported for a model that another server has."""
        if not self.serves(name):
            provider = self._elsewhere(name)
            if provider is not None:
                raise ParameterUnsupported(
                    f"model: {name[:200]} answers at the provider {provider}, and only our own model"
                    f" can do this; use {self.model_id}"
                )
            raise ModelNotFound(f"there is no model {name[:200]!r}; there is {self._known()}")
        self.require_ready()
        engine = self.engine
        assert engine is not None
        return engine

    def _known(self) -> str:
        names = [self.model_id, *self._aliases]
        more = len(names) - MAX_NAMED
        return ", ".join(names[:MAX_NAMED]) + (
            f" and {more} more (GET /models)" if more > 0 else ""
        )

    def require_ready(self) -> None:
        """Raise ModelUnavailable unless the model answers."""
        match self.status():
            case "ready":
                return
            case "loading":
                retry_after_s = self._retry_while_loading_s()
                doing = "restarting" if self._has_started else "loading"
                when = (
                    f"in {math.ceil(retry_after_s)} s" if retry_after_s > SOON_S else "in a moment"
                )
                raise ModelUnavailable(
                    f"{self.model_id} is {doing}; retry {when}", retry_after_s=retry_after_s
                )
            case "failed":
                raise ModelUnavailable(
                    f"{self.model_id} could not be loaded; the server's log says why",
                    retry_after_s=RETRY_AFTER_FAILURE_S,
                )
            case "closed":
                raise ModelUnavailable(
                    f"{self.model_id} is stopping", retry_after_s=RETRY_AFTER_FAILURE_S
                )

    def _retry_while_loading_s(self) -> float:
        """An engine that crashes again and again is started ever later, and knows when."""
        engine = self.engine
        if engine is None:
            return RETRY_WHILE_LOADING_S
        least_s = 0.0 if self._has_started else RETRY_WHILE_LOADING_S
        return max(least_s, engine.retry_after_s())

    def entries(self) -> tuple[ModelEntry, ...]:
        """The model under its own id, then under each alias."""
        names = [(self.model_id, None), *((name, of) for name, of in self._aliases.items())]
        return tuple(self._entry(name, of) for name, of in names)

    def _entry(self, name: str, alias_of: str | None) -> ModelEntry:
        is_ready = self.status() == "ready"
        model = self.engine.model if is_ready and self.engine is not None else None
        modalities: tuple[str, ...] | None = None
        if model is not None:
            modalities = ("text", "image", "video") if model.supports_video else ("text", "image")
        return ModelEntry(
            id=name,
            created_s=self._created_s,
            status="ready" if is_ready else "unavailable",
            max_model_len=None if model is None else model.max_model_len,
            modalities=modalities,
            alias_of=alias_of,
        )

    def close(self) -> None:
        """Stop the engine. One that is still loading is stopped when it has loaded."""
        self._closed = True
        self._engine.add_done_callback(_close_engine)

    def _run(self, _stopping: threading.Event) -> None:
        try:
            engine = self._load()
        except LiveEdgeError as error:
            log.error("model %s could not be loaded: %s", self.model_id, error.message)  # noqa: TRY400  the message says it all
            self._engine.set_exception(error)
        except BaseException as error:
            self._engine.set_exception(error)  # for `ready`; the thread reports the crash
            raise
        else:
            self._engine.set_result(engine)


def _close_engine(engine: Future[Engine]) -> None:
    if engine.exception() is None:
        engine.result().close()

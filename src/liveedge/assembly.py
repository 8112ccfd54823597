"""The composition root: the only module that knows every concrete class.

Puts the application together from settings; `server.py` serves it. The model loads in a process of
its own, which imports torch; this one never does, unless the engine is asked to run in a thread
(`engine: inproc`).
"""

from __future__ import annotations

import importlib
import logging
import os
import random
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from liveedge.api.app import ApiSettings, Lifespan, Services, create_app
from liveedge.api.drain import Drain
from liveedge.api.http_stats import HttpStats
from liveedge.api.metrics import AccessSources, MetricSources
from liveedge.api.watch_encode import watch_event
from liveedge.api.whip import ice_link
from liveedge.core.clock import Clock
from liveedge.core.errors import SettingsInvalid
from liveedge.engine.interface import Engine, EngineSettings
from liveedge.engine.memory.plan import MemoryPlan
from liveedge.engine.process.spawn import Nursery
from liveedge.engine.process.supervisor import Patience
from liveedge.frames.store import StoreLimits
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.remote import RemoteLimits
from liveedge.media.source import Source
from liveedge.media.webrtc.session import IceServer, MediaSessions
from liveedge.resources import PUBLISHER_BODY_BYTES, engine_settings, fitting, planned
from liveedge.service.answer_stats import AnswerStats
from liveedge.service.ask import Asker, AskResources, AskSettings
from liveedge.service.audit import Audit
from liveedge.service.backlog import Backlog
from liveedge.service.gather import Gatherer, GatherSettings
from liveedge.service.key_file import StoredKey
from liveedge.service.keys import KeyRing
from liveedge.service.limited import AnswerLimits, LimitedAnswers
from liveedge.service.limits import Budget
from liveedge.service.models import ModelHost
from liveedge.service.observed import Observed
from liveedge.service.parts import Reference
from liveedge.service.pictures import Pictures
from liveedge.service.preview import Previews
from liveedge.service.providers.catalog import Catalog, owner_of
from liveedge.service.providers.config import ProviderConfig, check_ids, read_key
from liveedge.service.providers.router import Router
from liveedge.service.publishing import Publishing, PublishParts
from liveedge.service.question import Question
from liveedge.service.queueing import Queueing
from liveedge.service.rates import RatedAnswers, Rates
from liveedge.service.registry import Registry
from liveedge.service.remote import RemoteMedia
from liveedge.service.sources import Pipelines, SourcePolicy
from liveedge.service.state_dir import StateDir
from liveedge.service.streams import LEASE_S, StreamLimits, Streams
from liveedge.service.watches import Watches, WatchLimits
from liveedge.service.windows import WindowLimits, Windows
from liveedge.service.workers import Workers
from liveedge.settings import SHIPPED_MODEL, Settings, ice_server, port_range

log = logging.getLogger("liveedge.assembly")

MEDIA_THREADS = 2
FETCH_THREADS = 8  # remote media at once; one key gets half of them
PROMPT_THREADS = 2
BURST_SESSIONS = 2  # times the sessions: so many average questions may be before a newcomer
SCHEMA_THREADS = 10  # more than the engine lets wait: one is free for a schema it knows already
LONG_PROMPT_THREADS = 1  # apart from those: texts of many pages wait for each other alone
# There is one, and others who are replaced at this moment: the newest comes before the older is gone.
PUBLISHERS_PER_STREAM = 4
# Named as text: not everybody needs them.
TLS = "liveedge.api.tls"
TRACES = "liveedge.service.traces"
# Named as text: half a second of imports that only publishers need.
TOKENS = "liveedge.service.tokens"
INGEST = "liveedge.service.ingest"
ROOMS = "liveedge.service.rooms"
WEBRTC = "liveedge.media.webrtc.engine"
UPSTREAM = "liveedge.service.providers.upstream"  # and a quarter of a second: only with providers
PROVIDER = "liveedge.service.providers.provider"

LoadEngine = Callable[[], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The application and what it is made of."""

    app: FastAPI
    keys: KeyRing
    answers: LimitedAnswers
    models: ModelHost
    streams: Streams
    windows: Windows
    watches: Watches
    previews: Previews
    publishing: Publishing
    questions: AskResources
    held_bytes: Budget  # of request bodies
    publisher_bytes: Budget  # of publishers' request bodies
    connections_ended: Counter[str]
    memory: MemoryPlan
    drain: Drain
    certificate: Any  # `api.tls.Certificate`, with TLS


def build_app(
    settings: Settings,
    clock: Clock,
    *,
    load_engine: LoadEngine | None = None,
    nursery: Nursery | None = None,
    own_ports: frozenset[int] = frozenset(),
    sessions: MediaSessions | None = None,
) -> Built:
    """Put everything together. The model begins to load when the application starts.

    A process that waits in `nursery` becomes the engine. `own_ports` are never pulled from.
    Publishers connect through `sessions`, or through a WebRTC engine that is started when it is
    needed. Raises SettingsInvalid, also for what does not fit the memory, and CheckpointInvalid.
    """
    folder, model_id = find_model(settings)
    configs = provider_configs(settings, model_id, os.environ)
    certificate = _certificate(settings, clock)
    asked = engine_settings(settings, model_id)
    memory = fitting(settings, asked, folder)
    access = _access(settings, clock)
    workers = Workers("frames", n_threads=MEDIA_THREADS)
    held_bytes = Budget(memory.bodies_bytes, what="bytes of request bodies")
    decoded_bytes = Budget(memory.decoded_bytes, what="bytes of decoded uploads")
    fetches = Workers("fetches", n_threads=FETCH_THREADS)
    questions = AskResources(
        prompts=Workers("prompts", n_threads=PROMPT_THREADS),
        long_prompts=Workers("long-prompts", n_threads=LONG_PROMPT_THREADS),
        schemas=Workers("schemas", n_threads=SCHEMA_THREADS),
        uploads=Workers("uploads", n_threads=MEDIA_THREADS),
        in_progress=Budget(settings.max_requests, what="questions"),
        queueing=_queueing(settings, clock),
        decoded_bytes=decoded_bytes,
        backlog=Backlog(n_workers=MEDIA_THREADS, counted=decoded_bytes),
        remote=_remote_media(settings, own_ports, held_bytes, fetches, clock),
    )
    local = _LocalEngine(folder, asked, settings, clock, nursery)
    models = ModelHost(
        model_id=model_id,
        load=load_engine or local.load,
        clock=clock,
        aliases=settings.aliases,
        elsewhere=partial(owner_of, configs=configs),
    )
    store = StoreLimits(
        hot_bytes=settings.hot_mb << 20,
        history_bytes=settings.history_mb << 20,
        retention_s=settings.retention_s,
    )
    registry = _registry(settings, clock)
    pipelines = Pipelines(
        clock=clock,
        store=store,
        policy=_policy(settings, own_ports),
        frames_of=None if registry is None else registry.folder.frames_of,
        room_of=_room_source(settings, clock),
    )
    streams = Streams(
        clock=clock,
        make_pipeline=pipelines.make,
        limits=StreamLimits(
            max_streams=settings.max_streams,
            max_streams_per_tenant=settings.max_streams_per_key,
            reserved_bytes=memory.streams_bytes,
            reserved_bytes_per_stream=store.reserved_bytes,
            disk_bytes_per_stream=store.history_bytes,
        ),
        workers=workers,
        registry=registry,
    )
    # Apart from those of questions, which never wait for a window's.
    window_prompts = Workers("windows", n_threads=1)
    windows = Windows(
        clock=clock,
        models=models,
        streams=streams,
        prompts=window_prompts,
        limits=_window_limits(settings),
    )
    connections_ended: Counter[str] = Counter()
    publisher_bytes = Budget(PUBLISHER_BODY_BYTES, what="bytes of publishers' requests")
    previews = Previews(clock=clock, streams=streams, is_shared=lambda: access.keys.is_shared)
    access.end_streams(streams)
    secret = secrets.token_bytes(32) if registry is None else registry.folder.secret
    receiving = _Receiving(settings, clock, streams, secret=secret, sessions=sessions)
    publishing = Publishing(receiving.parts(), valid_s=LEASE_S)
    answer_stats = AnswerStats()
    traces = _traces(settings)
    observers = (answer_stats,) if traces is None else (answer_stats, traces)
    providers = _Providers(settings, clock, configs, questions)
    catalog, router = _answering(settings, clock, models, streams, windows, questions, providers)
    limited = LimitedAnswers(
        router,
        _answer_limits(settings, memory.bodies_bytes),
        is_shared=lambda: access.keys.is_shared,
    )
    answers = Observed(limited, observers=observers, clock=clock)

    async def check(question: Question) -> Sequence[Reference]:
        limited.check(question)
        return await router.check(question)

    watches = Watches(
        clock=clock,
        answers=RatedAnswers(answers, access.rates),
        check=check,
        streams=streams,
        encode=watch_event,
        limits=_watch_limits(settings),
        chance=random.Random(),
    )
    access.keys.on_end(lambda key: watches.end_of_key(key.id))
    services = Services(
        answers=answers,
        models=models,
        catalog=catalog,
        streams=streams,
        windows=windows,
        watches=watches,
        previews=previews,
        publishing=publishing,
        held_bytes=held_bytes,
        publisher_bytes=publisher_bytes,
        keys=access.keys,
        rates=access.rates,
        audit=access.audit,
        metrics=MetricSources(
            access=AccessSources(
                keys=access.keys, audit=access.audit, rates=access.rates, answers=limited
            ),
            models=models,
            streams=streams,
            windows=windows,
            watches=watches,
            budgets={
                "questions": questions.in_progress,
                **({"provider_questions": providers.questions} if configs else {}),
                "queueing_ms": questions.queueing,
                "request_body_bytes": held_bytes,
                "publisher_body_bytes": publisher_bytes,
                "decoded_upload_bytes": questions.decoded_bytes,
                "previews": previews.open,
                **({} if questions.remote is None else {"fetches": questions.remote.at_once}),
            },
            catalog=catalog,
            router=router,
            publishing=publishing,
            connections_ended=connections_ended,
            answers=answer_stats,
            http=HttpStats(),
            certificate_until_s=lambda: certificate.not_after_s if certificate else 0.0,
            clock_speed=settings.clock_speed,
            planned=memory.lines,
            engine_pid=local.pid,
            standby_pid=local.standby_pid,
        ),
        pictures=Pictures(
            clock=clock, streams=streams, workers=workers, timeout_ms=settings.timeout_ms
        ),
    )
    app = create_app(
        services,
        _api_settings(settings),
        clock=clock,
        lifespan=_lifespan(
            models,
            streams,
            windows,
            _Guests(publishing, previews, watches, access.keys, catalog, providers),
            (
                workers,
                providers.workers,
                questions.uploads,
                questions.prompts,
                questions.long_prompts,
                questions.schemas,
                fetches,
                window_prompts,
            ),
            traces,
        ),
    )
    return Built(
        app=app,
        keys=access.keys,
        answers=limited,
        models=models,
        streams=streams,
        windows=windows,
        watches=watches,
        previews=previews,
        publishing=publishing,
        questions=questions,
        held_bytes=held_bytes,
        publisher_bytes=publisher_bytes,
        connections_ended=connections_ended,
        memory=memory,
        drain=services.drain,
        certificate=certificate,
    )


def memory_planned(settings: Settings) -> MemoryPlan:
    """The memory plan of these settings, whether it fits or not; nothing is loaded."""
    folder, model_id = find_model(settings)
    return planned(settings, engine_settings(settings, model_id), folder)


def memory_plan(settings: Settings) -> MemoryPlan:
    """The same where it fits. Raises SettingsInvalid, with what would fit, where it does not."""
    folder, model_id = find_model(settings)
    return fitting(settings, engine_settings(settings, model_id), folder)


def find_model(settings: Settings) -> tuple[Path, str]:
    """The checkpoint folder and the id that clients use. Raises SettingsInvalid."""
    if settings.model == SHIPPED_MODEL:
        folder = Path(str(files("liveedge"))) / "assets" / "workcell-tiny"
        if not folder.is_dir():
            raise SettingsInvalid(
                f"the model {SHIPPED_MODEL}, which comes with liveedge, is not at {folder}; install"
                " liveedge again, or give the path of a checkpoint folder"
            )
        return folder, settings.model_id or SHIPPED_MODEL
    folder = Path(settings.model).expanduser()
    if not folder.is_dir():
        raise SettingsInvalid(
            f"model {settings.model} is neither a folder nor {SHIPPED_MODEL}; give the path of a"
            " Hugging Face checkpoint folder (hub ids are not downloaded)"
        )
    # Local ids contain a slash; those of hosted models do not.
    return folder, settings.model_id or f"local/{folder.resolve().name}"


class _LocalEngine:
    """How the model's engine is started, and what it is once it runs."""

    def __init__(
        self,
        folder: Path,
        asked: EngineSettings,
        settings: Settings,
        clock: Clock,
        nursery: Nursery | None,
    ) -> None:
        self._folder = folder
        self._asked = asked
        self._settings = settings
        self._clock = clock
        self._nursery = nursery
        self._engine: Any = None  # `engine.client.EngineClient`

    def load(self) -> Engine:
        """On a thread of its own: a large tokenizer takes a second."""
        try:
            return self._load()
        except BaseException:
            self._end_early_process()
            raise

    def _end_early_process(self) -> None:
        if self._nursery is not None:
            self._nursery.close()

    def _load(self) -> Engine:
        is_thread = self._settings.engine == "inproc"
        if is_thread:
            self._end_early_process()
        # Here and not at the top: the server listens while templates and grammars are imported.
        client = importlib.import_module("liveedge.engine.client")
        self._engine = client.load_engine(
            self._folder,
            settings=self._asked,
            clock=self._clock,
            inproc=is_thread,
            patience=Patience(hang_s=self._settings.engine_hang_s, standby=self._settings.standby),
            nursery=None if is_thread else self._nursery,
        )
        engine: Engine = self._engine
        return engine

    def standby_pid(self) -> int | None:
        """Of the process that waits to become the engine, while there is one."""
        pid: int | None = None if self._engine is None else self._engine.standby_pid
        return pid

    def pid(self) -> int | None:
        """Of the engine process, while there is one."""
        pid: int | None = None if self._engine is None else self._engine.pid
        return pid


class _Receiving:
    """How publishers' tokens, signalling and connections are made, once somebody needs them."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        streams: Streams,
        *,
        secret: bytes,
        sessions: MediaSessions | None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._streams = streams
        self._secret = secret
        self._sessions = sessions
        self._webrtc: Any = None  # `media.webrtc.engine.WebRtc`

    def parts(self) -> PublishParts:
        webrtc = (WEBRTC,) if self._sessions is None else ()
        return PublishParts(
            token_modules=(TOKENS,),
            ingest_modules=(INGEST, *webrtc),
            tokens=self._tokens,
            ingest=self._ingest,
            totals=self._totals,
            close=self._close,
            room_modules=(ROOMS,),
            rooms=_rooms(self._settings, self._clock),
        )

    def _tokens(self) -> Any:
        module = importlib.import_module(TOKENS)
        return module.PublishTokens(self._secret, clock=self._clock)

    def _ingest(self, tokens: Any) -> Any:
        module = importlib.import_module(INGEST)
        return module.Ingest(
            entrance=self._streams.publisher_entrance,
            tokens=tokens,
            sessions=self._sessions or self._started(),
            clock=self._clock,
            ice_servers=_ice_servers(self._settings),
            max_sockets=PUBLISHERS_PER_STREAM * self._settings.max_streams,
        )

    def _started(self) -> MediaSessions:
        module = importlib.import_module(WEBRTC)
        settings = self._settings
        self._webrtc = module.WebRtc(
            module.WebRtcSettings(
                udp_ports=None if settings.udp_ports is None else port_range(settings.udp_ports),
                announced_ips=settings.announced_ip,
                ice_servers=_ice_servers(settings),
                max_bitrate_bps=settings.max_publish_kbps * 1000,
                max_sessions=PUBLISHERS_PER_STREAM * settings.max_streams,
            ),
            clock=self._clock,
            rng=random.Random(),
        )
        self._webrtc.start()
        started: MediaSessions = self._webrtc
        return started

    def _totals(self) -> Mapping[str, int]:
        totals: Mapping[str, int] = {} if self._webrtc is None else self._webrtc.totals()
        return totals

    def _close(self) -> None:
        if self._webrtc is not None:
            self._webrtc.close()


def provider_configs(
    settings: Settings, model_id: str, environment: Mapping[str, str]
) -> tuple[ProviderConfig, ...]:
    """The providers of these settings, with their keys. Raises SettingsInvalid, also for aliases."""
    _check_aliases(settings, model_id)
    configs = tuple(
        ProviderConfig(
            name=name,
            base_url=one.base_url,
            key=read_key(name, one.api_key_env, environment),
            models=one.models,
            media=one.media,
            silence_s=one.timeout,
            retries=one.retries,
            max_connections=one.max_connections,
            max_frames=one.max_frames,
            max_pixels=one.max_pixels,
            extra_body=one.extra_body,
        )
        for name, one in settings.providers.items()
    )
    check_ids(configs, settings.fallbacks, (model_id, *settings.aliases))
    return configs


def _answering(
    settings: Settings,
    clock: Clock,
    models: ModelHost,
    streams: Streams,
    windows: Windows,
    questions: AskResources,
    providers: _Providers,
) -> tuple[Catalog, Router]:
    """Which models there are, and who answers."""
    gatherer = Gatherer(
        clock=clock,
        streams=streams,
        workers=questions.uploads,
        decoded_bytes=questions.decoded_bytes,
        backlog=questions.backlog,
        remote=questions.remote,
        settings=GatherSettings(region=settings.region, is_regional=bool(settings.regions)),
    )
    asker = Asker(
        clock=clock,
        models=models,
        gatherer=gatherer,
        windows=windows,
        resources=questions,
        settings=AskSettings(timeout_ms=settings.timeout_ms),
    )
    catalog = Catalog(models=models, local=asker, providers=providers.make(gatherer))
    router = Router(
        catalog, fallbacks=settings.fallbacks, timeout_ms=settings.timeout_ms, clock=clock
    )
    return catalog, router


class _Providers:
    """How other servers are asked; without any, nothing of it is imported."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        configs: Sequence[ProviderConfig],
        questions: AskResources,
    ) -> None:
        self.workers = Workers("providers", n_threads=MEDIA_THREADS)
        most = max(1, settings.max_requests // 2)
        self.questions = Budget(most, what="questions to other servers")
        self._settings = settings
        self._clock = clock
        self._configs = configs
        self._questions = questions
        self._client: Any = None  # `httpx.AsyncClient`

    def make(self, gatherer: Gatherer) -> tuple[Any, ...]:
        if not self._configs:
            return ()
        upstream = importlib.import_module(UPSTREAM)
        provider = importlib.import_module(PROVIDER)
        questions = self._questions
        self._client = upstream.open_client(self._configs)
        parts = provider.ProviderParts(
            clock=self._clock,
            gatherer=gatherer,
            workers=self.workers,
            in_progress=questions.in_progress,
            elsewhere=self.questions,
            held_bytes=questions.decoded_bytes,
            timeout_ms=self._settings.timeout_ms,
            rng=random.Random(),
        )
        return tuple(
            provider.Provider(
                config, upstream.Upstream(config, self._client, clock=self._clock), parts
            )
            for config in self._configs
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


@dataclass(frozen=True, slots=True)
class _Guests:
    """Whoever is connected for as long as it likes."""

    publishing: Publishing
    previews: Previews
    watches: Watches
    keys: KeyRing
    catalog: Catalog
    providers: _Providers

    async def close(self) -> None:
        await self.watches.close()
        await self.keys.close()
        await self.publishing.close()
        self.previews.close()
        await self.catalog.close()
        await self.providers.close()


def _rooms(settings: Settings, clock: Clock) -> Callable[[], Any] | None:
    """Makes the rooms of the external LiveKit server, if there is one; imports what they need."""
    server = settings.livekit
    if server is None:
        return None

    def make() -> Any:
        module = importlib.import_module(ROOMS)
        there = module.RoomServer(
            url=server.url,
            api_key=server.api_key.get_secret_value(),
            api_secret=server.api_secret.get_secret_value(),
        )
        return module.Rooms(there, clock=clock)

    return make


def _room_source(settings: Settings, clock: Clock) -> Callable[[str], Source] | None:
    make = _rooms(settings, clock)
    if make is None:
        return None

    def source(stream_id: str) -> Source:
        made: Source = make().source(stream_id)
        return made

    return source


def _ice_servers(settings: Settings) -> tuple[IceServer, ...]:
    parted = [ice_server(one.get_secret_value()) for one in settings.ice_servers]
    return tuple(
        IceServer(url=one.url, username=one.username, credential=one.credential) for one in parted
    )


def _check_aliases(settings: Settings, model_id: str) -> None:
    for alias, target in settings.aliases.items():
        if target != model_id:
            raise SettingsInvalid(
                f"aliases: {alias} stands for {target}, which is not served; served is {model_id}"
            )


def _registry(settings: Settings, clock: Clock) -> Registry | None:
    """What survives a restart. Raises SettingsInvalid."""
    if settings.state_dir is None:
        return None
    folder = StateDir(settings.state_dir)
    log.info(
        "state_dir %s: %d MB on the disk per stream (history_mb), %d MB free",
        folder.path,
        settings.history_mb,
        folder.free_bytes() >> 20,
    )
    try:
        return Registry(folder, clock=clock)
    except SettingsInvalid:
        folder.close()
        raise


def _queueing(settings: Settings, clock: Clock) -> Queueing:
    max_wait_s = None if settings.max_queue_ms is None else settings.max_queue_ms / 1000
    burst = BURST_SESSIONS * settings.max_sessions
    return Queueing(clock=clock, burst=burst, max_wait_s=max_wait_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Access:
    """Who may come in, how often, and what is noted of it."""

    keys: KeyRing
    rates: Rates
    audit: Audit

    def end_streams(self, streams: Streams) -> None:
        """With the last key of an owner its streams end: nobody could look at them, or end them."""

        def ended(key: StoredKey) -> None:
            if not self.keys.has_key_of(key.tenant):
                streams.end_all(key.tenant)

        self.keys.on_end(ended)


def _access(settings: Settings, clock: Clock) -> _Access:
    """Raises SettingsInvalid for a file of keys that cannot be read."""
    audit = Audit(clock)
    return _Access(
        keys=KeyRing(
            [key.get_secret_value() for key in settings.api_key],
            clock=clock,
            audit=audit,
            path=settings.keys_path,
            create=settings.keys_file is not None,
        ),
        rates=Rates(per_s=settings.requests_per_second, burst=settings.request_burst, clock=clock),
        audit=audit,
    )


def _answer_limits(settings: Settings, bodies_bytes: int) -> AnswerLimits:
    """One key of several leaves room for another, in the server and in the queue of the model."""
    taken_in = min(settings.max_requests, settings.queue + settings.max_sessions)
    return AnswerLimits(
        per_key=settings.max_requests_per_key,
        share=max(1, taken_in // 2),
        share_bytes=bodies_bytes // 2,
        per_stream=settings.max_requests_per_stream,
        max_output_tokens=settings.max_output_tokens,
        max_parts=settings.max_parts,
    )


def _window_limits(settings: Settings) -> WindowLimits:
    return WindowLimits(
        max_windows=settings.max_windows,
        max_windows_per_tenant=settings.max_windows_per_key,
        ttl_s=settings.window_ttl_s,
        thread_ttl_s=settings.thread_window_ttl_s,
    )


def _watch_limits(settings: Settings) -> WatchLimits:
    return WatchLimits(
        max_watches=settings.max_watches,
        max_watches_per_tenant=settings.max_watches_per_key,
        ttl_s=settings.watch_ttl_s,
    )


def _policy(settings: Settings, own_ports: frozenset[int]) -> SourcePolicy:
    pull = PullPolicy(
        own_ports=own_ports,
        own_addresses=own_addresses(settings.host),
        allow_private=settings.allow_private_sources,
    )
    return SourcePolicy(pull=pull, allow_local=settings.allow_local_sources)


def _remote_media(
    settings: Settings,
    own_ports: frozenset[int],
    held_bytes: Budget,
    workers: Workers,
    clock: Clock,
) -> RemoteMedia | None:
    if not settings.allow_remote_media:
        return None
    policy = PullPolicy(
        own_ports=own_ports,
        own_addresses=own_addresses(settings.host),
        allow_private=settings.allow_private_media,
        private_setting="allow_private_media",
        ports=frozenset(settings.remote_media_ports),
    )
    return RemoteMedia(
        policy=policy,
        limits=RemoteLimits(max_bytes=settings.max_remote_mb << 20),
        max_of_question_bytes=settings.max_body_mb << 20,
        max_at_once=FETCH_THREADS,
        held=held_bytes,
        workers=workers,
        clock=clock,
    )


def own_addresses(host: str) -> frozenset[str]:
    """Addresses under which this server can be reached, besides loopback; as far as known."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    try:
        found = socket.getaddrinfo(name, None)
    except OSError:  # this machine does not know its own name; loopback is refused all the same
        return frozenset()
    return frozenset(str(address[0]).partition("%")[0] for *_, address in found)


def _traces(settings: Settings) -> Any:
    """Where traces of questions go, or None. Raises SettingsInvalid."""
    if settings.otlp_endpoint is None:
        return None
    try:
        module = importlib.import_module(TRACES)
    except ModuleNotFoundError as error:
        raise SettingsInvalid(
            f"otlp_endpoint: traces need the package {error.name}: pip install 'liveedge[otel]'"
        ) from error
    return module.sent_to(settings.otlp_endpoint, share=settings.otlp_sample)


def _certificate(settings: Settings, clock: Clock) -> Any:
    """The certificate of an HTTPS server, or None. Raises SettingsInvalid."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    tls = importlib.import_module(TLS)
    files = tls.TlsFiles(
        cert=settings.tls_cert, key=settings.tls_key, password=settings.tls_key_password_file
    )
    return tls.Certificate(files, clock=clock)


def _api_settings(settings: Settings) -> ApiSettings:
    return ApiSettings(
        cors_origins=settings.cors_origins,
        region=settings.region,
        is_regional=bool(settings.regions),
        max_body_bytes=settings.max_body_mb << 20,
        default_max_tokens=settings.default_max_tokens,
        metrics_public=settings.metrics_public,
        public_url=settings.public_url,
        ice_links=tuple(
            ice_link(one.url, one.username, one.credential) for one in _ice_servers(settings)
        ),
    )


def _lifespan(
    models: ModelHost,
    streams: Streams,
    windows: Windows,
    guests: _Guests,
    pools: Sequence[Workers],
    traces: Any,  # `service.traces.Traces`, or None
) -> Lifespan:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        models.start()
        guests.keys.start()
        await streams.resume()
        streams.start()
        try:
            yield
        finally:
            await guests.close()
            await windows.close()
            await streams.close()
            await pools[0].run(models.close)  # joins threads
            if traces is not None:
                await pools[0].run(traces.close)
            for pool in pools:
                pool.close()

    return lifespan

"""The HTTP application: every route under `/v1beta`, `/v1` and `/`, every error as JSON."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse

from liveedge.api import page
from liveedge.api.body import Bodies, BodyInvalid
from liveedge.api.chat import ChatEndpoint
from liveedge.api.context import RequestContext, face_of
from liveedge.api.cors import Cors
from liveedge.api.docs import DocumentedApi
from liveedge.api.drain import Drain, DrainGate
from liveedge.api.encode import model_object
from liveedge.api.errors import ErrorAnswer, answer, flat_body, invalid
from liveedge.api.exposition import CONTENT_TYPE
from liveedge.api.gate import Gate
from liveedge.api.leash import OnLeash
from liveedge.api.livekit import LiveKitRoutes
from liveedge.api.metrics import MetricSources, metrics_text
from liveedge.api.public_url import PublicUrl
from liveedge.api.reply import error_reply, json_reply
from liveedge.api.routing import HeadAsGet, NoSuchWebSocket, allowed_methods
from liveedge.api.streams import StreamRoutes
from liveedge.api.watches import WatchRoutes
from liveedge.api.whip import MAX_OFFER_BYTES, WhipRoutes
from liveedge.api.windows import WindowRoutes
from liveedge.core.clock import Clock
from liveedge.core.errors import LiveEdgeError
from liveedge.core.version import VERSION
from liveedge.service.audit import Audit
from liveedge.service.keys import KeyRing
from liveedge.service.limits import Budget
from liveedge.service.models import ModelHost
from liveedge.service.pictures import Pictures
from liveedge.service.preview import Previews
from liveedge.service.providers.catalog import Catalog
from liveedge.service.publishing import Publishing
from liveedge.service.question import Answers
from liveedge.service.rates import Rates
from liveedge.service.streams import Streams
from liveedge.service.watches import Watches
from liveedge.service.windows import Windows

PREFIXES = ("/v1beta", "/v1", "")  # public clients hard-code each of them

Lifespan: TypeAlias = Callable[[FastAPI], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """What HTTP alone needs to know."""

    cors_origins: tuple[str, ...] = ()
    region: str = "local"
    is_regional: bool = False
    max_body_bytes: int = 64 << 20
    default_max_tokens: int = 512
    metrics_public: bool = False  # without a key
    public_url: str | None = None  # where clients reach this server; None: as they do
    ice_links: tuple[str, ...] = field(default=(), repr=False)  # for WHIP, made by `ice_link`


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes call."""

    answers: Answers
    models: ModelHost
    catalog: Catalog  # of all models
    streams: Streams
    windows: Windows
    watches: Watches
    pictures: Pictures
    previews: Previews
    publishing: Publishing
    held_bytes: Budget  # of request bodies
    publisher_bytes: Budget  # the same of publishers, who are to take nothing from questions
    keys: KeyRing
    rates: Rates
    audit: Audit
    metrics: MetricSources
    drain: Drain = field(default_factory=Drain)


def create_app(
    services: Services, settings: ApiSettings, *, clock: Clock, lifespan: Lifespan | None = None
) -> FastAPI:
    """The ASGI application."""
    keys = services.keys
    gate = Gate(
        keys=keys,
        rates=services.rates,
        audit=services.audit,
        region=settings.region,
        is_regional=settings.is_regional,
    )
    keys.on_end(lambda key: gate.leashes.end(key.id))
    app = DocumentedApi(
        title="liveedge",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,  # its page would come from other hosts
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(RequestContext, clock=clock, stats=services.metrics.http),
            Middleware(OnLeash, leashes=gate.leashes),
            Middleware(Cors, origins=settings.cors_origins, is_open=lambda: keys.is_open),
            Middleware(DrainGate, drain=services.drain, prefixes=PREFIXES),
            Middleware(HeadAsGet),
            Middleware(NoSuchWebSocket),
        ],
    )
    bodies = Bodies(
        max_bytes=settings.max_body_bytes, held=services.held_bytes, setting="max_body_mb"
    )
    chat = ChatEndpoint(
        answers=services.answers,
        bodies=bodies,
        clock=clock,
        default_max_tokens=settings.default_max_tokens,
        charge=gate.charge,
    )
    public_url = PublicUrl(settings.public_url)
    streams = StreamRoutes(
        gate=gate,
        bodies=bodies,
        streams=services.streams,
        windows=services.windows,
        pictures=services.pictures,
        previews=services.previews,
        publishing=services.publishing,
        public_url=public_url,
        clock=clock,
    )
    whip = WhipRoutes(
        gate=gate,
        bodies=Bodies(max_bytes=MAX_OFFER_BYTES, held=services.publisher_bytes),
        publishing=services.publishing,
        public_url=public_url,
        ice_links=settings.ice_links,
    )
    metrics = _metrics_router(gate, services.metrics, is_public=settings.metrics_public)
    windows = WindowRoutes(gate=gate, bodies=bodies, windows=services.windows)
    watches = WatchRoutes(
        gate=gate,
        bodies=bodies,
        watches=services.watches,
        clock=clock,
        default_max_tokens=settings.default_max_tokens,
    )
    livekit = LiveKitRoutes(publishing=services.publishing, region=settings.region)
    routers = (
        _chat_router(gate, chat),
        streams.router(),
        windows.router(),
        watches.router(),
        whip.router(),
        _facts(services, clock),
        metrics,
    )
    for prefix in PREFIXES:
        shown = prefix == PREFIXES[0]
        for router in routers:
            app.include_router(router, prefix=prefix, include_in_schema=shown)
    signalling = livekit.router()
    app.include_router(signalling)
    _show_docs(app)
    routes = [route for router in (*routers, signalling) for route in router.routes]
    services.metrics.http.learn([*routes, *app.routes], prefixes=PREFIXES)
    _answer_errors(app)
    return app


def _chat_router(gate: Gate, chat: ChatEndpoint) -> APIRouter:
    router = APIRouter(tags=["chat"])

    @router.post("/chat/completions")
    async def ask(request: Request) -> Response:
        """Ask a question about streams and pictures."""
        return chat.response(caller=gate.open_chat(request, scope="ask"))

    return router


def _facts(services: Services, clock: Clock) -> APIRouter:
    router = APIRouter(tags=["server"])

    @router.get("/models")
    async def models() -> Response:
        """The models that can be asked."""
        entries = await services.catalog.entries()
        return json_reply({"object": "list", "data": [model_object(entry) for entry in entries]})

    @router.get("/health")
    async def health() -> Response:
        """The process is alive."""
        return json_reply({"status": "ok"})

    @router.get("/ready")
    async def ready() -> Response:
        """The model is loaded and answers."""
        services.models.require_ready()
        return json_reply({"status": "ready", "model": services.models.model_id})

    @router.get("/version")
    async def version() -> Response:
        """Name and version of the server, and its wall clock: the one that stamps frames."""
        return json_reply({"name": "liveedge", "version": VERSION, "now_ms": clock.wall_ms()})

    @router.get("/", include_in_schema=False)
    async def root() -> Response:
        """Where to go from here."""
        return json_reply(
            {
                "name": "liveedge",
                "version": VERSION,
                "api": "/v1beta",
                "models": "/v1beta/models",
                "docs": "/docs",
            }
        )

    return router


def _metrics_router(gate: Gate, sources: MetricSources, *, is_public: bool) -> APIRouter:
    router = APIRouter(tags=["server"])

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Gauges and counters in the text format of Prometheus."""
        if not is_public:
            gate.open_server(request, scope="metrics")
        return Response(metrics_text(sources), headers={"content-type": CONTENT_TYPE})

    return router


def _show_docs(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The document for people."""
        return HTMLResponse(page.api_page(app.openapi()), headers=page.HEADERS)


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(LiveEdgeError)
    async def known(request: Request, error: LiveEdgeError) -> Response:
        return error_reply(answer(error, face=face_of(request.scope)))

    @app.exception_handler(BodyInvalid)
    async def malformed(request: Request, error: BodyInvalid) -> Response:
        return error_reply(invalid(error.details, face=face_of(request.scope)))

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> Response:
        """No such route, or not with this method."""
        # Of a 405 the framework names the methods of one route only.
        methods = allowed_methods(request) if error.status_code == 405 else ""
        text, code = {
            404: (f"there is no route {request.url.path[:200]}; /docs lists all", "not_found"),
            405: (
                f"{request.method} is not possible here; possible: {methods}",
                "method_not_allowed",
            ),
        }.get(error.status_code, (str(error.detail), "http_error"))
        body = flat_body(text, "invalid_request_error", code)
        headers = {"x-should-retry": "false", **(error.headers or {})}
        if methods:
            headers["Allow"] = methods
        return error_reply(ErrorAnswer(error.status_code, body, headers))

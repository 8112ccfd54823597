"""Every code of `core/errors.py`, provoked over HTTP: status, shape, type, headers.

One row per code and face. A code without a row fails, so a new error brings the request that
provokes it. Shapes, statuses and types are those of the wire specification, section 6.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

import liveedge
from liveedge.core import errors as e
from liveedge.core.errors import ResponseFormatUnsupported
from liveedge.service.caller import Scope
from liveedge.testing.clock import FakeClock
from liveedge.testing.engine import FAKE_MODEL, FakeEngine
from tests.documented import Document
from tests.provider_stub import Mood, dropping, refusing, silent, stub
from tests.serving import MODEL, Serving, chat_body, data_url, image, picture, serving, until, video
from tests.stored_keys import new_key

CHAT = "/chat/completions"
THEIRS = "their-model"
STREAM = "/streams/{stream_id}"
WINDOW = "/streams/{stream_id}/windows/{name}"
REGION = "us"


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a code comes about, and what it looks like."""

    code: str
    status: int
    type: str
    route: str  # as the document names it
    provoke: Callable[[Serving], Awaitable[httpx.Response]]
    shape: Literal["flat", "chat", "validation", "region"] = "chat"
    retry: Literal["no", "later", "perhaps"] = "no"  # useless, after `Retry-After`, may help
    settings: dict[str, Any] = field(default_factory=dict)
    scope: Scope | None = None  # the only one of the key; None: a key for everything
    peer: Mood | None = None  # of another server, whose model is asked

    @property
    def name(self) -> str:
        return f"{self.code}-{'chat' if self.route == CHAT else 'flat'}-{self.status}"


# Those that no client can see: they end the start of a server, or are told as another error.
NEVER_OVER_HTTP = {
    "settings_invalid": "ends the start",
    "checkpoint_invalid": "ends the start, or is told as model_unavailable",
}


def asks(*parts, **options):
    """A question with these parts. FILLED, EMPTY and FOREIGN stand for streams."""

    async def provoke(server):
        filled, empty, shown = await server.filled_stream(4), await server.new_stream(), []
        for part in parts:
            for name in {"image_url", "video_url"} & part.keys():
                url = part[name]["url"].replace("FILLED", filled).replace("EMPTY", empty)
                part = {**part, name: {"url": url}}
            shown.append(part)
        return await server.ask(*shown, **options)

    return provoke


def sends(method, path, **request):
    """A request about a filled stream."""

    async def provoke(server):
        stream_id = await server.filled_stream(2)
        return await server.client.request(method, path.format(stream_id=stream_id), **request)

    return provoke


def reference(query, kind=image):
    return kind(f"ovs://streams/FILLED?{query}")


async def without_key(server):
    headers = {"Authorization": "Bearer wrong"}
    return await server.client.post("/v1/chat/completions", json=chat_body(), headers=headers)


async def about_a_foreign_stream(server):
    theirs = await server.new_stream(Authorization="Bearer beta")
    return await server.ask(image(f"ovs://streams/{theirs}?frame_index=-1"))


async def look_at_a_foreign_stream(server):
    theirs = await server.new_stream(Authorization="Bearer beta")
    return await server.client.get(f"/streams/{theirs}")


async def about_an_evicted_frame(server):
    stream_id = await evicted(server)
    return await server.ask(image(f"ovs://streams/{stream_id}?frame_index=0"))


async def picture_of_an_evicted_frame(server):
    return await server.client.get(f"/streams/{await evicted(server)}/frame.jpg?frame_index=0")


async def evicted(server):
    """Its first frame is gone."""
    stream_id = await server.filled_stream(1)
    for _ in range(3):
        server.clock.move(250)
        await server.client.post(f"/streams/{stream_id}/keepalive")
    await server.push(stream_id)
    return stream_id


async def about_a_stale_stream(server):
    stream_id = await server.filled_stream(2)
    server.clock.move(1)
    part = image(f"ovs://streams/{stream_id}?frame_index=-1&max_age_ms=500")
    return await waited_for(server, stream_id, server.ask(part, timeout_ms=2000))


async def picture_of_a_stale_stream(server):
    stream_id = await server.filled_stream(2)
    server.clock.move(1)
    query = "frame_index=-1&max_age_ms=500"
    asked = server.client.get(f"/streams/{stream_id}/frame.jpg?{query}")
    return await waited_for(server, stream_id, asked)


async def waited_for(server, stream_id, asked):
    store = server.built.streams.stores("open", [stream_id])[stream_id]
    waiting = asyncio.ensure_future(asked)
    await until(lambda: store.n_waiting == 1)
    server.clock.move(60)
    return await waiting


async def after_its_deadline(server):
    server.engine.hold("queue")
    waiting = asyncio.ensure_future(server.ask(timeout_ms=1000))
    await until(lambda: server.engine.stats().queue_depth == 1)
    server.clock.move(1.5)
    server.engine.release("queue")
    return await waiting


async def a_stream_too_many(server):
    await server.new_stream()
    return await server.client.post("/streams", json={})


async def a_window_too_many(server):
    stream_id = await server.filled_stream(2)
    path = f"/streams/{stream_id}/windows"
    await server.client.put(f"{path}/one", json={"model": MODEL, "seconds": 1})
    return await server.client.put(f"{path}/two", json={"model": MODEL, "seconds": 2})


async def a_watch_too_many(server):
    stream_id = await server.filled_stream(2)
    part = image(f"ovs://streams/{stream_id}?frame_index=-1")
    await server.client.post("/watches", json=chat_body(part, every_ms=1000))
    return await server.client.post("/watches", json=chat_body(part, every_ms=2000))


async def push_into_a_simulation(server):
    created = (await server.client.post("/streams", json={"source": {"type": "sim"}})).json()
    return await server.client.post(f"/streams/{created['id']}/frames", content=picture())


async def to_another_model(server):
    body = chat_body() | {"model": "nobody/knows"}
    return await server.client.post("/v1/chat/completions", json=body)


async def to_a_model_that_is_gone(server):
    server.engine.crash()
    return await server.ask()


async def ready_of_a_model_that_is_gone(server):
    server.engine.crash()
    return await server.client.get("/ready")


async def asked_twice(server):
    await server.ask()
    return await server.ask()


async def looked_twice(server):
    await server.client.get("/streams")
    return await server.client.get("/streams")


async def looks(server):
    return await server.client.get("/streams")


async def asks_something(server):
    return await server.ask()


async def to_a_peer(server):
    return await server.ask(model=THEIRS)


async def to_a_silent_peer(server):
    waiting = asyncio.ensure_future(to_a_peer(server))
    await until(lambda: server.upstream.n_asked == 1)
    while not waiting.done():
        await server.clock.advance(1)
        await asyncio.sleep(0.01)
    return await waiting


async def to_another_region(server):
    headers = {"X-Overshoot-Region": "eu"}
    return await server.client.post("/v1/chat/completions", json=chat_body(), headers=headers)


async def to_a_crashing_engine(server):
    def crash(request):
        raise RuntimeError("secret of ours")

    server.engine.answer = crash
    return await server.ask()


async def to_a_judge_of_forms(server):
    def judge(form):
        raise ResponseFormatUnsupported("this JSON schema cannot be enforced: `not`")

    server.engine.check_form = judge
    return await server.ask(response_format={"type": "json_object"})


SMALL_CONTEXT = {
    "engine": lambda clock: FakeEngine(clock=clock, model=replace(FAKE_MODEL, max_model_len=64))
}
NO_VIDEO = {
    "engine": lambda clock: FakeEngine(clock=clock, model=replace(FAKE_MODEL, supports_video=False))
}
FULL = {"engine": lambda clock: FakeEngine(clock=clock, queue_capacity=0)}
BOMB = image(data_url(picture(size=(9000, 9000))))
FILTERED = {"error": {"message": "no", "code": "content_filter"}}
ONE_REQUEST = {"requests_per_second": 0.01, "request_burst": 1}
TWO_KEYS = {"api_key": ("alpha", "beta")}
S, V = "stream_error", "validation_error"

ROWS = (
    Row(
        code="unauthorized", status=401, type="authentication_error", shape="flat", route=CHAT,
        provoke=without_key,
    ),
    Row(
        code="unauthorized", status=401, type="authentication_error", shape="flat", route="/streams",
        provoke=sends("GET", "/streams", headers={"Authorization": "Basic YWxwaGE6"}),
    ),
    Row(
        code="permission_denied", status=403, type="permission_error", route=CHAT, scope="view",
        provoke=asks_something,
    ),
    Row(
        code="permission_denied", status=403, type="permission_error", shape="flat",
        route="/streams", scope="ask", provoke=looks,
    ),
    Row(
        code="rate_limit_exceeded", status=429, type="rate_limit_error", route=CHAT, retry="later",
        provoke=asked_twice, settings=ONE_REQUEST,
    ),
    Row(
        code="rate_limit_exceeded", status=429, type="rate_limit_error", shape="flat",
        route="/streams", retry="later", provoke=looked_twice, settings=ONE_REQUEST,
    ),
    Row(
        code="validation_error", status=422, type=V, shape="validation", route=CHAT,
        provoke=asks(temperature="hot"),
    ),
    Row(
        code="validation_error", status=422, type=V, shape="flat", route="/streams",
        provoke=sends("POST", "/streams", json={"source": {"type": 5}}),
    ),
    Row(
        code="parameter_unsupported", status=400, type=V, route=CHAT,
        provoke=asks(structured_outputs={"grammar": "root ::= x"}),
    ),
    Row(
        code="stream_url_invalid", status=400, type=S, route=CHAT,
        provoke=asks(image("ovs://elsewhere/x")),
    ),
    Row(
        code="query_param_invalid", status=400, type=S, route=CHAT,
        provoke=asks(reference("frame_index=1&frame_index=2")),
    ),
    Row(
        code="query_param_invalid", status=400, type=S, shape="flat", route=f"{STREAM}/frame.jpg",
        provoke=sends("GET", "/streams/{stream_id}/frame.jpg?frame=1"),
    ),
    Row(
        code="query_param_invalid", status=400, type=S, shape="flat",
        route=f"{STREAM}/preview.mjpeg",
        provoke=sends("GET", "/streams/{stream_id}/preview.mjpeg?fps=fast"),
    ),
    Row(
        code="stream_not_found", status=404, type=S, route=CHAT,
        provoke=asks(image("ovs://streams/unknown?frame_index=-1")),
    ),
    Row(
        code="stream_not_found", status=404, type=S, shape="flat", route=STREAM,
        provoke=sends("GET", "/streams/unknown"),
    ),
    Row(
        code="stream_not_found", status=404, type=S, shape="flat", route=STREAM,
        provoke=look_at_a_foreign_stream, settings=TWO_KEYS,
    ),
    Row(
        code="stream_unauthorized", status=403, type=S, route=CHAT,
        provoke=about_a_foreign_stream, settings=TWO_KEYS,
    ),
    Row(
        code="frame_not_yet_produced", status=409, type=S, route=CHAT, retry="perhaps",
        provoke=asks(image("ovs://streams/EMPTY?frame_index=0")),
    ),
    Row(
        code="frame_not_yet_produced", status=409, type=S, route=f"{STREAM}/frame.png",
        shape="flat", retry="perhaps",
        provoke=sends("GET", "/streams/{stream_id}/frame.png?frame_index=9"),
    ),
    Row(
        code="frame_evicted", status=410, type=S, route=CHAT, provoke=about_an_evicted_frame,
    ),
    Row(
        code="frame_evicted", status=410, type=S, shape="flat", route=f"{STREAM}/frame.jpg",
        provoke=picture_of_an_evicted_frame,
    ),
    Row(
        code="frame_stale", status=409, type=S, route=CHAT, retry="perhaps",
        provoke=about_a_stale_stream, settings={"api_key": ()},
    ),
    Row(
        code="frame_stale", status=409, type=S, shape="flat", route=f"{STREAM}/frame.jpg",
        retry="perhaps", provoke=picture_of_a_stale_stream, settings={"api_key": ()},
    ),
    Row(
        code="segment_empty", status=404, type=S, route=CHAT,
        provoke=asks(reference("timestamp_ms=9000")),
    ),
    Row(
        code="segment_empty", status=404, type=S, shape="flat", route=f"{STREAM}/frame.jpg",
        provoke=sends("GET", "/streams/{stream_id}/frame.jpg?frame_index=-9"),
    ),
    Row(
        code="segment_invalid", status=400, type=S, route=CHAT,
        provoke=asks(reference("start_frame_index=2&end_frame_index=1", video)),
    ),
    Row(
        code="source_unavailable", status=422, type=S, shape="flat", route="/streams",
        provoke=sends("POST", "/streams", json={"source": {"type": "rtsp", "url": "http://u:p@x"}}),
    ),
    Row(
        code="stream_limit_reached", status=429, type=S, shape="flat", route="/streams",
        retry="later", provoke=a_stream_too_many, settings={"max_streams_per_key": 1},
    ),
    Row(
        code="window_limit_reached", status=429, type=S, shape="flat", route=WINDOW,
        provoke=a_window_too_many, settings={"max_windows": 1},
    ),
    Row(
        code="window_not_found", status=404, type=S, shape="flat", route=WINDOW,
        provoke=sends("GET", "/streams/{stream_id}/windows/none"),
    ),
    Row(
        code="watch_not_found", status=404, type="not_found_error", shape="flat",
        route="/watches/{watch_id}", provoke=sends("GET", "/watches/none"),
    ),
    Row(
        code="watch_limit_reached", status=429, type="rate_limit_error", shape="flat",
        route="/watches", provoke=a_watch_too_many, settings={"max_watches": 1},
    ),
    Row(
        code="stream_state_invalid", status=409, type=S, shape="flat", route=f"{STREAM}/frames",
        provoke=push_into_a_simulation,
    ),
    Row(
        code="not_supported", status=501, type="not_supported", shape="flat", retry="perhaps",
        route=f"{STREAM}/viewer-token",
        provoke=sends("POST", "/streams/{stream_id}/viewer-token"),
    ),
    Row(
        code="media_invalid", status=400, type=V, route=CHAT,
        provoke=asks(image("data:image/png;base64,aGVsbG8=")),
    ),
    Row(
        code="media_invalid", status=400, type=V, route=CHAT,
        provoke=asks({"type": "input_audio", "input_audio": {}}),
    ),
    Row(
        code="media_invalid", status=400, type=V, shape="flat", route=f"{STREAM}/frames",
        provoke=sends("POST", "/streams/{stream_id}/frames", content=b"no picture"),
    ),
    Row(code="media_too_large", status=413, type=V, route=CHAT, provoke=asks(BOMB)),
    Row(
        code="media_too_large", status=413, type=V, shape="flat", route=f"{STREAM}/frames",
        provoke=sends("POST", "/streams/{stream_id}/frames", content=picture(size=(9000, 9000))),
    ),
    Row(
        code="request_too_large", status=413, type=V, route=CHAT,
        provoke=sends("POST", "/v1/chat/completions", content=b"x" * (1 << 20) + b"x"),
        settings={"max_body_mb": 1},
    ),
    Row(
        code="request_too_large", status=413, type=V, shape="flat", route="/streams",
        provoke=sends("POST", "/streams", content=b" " * 70_000),
    ),
    Row(
        code="model_not_found", status=404, type="provider_error", route=CHAT,
        provoke=to_another_model,
    ),
    Row(
        code="model_not_found", status=404, type="provider_error", shape="flat", route=WINDOW,
        provoke=sends(
            "PUT", "/streams/{stream_id}/windows/x", json={"model": "nobody/knows", "seconds": 1}
        ),
    ),
    Row(
        code="model_unavailable", status=503, type="provider_error", shape="flat", route=CHAT,
        retry="later", provoke=to_a_model_that_is_gone,
    ),
    Row(
        code="model_unavailable", status=503, type="provider_error", shape="flat", route="/ready",
        retry="later", provoke=ready_of_a_model_that_is_gone,
    ),
    Row(
        code="model_video_unsupported", status=400, type=V, route=CHAT,
        provoke=asks(reference("start_frame_index=0", video)), settings=NO_VIDEO,
    ),
    Row(
        code="context_length_exceeded", status=400, type=V, route=CHAT,
        provoke=asks(image(data_url(picture(size=(640, 480))))), settings=SMALL_CONTEXT,
    ),
    Row(
        code="response_format_unsupported", status=400, type=V, route=CHAT,
        provoke=to_a_judge_of_forms,
    ),
    Row(
        code="queue_full", status=429, type="rate_limit_error", route=CHAT, retry="later",
        provoke=asks(), settings=FULL,
    ),
    Row(
        code="deadline_exceeded", status=504, type="timeout_error", route=CHAT, retry="perhaps",
        provoke=after_its_deadline,
    ),
    Row(
        code="upstream_http_500", status=502, type="upstream_error", route=CHAT, retry="perhaps",
        provoke=to_a_peer, peer=refusing(500),
    ),
    Row(
        code="upstream_http_404", status=400, type="upstream_error", route=CHAT,
        provoke=to_a_peer, peer=refusing(404),
    ),
    Row(
        code="upstream_http_401", status=502, type="upstream_error", route=CHAT, retry="perhaps",
        provoke=to_a_peer, peer=refusing(401),
    ),
    Row(
        code="upstream_http_429", status=429, type="upstream_error", route=CHAT, retry="later",
        provoke=to_a_peer, peer=refusing(429),
    ),
    Row(
        code="upstream_request_failed", status=502, type="upstream_error", route=CHAT,
        retry="perhaps", provoke=to_a_peer, peer=dropping,
    ),
    Row(
        code="upstream_timeout", status=504, type="upstream_error", route=CHAT, retry="perhaps",
        provoke=to_a_silent_peer, peer=silent,
    ),
    Row(
        code="provider_safety_block", status=400, type="provider_error", route=CHAT,
        provoke=to_a_peer, peer=refusing(400, FILTERED),
    ),
    Row(
        code="region_error", status=409, type="region_error", shape="region", route=CHAT,
        provoke=to_another_region, settings={"region": REGION, "regions": (REGION, "eu")},
    ),
    Row(
        code="region_error", status=409, type="region_error", shape="region", route="/streams",
        provoke=sends("GET", "/streams", headers={"X-Overshoot-Region": "eu"}),
        settings={"region": REGION, "regions": (REGION, "eu")},
    ),
    Row(
        code="internal_error", status=500, type="internal_error", route=CHAT, retry="perhaps",
        provoke=to_a_crashing_engine,
    ),
)  # fmt: skip


@asynccontextmanager
async def ready_for(row, folder):
    settings = {"api_key": "alpha", "region": REGION, **row.settings}
    headers = {"Authorization": "Bearer alpha"}
    if row.scope is not None:
        settings["keys_file"] = folder / "keys.sqlite"
        headers = new_key(settings["keys_file"], scopes=frozenset({row.scope}))
    async with stub(row.peer or silent) as upstream:
        if row.peer is not None:
            peer = {"base_url": upstream.url, "models": [THEIRS], "retries": 0, "timeout": 3}
            settings["providers"] = {"peer": peer}
        async with serving(clock=FakeClock(), **settings) as server:
            server.client.headers.update(headers)
            server.upstream = upstream
            yield server


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_every_code_comes_with_its_status_its_shape_and_its_headers(row, tmp_path):
    async with ready_for(row, tmp_path) as server:
        document = await Document.of(server.client)
        answer = await row.provoke(server)
        assert answer.status_code == row.status, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-request-id"]
        has_region = row.route.startswith(("/chat", "/streams", "/watches"))
        assert answer.headers.get("x-overshoot-region") == (REGION if has_region else None)
        check_shape(row, answer.json())
        check_retry(row, answer.headers)
        document.check(row.route, answer)
        told = document.description(row.route, answer)
        code = re.sub(r"_http_\d+", "_http_<status>", row.code)
        assert f"`{code}`" in told, "api/code_places.py leaves it out"
        for secret in ("alpha", "secret of ours", "Traceback", "u:p", "<html"):
            assert secret not in answer.text


def check_shape(row, body):
    if row.shape == "validation":
        assert set(body) == {"error", "message", "details"}
        assert body["error"] == row.code
        assert all(set(one) == {"loc", "msg", "type"} for one in body["details"])
        return
    if row.shape == "region":
        asked = {"expected_region": REGION, "requested_region": "eu"}
        assert body == {"detail": {"error": row.code, **asked}}
        return
    assert set(body) == {"detail", "error"}
    assert set(body["error"]) - {"upstream"} == {"message", "type", "code"}
    assert ("upstream" in body["error"]) is (row.peer is not None)
    assert (body["error"]["code"], body["error"]["type"]) == (row.code, row.type)
    message = body["error"]["message"]
    assert message
    assert body["detail"] == (message if row.shape == "flat" else {"error": body["error"]})


def check_retry(row, headers):
    assert headers.get("x-should-retry") == ("false" if row.retry == "no" else None)
    if row.code == "rate_limit_exceeded":
        assert headers["x-ratelimit-remaining"] == "0"
        assert {"x-ratelimit-limit", "x-ratelimit-reset"} <= set(headers)
    if row.retry == "later":
        assert int(headers["retry-after"]) >= 1
    else:
        assert "retry-after" not in headers


def classes():
    found = [c for _, c in inspect.getmembers(e, inspect.isclass)]
    return [c for c in found if issubclass(c, e.LiveEdgeError)]


def is_raised(cls):
    """Whether anything in the sources does; some classes wait for their feature."""
    folder = Path(liveedge.__file__).parent
    pattern = re.compile(rf"\b{cls.__name__}\(")
    files = (path for path in folder.rglob("*.py") if path.name != "errors.py")
    return any(pattern.search(path.read_text(encoding="utf-8")) for path in files)


def test_every_code_has_a_row_or_a_reason():
    rows = {row.code for row in ROWS}
    wanted = {cls.code: cls for cls in classes()}
    missing = {
        code for code in wanted.keys() - rows - NEVER_OVER_HTTP.keys() if is_raised(wanted[code])
    }
    assert not missing, f"add a row that provokes {missing}"
    made = {code for code in rows if code.startswith("upstream_http_")}  # of a status
    assert not rows - wanted.keys() - made, "a row for a code that does not exist"

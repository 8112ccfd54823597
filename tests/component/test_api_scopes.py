"""Every route, and what it asks of a key: a route that is not in the table fails here."""

import json

import pytest
from starlette.routing import Route, WebSocketRoute

from liveedge.api.app import PREFIXES
from liveedge.service.caller import ALL_SCOPES, SCOPES
from tests.component.test_api_livekit import Call
from tests.serving import chat_body, serving
from tests.stored_keys import new_key

S = "/streams/{stream_id}"
# Of everything that a key opens: the scope that it takes.
SCOPED = {
    ("POST", "/chat/completions"): "ask",
    ("POST", "/streams"): "streams",
    ("GET", "/streams"): "view",
    ("GET", S): "view",
    ("DELETE", S): "streams",
    ("POST", f"{S}/keepalive"): "streams",
    ("POST", f"{S}/viewer-token"): "view",
    ("GET", f"{S}/frame.jpg"): "view",
    ("GET", f"{S}/frame.png"): "view",
    ("GET", f"{S}/preview.mjpeg"): "view",
    ("POST", f"{S}/frames"): "streams",
    ("WS", f"{S}/frames"): "streams",
    ("PUT", f"{S}/windows/{{name}}"): "ask",
    ("GET", f"{S}/windows/{{name}}"): "ask",
    ("DELETE", f"{S}/windows/{{name}}"): "ask",
    ("POST", "/watches"): "ask",
    ("GET", "/watches"): "ask",
    ("GET", "/watches/{watch_id}"): "ask",
    ("DELETE", "/watches/{watch_id}"): "ask",
    ("GET", "/watches/{watch_id}/events"): "ask",
    ("GET", "/metrics"): "metrics",
}
# What opens without a key, and why.
KEYLESS = {
    ("GET", "/models"): "public",
    ("GET", "/health"): "public",
    ("GET", "/ready"): "public",
    ("GET", "/version"): "public",
    ("GET", "/"): "public",
    ("GET", "/docs"): "public",
    ("GET", "/openapi.json"): "public",
    ("POST", "/whip/{stream_id}"): "the publish token",
    ("OPTIONS", "/whip/{stream_id}"): "public",
    ("PATCH", "/whip/{stream_id}/{session_id}"): "its own URL",
    ("DELETE", "/whip/{stream_id}/{session_id}"): "its own URL",
    ("WS", "/rtc"): "the publish token",
    ("WS", "/rtc/v1"): "the publish token",
    ("GET", "/rtc/validate"): "the publish token",
    ("GET", "/rtc/v1/validate"): "the publish token",
}


def routes_of(router):
    """Every method and path, prefixes taken off."""
    found = set()
    for route in router.routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            found |= routes_of(included)
            continue
        path = route.path
        for prefix in filter(None, PREFIXES):
            path = path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path
        if isinstance(route, WebSocketRoute):
            found.add(("WS", path))
            continue
        assert isinstance(route, Route), route
        found |= {(method, path) for method in route.methods or () if method != "HEAD"}
    return found


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A file with a key per scope, and one that lacks it."""
    path = tmp_path_factory.mktemp("keys") / "keys.sqlite"
    only = {scope: new_key(path, scopes=frozenset({scope})) for scope in SCOPES}
    without = {scope: new_key(path, scopes=ALL_SCOPES - {scope}) for scope in SCOPES}
    return path, only, without


async def answered(server, method, path, headers):
    """Status and body of a request that is otherwise good for nothing."""
    path = "/v1" + path.format(stream_id="unknown", name="w", watch_id="unknown")
    if method == "WS":
        call = Call(server.built.app, path, headers=headers)
        status, text = await call.refused()
        return status, json.loads(text)
    body = chat_body() if path.endswith("completions") else None
    answer = await server.client.request(method, path, json=body, headers=headers)
    is_json = answer.headers.get("content-type") == "application/json"
    return answer.status_code, answer.json() if is_json else None


async def test_every_route_is_in_the_table():
    async with serving() as server:
        assert routes_of(server.built.app) == set(SCOPED) | set(KEYLESS)


async def test_every_route_with_a_key_takes_its_scope_and_no_other(keys):
    path, only, without = keys
    async with serving(keys_file=path) as server:
        for (method, route), scope in SCOPED.items():
            status, body = await answered(server, method, route, without[scope])
            assert status == 403, (method, route)
            assert body["error"]["code"] == "permission_denied"
            assert body["error"]["type"] == "permission_error"
            assert f"scope {scope}" in body["error"]["message"]
            # The shape of the route's other errors.
            is_chat = route == "/chat/completions"
            assert (body["detail"] == {"error": body["error"]}) is is_chat, route
            status, _ = await answered(server, method, route, only[scope])
            assert status not in (401, 403), (method, route)
            status, body = await answered(server, method, route, {})
            assert (status, body["error"]["code"]) == (401, "unauthorized"), (method, route)


async def test_a_route_without_a_key_needs_none(keys):
    async with serving(keys_file=keys[0]) as server:
        for (method, route), why in KEYLESS.items():
            if why == "public" and method != "OPTIONS":
                status, _ = await answered(server, method, route or "/", {})
                assert status in (200, 404), (method, route)
            elif why == "the publish token" and method != "WS":
                status, _ = await answered(server, method, route, keys[1]["streams"])
                assert status in (401, 404), (method, route)  # a key is no publish token

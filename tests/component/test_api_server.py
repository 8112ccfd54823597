"""What every route shares: ids, origins, logs, health, a model that is still loading."""

import asyncio
import json
import logging
import re
import threading
from dataclasses import replace

import pytest

from liveedge.api.docs import OPERATIONS
from liveedge.api.page import api_page
from liveedge.core.errors import CheckpointInvalid
from liveedge.core.log import JsonFormatter
from liveedge.core.version import VERSION
from liveedge.testing.clock import FakeClock
from liveedge.testing.engine import FAKE_MODEL, FakeEngine
from tests.serving import MODEL, chat_body, data_url, image, picture, serving, until, video


async def test_a_request_id_is_taken_or_made_returned_and_logged(caplog):
    caplog.set_level(logging.INFO, "liveedge.http")
    async with serving() as server:
        mine = await server.client.get("/version", headers={"X-Request-Id": "mine-1"})
        assert mine.headers["x-request-id"] == "mine-1"
        assert "mine-1" in caplog.text
        made = await server.client.get("/version", headers={"X-Request-Id": "a b" * 100})
        assert re.fullmatch(r"[0-9a-f]{32}", made.headers["x-request-id"])
        assert made.headers["x-request-id"] in caplog.text


async def test_a_forged_request_id_cannot_forge_a_log_line(caplog):
    caplog.set_level(logging.INFO, "liveedge.http")
    async with serving() as server:
        await server.client.get("/x%0AGET%20/forged%20200", headers={"X-Request-Id": "tab\there"})
        for record in caplog.records:
            assert "\n" not in record.getMessage()
            assert "\t" not in record.getMessage()


async def test_neither_keys_nor_queries_reach_the_log(caplog):
    caplog.set_level(logging.DEBUG)
    async with serving(api_key="hush-hush") as server:
        headers = {"Authorization": "Bearer hush-hush"}
        await server.client.get("/streams?token=pass-word", headers=headers)
        await server.client.get("/streams", headers={"Authorization": "Bearer pass-word"})
        source = {"type": "rtsp", "url": "rtsp://user:pass-word@169.254.0.1/"}
        await server.client.post("/streams", json={"source": source}, headers=headers)
        ours = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("liveedge"))
        assert ours.count("/streams") == 3
        assert "hush-hush" not in ours
        assert "pass-word" not in ours


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/streams/x", "/models", "/nowhere"])
async def test_a_browser_on_this_machine_may_ask_everything(path):
    async with serving(api_key="k") as server:
        answer = await server.client.options(
            path,
            headers={
                "Origin": "http://localhost:5173",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization",
            },
        )
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == "http://localhost:5173"
        allowed = answer.headers["access-control-allow-headers"].lower()
        for name in ("authorization", "content-type", "x-request-id", "x-overshoot-region"):
            assert name in allowed
        assert "DELETE" in answer.headers["access-control-allow-methods"]


async def test_answers_and_errors_can_be_read_by_the_page_that_asked():
    async with serving(cors_origins="https://app.example") as server:
        for origin in ("https://app.example", "http://127.0.0.1:3000", "http://[::1]"):
            for path in ("/health", "/streams/none", "/nowhere"):
                answer = await server.client.get(path, headers={"Origin": origin})
                assert answer.headers["access-control-allow-origin"] == origin
                exposed = answer.headers["access-control-expose-headers"].lower()
                assert "x-request-id" in exposed
                assert "retry-after" in exposed


async def test_other_origins_are_not_allowed_unless_all_are():
    foreign = {"Origin": "https://localhost.evil.example"}
    asking = {**foreign, "Access-Control-Request-Method": "GET"}
    async with serving() as server:
        answer = await server.client.get("/health", headers=foreign)
        assert "access-control-allow-origin" not in answer.headers
        answer = await server.client.options("/health", headers=asking)
        assert "access-control-allow-origin" not in answer.headers
        stream_id = await server.new_stream()
        refused = await server.client.delete(f"/streams/{stream_id}", headers=foreign)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert (await server.client.get(f"/streams/{stream_id}")).json()["state"] == "active"
        own = {"Origin": "http://test"}
        assert (await server.client.delete(f"/streams/{stream_id}", headers=own)).status_code == 200
    async with serving(api_key="k") as server:  # a page cannot send what it does not know
        answer = await server.client.post("/streams", headers=foreign)
        assert answer.status_code == 401
    async with serving(cors_origins="*") as server:
        answer = await server.client.get("/health", headers=foreign)
        assert answer.headers["access-control-allow-origin"] == foreign["Origin"]


async def test_health_version_models_and_ready_need_no_key():
    async with serving(api_key="k") as server:
        for prefix in ("", "/v1", "/v1beta"):
            get = server.client.get
            assert (await get(f"{prefix}/health")).json() == {"status": "ok"}
            assert (await get(f"{prefix}/ready")).json() == {"status": "ready", "model": MODEL}
            version = (await get(f"{prefix}/version")).json()
            now_ms = server.clock.wall_ms()
            assert version == {"name": "liveedge", "version": VERSION, "now_ms": now_ms}
            assert (await get(f"{prefix}/models")).status_code == 200
        answer = await server.client.get("/streams")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert isinstance(answer.json()["detail"], str)
        chat = await server.client.post("/v1/chat/completions", json=chat_body())
        assert chat.status_code == 401
        assert isinstance(chat.json()["detail"], str)  # flat, in chat too


async def test_while_the_model_loads_everything_else_works():
    go = threading.Event()

    def load():
        go.wait()
        return FakeEngine(clock=FakeClock())

    async with serving(load_engine=load) as server:
        assert (await server.client.get("/health")).status_code == 200
        listed = (await server.client.get("/models")).json()["data"]
        assert [(m["id"], m["status"]) for m in listed] == [(MODEL, "unavailable")]
        stream_id = await server.filled_stream(1)
        assert (await server.client.get(f"/streams/{stream_id}/frame.jpg")).status_code == 200
        for answer in (await server.ask(), await server.client.get("/ready")):
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert isinstance(answer.json()["detail"], str)
            assert answer.json()["error"]["code"] == "model_unavailable"
        unknown = chat_body() | {"model": "nobody/knows"}
        answer = await server.client.post("/v1/chat/completions", json=unknown)
        assert answer.status_code == 404
        go.set()
        await server.built.models.ready()
        assert (await server.client.get("/ready")).status_code == 200
        assert (await server.ask()).status_code == 200


async def test_a_model_that_cannot_be_loaded_leaves_the_server_up(caplog):
    def load():
        raise CheckpointInvalid("/models/x/config.json: no such key")

    async with serving(load_engine=load) as server:
        await until(lambda: server.built.models.status() == "failed")
        answer = await server.ask()
        assert answer.status_code == 503
        assert "log" in answer.json()["detail"]
        assert "/models/x" not in answer.text
        assert "/models/x" in caplog.text
        assert (await server.client.get("/health")).status_code == 200
        with pytest.raises(CheckpointInvalid):
            await server.built.models.ready()


async def test_questions_in_progress_are_limited():
    async with serving(max_requests=2) as server:
        server.engine.hold("decode")
        running = [asyncio.ensure_future(server.ask()) for _ in range(2)]
        await until(lambda: server.engine.stats().running == 2)
        answer = await server.ask()
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert "retry-after" in answer.headers
        server.engine.release("decode")
        assert [(await one).status_code for one in running] == [200, 200]
        assert (await server.ask()).status_code == 200


async def test_decoded_uploads_are_limited_alone_and_together():
    megabytes_12 = image(data_url(picture(size=(2000, 2000))))
    async with serving(max_decoded_mb=20) as server:
        answer = await server.ask(megabytes_12, megabytes_12)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "media_too_large")
        assert "messages[0].content[1]" in answer.json()["error"]["message"]
        server.engine.hold("prefill")
        running = asyncio.ensure_future(server.ask(megabytes_12))
        await until(lambda: server.engine.stats().running == 1)
        answer = await server.ask(megabytes_12)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        server.engine.release("prefill")
        assert (await running).status_code == 200
        assert (await server.ask(megabytes_12)).status_code == 200
        assert server.built.questions.decoded_bytes.used == 0


async def test_the_document_of_the_api_names_bodies_and_keys():
    async with serving() as server:
        document = (await server.client.get("/openapi.json")).json()
        body = document["paths"]["/v1beta/chat/completions"]["post"]["requestBody"]
        reference = body["content"]["application/json"]["schema"]["$ref"]
        schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
        assert {"model", "messages", "max_age_ms"} <= set(schema["properties"])
        assert document["security"] == [{"key": []}]
        assert document["paths"]["/v1beta/models"]["get"]["security"] == []


async def test_the_document_tells_parameters_and_how_every_route_can_end():
    async with serving() as server:
        document = (await server.client.get("/openapi.json")).json()
        shown = {
            (path.removeprefix("/v1beta"), method)
            for path, methods in document["paths"].items()
            for method in methods
        }
        assert shown == set(OPERATIONS)  # a new route needs its entry
        paths = document["paths"]
        query = paths["/v1beta/streams/{stream_id}/frame.jpg"]["get"]["parameters"]
        assert {"stream_id", "frame_index", "timestamp_ms", "offset_ms"} <= {
            one["name"] for one in query
        }
        push = paths["/v1beta/streams/{stream_id}/frames"]["post"]
        assert ("header", "X-Captured-At-Ms") in [(p["in"], p["name"]) for p in push["parameters"]]
        assert set(push["responses"]) >= {"201", "400", "401", "404", "413"}
        assert "200" not in paths["/v1beta/streams"]["post"]["responses"]
        viewed = paths["/v1beta/streams/{stream_id}/viewer-token"]["post"]["responses"]
        assert set(viewed) >= {"200", "401", "404", "501"}
        references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
        assert references == set(document["components"]["schemas"])


async def test_the_page_of_the_document_needs_no_other_host():
    async with serving(api_key="k") as server:
        answer = await server.client.get("/docs")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        hosts = set(re.findall(r"(?:https?:)?//([\w.-]+)", answer.text))
        assert hosts <= {"localhost", "127.0.0.1"}
        assert re.findall(r'(?:src|href)="([^"#]+)"', answer.text) == ["data:,", "openapi.json"]
        assert "<script" not in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        for told in ("/v1beta/chat/completions", "max_age_ms", "X-Captured-At-Ms", "frame.jpg"):
            assert told in answer.text


def test_the_page_escapes_what_the_document_says():
    document = {
        "info": {"title": "<b>", "version": "1"},
        "paths": {
            "/<i>": {"get": {"description": "<u>", "responses": {}}},
        },
        "components": {"schemas": {"Thing": {"properties": {"<s>": {"enum": ["<a>", 2]}}}}},
    }
    text = api_page(document)
    for tag in ("<b>", "<i>", "<u>", "<s>", "<a>"):
        assert tag not in text
        assert tag.replace("<", "&lt;").replace(">", "&gt;") in text


async def test_an_unknown_model_is_answered_with_those_there_are():
    aliases = {f"alias-{n}": MODEL for n in range(6)}
    async with serving() as server:
        body = chat_body() | {"model": "nobody/knows"}
        answer = await server.client.post("/v1/chat/completions", json=body)
        message = answer.json()["error"]["message"]
        assert message == f"there is no model 'nobody/knows'; there is {MODEL}"
    async with serving(aliases=aliases) as server:
        answer = await server.client.post("/v1/chat/completions", json=body)
        message = answer.json()["error"]["message"]
        assert "alias-3 and 2 more (GET /models)" in message
        assert "alias-4" not in message


async def test_more_frames_than_any_prompt_holds_are_refused_before_one_is_prepared():
    class Untouched(FakeEngine):
        def prepare(self, request):
            raise AssertionError("the frames were made into a prompt")

    model = replace(FAKE_MODEL, max_model_len=21)  # five pairs at most
    async with serving(engine=lambda clock: Untouched(clock=clock, model=model)) as server:
        stream_id = await server.filled_stream(12)
        url = f"ovs://streams/{stream_id}?start_frame_index=0&max_fps=10"
        answer = await server.ask(video(url))
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "12 frames" in answer.json()["error"]["message"]
        assert "would fit" in answer.json()["error"]["message"]


async def test_the_line_of_a_request_knows_its_request_stream_and_key(caplog):
    caplog.set_level(logging.INFO, "liveedge.http")
    lines = []

    class Kept(logging.Handler):
        def emit(self, record):
            lines.append(json.loads(self.format(record)))

    kept = Kept()
    kept.setFormatter(JsonFormatter())
    logging.getLogger("liveedge.http").addHandler(kept)
    try:
        async with serving(api_key="k") as server:
            headers = {"Authorization": "Bearer k", "X-Request-Id": "mine-1"}
            server.client.headers.update(headers)
            stream_id = await server.filled_stream(1)
            await server.client.get(f"/streams/{stream_id}")
            await server.ask(image(f"ovs://streams/{stream_id}?frame_index=-1"))
    finally:
        logging.getLogger("liveedge.http").removeHandler(kept)
    created, _, got, asked = lines
    assert created["request_id"] == got["request_id"] == "mine-1"
    assert created["stream_id"] == got["stream_id"] == asked["stream_id"] == stream_id
    assert got["key_id"] == asked["key_id"] != "k"
    assert (asked["method"], asked["path"], asked["status"]) == (
        "POST",
        "/v1beta/chat/completions",
        200,
    )

"""`/openapi.json` tells the truth: of every route what is sent, and what comes back."""

import httpx
import pytest

from liveedge.api.answers import EXAMPLES
from liveedge.api.docs import OPERATIONS
from liveedge.api.operation import EVENTS, JSON
from tests.documented import Document
from tests.offers import offer
from tests.provider_stub import saying, stub
from tests.serving import MODEL, chat_body, image, serving, video

WINDOW = {"model": MODEL, "seconds": 2}
TOOLS = [{"type": "function", "function": {"name": "stop"}}]
CALL = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'


async def document_of(server):
    return (await server.client.get("/openapi.json")).json()


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: f"{route[1]} {route[0]}")
def test_every_route_tells_what_its_json_and_its_events_hold(route):
    operation = OPERATIONS[route]
    if JSON in operation.kinds:
        assert operation.answer is not None, "give its Operation an `answer` (api/answers.py)"
    if EVENTS in operation.kinds:
        assert operation.event is not None, "give its Operation an `event` (api/answers.py)"
    if operation.body is not None:
        assert operation.example is not None, "give its Operation an `example` of the body"


async def test_examples_fit_their_schemas_and_are_accepted():
    async with serving() as server:
        told = await document_of(server)
        document = Document(told)
        for model, example in EXAMPLES.items():
            document.check_value(told["components"]["schemas"][model.__name__], example)
        for (path, method), operation in OPERATIONS.items():
            if operation.example is not None:
                body = told["paths"][f"/v1beta{path}"][method]["requestBody"]
                document.check_value(
                    body["content"][JSON]["schema"], body["content"][JSON]["example"]
                )


async def test_an_answer_lists_the_codes_that_its_route_can_give_and_no_others():
    async with serving() as server:
        paths = (await document_of(server))["paths"]
        page = (await server.client.get("/docs")).text
    chat = paths["/v1beta/chat/completions"]["post"]["responses"]
    assert "`upstream_http_<status>`" in chat["502"]["description"]
    assert "watch_not_found" not in chat["404"]["description"]
    assert "source_unavailable" not in chat["422"]["description"]
    listed = paths["/v1beta/streams"]["get"]["responses"]
    assert listed["400"]["description"] == "Bad Request"  # what is no HTTP has no code of ours
    assert listed["500"]["description"] == "Internal Server Error (`internal_error`)"
    assert "(<code>internal_error</code>)" in page
    assert "<code>upstream_http_&lt;status&gt;</code>" in page


async def test_every_operation_has_a_name_of_its_own_and_links_lead_to_some():
    async with serving() as server:
        told = await document_of(server)
        operations = [one for methods in told["paths"].values() for one in methods.values()]
        names = [one["operationId"] for one in operations]
        assert len(set(names)) == len(names)
        links = [
            link["operationId"]
            for one in operations
            for response in one["responses"].values()
            for link in response.get("links", {}).values()
        ]
        assert links
        assert set(links) <= set(names)


async def test_every_answer_about_streams_is_as_documented():
    async with serving() as server:
        document = await Document.of(server.client)
        for body in ({}, {"source": None}, {"source": {"type": "push"}}):
            document.check("/streams", await server.client.post("/streams", json=body))
        document.check("/streams", await server.client.post("/streams"))
        stream_id = await server.filled_stream(3)
        path = f"/streams/{stream_id}"
        document.check("/streams", await server.client.get("/streams"))
        document.check("/streams/{stream_id}/frames", await _pushed(server, stream_id))
        for name in ("frame.jpg", "frame.png"):
            answer = await server.client.get(f"{path}/{name}")
            document.check(f"/streams/{{stream_id}}/{name}", answer)
        for expected in (201, 200):
            answer = await server.client.put(f"{path}/windows/door", json=WINDOW)
            assert answer.status_code == expected
            document.check("/streams/{stream_id}/windows/{name}", answer)
        document.check(
            "/streams/{stream_id}/windows/{name}", await server.client.get(f"{path}/windows/door")
        )
        document.check("/streams/{stream_id}", await server.client.get(path))
        document.check(
            "/streams/{stream_id}/windows/{name}",
            await server.client.delete(f"{path}/windows/door"),
        )
        for method, route in (("post", "/keepalive"), ("delete", ""), ("get", "")):
            answer = await server.client.request(method, path + route)
            assert answer.status_code == 200
            document.check("/streams/{stream_id}" + route, answer)


async def _pushed(server, stream_id):
    data = (await server.client.get(f"/streams/{stream_id}/frame.png")).content
    headers = {"X-Captured-At-Ms": str(server.clock.wall_ms())}
    return await server.client.post(f"/streams/{stream_id}/frames", content=data, headers=headers)


async def test_every_answer_about_the_server_is_as_documented():
    async with serving(aliases={"gpt-4o": MODEL}) as server:
        document = await Document.of(server.client)
        for path in ("/models", "/health", "/ready", "/version", "/metrics"):
            document.check(path, await server.client.get(path))


async def test_an_answer_is_as_documented_whole_and_in_pieces():
    async with serving() as server:
        document = await Document.of(server.client)
        stream_id = await server.filled_stream(3)
        parts = (
            image(f"ovs://streams/{stream_id}?frame_index=-1"),
            video(f"ovs://streams/{stream_id}?start_offset_ms=-200&max_fps=10"),
        )
        for options in (
            {},
            {"n": 2, "logprobs": True, "top_logprobs": 2},
            {"stream": True},
            {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "n": 2},
        ):
            answer = await server.ask(*parts, **options)
            assert answer.status_code == 200
            document.check("/chat/completions", answer)


async def test_calls_of_tools_are_as_documented_whole_and_in_pieces():
    async with serving() as server:
        server.engine.answer = f"On it.\n{CALL}"
        document = await Document.of(server.client)
        for options in ({}, {"stream": True}, {"logprobs": True}):
            answer = await server.ask(tools=TOOLS, **options)
            assert "tool_calls" in answer.text
            document.check("/chat/completions", answer)


async def test_answers_of_other_servers_and_of_fallbacks_are_as_documented():
    async with stub(saying("it moved")) as upstream:
        provider = {"base_url": upstream.url, "models": ["their-model"]}
        fallbacks = {MODEL: ["their-model"]}
        async with serving(providers={"peer": provider}, fallbacks=fallbacks) as server:
            document = await Document.of(server.client)
            stream_id = await server.filled_stream(2)
            part = image(f"ovs://streams/{stream_id}?frame_index=-1")
            server.built.models.close()
            for options in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
                answer = await server.ask(part, **options)
                assert "model_unavailable" in answer.text  # why another one answered
                assert '"provider":"peer"' in answer.text
                document.check("/chat/completions", answer)
            body = chat_body(part, every_ms=1000, max_results=1)
            created = await server.client.post("/watches", json=body)
            events = await server.client.get(f"/watches/{created.json()['id']}/events")
            assert "their-model" in events.text
            document.check("/watches/{watch_id}/events", events)
            document.check("/models", await server.client.get("/models"))


async def test_where_a_key_stands_is_documented_wherever_it_is_told():
    async with serving(requests_per_second=100.0) as server:
        told = (await document_of(server))["paths"]
        stream_id = await server.filled_stream(1)
        part = image(f"ovs://streams/{stream_id}?frame_index=-1")
        for path, method, body in (
            ("/streams", "get", None),
            ("/streams/{stream_id}", "get", None),
            ("/chat/completions", "post", chat_body(part)),
            ("/watches", "post", chat_body(part, every_ms=1000)),
            ("/watches", "get", None),
        ):
            shown = path.replace("{stream_id}", stream_id)
            answer = await server.client.request(method, shown, json=body)
            told_headers = told["/v1beta" + path][method]["responses"][str(answer.status_code)]
            for name in ("limit", "remaining", "reset"):
                assert f"x-ratelimit-{name}" in answer.headers
                assert f"x-ratelimit-{name}" in told_headers["headers"], path


async def test_a_watch_and_its_events_are_as_documented():
    async with serving() as server:
        document = await Document.of(server.client)
        stream_id = await server.filled_stream(3)
        part = image(f"ovs://streams/{stream_id}?frame_index=-1")
        body = chat_body(part, every_ms=1000, max_results=1)
        created = await server.client.post("/watches", json=body)
        assert created.status_code == 201
        document.check("/watches", created)
        watch = f"/watches/{created.json()['id']}"
        events = await server.client.get(f"{watch}/events")
        assert "event: result" in events.text
        assert "event: ended" in events.text
        document.check("/watches/{watch_id}/events", events)
        document.check("/watches", await server.client.get("/watches"))
        shown = await server.client.get(watch)
        assert shown.json()["last_result"] is not None
        document.check("/watches/{watch_id}", shown)
        over = await server.client.get(
            f"{watch}/events?last_event_id={shown.json()['last_event_id']}"
        )
        assert over.status_code == 204
        document.check("/watches/{watch_id}/events", over)
        document.check("/watches/{watch_id}", await server.client.delete(watch))


async def test_publishing_by_whip_is_as_documented():
    async with serving() as server:
        document = await Document.of(server.client)
        created = (await server.client.post("/streams", json={"source": {"type": "whip"}})).json()
        headers = {
            "Authorization": f"Bearer {created['publish']['token']}",
            "Content-Type": "application/sdp",
        }
        path = f"/whip/{created['id']}"
        answer = await server.client.post(path, content=offer(), headers=headers)
        assert answer.status_code == 201
        document.check("/whip/{stream_id}", answer)
        session = httpx.URL(answer.headers["location"]).path
        left = await server.client.delete(session)
        assert left.status_code == 200
        document.check("/whip/{stream_id}/{session_id}", left)


async def test_a_question_of_the_document_can_be_asked():
    async with serving() as server:
        body = (await document_of(server))["paths"]["/v1beta/chat/completions"]["post"]
        example = body["requestBody"]["content"][JSON]["example"]
        assert set(example) <= set(chat_body())

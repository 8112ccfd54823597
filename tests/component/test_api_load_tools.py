"""What aiperf and guidellm send to a server, recorded: each gets what it needs to finish a run.

Recorded from aiperf 0.13.0 and guidellm 0.8.1 with the commands of docs/other-tools.md, pictures
replaced. What they make of the answers was read in a run of theirs against a scripted server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from liveedge.engine.request import ImagePart, TextPart
from liveedge.testing.engine import FakeEngine
from tests.serving import MODEL, Serving, data_url, picture, serving, sse_events

URL = data_url(picture(), "image/jpeg")
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
TEXT = {"type": "text", "text": "Is the lamp on or off?"}


@dataclass(frozen=True)
class Tool:
    """What one tool sends with every question, and what it asks before the first."""

    name: str
    headers: dict[str, str]
    options: dict[str, Any]
    before: tuple[tuple[str, str], ...]  # method, path


AIPERF = Tool(
    name="aiperf",
    headers={
        "User-Agent": "aiperf/0.13.0",
        "X-Request-ID": "0f1e655f-dd3a-40fc-9b28-74b43c0e4a45",
        "X-Correlation-ID": "fb52f53f-c789-4429-8aca-84e593ddd97d",
        "X-Session-Affinity": "fb52f53f-c789-4429-8aca-84e593ddd97d",
        "Accept": "text/event-stream",
    },
    options={
        "stream": True,
        "temperature": 0,
        "max_tokens": 96,
        "stream_options": {"include_usage": True},
    },
    before=(("HEAD", "/metrics"), ("GET", "/metrics")),
)
GUIDELLM = Tool(
    name="guidellm",
    headers={"User-Agent": "python-httpx/0.28.1", "Accept": "*/*"},
    options={
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_completion_tokens": 96,
        "temperature": 0,
    },
    before=(("GET", "/health"), ("GET", "/v1/models")),
)
TOOLS = pytest.mark.parametrize("tool", [AIPERF, GUIDELLM], ids=lambda tool: tool.name)


async def ask(server: Serving, tool: Tool, *parts: dict[str, Any], **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": list(parts)}]
    body = {"model": MODEL, "messages": messages, **tool.options, **more}
    return await server.client.post("/v1/chat/completions", json=body, headers=tool.headers)


@TOOLS
async def test_a_tool_finds_what_it_asks_before_its_first_question(tool: Tool):
    async with serving() as server:
        for method, path in tool.before:
            answer = await server.client.request(method, path, headers={"Accept": "*/*"})
            assert answer.status_code == 200, path
        models = (await server.client.get("/v1/models")).json()["data"]
        assert models[0]["id"] == MODEL  # guidellm takes the first where its command names none


@TOOLS
@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        ([TEXT, IMAGE], [TextPart, ImagePart]),  # from their own columns: the question first
        ([IMAGE, TEXT], [ImagePart, TextPart]),  # from whole requests
        ([IMAGE] * 4 + [TEXT], [ImagePart] * 4 + [TextPart]),
    ],
    ids=["columns", "request", "clip"],
)
async def test_its_pictures_reach_the_model_in_the_order_sent(
    tool: Tool, parts: list[dict[str, Any]], kinds: list[type]
):
    async with serving() as server:
        answer = await ask(server, tool, *parts)
        assert answer.status_code == 200, answer.text
        content = server.engine.requests[0].messages[0].content
        assert [type(part) for part in content] == kinds
        assert server.engine.requests[0].sampling.max_tokens == 96


@TOOLS
async def test_its_first_token_is_the_first_content_and_its_counts_come_last(tool: Tool):
    async with serving(engine=lambda clock: FakeEngine(clock=clock)) as server:
        answer = await ask(server, tool, IMAGE, TEXT)
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, end = sse_events(answer.text)
        assert end == "[DONE]"
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        # Both take the first chunk with text in it; one with the role alone must have none.
        assert not events[0]["choices"][0]["delta"].get("content")
        said = [e["choices"][0]["delta"].get("content") for e in events if e["choices"]]
        assert any(said)
        assert events[-1]["choices"] == []
        usage = events[-1]["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] >= 1
        assert usage["prompt_tokens_details"]["image_tokens"] >= 1


async def test_aiperf_finds_its_request_by_the_id_it_gave():
    async with serving() as server:
        answer = await ask(server, AIPERF, IMAGE, TEXT)
        assert answer.headers["x-request-id"] == AIPERF.headers["X-Request-ID"]


async def test_a_fixed_number_of_tokens_is_a_bound_here():
    """guidellm asks for it where a row names its output tokens: the model may still end earlier."""
    async with serving() as server:
        fixed = {"max_completion_tokens": 8, "ignore_eos": True, "stop": None}
        answer = await ask(server, GUIDELLM, IMAGE, TEXT, **fixed)
        assert answer.status_code == 200, answer.text
        assert server.engine.requests[0].sampling.max_tokens == 8


@TOOLS
async def test_a_refusal_is_an_http_status_before_any_event(tool: Tool):
    """Both count it as an error by its status, and leave it out of their latencies."""
    async with serving() as server:
        broken = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}}
        answer = await ask(server, tool, broken, TEXT)
        assert answer.status_code == 400
        assert json.loads(answer.text)["error"]["code"] == "media_invalid"

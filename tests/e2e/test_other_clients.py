"""The `openai` package for JavaScript and plain curl, unchanged."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from liveedge.core.clock import SystemClock
from liveedge.engine.request import GenerateRequest
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.testing.engine import FakeEngine
from tests.node import node_script
from tests.serving import MODEL, SMALL, sse_events

KEY = "sk-test"
SAID = "It is grün 🙂 there."
CALL = 'So be it.\n<tool_call>\n{"name": "move", "arguments": {"to": "left"}}\n</tool_call>'
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "What is there?"}]}
TOOLS = [{"type": "function", "function": {"name": "move"}}]


def answer(request: GenerateRequest) -> str:
    if request.form is not None:
        return '{"door": "open"}'
    return CALL if request.tools else SAID


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    clock = SystemClock()
    settings = Settings(port=0, api_key=KEY, **SMALL)
    with BackgroundServer(
        settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock, answer=answer)
    ) as running:
        yield running


def test_javascript_asks_streams_and_calls(server: BackgroundServer):
    command = node_script("openai.js", package="openai")
    done = subprocess.run(
        [*command, f"{server.url}/v1", KEY, MODEL],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    usage = found.pop("usage")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    streamed = found.pop("streamedCall")  # the helper adds what it parsed
    assert (streamed["name"], streamed["arguments"]) == ("move", '{"to": "left"}')
    assert found == {
        "whole": SAID,
        "tokens": SAID,
        "streamed": SAID,
        "reason": "tool_calls",
        "call": {"name": "move", "arguments": '{"to": "left"}'},
        "closed": SAID,
        "models": [MODEL],
        "error": ["NotFoundError", 404, "model_not_found"],
    }


def curl(server: BackgroundServer, path: str, *options: str, key: str = KEY) -> str:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("needs curl on this machine")
    command = [program, "-sS", "--max-time", "30", "--noproxy", "*", *options]
    command += ["-H", f"Authorization: Bearer {key}", f"{server.url}{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def post(server: BackgroundServer, body: dict[str, Any], *options: str) -> str:
    options = ("-H", "Content-Type: application/json", "-d", json.dumps(body), *options)
    return curl(server, "/v1/chat/completions", *options)


def test_curl_gets_an_answer(server: BackgroundServer):
    said = json.loads(post(server, ASKED))
    assert said["choices"][0]["message"]["content"] == SAID
    # Without the header that says so, it is JSON all the same.
    said = json.loads(curl(server, "/v1/chat/completions", "-d", json.dumps(ASKED)))
    assert said["choices"][0]["message"]["content"] == SAID


def test_curl_gets_an_answer_as_it_comes(server: BackgroundServer):
    *chunks, done = sse_events(post(server, {**ASKED, "stream": True}, "-N"))
    assert done == "[DONE]"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == SAID
    *chunks, done = sse_events(post(server, {**ASKED, "stream": True, "tools": TOOLS}, "-N"))
    assert done == "[DONE]"
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_curl_gets_json_calls_and_errors(server: BackgroundServer):
    said = json.loads(post(server, {**ASKED, "response_format": {"type": "json_object"}}))
    assert json.loads(said["choices"][0]["message"]["content"]) == {"door": "open"}
    said = json.loads(post(server, {**ASKED, "tools": TOOLS}))
    message = said["choices"][0]["message"]
    assert message["content"] == "So be it."
    assert message["tool_calls"][0]["function"]["name"] == "move"
    status = ("-o", "/dev/null", "-w", "%{http_code}")
    assert post(server, {**ASKED, "temperature": "0"}, *status) == "422"
    assert curl(server, "/v1/chat/completions", "-d", "{}", *status, key="no") == "401"


def test_curl_makes_a_stream_without_a_body(server: BackgroundServer):
    stream = json.loads(curl(server, "/v1beta/streams", "-X", "POST"))
    deleted = json.loads(curl(server, f"/v1beta/streams/{stream['id']}", "-X", "DELETE"))
    assert deleted == {"id": stream["id"], "deleted": True}

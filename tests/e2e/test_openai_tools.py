"""Tools and structured answers through the `openai` SDK, on the shipped model: forced by the grammar,
so their form is certain although the model was never taught to call."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel

from liveedge.client.local_server import running_server
from liveedge.core.clock import SystemClock

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "tools-and-json.md"
MODEL = "liveedge/workcell-tiny"
ASKED: Any = [{"role": "user", "content": "Is the lamp on?"}]
LAMP: Any = {
    "type": "function",
    "function": {
        "name": "set_lamp",
        "description": "Switch the lamp.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"state": {"enum": ["on", "off"]}},
            "required": ["state"],
            "additionalProperties": False,
        },
    },
}
HALT: Any = {"type": "function", "function": {"name": "halt"}}
FORCED: Any = {"type": "function", "function": {"name": "set_lamp"}}

pytestmark = pytest.mark.timeout(240)


class Lamp(BaseModel):
    """What `parse` gets."""

    state: Literal["on", "off"]
    sure: bool | None


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(model=None, port=None, clock=SystemClock()) as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


def test_a_forced_call_is_made_and_its_result_is_taken(client: openai.OpenAI):
    asked = client.chat.completions.create(
        model=MODEL, messages=ASKED, tools=[LAMP, HALT], tool_choice=FORCED, temperature=0
    )
    choice = asked.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "set_lamp"
    assert json.loads(call.function.arguments)["state"] in ("on", "off")
    messages: Any = [*ASKED, choice.message]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "done"})
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[LAMP, HALT], max_tokens=8
    )
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert answer.usage is not None
    assert asked.usage is not None
    assert answer.usage.prompt_tokens > asked.usage.prompt_tokens


def test_a_forced_call_is_streamed_and_put_together_by_the_sdk(client: openai.OpenAI):
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, tools=[LAMP, HALT], tool_choice="required",
        parallel_tool_calls=False,
    ) as stream:  # fmt: skip
        events = list(stream)
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or []
    assert call.function.name in ("set_lamp", "halt")
    json.loads(call.function.arguments)
    kinds = {event.type for event in events}
    assert "tool_calls.function.arguments.done" in kinds
    assert not final.choices[0].message.content


async def test_a_forced_call_is_streamed_asynchronously(url: str):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=ASKED, tools=[LAMP], tool_choice=FORCED, stream=True
        )
        names, arguments, ids = [], "", set()
        async for chunk in stream:
            for piece in chunk.choices[0].delta.tool_calls or []:
                ids |= {piece.id} - {None}
                assert piece.function is not None
                names += [piece.function.name] if piece.function.name else []
                arguments += piece.function.arguments or ""
        assert (names, len(ids)) == (["set_lamp"], 1)
        assert set(json.loads(arguments)) == {"state"}


def test_an_answer_is_parsed_into_a_model(client: openai.OpenAI):
    parsed = client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Lamp)
    assert isinstance(parsed.choices[0].message.parsed, Lamp)
    content = parsed.choices[0].message.content or ""
    assert content.startswith("{")
    assert content.endswith("}")


def test_tools_are_parsed_into_a_model(client: openai.OpenAI):
    tool = openai.pydantic_function_tool(Lamp, name="set_lamp")
    parsed = client.chat.completions.parse(
        model=MODEL, messages=ASKED, tools=[tool], tool_choice=FORCED
    )
    (call,) = parsed.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Lamp)


def test_logprobs_cover_what_was_said(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model=MODEL, messages=ASKED, logprobs=True, top_logprobs=2, max_tokens=6, n=2, seed=1
    )
    for choice in answer.choices:
        assert choice.logprobs is not None
        tokens = choice.logprobs.content or []
        assert "".join(token.token for token in tokens) == choice.message.content
        assert all(len(token.top_logprobs) == 2 for token in tokens)


def test_a_call_about_a_live_segment_is_made_on_a_warm_window(client: openai.OpenAI, url: str):
    with httpx.Client(base_url=f"{url}/v1beta", trust_env=False, timeout=30) as http:
        stream_id = http.post("/streams", json={"source": {"type": "sim"}}).json()["id"]
        segment = f"ovs://streams/{stream_id}?start_offset_ms=-2000&max_fps=2"
        messages: Any = [
            {
                "role": "user",
                "content": [
                    {"type": "video_url", "video_url": {"url": segment}},
                    {"type": "text", "text": "Is the lamp on?"},
                ],
            }
        ]

        def ask() -> tuple[Any, Any]:
            answer = client.chat.completions.create(
                model=MODEL, messages=messages, tools=[LAMP], tool_choice=FORCED,
                extra_body={"max_age_ms": 20_000},
            )  # fmt: skip
            return answer, http.get(f"/streams/{stream_id}").json()["windows"]

        answer, windows = ask()
        ends_s = time.monotonic() + 60
        while not (windows and windows[0]["hits"]) and time.monotonic() < ends_s:
            time.sleep(0.2)  # the window is on its way
            answer, windows = ask()
        http.delete(f"/streams/{stream_id}")
    assert windows[0]["hits"] >= 1
    assert answer.choices[0].finish_reason == "tool_calls"
    evidence: Any = answer.model_extra["liveedge"]
    assert all(frame["warm"] for frame in evidence["frames"])


def test_the_example_of_the_guide_runs(url: str):
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LIVEEDGE_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    called, reason = done.stdout.splitlines()
    assert re.fullmatch(r"set_lamp \{'state': '(on|off)'\}", called)
    assert reason in ("stop", "length", "tool_calls")

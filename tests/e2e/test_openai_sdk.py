"""The `openai` SDK works unchanged: only its base URL and key are ours."""

from typing import Any

import openai
import pytest

from liveedge.core.clock import SystemClock
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.testing.engine import FakeEngine
from tests.serving import MODEL, SMALL, data_url, image, picture

ASKED: Any = [
    {"role": "user", "content": [image(data_url(picture())), {"type": "text", "text": "?"}]}
]
SAID = "It is a test."


@pytest.fixture(scope="module")
def server():
    clock = SystemClock()
    settings = Settings(port=0, api_key="sk-test", aliases={"hosted": MODEL}, **SMALL)
    with BackgroundServer(
        settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock)
    ) as running:
        yield running


@pytest.fixture(params=["/v1", "/v1beta"])
def client(server, request):
    url = f"{server.url}{request.param}"
    with openai.OpenAI(base_url=url, api_key="sk-test", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture(params=["/v1", "/v1beta"])
async def async_client(server, request):
    url = f"{server.url}{request.param}"
    async with openai.AsyncOpenAI(
        base_url=url, api_key="sk-test", max_retries=0, timeout=30
    ) as client:
        yield client


def test_a_question_is_answered(client):
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, n=2)
    assert [choice.message.content for choice in answer.choices] == [SAID, SAID]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    assert answer.model_extra["liveedge"]["frames"][0]["width"] == 64


def test_an_answer_is_streamed_with_its_usage(client):
    stream = client.chat.completions.create(
        model="hosted", messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAID
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage.completion_tokens == 4
    assert last.model_extra["liveedge"]["tokens"]["prefilled"] >= 1


async def test_a_question_is_answered_asynchronously(async_client):
    answer = await async_client.chat.completions.create(
        model=MODEL, messages=ASKED, response_format={"type": "json_object"}, logprobs=True
    )
    assert answer.choices[0].message.content == SAID
    assert answer.choices[0].logprobs.content[0].token == "It"


async def test_an_answer_is_streamed_asynchronously(async_client):
    stream = await async_client.chat.completions.create(
        model=MODEL, messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    async for chunk in stream:
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == SAID
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == [MODEL, "hosted"]


def test_errors_become_the_exceptions_of_the_sdk(client, server):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody/knows", messages=ASKED)
    assert caught.value.code == "model_not_found"
    assert caught.value.type == "provider_error"
    unknown = [{"role": "user", "content": [image("ovs://streams/x?frame=1")]}]
    with pytest.raises(openai.BadRequestError) as malformed:
        client.chat.completions.create(model=MODEL, messages=unknown, stream=True)
    assert malformed.value.code == "query_param_invalid"
    with pytest.raises(openai.UnprocessableEntityError):
        client.chat.completions.create(model=MODEL, messages=ASKED, temperature=9)
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        stranger.chat.completions.create(model=MODEL, messages=ASKED)
    assert refused.value.code == "unauthorized"

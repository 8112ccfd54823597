"""A provider that is real: another server, with the shipped model, asked over HTTP."""

import time
from typing import Any

import httpx
import openai
import pytest

from liveedge.core.clock import SystemClock
from liveedge.media.picture import encode_picture
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell
from liveedge.testing.engine import FakeEngine
from tests.serving import SMALL, data_url, image, video

KEY = "sk-between-the-two"
THEIRS = "peer/workcell"
CLIPS = "workcell-of-clips"  # the same model, asked with videos


@pytest.fixture(scope="module")
def peer():
    settings = Settings(
        port=0,
        api_key=KEY,
        model_id=THEIRS,
        aliases={CLIPS: THEIRS},
        engine="inproc",
        max_sessions=2,
        max_windows=0,
        **SMALL,
    )
    with BackgroundServer(settings, clock=SystemClock()) as running:
        with httpx.Client(base_url=running.url, trust_env=False, timeout=60) as client:
            while client.get("/ready").status_code != 200:
                time.sleep(0.1)
        yield running


@pytest.fixture(scope="module")
def front(peer):
    there = {"base_url": f"{peer.url}/v1", "api_key_env": "PEER_KEY"}
    providers = {
        "peer": {**there, "models": [THEIRS]},
        "clips": {**there, "models": [CLIPS], "media": "video"},
    }
    clock = SystemClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEER_KEY", KEY)
        settings = Settings(port=0, providers=providers, **SMALL)
        with BackgroundServer(
            settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock)
        ) as running:
            yield running


@pytest.fixture
def http(front):
    with httpx.Client(base_url=front.url, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture
def stream(http):
    """Five frames of the workcell."""
    stream_id = http.post("/streams", json={"source": {"type": "push"}}).json()["id"]
    renderer = Renderer(Workcell(seed=3), width=320, height=240)
    for i in range(5):
        data = encode_picture(renderer.render(i, i / 5, 200 * i), "png")
        assert http.post(f"/streams/{stream_id}/frames", content=data).status_code == 201
    yield stream_id
    http.delete(f"/streams/{stream_id}")


def asked(*parts: Any) -> list[Any]:
    text = {"type": "text", "text": "What is the state of the cell?"}
    return [{"role": "user", "content": [*parts, text]}]


def test_the_peer_says_of_our_frame_what_it_says_of_its_picture(peer, front, http, stream):
    jpeg = http.get(f"/streams/{stream}/frame.jpg", params={"frame_index": 2}).content
    options = {"model": THEIRS, "temperature": 0, "max_tokens": 12}
    with openai.OpenAI(base_url=f"{peer.url}/v1", api_key=KEY, max_retries=0) as client:
        picture = image(data_url(jpeg, "image/jpeg"))
        direct = client.chat.completions.create(messages=asked(picture), **options)  # type: ignore[call-overload]
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client:
        reference = image(f"ovs://streams/{stream}?frame_index=2")
        through = client.chat.completions.create(messages=asked(reference), **options)  # type: ignore[call-overload]
        chunks = list(
            client.chat.completions.create(messages=asked(reference), stream=True, **options)  # type: ignore[call-overload]
        )
    said = direct.choices[0].message.content
    assert said
    assert through.choices[0].message.content == said
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said
    assert through.usage.prompt_tokens == direct.usage.prompt_tokens
    assert through.usage.completion_tokens == direct.usage.completion_tokens
    assert through.model_extra["liveedge"]["frames"][0]["frame_index"] == 2


@pytest.mark.parametrize("model", [THEIRS, CLIPS])
def test_the_peer_answers_about_a_segment_as_pictures_and_as_a_clip(http, stream, model):
    segment = video(f"ovs://streams/{stream}?start_frame_index=0&max_fps=240")
    body = {"model": model, "messages": asked(segment), "max_tokens": 4}
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    told = reply.json()
    assert [f["frame_index"] for f in told["liveedge"]["frames"]] == [0, 1, 2, 3, 4]
    assert told["usage"]["prompt_tokens"] > 100


def test_the_peers_model_is_listed_with_what_it_says_of_it(http):
    listed = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    assert listed[THEIRS]["owned_by"] == "peer"
    assert listed[THEIRS]["status"] == "ready"
    assert listed[THEIRS]["max_model_len"] > 1000


def test_a_tools_or_schema_that_the_peer_refuses_is_told_with_its_words(http):
    body = {
        "model": THEIRS,
        "messages": asked(),
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
        },
    }
    reply = http.post("/v1/chat/completions", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "upstream_http_400")
    assert "response_format_unsupported" in error["upstream"]["body"]

"""HTTP to torch and back: a small random model behind the real server, pictures pushed into streams."""

import json
import re
import socket

import httpx
import pytest

from liveedge.core.clock import SystemClock
from liveedge.engine.interface import EngineSettings
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from tests.checkpoints import make_checkpoint
from tests.serving import SMALL, chat_body, noise, sse_events, video

MODEL = "local/tiny"


class Running:
    """A server with a model that says nothing sensible, and a stream of six frames."""

    def __init__(self, server, client, engine):
        self.server, self.client, self.engine = server, client, engine
        self.stream_id = client.post("/streams", json={"source": {"type": "push"}}).json()["id"]
        for i in range(6):
            path = f"/streams/{self.stream_id}/frames"
            assert client.post(path, content=noise(96, 64, seed=i)).status_code == 201

    def body(self, **options):
        part = video(
            f"ovs://streams/{self.stream_id}?start_frame_index=0&end_frame_index=5&max_fps=240"
        )
        return chat_body(part, max_tokens=6, **options) | {"model": MODEL}

    def ask(self, **options):
        answer = self.client.post("/v1/chat/completions", json=self.body(**options))
        assert answer.status_code == 200, answer.text
        return answer


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = make_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=5)
    engines = []
    clock = SystemClock()

    def load():
        from liveedge.engine.client import load_engine

        asked = EngineSettings(model_id=MODEL, n_slots=4, max_model_len=512, threads=1)
        engines.append(load_engine(folder, settings=asked, clock=clock))
        return engines[0]

    settings = Settings(port=0, model=str(folder), **SMALL)
    with (
        BackgroundServer(settings, clock=clock, load_engine=load) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        yield Running(server, client, engines[0])


def wait_until(condition):
    clock = SystemClock()
    limit_s = clock.monotonic_s() + 60
    while not condition():
        assert clock.monotonic_s() < limit_s, "it never happened"


def test_the_evidence_is_what_the_real_engine_saw(running):
    said = running.ask().json()
    frames = said["liveedge"]["frames"]
    assert [f["frame_index"] for f in frames] == sorted({f["frame_index"] for f in frames})
    assert {(f["width"], f["height"]) for f in frames} == {(96, 64)}
    tokens = said["usage"]["prompt_tokens_details"]["image_tokens"]
    assert sum(f["tokens"] for f in frames) == tokens > 0
    assert said["usage"]["completion_tokens"] == 6
    assert said["choices"][0]["finish_reason"] == "length"
    timings = said["liveedge"]["timings_ms"]
    assert 0 < timings["first_token"] <= timings["total"]


def test_the_same_question_again_reuses_features_and_prefix_and_says_the_same(running):
    first, again = running.ask().json(), running.ask().json()
    assert again["choices"] == first["choices"]
    assert all(f["warm"] for f in again["liveedge"]["frames"])
    reused = again["liveedge"]["tokens"]["reused"]
    assert again["overshoot"]["cache"]["cached_input_tokens"] == reused
    assert reused > again["usage"]["prompt_tokens_details"]["image_tokens"]


def test_a_streamed_answer_is_the_answer(running):
    whole = running.ask().json()["choices"][0]["message"]["content"]
    *chunks, done = sse_events(running.ask(stream=True).text)
    assert done == "[DONE]"
    parts = [c["choices"][0]["delta"].get("content", "") for c in chunks]
    assert "".join(parts) == whole


def test_json_modes_return_bare_json(running):
    schema = {
        "type": "object",
        "properties": {"door": {"enum": ["open", "closed"]}},
        "required": ["door"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    said = running.ask(response_format=wanted, max_completion_tokens=40).json()
    assert json.loads(said["choices"][0]["message"]["content"])["door"] in ("open", "closed")


BOOLEANS = {"type": "array", "items": {"type": "boolean"}, "minItems": 5, "maxItems": 5}


def test_eight_choices_are_each_held_to_a_form(running):
    texts = ["open", "open wide", " closed ", "关着 🚪"]
    options = {"n": 8, "temperature": 2.0, "seed": 3, "max_completion_tokens": 60}
    for wanted, fits in (
        ({"choice": texts}, lambda text: text in texts),
        ({"regex": "[a-c]{3,9}x?"}, lambda text: re.fullmatch("[a-c]{3,9}x?", text)),
        ({"json": BOOLEANS}, lambda text: len(json.loads(text)) == 5),
    ):
        choices = running.ask(structured_outputs=wanted, **options).json()["choices"]
        assert len(choices) == 8
        assert {choice["finish_reason"] for choice in choices} == {"stop"}
        assert all(fits(choice["message"]["content"]) for choice in choices), choices
        assert len({choice["message"]["content"] for choice in choices}) > 1


def test_a_stop_string_ends_an_answer_of_a_form_that_is_streamed(running):
    wanted = {"choice": ["one two three"]}
    *chunks, done = sse_events(
        running.ask(structured_outputs=wanted, stop="two", stream=True, n=2).text
    )
    assert done == "[DONE]"
    for choice in range(2):
        own = [
            c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == choice
        ]
        assert "".join(one["delta"].get("content") or "" for one in own) == "one "
        assert own[-1]["finish_reason"] == "stop"


def test_a_form_that_cannot_be_held_is_named_and_harms_nobody(running):
    for wanted, message in (
        ({"regex": "(?=a)b"}, "this regex cannot be enforced"),
        ({"regex": "a" * 5000}, "5000 characters"),
        ({"choice": [str(n) for n in range(10_000)]}, "10000 texts"),
    ):
        body = running.body() | {"structured_outputs": wanted}
        answer = running.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "response_format_unsupported"
        assert message in answer.json()["error"]["message"]
    assert running.ask().status_code == 200


def test_choices_with_a_seed_differ_and_repeat(running):
    options = {"n": 3, "temperature": 1.5, "seed": 11}
    first, again = (
        [c["message"]["content"] for c in running.ask(**options).json()["choices"]]
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) > 1


def test_a_client_that_hangs_up_frees_the_slot(running):
    # An answer that cannot end before the client has left, however fast the model is.
    endless = {"max_tokens": 3000, "structured_outputs": {"regex": "[a-z]{4000}"}}
    body = json.dumps(running.body() | endless | {"stream": True, "n": 2}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(running.server.url.rpartition(":")[2]))) as raw:
        raw.sendall(head.encode() + body)
        while b"content" not in raw.recv(65536):
            pass
    wait_until(lambda: running.engine.stats().slots_used == 0)
    stats = running.engine.stats()
    assert stats.queue_depth == stats.running == stats.loads_in_flight == 0
    assert stats.cancelled >= 1
    assert running.ask().status_code == 200

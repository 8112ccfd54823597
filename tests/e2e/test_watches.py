"""A standing question about a live camera, with the shipped model: what it says is true."""

from __future__ import annotations

import json

import httpx
import pytest

from liveedge.client.http import Client, image_part
from liveedge.client.local_server import running_server
from liveedge.client.truth import Oracle
from liveedge.core.clock import SystemClock
from liveedge.sim.questions import KINDS, TEST_SEEDS, score

SEED = TEST_SEEDS.start
N_RESULTS = 4

pytestmark = pytest.mark.timeout(180)


def test_a_question_that_is_asked_on_change_is_answered_truly():
    clock = SystemClock()
    with (
        running_server(model=None, port=None, clock=clock) as server,
        Client(server.url, clock=clock) as client,
        httpx.Client(base_url=server.url) as http,
    ):
        model = client.models()[0]["id"]
        source = {"type": "sim", "url": f"sim://workcell?seed={SEED}"}
        stream_id = client.create_stream(source)["id"]
        oracle = Oracle(client, stream_id, seed=SEED)
        content = [
            image_part(stream_id, frame_index=-1),
            {"type": "text", "text": KINDS["lamp"].phrasings[0]},
        ]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "on": "change",
            "max_results": N_RESULTS,
            "max_tokens": 8,
        }
        watch = http.post("/v1/watches", json=body).raise_for_status().json()
        found = []
        path = f"/v1/watches/{watch['id']}/events"
        with http.stream("GET", path, timeout=60) as response:
            kind = ""
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                kind = value if name == "event" else kind
                if name == "data" and kind == "result":
                    found.append(json.loads(value))
        assert kind == "ended"
        assert len(found) == N_RESULTS
        right = [said_truly(oracle, one) for one in found]
        assert sum(right) >= N_RESULTS - 1, found  # the model is right 98.9 % of the time
        assert [one["trigger"] for one in found] == ["first"] + ["change"] * (N_RESULTS - 1)
        assert all(one["change_score"] >= 0.5 for one in found[1:])


def said_truly(oracle: Oracle, result: dict[str, object]) -> bool:
    facts = result["liveedge"]
    assert isinstance(facts, dict)
    index = facts["frames"][-1]["frame_index"]
    truth = "on" if oracle.state(index).lamp else "off"
    return score("lamp", str(result["text"]), truth)

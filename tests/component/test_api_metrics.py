"""`GET /metrics` of a whole server: who may see it, what it counts, and that it does not grow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from liveedge.core.errors import CheckpointInvalid
from liveedge.engine.interface import Engine
from tests.offers import offer
from tests.serving import Serving, data_url, image, picture, serving, until
from tests.unit.test_api_metrics import Family, parse

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


async def scrape(server: Serving, **headers: str) -> dict[str, Family]:
    answer = await server.client.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(answer.text)


def value(found: dict[str, Family], name: str, **labels: str) -> float:
    return found[f"liveedge_{name}"].samples[tuple(labels.items())]


async def test_metrics_need_a_key_where_the_server_has_one():
    async with serving(api_key=("alpha",)) as server:
        answer = await server.client.get("/metrics")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
        await scrape(server, Authorization="Bearer alpha")


async def test_metrics_can_be_public():
    async with serving(api_key=("alpha",), metrics_public=True) as server:
        await scrape(server)
        assert (await server.client.get("/v1/streams")).status_code == 401


@pytest.mark.parametrize("prefix", ["/v1beta", "/v1", ""])
async def test_metrics_answer_under_every_prefix(prefix: str):
    async with serving() as server:
        assert (await server.client.get(f"{prefix}/metrics")).status_code == 200


async def test_questions_streams_and_budgets_are_counted():
    async with serving(hot_mb=4, history_mb=1) as server:
        before = await scrape(server)
        assert value(before, "requests_total", outcome="finished") == 0
        assert value(before, "model_ready") == 1
        stream_id = await server.filled_stream(3)
        answer = await server.ask(image(f"ovs://streams/{stream_id}?frame_index=-1"))
        assert answer.status_code == 200
        found = await scrape(server)
        assert value(found, "requests_total", outcome="finished") == 1
        assert value(found, "num_requests_running") == 0
        assert value(found, "streams") == 1
        assert value(found, "streams_by_health", health="live") == 1
        assert value(found, "stream_frames_total") == 3
        assert value(found, "stream_retained_frames") == 3
        assert value(found, "stream_reserved_bytes") == 5 << 20
        assert value(found, "budget_used", of="questions") == 0
        assert value(found, "budget_capacity", of="questions") == 128
        assert value(found, "process_resident_memory_bytes", process="server") > 1 << 20
        assert value(found, "process_resident_memory_bytes", process="engine") == 0
        assert value(found, "process_resident_memory_bytes", process="standby") == 0


async def test_what_ended_streams_counted_stays_counted():
    async with serving() as server:
        first = await server.filled_stream(4)
        await server.client.delete(f"/v1/streams/{first}")
        server.clock.move(301)  # its tombstone is over as well
        await server.filled_stream(2)
        found = await scrape(server)
        assert value(found, "stream_frames_total") == 6
        assert value(found, "streams_ended_total", reason="deleted") == 1
        assert value(found, "streams") == 1


async def test_refusals_are_counted_at_the_budget_that_refused():
    async with serving(max_uploads_mb=1, max_body_mb=4) as server:
        await server.ask(image(data_url(picture() + bytes(2 << 20))))
        found = await scrape(server)
        assert value(found, "budget_refused_total", of="request_body_bytes") == 1
        assert value(found, "budget_used", of="request_body_bytes") == 0


async def test_the_plan_is_shown_pool_by_pool():
    async with serving(max_sessions=3) as server:
        found = await scrape(server)
        planned = found["liveedge_planned_bytes"].samples
        assert sum(planned.values()) == server.built.memory.host_bytes
        kv = value(found, "planned_bytes", place="engine", pool="KV slots")
        assert kv == server.built.memory.sizing.kv_bytes


async def test_the_number_of_series_does_not_grow_with_streams_and_questions():
    stream_id = ""
    async with serving() as server:
        series: list[set[tuple[str, object]]] = []
        for _ in range(3):
            stream_id = await server.filled_stream(3)
            reference = f"ovs://streams/{stream_id}?frame_index=-1"
            assert (await server.ask(image(reference), user="somebody")).status_code == 200
            found = await scrape(server)
            series.append({(name, labels) for name, one in found.items() for labels in one.samples})
        assert series[0] == series[1] == series[2]
        text = (await server.client.get("/metrics")).text
        assert stream_id not in text
        assert "somebody" not in text


async def test_a_server_without_a_model_has_metrics():
    def fail() -> Engine:
        raise CheckpointInvalid("no such key")

    async with serving(load_engine=fail) as server:
        await until(lambda: server.built.models.status() != "loading")
        found = await scrape(server)
        assert value(found, "model_ready") == 0
        assert value(found, "num_requests_running") == 0


async def test_operations_md_lists_every_metric_and_no_other():
    text = OPERATIONS.read_text(encoding="utf-8").partition("## Metrics")[2]
    rows = [row.rpartition("|")[0] for row in text.splitlines() if row.startswith("| `")]
    told = {
        name.partition("{")[0] for row in rows for name in re.findall(r"`([a-z0-9_{},]+)`", row)
    }
    async with serving() as server:
        found = {name.removeprefix("liveedge_") for name in await scrape(server)}
    labels = {"finished", "failed", "cancelled", "queue_full", "predicted_late", "stale"}
    assert told - labels == found


async def test_publishers_are_counted_and_zero_before_there_are_any():
    async with serving() as server:
        before = await scrape(server)
        assert value(before, "publishers") == value(before, "signalling_sockets") == 0
        assert value(before, "publisher_packets_total", of="lost") == 0
        assert before["liveedge_publisher_events_total"].samples == {}
        created = (await server.client.post("/streams")).json()
        for token in ("forged", created["publish"]["token"]):
            await server.client.post(
                f"/whip/{created['id']}",
                content=offer(),
                headers={"authorization": f"Bearer {token}", "content-type": "application/sdp"},
            )
        found = await scrape(server)
        assert value(found, "publishers") == 1
        assert value(found, "publisher_events_total", event="refused_unauthorized") == 1


async def test_answers_are_measured_where_they_end():
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        reference = f"ovs://streams/{stream_id}?frame_index=-1"
        assert (await server.ask(image(reference))).status_code == 200
        assert (await server.ask(image(reference), stream=True)).status_code == 200
        assert (await server.ask(image("ovs://streams/none?frame_index=-1"))).status_code == 404
        found = await scrape(server)
        count = (("", "_count"),)
        first = found["liveedge_time_to_first_token_seconds"].samples
        assert sum(n for labels, n in first.items() if labels[:1] == count) == 2
        for name in ("e2e_request_latency_seconds", "evidence_age_seconds"):
            assert found[f"liveedge_{name}"].samples[count] == 2
        assert value(found, "request_success_total", finished_reason="stop") == 2
        assert value(found, "request_failure_total", code="stream_not_found") == 1


async def test_requests_are_counted_by_route_whatever_their_version_and_ids():
    async with serving(api_key=("alpha",)) as server:
        headers = {"Authorization": "Bearer alpha"}
        stream_id = await server.new_stream(**headers)
        for path in (f"/streams/{stream_id}", f"/v1/streams/{stream_id}", "/v1/streams/none"):
            await server.client.get(path, headers=headers)
        await server.client.head("/v1beta/health")
        await server.client.get("/nowhere")
        await server.client.put("/health")
        await server.client.get("/v1/streams")
        found = await scrape(server, **headers)

        def n(route: str, method: str, status: str) -> float:
            return value(found, "http_requests_total", route=route, method=method, status=status)

        assert n("/streams/{stream_id}", "GET", "2xx") == 2
        assert n("/streams/{stream_id}", "GET", "4xx") == 1
        assert n("/streams", "GET", "4xx") == 1
        assert n("/health", "GET", "2xx") == 1
        assert n("other", "other", "4xx") == 2
        took = found["liveedge_http_request_duration_seconds"].samples
        assert took[("", "_count"), ("route", "/streams/{stream_id}")] == 3
        assert sum(found["liveedge_http_requests_total"].samples.values()) == 8

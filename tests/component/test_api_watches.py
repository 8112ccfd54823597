"""Standing questions over HTTP: when they are asked, what is skipped, how they end, who may look."""

from __future__ import annotations

import asyncio
import json
import re
import threading

import pytest

from liveedge.core.errors import DeadlineExceeded, ModelUnavailable, QueueFull
from liveedge.service.caller import ALL_SCOPES
from liveedge.service.watch import MAX_EVENTS, MAX_LISTENERS
from liveedge.service.watches import TOMBSTONE_S
from tests.serving import Exchange, chat_body, data_url, image, picture, serving, until, video
from tests.stored_keys import new_key

BLACK, WHITE = picture((0, 0, 0)), picture((255, 255, 255))


def newest(stream_id, query="frame_index=-1"):
    return image(f"ovs://streams/{stream_id}?{query}")


def body(stream_id, **options):
    return chat_body(newest(stream_id), **{"every_ms": 1000, **options})


async def start(server, stream_id, headers=None, **options):
    answer = await server.client.post(
        "/v1/watches", json=body(stream_id, **options), headers=headers
    )
    assert answer.status_code == 201, answer.text
    return answer.json()


async def look(server, watch):
    return (await server.client.get(f"/v1/watches/{watch['id']}")).json()


def listen(server, watch, last_id=None, **headers):
    path = f"/v1/watches/{watch['id']}/events"
    query = b"" if last_id is None else f"last_event_id={last_id}".encode()
    return Exchange(server.built.app, path, b"", headers, method="GET", query_string=query)


def events(received):
    """(id, event, data) of each."""
    found = []
    for block in received.decode().split("\n\n"):
        fields = dict(re.findall(r"^(id|event|data): (.*)$", block, re.MULTILINE))
        if "data" in fields:
            found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
    return found


def kinds(exchange):
    return [kind for _, kind, _ in events(exchange.received)]


async def pass_time(server, seconds, *, stream_id=None, every_s=1.0, data=None):
    """Time passes; with a stream, a new frame comes before each step."""
    left_s = seconds
    while left_s > 1e-9:
        if stream_id is not None:
            await server.push(stream_id, data)
        await settled(server)
        await server.clock.advance(min(every_s, left_s))
        left_s -= every_s
    await settled(server)


async def settled(server):
    """Threads have done what they were given; questions are answered, or held by the test."""
    pools = (server.built.questions.prompts, server.built.watches._thumbnails._workers)
    for _ in range(4):  # a picture, a prompt, the picture that was answered about, what follows
        for pool in pools:
            await idle(pool)
        await server.clock.advance(0)


async def idle(workers):
    """All its threads are free at once."""
    n_threads = workers._pool._max_workers
    barrier = threading.Barrier(n_threads)
    await asyncio.gather(*(workers.run(barrier.wait) for _ in range(n_threads)))


async def test_it_is_asked_every_so_often_and_each_answer_is_an_event():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id, every_ms=500)
        assert (watch["state"], watch["every_ms"], watch["on"]) == ("active", 500, None)
        assert watch["streams"] == [stream_id]
        async with listen(server, watch) as heard:
            await pass_time(server, 2, stream_id=stream_id, every_s=0.5)
            await heard.until(lambda e: kinds(e).count("result") >= 4)
        found = [data for _, kind, data in events(heard.received) if kind == "result"]
        first = found[0]
        assert first["text"] == "It is a test."
        assert first["watch_id"] == watch["id"]
        assert [one["number"] for one in found[:3]] == [1, 2, 3]
        assert [one["trigger"] for one in found[:3]] == ["first", "every", "every"]
        assert first["usage"]["completion_tokens"] == 4
        assert first["liveedge"]["frames"][0]["stream_id"] == stream_id
        assert first["liveedge"]["age_ms"] >= 0
        assert heard.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert heard.headers["cache-control"] == "no-cache"
        assert heard.headers["x-accel-buffering"] == "no"
        assert heard.headers["x-overshoot-region"] == "local"
        ids = [int(i) for i, _, _ in events(heard.received)]
        assert ids == sorted(set(ids))


async def test_a_moment_at_which_a_question_is_in_flight_is_skipped_as_busy():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        server.engine.hold("prefill")
        watch = await start(server, stream_id)
        await pass_time(server, 5, stream_id=stream_id)
        seen = await look(server, watch)
        assert len(server.engine.requests) == 1  # never two, and none waits
        assert seen["is_asking"]
        assert seen["skipped"]["busy"] == 5
        server.engine.release("prefill")
        await settled(server)
        await pass_time(server, 1, stream_id=stream_id)
        assert (await look(server, watch))["answered"] == 2


async def test_busy_skips_are_told_once_a_second_with_their_number():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        server.engine.hold("prefill")
        watch = await start(server, stream_id, every_ms=100)
        async with listen(server, watch) as heard:
            await pass_time(server, 3, stream_id=stream_id, every_s=0.5)
        counts = [data["count"] for _, kind, data in events(heard.received) if kind == "skipped"]
        assert counts[:3] == [1, 10, 10]
        assert (await look(server, watch))["skipped"]["busy"] == 30


async def test_without_a_new_frame_nothing_is_asked_again():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id)
        await settled(server)
        await pass_time(server, 5)
        seen = await look(server, watch)
        assert (seen["asked"], seen["skipped"]["unchanged"]) == (1, 5)


async def test_frames_older_than_the_bound_are_waited_for_and_told_as_stale():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        server.clock.move(10)
        watch = await start(server, stream_id, max_age_ms=500)
        await pass_time(server, 3)
        seen = await look(server, watch)
        assert (seen["asked"], seen["skipped"]["stale"]) == (0, 3)
        await server.push(stream_id)
        await settled(server)
        assert (await look(server, watch))["answered"] == 1  # not only at the next moment


async def test_a_stream_without_a_frame_is_waited_for():
    async with serving() as server:
        stream_id = await server.new_stream()
        watch = await start(server, stream_id)
        await pass_time(server, 2)
        assert (await look(server, watch))["skipped"]["stale"] == 2
        await server.push(stream_id)
        await settled(server)
        assert (await look(server, watch))["answered"] == 1


async def test_a_watch_that_fails_is_silent_for_longer_and_longer_and_says_why():
    def fails(_request):
        raise DeadlineExceeded("it would be too late")

    async with serving() as server:
        stream_id = await server.filled_stream(1)
        server.engine.answer = fails
        watch = await start(server, stream_id)
        async with listen(server, watch) as heard:
            await pass_time(server, 30, stream_id=stream_id)
            seen = await look(server, watch)
            assert seen["errors"]["deadline_exceeded"] == seen["asked"]
            assert 3 <= seen["asked"] <= 5  # 1, 2, 4, 8, 16 s apart and more
            assert seen["backed_off"] > 20
            assert seen["last_error"]["error"]["code"] == "deadline_exceeded"
            assert seen["last_error"]["in_a_row"] == seen["asked"]
            server.engine.answer = "It works."
            await pass_time(server, 40, stream_id=stream_id)
        told = [data for _, kind, data in events(heard.received) if kind == "error"]
        assert told[0]["error"]["type"] == "timeout_error"
        assert told[0]["retry_at_ms"] - told[0]["at_ms"] >= 1000
        assert kinds(heard)[-1] == "result"


async def test_the_retry_after_of_an_error_is_kept():
    def fails(_request):
        raise ModelUnavailable("it restarts", retry_after_s=20.0)

    async with serving() as server:
        stream_id = await server.filled_stream(1)
        server.engine.answer = fails
        watch = await start(server, stream_id)
        await pass_time(server, 19, stream_id=stream_id)
        assert (await look(server, watch))["asked"] == 1


async def test_where_others_come_first_a_moment_is_skipped_as_busy_and_is_no_error():
    def refuses(_request):
        raise QueueFull("64 requests wait already", retry_after_s=3.0)

    async with serving() as server:
        stream_id = await server.filled_stream(1)
        server.engine.answer = refuses
        watch = await start(server, stream_id)
        await pass_time(server, 20, stream_id=stream_id)
        seen = await look(server, watch)
        assert 4 <= seen["asked"] <= 7  # every 3 to 3.75 s, on the grid of seconds; never longer
        assert seen["skipped"]["busy"] == seen["asked"]
        assert seen["backed_off"] + seen["asked"] >= 20
        assert (seen["errors"], seen["last_error"]) == ({}, None)
        server.engine.answer = "It works."
        await pass_time(server, 5, stream_id=stream_id)
        assert (await look(server, watch))["answered"] >= 1


async def test_questions_of_watches_count_among_the_requests_of_their_key_and_leave_it_one():
    async with serving(requests_per_second=0.5, request_burst=6) as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id)
        await pass_time(server, 20, stream_id=stream_id)
        seen = await look(server, watch)  # not a 429
        assert seen["answered"] <= 6 + 20 * 0.5
        assert seen["answered"] >= 10
        assert seen["skipped"]["busy"] >= 3
        assert seen["errors"] == {}
        await server.clock.advance(2)  # one more request, which the watch does not take
        assert (await server.client.delete(f"/v1/watches/{watch['id']}")).status_code == 200


async def test_an_engine_that_crashes_is_an_error_and_not_the_end():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id)
        await settled(server)
        server.engine.crash()
        await pass_time(server, 2, stream_id=stream_id)
        assert (await look(server, watch))["errors"] == {"model_unavailable": 1}
        server.engine.restart()
        await pass_time(server, 4, stream_id=stream_id)
        seen = await look(server, watch)
        assert seen["state"] == "active"
        assert seen["answered"] >= 2


async def test_it_asks_when_the_picture_changes_and_not_else():
    async with serving() as server:
        stream_id = await server.new_stream()
        await server.push(stream_id, BLACK)
        watch = await start(server, stream_id, every_ms=None, on="change")
        assert (watch["on"], watch["change_threshold"]) == ("change", 0.5)
        async with listen(server, watch) as heard:
            await pass_time(server, 3, stream_id=stream_id, every_s=0.2, data=BLACK)
            assert kinds(heard).count("result") == 1
            await pass_time(server, 3, stream_id=stream_id, every_s=0.2, data=WHITE)
            assert kinds(heard).count("result") == 2
            await pass_time(server, 3, stream_id=stream_id, every_s=0.2, data=BLACK)  # and returns
            assert kinds(heard).count("result") == 3
        results = [data for _, kind, data in events(heard.received) if kind == "result"]
        assert [one["trigger"] for one in results] == ["first", "change", "change"]
        assert results[0]["change_score"] is None
        assert results[1]["change_score"] >= 0.5
        seen = await look(server, watch)
        assert seen["skipped"]["unchanged"] > 10
        assert kinds(heard).count("skipped") <= 2  # told once in ten seconds


async def test_one_frame_that_changes_everything_is_noticed_though_no_other_follows():
    async with serving() as server:
        stream_id = await server.new_stream()
        await server.push(stream_id, BLACK)
        watch = await start(server, stream_id, every_ms=None, on="change")
        await pass_time(server, 2)
        await server.push(stream_id, WHITE)
        await pass_time(server, 2, every_s=0.1)
        assert (await look(server, watch))["answered"] == 2


async def test_a_camera_that_stalls_is_told_as_stale_where_changes_are_watched_too():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id, every_ms=None, on="change", max_age_ms=2000)
        await pass_time(server, 10)
        seen = await look(server, watch)
        assert seen["answered"] == 1
        assert seen["skipped"]["stale"] >= 6


async def test_a_dropped_connection_resumes_where_it_was():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id)
        async with listen(server, watch) as heard:
            await pass_time(server, 3, stream_id=stream_id)
        before = events(heard.received)
        await pass_time(server, 3, stream_id=stream_id)
        async with listen(server, watch, **{"Last-Event-ID": before[-1][0]}) as again:
            await again.until(lambda e: len(events(e.received)) >= 3)
        assert int(events(again.received)[0][0]) == int(before[-1][0]) + 1
        async with listen(server, watch, last_id=1) as third:
            await third.until(lambda e: len(events(e.received)) >= 3)
        assert events(third.received)[0][0] == "2"


async def test_whoever_resumes_behind_events_that_are_gone_is_told_how_many():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id, every_ms=100)
        one = server.built.watches.listen("open", watch["id"])
        for _ in range(MAX_EVENTS + 50):
            one._emit(ended_soon(server))
        assert (await look(server, watch))["dropped_events"] >= 50
        async with listen(server, watch, last_id=3) as heard:
            await heard.until(lambda e: len(events(e.received)) > 1)
        event_id, kind, data = events(heard.received)[0]
        assert (event_id, kind) == (None, "missed")
        assert data["first_id"] == 4
        assert data["missed"] == data["last_id"] - 3
        assert int(events(heard.received)[1][0]) == data["last_id"] + 1


def ended_soon(server):
    from liveedge.service.watch_events import SkippedEvent

    return SkippedEvent(at_ms=server.clock.wall_ms(), reason="busy", count=1)


async def test_a_listener_that_does_not_read_is_ended_and_nothing_is_kept_for_it():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id)
        one = server.built.watches.listen("open", watch["id"])
        async with listen(server, watch) as heard:
            await heard.until(lambda e: e.received != b"" or e.has_begun)
            heard.may_send.clear()
            for _ in range(2 * MAX_EVENTS):
                one._emit(ended_soon(server))
                await asyncio.sleep(0)
            heard.may_send.set()
            await heard.ended()
        assert "ended" not in kinds(heard)
        assert server.built.watches.totals().listeners_ended == {"slow": 1}
        assert server.built.watches.totals().listeners == 0


@pytest.mark.parametrize("bad", ["abc", "-1", "99", "1.0", "9" * 40])
async def test_an_id_that_is_none_is_refused(bad):
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id)
        answer = await server.client.get(
            f"/v1/watches/{watch['id']}/events", headers={"Last-Event-ID": bad}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "query_param_invalid")


async def test_listeners_of_one_watch_are_bounded():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id)
        heard = [listen(server, watch) for _ in range(MAX_LISTENERS)]
        for one in heard:
            await one.__aenter__()
            await one.until(lambda e: e.has_begun)
        refused = await server.client.get(f"/v1/watches/{watch['id']}/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        for one in heard:
            await one.__aexit__(None, None, None)
        assert (await look(server, watch))["listeners"] == 0


async def test_silence_is_broken_by_a_heartbeat():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id, every_ms=3_600_000)
        async with listen(server, watch) as heard:
            await heard.until(lambda e: "result" in kinds(e))
            await pass_time(server, 31, every_s=5)
            assert heard.received.count(b": ping\n\n") == 2


async def test_deleting_ends_it_and_again_while_its_tombstone_stands():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        server.engine.hold("decode")
        watch = await start(server, stream_id)
        await until(lambda: server.engine.stats().running == 1)
        async with listen(server, watch) as heard:
            await heard.until(lambda e: e.has_begun)
            for _ in range(2):
                answer = await server.client.delete(f"/v1/watches/{watch['id']}")
                assert answer.json() == {"id": watch["id"], "deleted": True}
            await heard.ended()
        assert events(heard.received)[-1][2]["reason"] == "deleted"
        assert heard.received.count(b"event: ended") == 1
        await until(lambda: server.engine.stats().running == 0)  # the question in flight, too
        seen = await look(server, watch)
        assert (seen["state"], seen["end_reason"]) == ("ended", "deleted")
        over = await server.client.get(
            f"/v1/watches/{watch['id']}/events",
            headers={"Last-Event-ID": str(seen["last_event_id"])},
        )
        assert over.status_code == 204  # an EventSource stops
        server.clock.move(TOMBSTONE_S + 1)
        gone = await server.client.delete(f"/v1/watches/{watch['id']}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "watch_not_found")


async def test_it_ends_with_its_stream():
    async with serving() as server:
        stream_id, other_id = await server.filled_stream(1), await server.filled_stream(1)
        both = chat_body(newest(stream_id), newest(other_id), every_ms=1000)
        watch = (await server.client.post("/v1/watches", json=both)).json()
        alone = await start(server, other_id)
        await server.client.delete(f"/v1/streams/{stream_id}")
        assert (await look(server, watch))["end_reason"] == "stream_ended"
        assert (await look(server, alone))["state"] == "active"


async def test_it_ends_at_its_moment_or_after_its_results():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        until_ms = server.clock.wall_ms() + 2500
        timed = await start(server, stream_id, until=until_ms)
        counted = await start(server, stream_id, max_results=2)
        await pass_time(server, 3, stream_id=stream_id)
        assert (await look(server, timed))["end_reason"] == "until"
        seen = await look(server, counted)
        assert (seen["end_reason"], seen["answered"], seen["asked"]) == ("max_results", 2, 2)
        async with listen(server, counted) as heard:
            await heard.ended()
        assert kinds(heard)[-1] == "ended"


async def test_a_watch_that_nobody_looks_at_ends():
    async with serving(watch_ttl_s=60) as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id, every_ms=10_000)
        assert watch["expires_at_ms"] == server.clock.wall_ms() + 60_000
        await server.clock.advance(50)
        assert (await look(server, watch))["state"] == "active"  # and this keeps it
        async with listen(server, watch) as heard:
            await heard.until(lambda e: e.has_begun)
            assert server.built.watches.views("open")[0].expires_at_ms is None
            await server.clock.advance(100)
        assert server.built.watches.views("open")[0].state == "active"
        await server.clock.advance(62)
        (seen,) = server.built.watches.views("open")
        assert (seen.state, seen.end_reason) == ("ended", "expired")


async def test_a_server_that_stops_says_so_to_listeners():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id)
        async with listen(server, watch) as heard:
            await heard.until(lambda e: e.has_begun)
            server.built.watches.stop()
            await heard.ended()
        assert events(heard.received)[-1][2]["reason"] == "server_stopping"
        refused = await server.client.post("/v1/watches", json=body(stream_id))
        assert refused.status_code == 503


async def test_json_answers_are_parsed():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        server.engine.answer = '{"open": true}'
        watch = await start(server, stream_id, response_format={"type": "json_object"})
        await settled(server)
        result = (await look(server, watch))["last_result"]
        assert result["json"] == {"open": True}
        assert result["text"] == '{"open": true}'


async def test_interactive_questions_come_first_unless_it_is_asked_otherwise():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        await start(server, stream_id)
        await start(server, stream_id, priority="interactive")
        await until(lambda: len(server.engine.requests) == 2)
        asked = sorted(request.priority for request in server.engine.requests)
        assert asked == ["batch", "interactive"]


async def test_what_chat_refuses_is_refused_when_the_watch_is_made():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        unknown = "00000000-0000-0000-0000-000000000000"
        cases = [
            ({**body(stream_id), "model": "no/such"}, 404, "model_not_found"),
            (body(unknown), 404, "stream_not_found"),
            (chat_body(newest(stream_id, "frame=1"), every_ms=1000), 400, "query_param_invalid"),
            (chat_body(image("ovs://nobody/x"), every_ms=1000), 400, "stream_url_invalid"),
            (chat_body(image("https://x/y.jpg"), every_ms=1000), 400, "media_invalid"),
        ]
        for asked, status, code in cases:
            ours = await server.client.post("/v1/watches", json=asked)
            chats = await server.client.post("/v1/chat/completions", json=asked)
            assert (ours.status_code, ours.json()["error"]["code"]) == (status, code)
            assert ours.json() == chats.json()
        assert server.built.watches.n_active == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"every_ms": None},
        {"every_ms": 99},
        {"every_ms": "1000"},
        {"on": "change"},  # beside every_ms
        {"every_ms": None, "on": "motion"},
        {"debounce_ms": 5},  # without on
        {"every_ms": None, "on": "change", "change_threshold": 0},
        {"until": 5},  # long ago
        {"max_results": 0},
    ],
)
async def test_wrong_fields_are_a_422_in_the_shape_of_chat(wrong):
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        answer = await server.client.post("/v1/watches", json=body(stream_id, **wrong))
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"] == "validation_error"


async def test_a_question_about_the_past_is_no_standing_one():
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        for part in (
            newest(stream_id, "frame_index=0"),
            video(f"ovs://streams/{stream_id}?start_frame_index=0&end_frame_index=2"),
            image(data_url(picture())),
        ):
            answer = await server.client.post("/v1/watches", json=chat_body(part, every_ms=1000))
            assert answer.status_code == 422
            assert "live edge" in answer.text


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 2},
        {"tools": [{"type": "function", "function": {"name": "call"}}]},
        {"functions": [{"name": "call"}]},
        {"logprobs": True},
    ],
)
async def test_what_a_watch_cannot_give_is_refused_by_name(extra):
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        answer = await server.client.post("/v1/watches", json=body(stream_id, **extra))
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            400,
            "parameter_unsupported",
        )
        assert next(iter(extra)) in answer.text


async def test_watches_are_bounded_for_each_key_and_together():
    async with serving(api_key=["a", "b", "c"], max_watches=3, max_watches_per_key=2) as server:
        statuses = []
        for key in ("a", "a", "a", "b", "b"):
            headers = {"Authorization": f"Bearer {key}"}
            stream_id = await server.new_stream(**headers)
            answer = await server.client.post("/v1/watches", json=body(stream_id), headers=headers)
            statuses.append(answer.status_code)
            if answer.status_code == 429:
                assert answer.json()["error"]["code"] == "watch_limit_reached"
                assert answer.headers["x-should-retry"] == "false"
        assert statuses == [201, 201, 429, 201, 429]


async def test_a_key_sees_and_ends_only_its_own_watches():
    async with serving(api_key=["a", "b"]) as server:
        mine, theirs = ({"Authorization": f"Bearer {key}"} for key in ("a", "b"))
        stream_id = await server.new_stream(**mine)
        watch = await start(server, stream_id, headers=mine)
        path = f"/v1/watches/{watch['id']}"
        for method, route in (("GET", path), ("DELETE", path), ("GET", f"{path}/events")):
            answer = await server.client.request(method, route, headers=theirs)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "watch_not_found")
            assert (await server.client.request(method, route)).status_code == 401
        assert (await server.client.get("/v1/watches", headers=theirs)).json()["data"] == []
        own = (await server.client.get("/v1/watches", headers=mine)).json()["data"]
        assert [one["id"] for one in own] == [watch["id"]]
        stolen = await server.client.post("/v1/watches", json=body(stream_id), headers=theirs)
        assert (stolen.status_code, stolen.json()["error"]["code"]) == (403, "stream_unauthorized")


async def test_tombstones_are_bounded_too_and_no_count_is_lost():
    async with serving(max_watches=2) as server:
        stream_id = await server.filled_stream(1)
        for _ in range(5):
            watch = await start(server, stream_id)
            await server.client.delete(f"/v1/watches/{watch['id']}")
        assert len((await server.client.get("/v1/watches")).json()["data"]) == 2
        assert server.built.watches.totals().ended["deleted"] == 5


async def test_a_listener_that_leaves_leaves_nothing_and_the_watch_goes_on():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id)
        await settled(server)
        before = len(asyncio.all_tasks())
        for _ in range(20):
            async with listen(server, watch) as heard:
                await heard.until(lambda e: e.has_begun)
        assert len(asyncio.all_tasks()) == before
        seen = await look(server, watch)
        assert (seen["listeners"], seen["state"]) == (0, "active")


async def test_metrics_count_watches():
    async with serving() as server:
        stream_id = await server.filled_stream(1)
        watch = await start(server, stream_id)
        await settled(server)
        await pass_time(server, 1)
        text = (await server.client.get("/metrics")).text
        assert "liveedge_watches 1" in text
        assert 'liveedge_watch_events_total{event="result"} 1' in text
        assert 'liveedge_watch_skipped_total{reason="unchanged"} 1' in text
        await server.client.delete(f"/v1/watches/{watch['id']}")
        text = (await server.client.get("/metrics")).text
        assert 'liveedge_watches_ended_total{reason="deleted"} 1' in text


async def test_a_watch_ends_with_the_key_that_began_it(tmp_path):
    path = tmp_path / "keys.sqlite"
    first, second = (new_key(path, scopes=ALL_SCOPES) for _ in range(2))
    async with serving(keys_file=path) as server:
        watches = []
        for headers in (first, second):
            stream_id = await server.new_stream(**headers)
            watches.append(await start(server, stream_id, headers=headers))
        key_ids = [one.key_id for one in server.built.watches._active()]
        assert key_ids[0] is not None
        server.built.watches.end_of_key(str(key_ids[0]))
        ends = [
            (await server.client.get(f"/v1/watches/{one['id']}", headers=headers)).json()
            for one, headers in zip(watches, (first, second), strict=True)
        ]
        assert [one["end_reason"] for one in ends] == ["key_ended", None]

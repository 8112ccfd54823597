"""Keys over HTTP: rates, limits, ends, and what two keys see of each other."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack

import pytest

from liveedge.core.log import JsonFormatter
from liveedge.service.caller import Allowance
from tests.component.test_api_livekit import Call
from tests.component.test_api_order import names
from tests.livekit_clients import join_query
from tests.offers import offer
from tests.serving import (
    Exchange,
    chat_body,
    data_url,
    image,
    picture,
    serving,
    sse_events,
    until,
    video,
)
from tests.stored_keys import NOW_MS, id_of, new_key, revoke

ALICE = {"authorization": "Bearer alice"}
BOB = {"authorization": "Bearer bob"}
RATE = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")


def rate_of(answer):
    return tuple(answer.headers.get(name) for name in RATE)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.sqlite"


# ── rates ──


async def test_a_question_tells_where_its_key_stands_and_one_too_many_when_to_come_back():
    async with serving(requests_per_second=0.5, request_burst=3) as server:
        assert rate_of(await server.ask()) == ("3", "2", "2")
        streamed = await server.ask(stream=True)
        assert sse_events(streamed.text)[-1] == "[DONE]"
        assert rate_of(streamed) == ("3", "1", "4")
        assert rate_of(await server.ask()) == ("3", "0", "6")
        refused = await server.ask()
        assert names(refused) == (429, "rate_limit_exceeded")
        assert refused.json()["detail"]["error"]["type"] == "rate_limit_error"
        assert "requests_per_second" in refused.json()["error"]["message"]
        assert rate_of(refused) == ("3", "0", "6")
        assert refused.headers["retry-after"] == "2"
        assert "x-should-retry" not in refused.headers
        server.clock.move(2)
        assert (await server.ask()).status_code == 200


async def test_the_rate_comes_after_the_body_and_before_the_model():
    async with serving(requests_per_second=0.01, request_burst=1) as server:
        wrong = {"model": "nobody/knows", "messages": []}
        assert (await server.ask()).status_code == 200
        answer = await server.client.post("/v1/chat/completions", json=wrong | {"messages": "no"})
        assert (answer.status_code, rate_of(answer)) == (422, (None, None, None))
        answer = await server.ask(model="nobody/knows")
        assert names(answer) == (429, "rate_limit_exceeded")


async def test_stream_routes_count_at_the_gate_and_pushed_frames_do_not():
    async with serving(requests_per_second=0.01, request_burst=2) as server:
        stream_id = await server.new_stream()
        for _ in range(5):
            await server.push(stream_id)
        assert (await server.client.get(f"/v1/streams/{stream_id}")).status_code == 200
        refused = await server.client.get(f"/v1/streams/{stream_id}")
        assert names(refused) == (429, "rate_limit_exceeded")
        assert refused.json()["detail"] == refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) == 100
        await server.push(stream_id)
        text = (await server.client.get("/metrics")).text
        assert 'liveedge_limit_refused_total{limit="requests_per_second"} 1' in text


async def test_one_key_does_not_take_the_rate_of_another(path):
    slow = new_key(path, allowance=Allowance(requests_per_second=0.01, request_burst=1))
    usual = new_key(path)
    async with serving(keys_file=path) as server:
        assert (await server.client.get("/v1/streams", headers=slow)).status_code == 200
        assert (await server.client.get("/v1/streams", headers=slow)).status_code == 429
        assert (await server.client.get("/v1/streams", headers=usual)).status_code == 200


# ── what is in progress ──


async def test_a_key_that_asks_as_hard_as_it_can_leaves_room_for_another():
    async with serving(api_key=("alice", "bob"), max_requests=4) as server:
        server.engine.hold("decode")

        def ask(headers, **options):
            return asyncio.ensure_future(
                server.client.post(
                    "/v1/chat/completions", json=chat_body(**options), headers=headers
                )
            )

        alices = [ask(ALICE) for _ in range(2)]
        await until(lambda: server.built.answers.n_places == 2)
        for options in ({}, {"stream": True}):
            refused = await ask(ALICE, **options)
            assert names(refused) == (429, "queue_full")
            assert "max_requests_per_key" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["x-ratelimit-limit"]
        bobs = ask(BOB)
        await until(lambda: server.built.answers.n_places == 3)
        server.engine.release("decode")
        assert [(await one).status_code for one in (*alices, bobs)] == [200, 200, 200]
        assert server.built.answers.n_places == 0


async def test_one_key_alone_may_take_everything():
    async with serving(api_key="alice", max_requests=2) as server:
        server.engine.hold("decode")
        asked = [
            asyncio.ensure_future(
                server.client.post("/v1/chat/completions", json=chat_body(), headers=ALICE)
            )
            for _ in range(2)
        ]
        await until(lambda: server.built.questions.in_progress.used == 2)
        server.engine.release("decode")
        assert [(await one).status_code for one in asked] == [200, 200]


async def test_a_stream_has_so_many_questions_and_says_nothing_of_those_of_others():
    async with serving(api_key=("alice", "bob"), max_requests_per_stream=1) as server:
        stream_id = await server.new_stream(**ALICE)
        await server.push(stream_id, None, **ALICE)
        about = chat_body(image(f"ovs://streams/{stream_id}?frame_index=-1"))
        server.engine.hold("decode")
        first = asyncio.ensure_future(
            server.client.post("/v1/chat/completions", json=about, headers=ALICE)
        )
        await until(lambda: server.built.answers.n_places == 1)
        post = server.client.post
        refused = await post("/v1/chat/completions", json=about, headers=ALICE)
        assert names(refused) == (429, "queue_full")
        assert "max_requests_per_stream" in refused.json()["error"]["message"]
        foreign = await post("/v1/chat/completions", json=about, headers=BOB)
        assert names(foreign) == (403, "stream_unauthorized")
        server.engine.release("decode")
        assert (await first).status_code == 200


async def test_one_key_has_half_of_the_previews(path):
    alice, bob = new_key(path), new_key(path)
    async with serving(keys_file=path) as server, AsyncExitStack() as stack:

        async def looking(headers, stream_id):
            look = f"/streams/{stream_id}/preview.mjpeg"
            exchange = Exchange(server.built.app, look, b"", headers, method="GET")
            await stack.enter_async_context(exchange)
            await exchange.until(lambda e: e.has_begun)
            return exchange.status

        streams = {}
        for name, headers in (("alice", alice), ("bob", bob)):
            streams[name] = await server.new_stream(**headers)
        seen = [await looking(dict(alice), streams["alice"]) for _ in range(9)]
        assert seen == 8 * [200] + [429]
        assert await looking(dict(bob), streams["bob"]) == 200


async def test_answers_parts_and_streams_have_their_limits(path):
    key = new_key(path, allowance=Allowance(max_streams=1))
    async with serving(keys_file=path, max_output_tokens=2, max_parts=2) as server:
        server.client.headers.update(key)
        server.engine.answer = "one two three four"
        body = (await server.ask(max_tokens=100)).json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 2
        answer = await server.ask(*[image(data_url(picture()))] * 2)
        assert answer.status_code == 422
        assert answer.json()["details"][0]["loc"] == ["body", "messages"]
        assert "max_parts" in answer.json()["details"][0]["msg"]
        await server.new_stream()
        refused = await server.client.post("/streams", json={"source": {"type": "push"}})
        assert names(refused) == (429, "stream_limit_reached")
        assert "max_streams of this key" in refused.json()["detail"]
        assert "retry-after" in refused.headers


# ── keys that end ──


async def ends(server, path, key):
    revoke(path, key)
    await server.built.keys.refresh()


async def test_what_a_revoked_key_has_in_progress_ends_and_nothing_more_begins(path):
    key, other = new_key(path, owner="us"), new_key(path, owner="us")
    async with serving(keys_file=path) as server:
        server.client.headers.update(key)
        stream_id = await server.filled_stream(2)
        app = server.built.app
        look = Exchange(app, f"/streams/{stream_id}/preview.mjpeg", b"", dict(key), method="GET")
        server.engine.hold("prefill")
        body = json.dumps(chat_body()).encode()
        asking = Exchange(app, "/v1/chat/completions", body, dict(key))
        pushing = Call(app, f"/streams/{stream_id}/frames", headers=key)
        async with look, asking:
            await look.until(lambda e: b"X-Frame-Index: 1" in e.received)
            await until(lambda: server.built.answers.n_places == 1)
            await until(lambda: pushing.status == 101)
            await ends(server, path, key)
            await look.ended()
            await asking.ended()
            await asyncio.wait_for(pushing.task, 20)
        assert look.status == 200
        assert asking.status == 401
        assert json.loads(asking.received)["error"]["code"] == "unauthorized"
        assert pushing.closed is not None
        assert server.built.answers.n_places == 0
        server.engine.release("prefill")
        refused = await server.ask()
        assert names(refused) == (401, "unauthorized")
        assert "revoked" in refused.json()["detail"]
        # The other key of the owner still works on the stream.
        answer = await server.client.get(f"/streams/{stream_id}", headers=other)
        assert answer.json()["state"] == "active"


async def test_an_event_stream_of_a_key_that_expires_ends_with_an_error(path):
    key = new_key(path, expires_at_ms=NOW_MS + 5000)
    async with serving(keys_file=path) as server:
        server.engine.hold("decode")
        body = json.dumps(chat_body(stream=True)).encode()
        async with Exchange(server.built.app, "/v1/chat/completions", body, dict(key)) as exchange:
            await exchange.until(lambda e: e.has_begun)
            server.clock.move(5)
            await exchange.ended()
        last = sse_events(exchange.received.decode())[-1]
        assert last["error"]["code"] == "unauthorized"
        assert server.built.answers.n_places == 0
        server.engine.release("decode")
        answer = await server.client.get("/streams", headers=key)
        assert names(answer) == (401, "unauthorized")
        assert "expired" in answer.json()["detail"]


async def test_with_the_last_key_of_an_owner_its_streams_end(path):
    key, stranger = new_key(path), new_key(path)
    async with serving(keys_file=path) as server:
        own = await server.new_stream(**key)
        foreign = await server.new_stream(**stranger)
        await ends(server, path, key)
        assert server.built.streams.n_active == 1
        assert (await server.client.get(f"/streams/{foreign}", headers=stranger)).status_code == 200
        assert own != foreign


async def test_a_key_made_while_the_server_runs_opens_it_within_a_second(path):
    async with serving(keys_file=path) as server:
        assert (await server.client.get("/v1/streams")).status_code == 401
        key = new_key(path)
        server.clock.move(0.6)
        await until(lambda: server.built.keys.n_live == 1)
        assert (await server.client.get("/v1/streams", headers=key)).status_code == 200
        text = (await server.client.get("/metrics", headers=key)).json()
        assert text["error"]["code"] == "permission_denied"


async def test_a_server_with_a_state_folder_is_closed_by_its_first_key(tmp_path):
    async with serving(state_dir=tmp_path / "state") as server:
        assert (await server.client.get("/v1/streams")).status_code == 200
        key = new_key(tmp_path / "state" / "keys.sqlite")
        server.clock.move(0.6)
        await until(lambda: not server.built.keys.is_open)
        assert (await server.client.get("/v1/streams")).status_code == 401
        assert (await server.client.get("/v1/streams", headers=key)).status_code == 200


async def test_the_lines_of_a_refusal_name_its_key(path, caplog):
    caplog.set_level(logging.INFO, "liveedge")
    caplog.handler.setFormatter(JsonFormatter())
    asks = new_key(path, scopes=frozenset({"ask"}))
    async with serving(keys_file=path) as server:
        assert (await server.client.get("/streams", headers=asks)).status_code == 403
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    audit, request = [one for one in lines if one.get("key_id") == id_of(asks)]
    assert (audit["logger"], request["logger"]) == ("liveedge.audit", "liveedge.http")


async def test_the_audit_log_names_keys_and_requests_by_their_ids(path, caplog):
    caplog.set_level(logging.INFO, "liveedge.audit")
    key = new_key(path)
    async with serving(keys_file=path) as server:
        stream_id = await server.new_stream(**key)
        headers = key | {"x-request-id": "mine"}
        await server.client.delete(f"/streams/{stream_id}", headers=headers)
        await server.client.get("/streams", headers={"authorization": "Bearer guess"})
        await server.client.get("/metrics", headers=headers)
    audit = [r.getMessage() for r in caplog.records if r.name == "liveedge.audit"]
    assert audit[0].startswith(f"stream_created stream={stream_id} key={id_of(key)} request=")
    assert audit[1] == f"stream_deleted stream={stream_id} key={id_of(key)} request=mine"
    assert audit[2].startswith("refused reason=unknown_key key=- request=")
    assert audit[3] == f"refused reason=scope key={id_of(key)} request=mine"
    secret = key["authorization"].split("_")[2]
    assert secret not in caplog.text
    assert "guess" not in caplog.text


# ── two keys (must show) ──


@pytest.fixture
async def two():
    """Alice has a filled stream with a window; Bob looks."""
    async with serving(api_key=("alice", "bob")) as server:
        server.client.headers.update(ALICE)
        server.filled = await server.filled_stream(4)
        spec = {"model": "liveedge/workcell-tiny", "seconds": 1}
        put = await server.client.put(f"/v1/streams/{server.filled}/windows/w", json=spec)
        assert put.status_code == 201, put.text
        yield server


REQUESTS = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("POST", "/keepalive", None),
    ("POST", "/viewer-token", None),
    ("GET", "/frame.jpg?frame_index=-1", None),
    ("GET", "/frame.png?frame_index=0", None),
    ("GET", "/preview.mjpeg", None),
    ("POST", "/frames", picture()),
    ("PUT", "/windows/w", b'{"model": "liveedge/workcell-tiny", "seconds": 1}'),
    ("GET", "/windows/w", None),
    ("DELETE", "/windows/w", None),
]


async def test_someone_elses_stream_is_exactly_like_none(two):
    none = "0" * 8 + two.filled[8:]
    for method, rest, content in REQUESTS:
        seen = []
        for stream_id in (two.filled, none):
            answer = await two.client.request(
                method,
                f"/v1beta/streams/{stream_id}{rest}",
                content=content,
                headers=BOB | {"x-request-id": "same"},
            )
            seen.append((answer.status_code, answer.text.replace(stream_id, "ID"), answer.headers))
        assert seen[0] == seen[1], (method, rest)
        assert seen[0][0] == 404, (method, rest)
    assert (await two.client.get(f"/streams/{two.filled}")).json()["state"] == "active"


async def test_a_websocket_to_someone_elses_stream_is_exactly_like_one_to_none(two):
    none = "0" * 8 + two.filled[8:]
    refusals = [
        await Call(two.built.app, f"/v1/streams/{stream_id}/frames", headers=BOB).refused()
        for stream_id in (two.filled, none)
    ]
    assert refusals[0][0] == refusals[1][0] == 404
    assert refusals[0][1].replace(two.filled, "ID") == refusals[1][1].replace(none, "ID")


async def test_someone_elses_watch_is_exactly_like_none(two):
    about = chat_body(image(f"ovs://streams/{two.filled}?frame_index=-1"), every_ms=60_000)
    made = await two.client.post("/v1/watches", json=about)
    assert made.status_code == 201, made.text
    theirs = await two.client.post("/v1/watches", json=about, headers=BOB)
    assert names(theirs) == (403, "stream_unauthorized")
    watch_id = made.json()["id"]
    none = "0" * 8 + watch_id[8:]
    for method, rest in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
        seen = []
        for one in (watch_id, none):
            headers = BOB | {"x-request-id": "same"}
            answer = await two.client.request(method, f"/v1/watches/{one}{rest}", headers=headers)
            seen.append((answer.status_code, answer.text.replace(one, "ID"), answer.headers))
        assert seen[0] == seen[1]
        assert seen[0][0] == 404
    assert (await two.client.get("/v1/watches", headers=BOB)).json()["data"] == []


async def test_the_list_holds_ones_own_streams_and_windows_alone(two):
    assert (await two.client.get("/streams", headers=BOB)).json()["data"] == []
    (mine,) = (await two.client.get("/streams")).json()["data"]
    assert mine["id"] == two.filled
    assert [window["name"] for window in mine["windows"]] == ["w"]


async def test_a_question_about_someone_elses_stream_says_so_and_nothing_of_its_frames(two):
    ended = (await two.client.post("/streams", json={"source": {"type": "push"}})).json()["id"]
    await two.client.delete(f"/streams/{ended}")

    async def answer(stream_id, query):
        part = image if "start" not in query else video
        body = chat_body(part(f"ovs://streams/{stream_id}?{query}"))
        return await two.client.post("/v1/chat/completions", json=body, headers=BOB)

    texts = set()
    for query in ("frame_index=-1", "frame_index=99", "frame_index=0", "start_offset_ms=-500"):
        refused = await answer(two.filled, query)
        assert names(refused) == (403, "stream_unauthorized")
        texts.add(refused.text)
    assert len(texts) == 1  # whether there is such a frame is not told
    for stream_id in (ended, "0" * 8 + two.filled[8:]):
        assert names(await answer(stream_id, "frame_index=-1")) == (404, "stream_not_found")


async def reused(server, headers, *parts):
    body = chat_body(*parts)
    answer = await server.client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert told["overshoot"]["cache"]["cached_input_tokens"] == cached
    warm = any(frame["warm"] for frame in told["liveedge"]["frames"])
    return cached, told["liveedge"]["tokens"]["reused"], warm


@pytest.mark.parametrize("parts", [(), (image(data_url(picture((1, 2, 3)))),)])
async def test_what_one_key_has_asked_is_cached_for_itself_and_for_nobody_else(two, parts):
    await reused(two, ALICE, *parts)
    cached, tokens, warm = await reused(two, ALICE, *parts)
    assert (cached > 0, tokens > 0, warm) == (True, True, bool(parts))
    assert await reused(two, BOB, *parts) == (0, 0, False)
    # The picture was loaded and encoded once for each: nothing came from the cache of the other.
    uploads = [key for key in two.engine.loaded if "/upload/" in key]
    assert len(uploads) == len(set(uploads)) == 2 * len(parts)


async def test_keys_of_one_owner_share_what_keys_of_two_do_not(path):
    first, second = new_key(path, owner="us"), new_key(path, owner="us")
    stranger = new_key(path)
    upload = image(data_url(picture((9, 9, 9))))
    async with serving(keys_file=path) as server:
        stream_id = await server.new_stream(**first)
        await server.push(stream_id, None, **second)
        await reused(server, first, upload)
        cached, _, warm = await reused(server, second, upload)
        assert cached > 0
        assert warm
        assert await reused(server, stranger, upload) == (0, 0, False)


async def test_a_publish_token_opens_its_own_stream_until_it_expires():
    async with serving(api_key=("alice", "bob")) as server:

        async def published(headers):
            body = {"source": {"type": "livekit"}}
            answer = await server.client.post("/streams", json=body, headers=headers)
            return answer.json()["id"], answer.json()["publish"]["token"]

        async def by_whip(stream_id, token):
            headers = {"authorization": f"Bearer {token}", "content-type": "application/sdp"}
            answer = await server.client.post(
                f"/whip/{stream_id}", content=offer(), headers=headers
            )
            return answer.status_code

        async def by_livekit(token):
            query = join_query() | {"access_token": token}
            return (await Call(server.built.app, "/rtc/v1", query=query).refused())[0]

        hers, her_token = await published(ALICE)
        his, his_token = await published(BOB)
        assert await by_whip(hers, his_token) == 401
        assert await by_whip(his, her_token) == 401
        assert await by_whip(hers, "alice") == 401  # a key is no token
        assert await by_whip(hers, her_token) == 201
        # A token is no key: it can neither look nor ask.
        for path in (f"/streams/{hers}", "/streams"):
            answer = await server.client.get(path, headers={"authorization": f"Bearer {her_token}"})
            assert answer.status_code == 401
        answer = await server.client.post(
            "/v1/chat/completions",
            json=chat_body(),
            headers={"authorization": f"Bearer {her_token}"},
        )
        assert answer.status_code == 401
        for _ in range(3):  # the leases go on, the tokens do not
            server.clock.move(200)
            for stream_id, headers in ((hers, ALICE), (his, BOB)):
                await server.client.post(f"/streams/{stream_id}/keepalive", headers=headers)
        assert await by_whip(his, his_token) == 401
        assert await by_livekit(his_token) == 401


# ── regions ──


async def test_a_request_for_another_region_is_refused_with_the_expected_one():
    elsewhere = {"x-overshoot-region": "us"}
    async with serving(region="eu", regions=("eu", "us"), api_key="alice") as server:
        stream_id = await server.new_stream(**ALICE)
        for method, route, body in (
            ("GET", "/streams", None),
            ("POST", "/streams", {"source": {"type": "push"}}),
            ("GET", f"/streams/{stream_id}", None),
            ("GET", "/streams/unknown", None),
            ("PUT", f"/streams/{stream_id}/windows/w", {"model": "x"}),
            ("POST", "/chat/completions", chat_body()),
            ("POST", "/watches", {}),
            ("GET", "/watches/unknown/events", None),
        ):
            answer = await server.client.request(
                method, f"/v1{route}", json=body, headers=ALICE | elsewhere
            )
            assert answer.status_code == 409
            told = {"error": "region_error", "expected_region": "eu", "requested_region": "us"}
            assert answer.json() == {"detail": told}
            assert answer.headers["x-overshoot-region"] == "eu"
            answer = await server.client.request(
                method, f"/v1{route}", json=body, headers=elsewhere
            )
            assert answer.status_code == 401  # who has no key is told nothing of regions
        for region in ({"x-overshoot-region": "eu"}, {}):
            assert (await server.client.get("/streams", headers=ALICE | region)).status_code == 200


async def test_without_regions_every_region_is_served():
    async with serving(region="eu") as server:
        headers = {"x-overshoot-region": "mars"}
        answer = await server.client.get("/streams", headers=headers)
        assert (answer.status_code, answer.headers["x-overshoot-region"]) == (200, "eu")
        answer = await server.client.post("/v1/chat/completions", json=chat_body(), headers=headers)
        assert (answer.status_code, answer.headers["x-overshoot-region"]) == (200, "eu")

"""WHIP as its clients see it (RFC 9725), on connections that the test drives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import httpx
import pytest

from liveedge.testing.source import plain_pixels
from tests.offers import fragment, offer
from tests.serving import REAL_LIMIT_S, Serving, serving, until

SDP = {"content-type": "application/sdp"}
FRAGMENT = {"content-type": "application/trickle-ice-sdpfrag"}
CANDIDATE = "candidate:1 1 udp 2122260223 192.0.2.1 61764 typ host"


async def new_stream(server: Serving, kind: str = "whip", **headers: str) -> tuple[str, str]:
    """A stream that waits for its publisher, and its publish token."""
    body = {"source": {"type": kind}}
    answer = await server.client.post("/v1beta/streams", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], answer.json()["publish"]["token"]


def bearer(token: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **more}


async def post(server: Serving, stream_id: str, token: str, sdp: str = "") -> httpx.Response:
    return await server.client.post(
        f"/whip/{stream_id}", content=sdp or offer(), headers=bearer(token) | SDP
    )


async def published(server: Serving) -> tuple[str, httpx.Response]:
    """A stream with a publisher: its id, and the answer to the offer."""
    stream_id, token = await new_stream(server)
    answer = await post(server, stream_id, token)
    assert answer.status_code == 201, answer.text
    return stream_id, answer


async def health(server: Serving, stream_id: str) -> tuple[str, str]:
    view = (await server.client.get(f"/streams/{stream_id}")).json()
    return view["health"], view["health_reason"]


async def test_an_offer_is_answered_with_sdp_and_the_url_of_its_session():
    async with serving() as server:
        stream_id, answer = await published(server)
        assert answer.headers["content-type"] == "application/sdp"
        assert answer.headers["accept-patch"] == "application/trickle-ice-sdpfrag"
        assert answer.text.startswith("v=0\r\n")
        assert "a=recvonly" in answer.text
        prefix, _, session_id = answer.headers["location"].rpartition("/")
        assert prefix == f"/whip/{stream_id}"
        assert len(session_id) >= 22
        assert answer.headers["etag"].strip('"') not in ("", session_id)
        assert await health(server, stream_id) == (
            "waiting_for_keyframe", "the publisher is connecting"
        )  # fmt: skip
        assert server.sessions.newest.deliver() is not None
        assert (await health(server, stream_id))[0] == "live"


@pytest.mark.parametrize("prefix", ["/v1beta", "/v1", ""])
async def test_the_url_of_a_session_has_the_prefix_that_its_client_uses(prefix: str):
    async with serving() as server:
        stream_id, token = await new_stream(server)
        answer = await server.client.post(
            f"{prefix}/whip/{stream_id}", content=offer(), headers=bearer(token) | SDP
        )
        assert answer.headers["location"].startswith(f"{prefix}/whip/{stream_id}/")
        assert (await server.client.delete(answer.headers["location"])).status_code == 200


async def test_behind_a_proxy_the_public_url_says_where_a_session_is():
    async with serving(public_url="https://cameras.example/live") as server:
        stream_id, answer = await published(server)
        assert answer.headers["location"].startswith(f"/live/whip/{stream_id}/")


async def test_both_kinds_of_published_streams_take_whip():
    async with serving() as server:
        for kind in ("whip", "livekit"):
            stream_id, token = await new_stream(server, kind)
            assert (await post(server, stream_id, token)).status_code == 201


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Basic eDp5"}, {"authorization": "Bearer  "}]
)
async def test_an_offer_without_a_token_is_unauthorized(headers: dict[str, str]):
    async with serving(api_key="k") as server:
        stream_id, _ = await new_stream(server, authorization="Bearer k")
        answer = await server.client.post(
            f"/whip/{stream_id}", content=offer(), headers=SDP | headers
        )
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "publish token" in answer.json()["detail"]
        assert server.sessions.opened == []


async def test_a_key_of_the_server_is_no_publish_token_and_a_token_is_no_key():
    async with serving(api_key="k") as server:
        stream_id, token = await new_stream(server, authorization="Bearer k")
        assert (await post(server, stream_id, "k")).status_code == 401
        for path in ("/streams", f"/streams/{stream_id}", f"/streams/{stream_id}/frame.jpg"):
            answer = await server.client.get(path, headers=bearer(token))
            assert answer.status_code == 401


async def test_a_token_opens_its_own_stream_alone():
    async with serving() as server:
        (mine, _), (_, other) = await new_stream(server), await new_stream(server)
        answer = await post(server, mine, other)
        assert answer.status_code == 401
        assert other not in answer.text
        assert server.sessions.opened == []


async def test_a_token_lives_as_long_as_the_lease_and_keepalive_gives_a_new_one():
    async with serving() as server:
        stream_id, token = await new_stream(server)
        server.clock.move(290)
        kept = (await server.client.post(f"/streams/{stream_id}/keepalive")).json()
        server.clock.move(120)
        late = await post(server, stream_id, token)
        assert late.status_code == 401
        assert "expired" in late.json()["detail"]
        assert "keepalive" in late.json()["detail"]
        assert (await post(server, stream_id, kept["publish"]["token"])).status_code == 201


async def test_a_stream_that_ended_takes_nobody():
    async with serving() as server:
        stream_id, token = await new_stream(server)
        await server.client.delete(f"/streams/{stream_id}")
        answer = await post(server, stream_id, token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "stream_not_found")


@pytest.mark.parametrize(
    ("sdp", "headers", "status", "says"),
    [
        ("x", SDP, 400, "is not SDP"),
        ("", SDP, 400, "is not SDP"),
        ("{}", {"content-type": "application/json"}, 415, "Content-Type: application/sdp"),
        (offer(), {}, 415, "not none"),
        (offer(codec="AV1"), SDP, 422, "VP8 or H264"),
        (offer(direction="recvonly"), SDP, 422, "sends no video track"),
        ("a=x\r\n", SDP, 422, "v=0"),
        ("v=0\r\n" + "a=" + "x" * 300_000, SDP, 413, "262144"),
    ],
)  # fmt: skip
async def test_an_offer_that_cannot_be_taken_says_why_and_leaves_nothing(
    sdp: str, headers: dict[str, str], status: int, says: str
):
    async with serving() as server:
        stream_id, token = await new_stream(server)
        answer = await server.client.post(
            f"/whip/{stream_id}", content=sdp.encode(), headers=bearer(token) | headers
        )
        assert answer.status_code == status, answer.text
        assert says in answer.json()["detail"]
        assert answer.json()["error"]["message"] == answer.json()["detail"]
        await until(lambda: server.sessions.n_open == 0)
        assert (await post(server, stream_id, token)).status_code == 201


async def test_a_content_type_may_have_parameters():
    async with serving() as server:
        stream_id, token = await new_stream(server)
        answer = await server.client.post(
            f"/whip/{stream_id}",
            content=offer(audio=True),
            headers=bearer(token) | {"content-type": "Application/SDP; charset=utf-8"},
        )
        assert answer.status_code == 201


async def test_candidates_come_later():
    async with serving() as server:
        _, answer = await published(server)
        patched = await server.client.patch(
            answer.headers["location"],
            content=fragment(CANDIDATE),
            headers=FRAGMENT | {"if-match": answer.headers["etag"]},
        )
        assert (patched.status_code, patched.content) == (204, b"")
        assert server.sessions.newest.candidates == [(CANDIDATE, "0", None)]


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({}, fragment(CANDIDATE), 428, "precondition_required"),
        ({"if-match": "*"}, fragment(CANDIDATE, ufrag="neww"), 501, "not_supported"),
        ({"if-match": '"other"'}, fragment(CANDIDATE), 412, "precondition_failed"),
        ({"if-match": "OURS"}, fragment(CANDIDATE, ufrag="neww"), 412, "precondition_failed"),
        ({"if-match": "OURS"}, "{}", 400, "sdp_invalid"),
        ({"if-match": "OURS", "content-type": "text/plain"}, fragment(), 415,
         "content_type_unsupported"),
        ({"if-match": "OURS"}, fragment(*[CANDIDATE] * 65), 422, "validation_error"),
        ({"if-match": "OURS"}, "a=" + "x" * 66_000, 413, "request_too_large"),
    ],
)  # fmt: skip
async def test_a_patch_that_is_not_about_this_ice_changes_nothing(
    headers: dict[str, str], body: str, status: int, code: str
):
    async with serving() as server:
        _, answer = await published(server)
        if headers.get("if-match") == "OURS":
            headers = headers | {"if-match": answer.headers["etag"]}
        patched = await server.client.patch(
            answer.headers["location"], content=body, headers=FRAGMENT | headers
        )
        assert (patched.status_code, patched.json()["error"]["code"]) == (status, code)
        assert server.sessions.newest.candidates == []
        assert server.sessions.newest.ended is None


async def test_a_client_leaves_with_delete_and_its_url_is_gone():
    async with serving() as server:
        stream_id, answer = await published(server)
        location = answer.headers["location"]
        gone = await server.client.delete(location)
        assert (gone.status_code, gone.content) == (200, b"")
        assert await health(server, stream_id) == ("waiting_for_publisher", "the publisher left")
        assert (await server.client.delete(location)).status_code == 404
        patched = await server.client.patch(
            location, content=fragment(), headers=FRAGMENT | {"if-match": answer.headers["etag"]}
        )
        assert patched.status_code == 404


async def test_a_session_is_found_under_its_own_stream_alone():
    async with serving() as server:
        (_, answer), (other, _) = await published(server), await published(server)
        session_id = answer.headers["location"].rpartition("/")[2]
        assert (await server.client.delete(f"/whip/{other}/{session_id}")).status_code == 404
        assert (await server.client.delete(f"/whip/{other}/guessed")).status_code == 404
        assert server.sessions.n_open == 2


async def test_a_session_dies_with_its_connection():
    async with serving() as server:
        stream_id, answer = await published(server)
        server.sessions.newest.fail("ICE failed: no candidate pair worked")
        assert await health(server, stream_id) == (
            "waiting_for_publisher", "ICE failed: no candidate pair worked"
        )  # fmt: skip
        assert (await server.client.delete(answer.headers["location"])).status_code == 404


async def test_a_session_dies_with_its_stream():
    """Publish while deleted: the connection is told, and nothing of it is left."""
    async with serving() as server:
        stream_id, answer = await published(server)
        await server.client.delete(f"/streams/{stream_id}")
        await until(lambda: server.sessions.n_open == 0)
        assert server.sessions.newest.deliver() is None
        assert (await server.client.delete(answer.headers["location"])).status_code == 404


async def test_the_newest_publisher_wins_and_the_older_session_is_gone():
    """Case 32 over HTTP."""
    async with serving() as server:
        stream_id, token = await new_stream(server)
        first = await post(server, stream_id, token)
        older = server.sessions.newest
        assert older.deliver(plain_pixels(grey=10)) is not None
        second = await post(server, stream_id, token)
        assert older.deliver(plain_pixels(grey=10)) is None
        assert server.sessions.newest.deliver(plain_pixels(grey=200)) is not None
        await until(lambda: older.ended is not None)
        assert older.ended == "another publisher took over"
        assert (await server.client.delete(first.headers["location"])).status_code == 404
        assert (await server.client.delete(second.headers["location"])).status_code == 200


async def test_an_offer_that_cannot_be_answered_takes_nobodys_place():
    async with serving() as server:
        stream_id, token = await new_stream(server)
        await post(server, stream_id, token)
        connected = server.sessions.newest
        refused = await post(server, stream_id, token, offer(codec="AV1"))
        assert refused.status_code == 422
        assert connected.deliver() is not None
        assert connected.ended is None
        await until(lambda: server.sessions.newest.ended is not None)


@pytest.mark.parametrize(
    ("path", "method"), [("/whip/{}", "POST"), ("/whip/unknown", "POST"), ("/whip/{}/x", "PATCH")]
)
async def test_nothing_is_read_of_who_may_not_publish(path: str, method: str):
    async def never() -> AsyncIterator[bytes]:
        yield b"v=0"
        await asyncio.Event().wait()

    async with serving() as server:
        stream_id, _ = await new_stream(server)
        asked = server.client.request(
            method, path.format(stream_id), content=never(), headers=bearer("x") | SDP
        )
        answer = await asyncio.wait_for(asked, REAL_LIMIT_S)
        assert answer.status_code in (401, 404)
        assert server.built.held_bytes.used == 0


async def test_offers_that_are_being_read_take_nothing_from_questions():
    going_on = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield offer().encode()
        await going_on.wait()

    async with serving() as server:
        stream_id, token = await new_stream(server)
        publishing = asyncio.create_task(
            server.client.post(f"/whip/{stream_id}", content=slow(), headers=bearer(token) | SDP)
        )
        used = server.built.publisher_bytes
        await until(lambda: used.used == len(offer()))
        assert server.built.held_bytes.used == 0
        going_on.set()
        assert (await publishing).status_code == 201
        assert used.used == 0


async def test_at_the_limit_of_publishers_a_newcomer_is_refused():
    async with serving() as server:
        server.sessions._max_sessions = 1
        await published(server)
        stream_id, token = await new_stream(server)
        answer = await post(server, stream_id, token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1


async def test_ice_servers_are_told_to_publishers_alone():
    servers = ["stun:stun.example:3478", "turn:us%22er:pass@turn.example?transport=udp"]
    async with serving(ice_servers=servers) as server:
        stream_id, answer = await published(server)
        assert answer.headers["link"] == (
            '<stun:stun.example:3478>; rel="ice-server", <turn:turn.example?transport=udp>;'
            ' rel="ice-server"; username="us\\"er"; credential="pass"; credential-type="password"'
        )
        asked = await server.client.options(f"/whip/{stream_id}")
        assert "link" not in asked.headers


async def test_options_say_what_can_be_posted():
    async with serving(api_key="k") as server:
        answer = await server.client.options("/whip/any")
        assert answer.status_code == 204
        assert answer.headers["accept-post"] == "application/sdp"


async def test_a_page_in_a_browser_may_publish_and_read_what_comes_back():
    origin = {"origin": "http://localhost:5173"}
    async with serving() as server:
        stream_id, token = await new_stream(server)
        asking = origin | {
            "access-control-request-method": "PATCH",
            "access-control-request-headers": "authorization,content-type,if-match",
        }
        preflight = await server.client.options(f"/whip/{stream_id}", headers=asking)
        allowed = preflight.headers["access-control-allow-headers"].lower()
        assert {"authorization", "content-type", "if-match"} <= set(allowed.split(", "))
        answer = await server.client.post(
            f"/whip/{stream_id}", content=offer(), headers=bearer(token) | SDP | origin
        )
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert {"location", "etag", "link"} <= {name.strip() for name in exposed.split(",")}


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
async def test_other_methods_are_not_allowed(method: str):
    async with serving() as server:
        answer = await server.client.request(method, "/whip/any")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"


async def test_neither_tokens_nor_urls_of_sessions_nor_sdp_reach_the_log(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.DEBUG)
    async with serving() as server:
        stream_id, token = await new_stream(server)
        answer = await post(server, stream_id, token)
        session_id = answer.headers["location"].rpartition("/")[2]
        await server.client.delete(answer.headers["location"])
        ours = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("liveedge"))
        assert f"DELETE /whip/{stream_id}/... 200" in ours
        assert session_id not in ours
        assert token not in ours
        assert "pa55word" not in ours


async def test_a_server_that_stops_tells_its_publishers_and_takes_no_more():
    async with serving() as server:
        stream_id, token = await new_stream(server)
        await post(server, stream_id, token)
        await server.built.publishing.close()
        assert server.sessions.newest.ended is not None
        answer = await post(server, stream_id, token)
        assert answer.status_code == 503
        await server.built.publishing.close()

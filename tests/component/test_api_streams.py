"""The life of streams over HTTP, on a clock that the test moves."""

import json

import pytest

from tests.serving import Serving, picture, serving

KEY_A, KEY_B = {"Authorization": "Bearer alpha"}, {"Authorization": "Bearer beta"}
ALL_KEYS = {
    "id", "state", "source", "last_pull", "stream_time_ms", "first_frame_at_ms", "last_frame_at_ms",
    "last_frame_index", "first_available_frame_at_ms", "first_available_frame_index",
    "created_at_ms", "recent_fps", "retained_frame_count", "evicted_frame_count", "expires_at_ms",
    "ttl_seconds", "ended_at_ms", "end_reason", "audio", "health", "health_reason", "width",
    "height", "codec", "dropped", "evicted", "corrupt_frames", "reconnects", "gaps",
    "memory_bytes", "reserved_bytes", "windows",
}  # fmt: skip


async def look(server: Serving, stream_id: str):
    return (await server.client.get(f"/streams/{stream_id}")).json()


@pytest.mark.parametrize("prefix", ["/v1beta", "/v1", ""])
async def test_every_prefix_leads_to_the_same_streams(prefix):
    async with serving() as server:
        stream_id = await server.new_stream()
        assert (await server.client.get(f"{prefix}/streams/{stream_id}")).json()["id"] == stream_id
        listed = (await server.client.get(f"{prefix}/streams")).json()["data"]
        assert [one["id"] for one in listed] == [stream_id]


async def test_a_new_stream_has_every_field_and_no_frame():
    async with serving() as server:
        answer = await server.client.post("/streams", json={"source": {"type": "push"}})
        created = answer.json()
        assert answer.status_code == 201
        assert set(created) == {
            "id", "state", "source", "publish", "expires_at_ms", "ttl_seconds"
        }  # fmt: skip
        assert created["source"] == {"type": "push"}
        assert created["publish"] is None
        view = await look(server, created["id"])
        assert set(view) == ALL_KEYS
        assert view["state"] == "active"
        assert view["health"] == "waiting_for_publisher"
        assert view["stream_time_ms"] == view["retained_frame_count"] == 0
        assert view["first_frame_at_ms"] is view["last_frame_index"] is view["last_pull"] is None


async def test_counters_and_times_always_add_up():
    async with serving() as server:
        stream_id = await server.filled_stream(7, every_ms=250)
        view = await look(server, stream_id)
        assert view["last_frame_index"] == 6
        assert view["stream_time_ms"] == 1500
        assert view["stream_time_ms"] == view["last_frame_at_ms"] - view["first_frame_at_ms"]
        assert view["retained_frame_count"] + view["evicted_frame_count"] == 7
        server.clock.move(200)
        await server.client.post(f"/streams/{stream_id}/keepalive")
        server.clock.move(290)
        await server.client.post(f"/streams/{stream_id}/keepalive")
        server.clock.move(200)  # now 690 s after the first frame, 688.5 s after the newest
        await server.push(stream_id)
        view = await look(server, stream_id)
        assert view["evicted_frame_count"] == 7
        assert view["evicted"] == {"retention": 7}
        assert view["retained_frame_count"] + view["evicted_frame_count"] == 8
        assert view["first_available_frame_index"] == 7


async def test_the_lease_runs_from_creation_and_keepalive_renews_it():
    async with serving() as server:
        stream_id = await server.new_stream()
        began_ms = server.clock.wall_ms()
        server.clock.move(299)
        kept = (await server.client.post(f"/streams/{stream_id}/keepalive", json={})).json()
        assert kept == {
            "id": stream_id,
            "expires_at_ms": began_ms + 599_000,
            "ttl_seconds": 300,
            "stream_time_ms": 0,
            "publish": None,
        }
        server.clock.move(299.999)
        assert (await look(server, stream_id))["state"] == "active"
        server.clock.move(0.001)
        view = await look(server, stream_id)
        assert (view["state"], view["end_reason"]) == ("ended", "expired")
        assert view["ended_at_ms"] == began_ms + 599_000
        assert view["expires_at_ms"] is None
        answer = await server.client.post(f"/streams/{stream_id}/keepalive")
        assert answer.status_code == 404


async def test_neither_pushing_nor_looking_nor_asking_renews_the_lease():
    async with serving() as server:
        stream_id = await server.new_stream()
        server.clock.move(299)
        await server.push(stream_id)
        await look(server, stream_id)
        assert (await server.client.get(f"/streams/{stream_id}/frame.jpg")).status_code == 200
        server.clock.move(1)
        assert (await look(server, stream_id))["state"] == "ended"


async def test_an_ended_stream_keeps_its_last_counters_until_the_tombstone_falls():
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        server.clock.move(300)
        view = await look(server, stream_id)
        assert view["health"] == view["state"] == "ended"
        assert (view["last_frame_index"], view["retained_frame_count"]) == (2, 3)
        assert (view["memory_bytes"], view["reserved_bytes"]) == (0, 0)
        server.clock.move(299)
        assert (await look(server, stream_id))["last_frame_index"] == 2
        server.clock.move(1)  # the lease began before the frames: 600 s after creation
        assert (await server.client.get(f"/streams/{stream_id}")).status_code == 404


async def test_deleting_again_is_fine_while_the_tombstone_stands():
    async with serving() as server:
        deleted, expired = await server.new_stream(), await server.new_stream()
        path = f"/streams/{deleted}"
        for _ in range(2):
            answer = await server.client.delete(path)
            assert (answer.status_code, answer.json()) == (200, {"id": deleted, "deleted": True})
        assert (await look(server, deleted))["end_reason"] == "deleted"
        server.clock.move(299)
        assert (await server.client.delete(path)).status_code == 200
        server.clock.move(1)
        assert (await server.client.delete(path)).status_code == 404
        assert (await server.client.delete(f"/streams/{expired}")).status_code == 200
        assert (await look(server, expired))["end_reason"] == "expired"


async def test_the_sweeper_frees_an_expired_stream_that_nobody_asks_for():
    async with serving() as server:
        await server.filled_stream(2)
        assert server.built.streams.n_active == 1
        await server.clock.advance(301)
        assert server.built.streams.n_active == 0


async def test_someone_elses_stream_is_not_found():
    async with serving(api_key=("alpha", "beta")) as server:
        stream_id = await server.new_stream(**KEY_A)
        client, path = server.client, f"/streams/{stream_id}"
        assert (await client.get(path, headers=KEY_A)).status_code == 200
        assert (await client.get(path, headers=KEY_B)).status_code == 404
        assert (await client.delete(path, headers=KEY_B)).status_code == 404
        assert (await client.post(f"{path}/keepalive", headers=KEY_B)).status_code == 404
        assert (await client.get(f"{path}/frame.jpg", headers=KEY_B)).status_code == 404
        pushed = await client.post(f"{path}/frames", content=picture(), headers=KEY_B)
        assert pushed.status_code == 404
        assert (await client.get("/streams", headers=KEY_B)).json() == {
            "object": "list",
            "data": [],
        }
        await client.delete(path, headers=KEY_A)
        assert (await client.get(path, headers=KEY_B)).status_code == 404
        assert (await client.delete(path, headers=KEY_B)).status_code == 404


@pytest.mark.parametrize(
    ("source", "status", "says"),
    [
        ({"type": "hls", "url": "rtsp://user:pw@cam/x"}, 422, "http://"),
        ({"type": "telepathy"}, 422, "telepathy"),
        ({"type": "rtsp"}, 422, "needs a URL"),
        ({"type": "rtsp", "url": "http://user:pw@cam/x"}, 422, "rtsp://"),
        ({"type": "rtsp", "url": "rtsp://user:pw@169.254.169.254/x"}, 422, "link-local"),
        ({"type": "file", "url": "file:///pw/x.mp4"}, 422, "allow_local_sources"),
        ({"type": "sim", "url": "sim://workcell?fps=pw"}, 422, "fps"),
        ({"type": "push", "url": "push://pw"}, 422, "no URL"),
    ],
)
async def test_a_source_that_cannot_be_opened_says_why_and_leaves_nothing(source, status, says):
    async with serving() as server:
        answer = await server.client.post("/streams", json={"source": source})
        assert answer.status_code == status, answer.text
        assert says in answer.json()["detail"]
        assert answer.json()["error"]["message"] == answer.json()["detail"]
        assert "user:pw" not in answer.text
        assert (await server.client.get("/streams")).json() == {"object": "list", "data": []}


async def test_a_malformed_body_is_a_flat_422():
    async with serving() as server:
        for body in (b"{", b'{"source": 5}', b'{"source": {"url": "x"}}', b"[]"):
            answer = await server.client.post("/streams", content=body)
            assert answer.status_code == 422
            assert isinstance(answer.json()["detail"], str)


async def test_streams_per_key_and_memory_are_limited_and_the_message_says_which():
    async with serving(max_streams_per_key=2, streams_mb=15, api_key=("alpha", "beta")) as server:
        first = await server.new_stream(**KEY_A)
        await server.new_stream(**KEY_A)
        body = {"source": {"type": "push"}}
        answer = await server.client.post("/streams", json=body, headers=KEY_A)
        assert answer.status_code == 429
        assert "max_streams_per_key" in answer.json()["detail"]
        assert "retry-after" in answer.headers
        await server.new_stream(**KEY_B)
        answer = await server.client.post("/streams", json=body, headers=KEY_B)
        assert answer.status_code == 429
        assert answer.json()["detail"] == (
            "no memory for another stream: each reserves 5 MB (hot_mb and history_mb), and of the"
            " 15 MB for all (streams_mb) active ones hold 15 MB; delete one first"
        )
        await server.client.delete(f"/streams/{first}", headers=KEY_A)
        await server.new_stream(**KEY_B)


async def test_pushed_pictures_become_frames_with_rising_indices():
    async with serving() as server:
        stream_id = await server.new_stream()
        first = await server.push(stream_id, picture(size=(64, 48)))
        assert first == {
            "frame_index": 0,
            "timestamp_ms": 0,
            "captured_at_ms": server.clock.wall_ms(),
            "width": 64,
            "height": 48,
        }
        server.clock.move(0.4)
        second = await server.push(stream_id)
        assert (second["frame_index"], second["timestamp_ms"]) == (1, 400)
        view = await look(server, stream_id)
        assert view["health"] == "live"
        assert view["last_pull"] is None  # published, not pulled


async def test_a_broken_picture_is_refused_and_the_stream_lives_on():
    async with serving() as server:
        stream_id = await server.new_stream()
        path = f"/streams/{stream_id}/frames"
        for body in (b"", b"GIF89a", b"not a picture", picture()[:60]):
            answer = await server.client.post(path, content=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "media_invalid"
        assert (await server.push(stream_id))["frame_index"] == 0
        late = await server.client.post(path, content=picture(), headers={"X-Captured-At-Ms": "x"})
        assert late.status_code == 422


async def test_frames_cannot_be_pushed_into_a_camera():
    async with serving() as server:
        source = {"type": "sim", "url": "sim://workcell?fps=1&width=64&height=64"}
        created = (await server.client.post("/streams", json={"source": source})).json()
        answer = await server.client.post(f"/streams/{created['id']}/frames", content=picture())
        assert answer.status_code == 409
        assert "sim" in answer.json()["detail"]


async def test_a_frame_comes_back_as_a_picture_with_its_place_and_age():
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        server.clock.move(0.05)
        path = f"/v1/streams/{stream_id}"
        newest = await server.client.get(f"{path}/frame.png")
        assert newest.headers["content-type"] == "image/png"
        assert newest.headers["x-frame-index"] == "2"
        assert newest.headers["x-age-ms"] == "50"
        assert newest.headers["x-captured-at-ms"] == str(server.clock.wall_ms() - 50)
        assert newest.content.startswith(b"\x89PNG")
        first = await server.client.get(f"{path}/frame.jpg?frame_index=0")
        assert first.headers["x-frame-index"] == "0"
        assert first.content.startswith(b"\xff\xd8")


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("frame_index=9", 409, "frame_not_yet_produced"),
        ("frame_index=-9", 404, "segment_empty"),
        ("frame=1", 400, "query_param_invalid"),
        ("frame_index=-1&max_pixels=100", 400, "query_param_invalid"),
        ("timestamp_ms=99999", 404, "segment_empty"),
    ],
)
async def test_a_picture_that_is_not_there_is_a_flat_error(query, status, code):
    async with serving() as server:
        stream_id = await server.filled_stream(3)
        answer = await server.client.get(f"/streams/{stream_id}/frame.jpg?{query}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert isinstance(answer.json()["detail"], str)


async def test_a_picture_of_an_empty_or_unknown_stream_is_an_error():
    async with serving() as server:
        stream_id = await server.new_stream()
        empty = await server.client.get(f"/streams/{stream_id}/frame.jpg")
        assert (empty.status_code, empty.json()["error"]["code"]) == (409, "frame_not_yet_produced")
        unknown = await server.client.get("/streams/unknown/frame.jpg")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "stream_not_found")


async def test_the_source_url_is_never_told_back():
    async with serving() as server:
        source = {"type": "sim", "url": "sim://workcell?seed=12345&fps=1&width=64&height=64"}
        created = await server.client.post("/streams", json={"source": source})
        stream_id = created.json()["id"]
        for answer in (created, await server.client.get(f"/streams/{stream_id}")):
            assert "12345" not in answer.text
            assert answer.json()["source"] == {"type": "sim"}


async def test_another_region_is_refused_only_where_there_are_several():
    asked = {"X-Overshoot-Region": "eu"}
    async with serving() as server:
        answer = await server.client.get("/streams", headers=asked)
        assert (answer.status_code, answer.headers["x-overshoot-region"]) == (200, "local")
    async with serving(region="us", regions=("us", "eu")) as server:
        answer = await server.client.get("/streams", headers=asked)
        assert answer.status_code == 409
        assert json.loads(answer.text) == {
            "detail": {"error": "region_error", "expected_region": "us", "requested_region": "eu"}
        }


async def test_a_time_that_is_sent_along_is_answered_with_how_far_off_it_is():
    async with serving() as server:
        stream_id = await server.new_stream()
        hour_ms = 3_600_000
        sent_ms = server.clock.wall_ms() - hour_ms
        told = await server.push(stream_id, None, **{"x-captured-at-ms": str(sent_ms)})
        assert (told["captured_at_ms"], told["clock_offset_ms"]) == (
            server.clock.wall_ms(), -hour_ms
        )  # fmt: skip

"""A server with a state folder over HTTP: what a client sees of its restarts."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from liveedge.assembly import build_app
from liveedge.core.errors import SettingsInvalid
from liveedge.settings import Settings
from liveedge.testing.clock import FakeClock
from tests.offers import offer
from tests.serving import SMALL, Serving, image, picture, serving, until, video

FRAME_MS = 100
# One frame is hot; all others are where a restart finds them, or nowhere.
TIGHT = {"hot_mb": 1, "history_mb": 4}
LARGE = (640, 480)  # 0.9 MB


@asynccontextmanager
async def living(path, wall_ms=1_750_000_000_000, **settings):
    """A server on the folder; its monotonic clock has nothing to do with the one before."""
    clock = FakeClock(monotonic_s=wall_ms % 997, wall_ms=wall_ms)
    settings = {**TIGHT, **settings}
    async with serving(clock=clock, state_dir=path / "state", **settings) as server:
        yield server


async def fill(server: Serving, stream_id: str, n_frames: int, *, size=LARGE) -> None:
    store = server.built.streams.own_store("open", stream_id)
    for i in range(n_frames):
        await server.push(stream_id, picture((10 * i % 256, 0, 0), size))
        assert store.wait_encoded(20)
        server.clock.move(FRAME_MS / 1000)


async def look(server: Serving, stream_id: str):
    answer = await server.client.get(f"/streams/{stream_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def shade(server: Serving, stream_id: str, index: int):
    answer = await server.client.get(f"/streams/{stream_id}/frame.png?frame_index={index}")
    return answer.status_code, answer.headers.get("x-captured-at-ms"), answer.content


async def test_index_clock_counters_and_pictures_go_on(tmp_path):
    async with living(tmp_path) as first:
        stream_id = await first.new_stream()
        await fill(first, stream_id, 8)
        before = await look(first, stream_id)
        old = [await shade(first, stream_id, index) for index in range(8)]
        ended_ms = first.clock.wall_ms()
    async with living(tmp_path, ended_ms + 20_000) as second:
        after = await look(second, stream_id)
        same = (
            "id", "created_at_ms", "expires_at_ms", "first_frame_at_ms", "last_frame_at_ms",
            "last_frame_index", "stream_time_ms", "width", "height",
        )  # fmt: skip
        assert {key: after[key] for key in same} == {key: before[key] for key in same}
        assert after["retained_frame_count"] == 8
        new = [await shade(second, stream_id, index) for index in range(8)]
        # The newest one was still hot, and is shown from the history now: the same within its loss.
        assert new[:7] == old[:7]
        assert new[7][:2] == old[7][:2]
        await fill(second, stream_id, 2)
        view = await look(second, stream_id)
        assert view["last_frame_index"] == 9
        assert view["retained_frame_count"] + view["evicted_frame_count"] == 10
        assert view["stream_time_ms"] == view["last_frame_at_ms"] - view["first_frame_at_ms"]
        (gap,) = view["gaps"]
        assert gap["from_ms"] == before["stream_time_ms"]
        assert 20_000 <= gap["to_ms"] - gap["from_ms"] <= 21_000


async def test_a_stop_saves_what_is_only_hot(tmp_path):
    async with living(tmp_path, hot_mb=16) as first:
        stream_id = await first.new_stream()
        for i in range(12):
            await first.push(stream_id, picture((20 * i, 0, 0), LARGE))
        ended_ms = first.clock.wall_ms()
    async with living(tmp_path, ended_ms + 1_000) as second:
        view = await look(second, stream_id)
        assert (view["retained_frame_count"], view["evicted"]) == (12, {})


async def test_history_from_before_answers_a_question(tmp_path):
    async with living(tmp_path) as first:
        stream_id = await first.new_stream()
        await fill(first, stream_id, 6)
        ended_ms = first.clock.wall_ms()
    async with living(tmp_path, ended_ms + 5_000) as second:
        await fill(second, stream_id, 2)
        said = await second.ask(image(f"ovs://streams/{stream_id}?frame_index=2"))
        assert [f["frame_index"] for f in said.json()["liveedge"]["frames"]] == [2]
        over = video(f"ovs://streams/{stream_id}?start_frame_index=4&max_fps=10")
        said = await second.ask(over)
        indices = [f["frame_index"] for f in said.json()["liveedge"]["frames"]]
        assert (indices[0], indices[-1]) == (4, 7)


async def test_frames_grow_old_while_the_server_is_down(tmp_path):
    async with living(tmp_path) as first:
        stream_id = await first.new_stream()
        await fill(first, stream_id, 4)
        ended_ms = first.clock.wall_ms()
    async with living(tmp_path, ended_ms + 60_000, retention_s=30) as second:
        view = await look(second, stream_id)
        assert view["retained_frame_count"] == 0
        assert view["evicted_frame_count"] == view["last_frame_index"] + 1 == 4
        answer = await second.client.get(f"/streams/{stream_id}/frame.jpg?frame_index=1")
        assert answer.status_code == 410


async def test_another_history_size_keeps_the_stream_and_its_index(tmp_path):
    async with living(tmp_path) as first:
        stream_id = await first.new_stream()
        await fill(first, stream_id, 5)
        ended_ms = first.clock.wall_ms()
    async with living(tmp_path, ended_ms + 1_000, history_mb=2) as second:
        view = await look(second, stream_id)
        assert view["state"] == "active"
        assert view["last_frame_index"] == 4
        assert view["retained_frame_count"] + view["evicted_frame_count"] == 5
        await fill(second, stream_id, 1)
        assert (await look(second, stream_id))["last_frame_index"] == 5


@pytest.mark.parametrize("kind", ["whip", "livekit"])
async def test_a_publisher_comes_back_with_the_token_that_it_has(tmp_path, kind):
    async with living(tmp_path) as first:
        answer = await first.client.post("/streams", json={"source": {"type": kind}})
        stream_id, token = answer.json()["id"], answer.json()["publish"]["token"]
        assert (await publish(first, stream_id, token)).status_code == 201
        frame = first.sessions.newest.deliver()
        assert frame is not None
        assert first.built.streams.own_store("open", stream_id).wait_encoded(20)
        before = await look(first, stream_id)
        ended_ms = first.clock.wall_ms()
    async with living(tmp_path, ended_ms + 30_000) as second:
        view = await look(second, stream_id)
        assert view["health"] == "waiting_for_publisher"
        assert view["last_frame_index"] == before["last_frame_index"] == 0
        assert (await publish(second, stream_id, token)).status_code == 201
        frame = second.sessions.newest.deliver()
        assert frame is not None
        assert (frame.index, frame.after_gap) == (1, True)
        view = await look(second, stream_id)
        assert view["health"] == "live"
        assert len(view["gaps"]) == 1
        kept = await second.client.post(f"/streams/{stream_id}/keepalive")
        token = kept.json()["publish"]["token"]
        assert (await publish(second, stream_id, token)).status_code == 201


async def test_without_a_folder_tokens_end_with_their_server():
    async with serving() as first:
        answer = await first.client.post("/streams", json={"source": {"type": "whip"}})
        stream_id, token = answer.json()["id"], answer.json()["publish"]["token"]
    async with serving() as second:
        assert (await publish(second, stream_id, token)).status_code == 401


async def publish(server: Serving, stream_id: str, token: str):
    headers = {"authorization": f"Bearer {token}", "content-type": "application/sdp"}
    return await server.client.post(f"/whip/{stream_id}", content=offer(), headers=headers)


async def test_tenants_keep_what_is_theirs(tmp_path):
    keys = {"api_key": ("alpha", "beta")}
    alpha, beta = {"Authorization": "Bearer alpha"}, {"Authorization": "Bearer beta"}
    async with living(tmp_path, **keys) as first:
        stream_id = await first.new_stream(**alpha)
    async with living(tmp_path, **keys) as second:
        path = f"/streams/{stream_id}"
        assert (await second.client.get(path, headers=alpha)).status_code == 200
        assert (await second.client.get(path, headers=beta)).status_code == 404


async def test_no_key_and_no_token_is_in_the_folder(tmp_path):
    async with living(tmp_path, api_key=("alpha-the-key",)) as server:
        headers = {"Authorization": "Bearer alpha-the-key"}
        body = {"source": {"type": "livekit"}}
        answer = await server.client.post("/streams", json=body, headers=headers)
        token = answer.json()["publish"]["token"]
        for path in (tmp_path / "state").rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert b"alpha-the-key" not in data, path
                assert token.encode() not in data, path


async def test_an_ended_streams_answers_survive(tmp_path):
    async with living(tmp_path) as first:
        stream_id = await first.new_stream()
        await fill(first, stream_id, 3)
        await first.client.delete(f"/streams/{stream_id}")
        before = await look(first, stream_id)
        ended_ms = first.clock.wall_ms()
    async with living(tmp_path, ended_ms + 200_000) as second:
        assert await look(second, stream_id) == before
        assert (await second.client.delete(f"/streams/{stream_id}")).status_code == 200
        kept = await second.client.post(f"/streams/{stream_id}/keepalive")
        assert kept.status_code == 404
        await until(lambda: not list((tmp_path / "state" / "streams").iterdir()))
        second.clock.move(101)
        assert (await second.client.delete(f"/streams/{stream_id}")).status_code == 404


async def test_a_source_that_the_settings_no_longer_allow_goes_on_and_says_so(tmp_path):
    video_file = tmp_path / "there-is-none.mp4"
    async with living(tmp_path, allow_local_sources=True) as first:
        registry = first.built.streams._registry
        assert registry is not None
        stream_id = await first.new_stream()
        row = registry.rows[0]
        file = type(row.spec)(type="file", url=f"file://{video_file}")
        registry.put(type(row)(**{**as_dict(row), "spec": file}))
        await registry.saved()
    async with living(tmp_path) as second:
        view = await look(second, stream_id)
        await until(lambda: is_told(second, stream_id))
        view = await look(second, stream_id)
        assert (view["state"], view["source"]) == ("active", {"type": "file"})
        assert view["health"] == "reconnecting"
        assert "allow_local_sources" in view["health_reason"]


def as_dict(row):
    return {name: getattr(row, name) for name in type(row).__dataclass_fields__}


def is_told(server: Serving, stream_id: str) -> bool:
    return "switched off" in server.built.streams.view("open", stream_id).health_reason


async def test_without_a_folder_nothing_is_kept():
    async with serving() as first:
        stream_id = await first.new_stream()
        await first.push(stream_id)
    async with serving() as second:
        assert (await second.client.get(f"/streams/{stream_id}")).status_code == 404


async def test_a_folder_in_use_is_told_at_the_start(tmp_path):
    async with living(tmp_path) as server:
        settings = Settings(state_dir=tmp_path / "state", **SMALL)
        with pytest.raises(SettingsInvalid, match="in use by another liveedge server"):
            build_app(settings, FakeClock(), load_engine=lambda: server.engine)

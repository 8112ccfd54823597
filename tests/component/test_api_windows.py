"""Warm windows over HTTP, on a clock that the test moves."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from liveedge.core.clock import Clock
from liveedge.engine.interface import PreparedRequest
from liveedge.engine.request import Event
from liveedge.frames.frame import RgbPixels
from liveedge.testing.clock import FakeClock
from liveedge.testing.engine import FAKE_MODEL, FakeEngine
from tests.serving import MODEL, Exchange, Serving, chat_body, image, serving, until, video

KEY_A, KEY_B = {"Authorization": "Bearer alpha"}, {"Authorization": "Bearer beta"}
ALL_KEYS = {
    "name", "kind", "model", "seconds", "max_fps", "max_pixels", "frames", "tokens", "state",
    "reason", "age_ms", "warmed_at_ms", "hits", "updates", "superseded", "errors", "cost_ms_per_s",
    "prompt_id", "prompt_tokens_before_media",
}  # fmt: skip
PIXELS = RgbPixels(np.zeros((48, 64, 3), np.uint8))
LIVE = "start_offset_ms=-4000&max_fps=1"
BODY = {"model": MODEL, "seconds": 4, "max_fps": 1}


class FarEngine(FakeEngine):
    """Its events are half a second on their way."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.far_clock = clock

    async def generate(self, prepared: PreparedRequest) -> AsyncGenerator[Event, None]:
        assert isinstance(self.far_clock, FakeClock)
        async with aclosing(super().generate(prepared)) as events:
            async for event in events:
                self.far_clock.move(0.51)
                yield event


class Camera:
    """A stream at 10 frames a second."""

    def __init__(self, server: Serving, stream_id: str) -> None:
        self.server = server
        self.stream_id = stream_id
        self.store = server.built.streams.stores("open", [stream_id])[stream_id]

    async def film(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            await self.server.clock.advance(0.1)
            self.store.publish(PIXELS)
        await self.server.clock.advance(0.001)

    def part(self, query: str = LIVE):
        return video(f"ovs://streams/{self.stream_id}?{query}")

    @property
    def path(self) -> str:
        return f"/v1/streams/{self.stream_id}/windows"

    async def put(self, name: str = "now", **changes):
        return await self.server.client.put(f"{self.path}/{name}", json={**BODY, **changes})

    async def look(self, name: str = "now"):
        return (await self.server.client.get(f"{self.path}/{name}")).json()

    async def windows(self):
        answer = await self.server.client.get(f"/v1/streams/{self.stream_id}")
        return answer.json()["windows"]

    async def until_warm(self, name: str = "now", *, updates: int = 1):
        windows = self.server.built.windows
        await until(lambda: windows.view("open", self.stream_id, name).updates >= updates)
        return await self.look(name)


async def camera(server: Serving, *, seconds: float = 5) -> Camera:
    made = Camera(server, await server.new_stream())
    await made.film(seconds)
    return made


async def until_auto(server: Serving, *, updates: int = 1):
    """The one automatic window, once it was updated so often."""
    ids = [view.id for view in server.built.streams.views("open")]

    def is_warm() -> bool:
        views = [view for one in ids for view in server.built.windows.views("open", one)]
        return any(view.kind == "auto" and view.updates >= updates for view in views)

    await until(is_warm)


# ── explicit windows ──


async def test_a_window_is_kept_warm_from_when_it_is_put():
    async with serving() as server:
        cam = await camera(server)
        answer = await cam.put()
        assert answer.status_code == 201
        assert set(answer.json()) == ALL_KEYS
        assert answer.json()["state"] == "warming"
        view = await cam.until_warm()
        assert view["state"] == "warm"
        assert (view["kind"], view["model"], view["seconds"]) == ("explicit", MODEL, 4.0)
        assert (view["max_fps"], view["max_pixels"]) == (1.0, None)
        assert (view["frames"], view["updates"], view["hits"]) == (4, 1, 0)
        assert view["tokens"] > 0
        assert view["errors"] == {}
        assert view["warmed_at_ms"] == server.clock.wall_ms()
        await cam.film(1)
        view = await cam.until_warm(updates=2)
        assert (view["updates"], view["frames"]) == (2, 4)
        assert [window["name"] for window in await cam.windows()] == ["now"]


async def test_a_window_waits_for_the_first_frame():
    async with serving() as server:
        cam = await camera(server, seconds=0)
        assert (await cam.put()).status_code == 201
        await server.clock.advance(1)
        view = await cam.look()
        assert (view["state"], view["reason"], view["age_ms"]) == ("warming", None, None)
        await cam.film(0.1)
        assert (await cam.until_warm())["frames"] == 1


async def test_put_again_changes_nothing_and_another_window_replaces():
    async with serving() as server:
        cam = await camera(server)
        await cam.put()
        await cam.until_warm()
        again = await cam.put()
        assert (again.status_code, again.json()["updates"]) == (200, 1)
        other = await cam.put(seconds=2)
        assert (other.status_code, other.json()["updates"]) == (200, 0)
        assert (await cam.until_warm())["frames"] == 2
        assert len(await cam.windows()) == 1
        assert server.engine.stats().windows == 1


async def test_a_window_lives_until_it_is_deleted_or_its_stream_ends():
    async with serving() as server:
        cam = await camera(server)
        await cam.put("one")
        await cam.put("two", seconds=2)
        for name in ("one", "two"):
            await cam.until_warm(name)
        await server.clock.advance(200)
        assert len(await cam.windows()) == 2
        gone = await server.client.delete(f"{cam.path}/one")
        assert (gone.status_code, gone.json()) == (200, {"name": "one", "deleted": True})
        assert (await server.client.delete(f"{cam.path}/one")).status_code == 404
        missing = await server.client.get(f"{cam.path}/one")
        assert missing.json()["error"]["code"] == "window_not_found"
        await server.client.delete(f"/streams/{cam.stream_id}")
        assert len(server.built.windows) == 0
        assert server.engine.stats().windows == 0
        assert (await server.client.get(f"{cam.path}/two")).status_code == 404


async def test_a_question_that_begins_like_a_window_hits_it():
    async with serving() as server:
        cam = await camera(server)
        await cam.put(system="You watch.")
        await cam.until_warm()
        body = chat_body(cam.part())
        body["messages"].insert(0, {"role": "system", "content": "You watch."})
        answer = (await server.client.post("/v1/chat/completions", json=body)).json()
        tokens = answer["liveedge"]["tokens"]
        view = await cam.look()
        assert view["hits"] == 1
        assert len(await cam.windows()) == 1
        # The newest frame is another one than that of the last tick: its group is not reused.
        assert 0 < tokens["reused"] < view["tokens"]
        warm = [frame["warm"] for frame in answer["liveedge"]["frames"]]
        assert warm[:2] == [True, True]
        body["messages"][1]["content"][0] = cam.part(f"{LIVE}&edge=grid")
        answer = (await server.client.post("/v1/chat/completions", json=body)).json()
        assert answer["liveedge"]["tokens"]["reused"] >= view["tokens"]
        assert all(frame["warm"] for frame in answer["liveedge"]["frames"])
        assert (await cam.look())["hits"] == 2


async def test_a_question_with_more_media_hits_the_window_that_it_begins_with():
    async with serving() as server:
        cam = await camera(server)
        await cam.put()
        await cam.until_warm()
        other = cam.part("start_offset_ms=-2000&max_fps=1")
        assert (await server.ask(cam.part(), other)).status_code == 200
        views = {view["kind"]: view for view in await cam.windows()}
        assert views["explicit"]["hits"] == 1
        assert views["auto"]["hits"] == 1


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"seconds": 0}, "seconds"),
        ({"seconds": -1}, "seconds"),
        ({"seconds": 0.0001}, "seconds"),
        ({"seconds": 601}, "seconds"),
        ({"seconds": "4"}, "seconds"),
        ({"seconds": True}, "seconds"),
        ({"seconds": None}, "seconds"),
        ({"max_fps": 0}, "max_fps"),
        ({"max_fps": -2}, "max_fps"),
        ({"max_fps": [1]}, "max_fps"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"max_pixels": 1.5}, "max_pixels"),
        ({"system": 7}, "system"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
    ],
)
async def test_a_number_that_cannot_be_meant_is_a_422_that_names_it(changes, place):
    async with serving() as server:
        cam = await camera(server, seconds=0.1)
        answer = await cam.put(**changes)
        assert answer.status_code == 422
        assert place in answer.json()["error"]["message"]
        assert answer.json()["error"]["code"] == "validation_error"
        assert answer.headers["x-should-retry"] == "false"
        assert len(server.built.windows) == 0


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{", b'"now"', b'{"seconds": 1e999}', b"\xff"]
)
async def test_a_body_that_is_no_window_is_a_422(data):
    async with serving() as server:
        cam = await camera(server, seconds=0.1)
        answer = await server.client.put(f"{cam.path}/now", content=data)
        assert answer.status_code == 422
        assert len(server.built.windows) == 0


@pytest.mark.parametrize("name", ["auto-1", ".hidden", "-a", "a b", "ä", "a" * 65, "a%0Ab", "a:b"])
async def test_a_name_of_another_pattern_is_a_422(name):
    async with serving() as server:
        cam = await camera(server, seconds=0.1)
        answer = await cam.put(name)
        assert answer.status_code == 422
        assert "name" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["now", "Line-1.door_2", "7", "a" * 64])
async def test_a_name_of_letters_digits_dots_dashes_and_underscores_is_taken(name):
    async with serving() as server:
        cam = await camera(server, seconds=0.1)
        assert (await cam.put(name)).status_code == 201


async def test_unknown_fields_are_ignored_and_a_rate_may_be_left_out():
    async with serving() as server:
        cam = await camera(server)
        body = {"model": MODEL, "seconds": 2.5, "colour": "blue", "max_fps": None, "n": {"a": 1}}
        answer = await server.client.put(f"{cam.path}/now", json=body)
        assert answer.status_code == 201
        assert (answer.json()["seconds"], answer.json()["max_fps"]) == (2.5, 1.0)


async def test_checks_come_in_the_order_of_all_routes():
    async with serving(api_key=("alpha", "beta")) as server:
        stream_id = await server.new_stream(**KEY_A)
        path = f"/v1/streams/{stream_id}/windows/now"
        put = server.client.put
        assert (await put(path, content=b"{")).status_code == 401
        assert (await put(path, content=b"{", headers=KEY_B)).status_code == 422
        unknown = await put(path, json={**BODY, "model": "no/model"}, headers=KEY_B)
        assert unknown.json()["error"]["code"] == "model_not_found"
        foreign = await put(path, json=BODY, headers=KEY_B)
        assert foreign.status_code == 404
        assert foreign.json()["error"]["code"] == "stream_not_found"
        assert (await put(path, json=BODY, headers=KEY_A)).status_code == 201
        for method in ("GET", "DELETE"):
            hidden = await server.client.request(method, path, headers=KEY_B)
            assert hidden.json()["error"]["code"] == "stream_not_found"
            assert (await server.client.request(method, path)).status_code == 401
        assert len(server.built.windows) == 1


async def test_windows_that_differ_only_in_their_text_are_told_apart_without_telling_it():
    async with serving() as server:
        cam = await camera(server)
        await cam.put("plain")
        await cam.put("boxes", system="You count the boxes")
        await cam.put("people", system="You look for people who are in danger")
        for name in ("plain", "boxes", "people"):
            await cam.until_warm(name)
        listed = await cam.windows()
        assert len({view["prompt_id"] for view in listed}) == 3
        n_before = [view["prompt_tokens_before_media"] for view in listed]
        assert n_before == sorted(set(n_before))  # a word more is a token more
        assert n_before[0] > 0  # the role
        assert "boxes" not in json.dumps(listed).replace('"name": "boxes"', "")
        assert "danger" not in json.dumps(listed)


async def test_the_tokens_before_the_media_are_known_once_a_window_is_warm():
    async with serving() as server:
        cam = await camera(server)
        server.engine.hold("warm")
        await cam.put()
        assert (await cam.look())["prompt_tokens_before_media"] is None


async def test_a_model_that_restarts_is_unavailable_and_says_when():
    async with serving() as server:
        cam = await camera(server, seconds=0.1)
        server.engine.crash()
        answer = await cam.put()
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_unavailable"
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_window_that_no_prompt_holds_is_refused_with_what_would_fit():
    small = replace(FAKE_MODEL, max_model_len=64)
    async with serving(engine=lambda clock: FakeEngine(clock=clock, model=small)) as server:
        cam = await camera(server, seconds=20)
        answer = await cam.put(seconds=60, max_fps=10)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "would fit" in answer.json()["error"]["message"]


async def test_a_window_more_than_there_is_room_for_is_a_429():
    async with serving(max_windows=2) as server:
        cam = await camera(server)
        assert (await cam.put("one")).status_code == 201
        assert (await cam.put("two", seconds=2)).status_code == 201
        answer = await cam.put("three", seconds=3)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "window_limit_reached"
        assert "max_windows" in answer.json()["detail"]
        assert "retry-after" not in answer.headers  # waiting frees none
        assert answer.headers["x-should-retry"] == "false"
        await server.client.delete(f"{cam.path}/one")
        assert (await cam.put("three", seconds=3)).status_code == 201


async def test_one_key_has_so_many_windows_at_most():
    async with serving(max_windows=4, max_windows_per_key=1, api_key=("alpha", "beta")) as server:
        ids = [await server.new_stream(**key) for key in (KEY_A, KEY_B)]
        put = server.client.put
        for stream_id, key in zip(ids, (KEY_A, KEY_B), strict=True):
            path = f"/v1/streams/{stream_id}/windows"
            assert (await put(f"{path}/one", json=BODY, headers=key)).status_code == 201
            more = await put(f"{path}/two", json={**BODY, "seconds": 2}, headers=key)
            assert more.status_code == 429
            assert "max_windows_per_key" in more.json()["detail"]


async def test_without_room_for_windows_questions_are_answered_all_the_same():
    async with serving(max_windows=0) as server:
        cam = await camera(server)
        assert (await server.ask(cam.part())).status_code == 200
        assert (await cam.put()).status_code == 429
        assert await cam.windows() == []


async def test_a_hundred_windows_leave_nothing():
    async with serving() as server:
        cam = await camera(server)
        n_tasks = len(asyncio.all_tasks())
        for n in range(100):
            assert (await cam.put(seconds=1 + n / 100)).status_code in (200, 201)
            if n % 10 == 0:
                await cam.until_warm()
            await server.client.delete(f"{cam.path}/now")
        await server.clock.advance(1)
        assert len(server.built.windows) == 0
        assert len(asyncio.all_tasks()) == n_tasks
        assert cam.store.n_waiting == 0
        assert server.engine.stats().windows == 0


# ── automatic windows ──


async def test_a_question_about_the_live_edge_makes_its_window_warm():
    async with serving() as server:
        cam = await camera(server)
        assert (await server.ask(cam.part())).status_code == 200
        await until_auto(server)
        (view,) = await cam.windows()
        assert set(view) == ALL_KEYS
        assert view["name"].startswith("auto-")
        assert (view["kind"], view["seconds"], view["max_fps"]) == ("auto", 4.0, 1.0)
        await cam.film(1)
        await until_auto(server, updates=2)
        loaded = len(server.engine.loaded)
        answer = (await server.ask(cam.part(f"{LIVE}&edge=grid"))).json()
        assert len(server.engine.loaded) == loaded
        assert all(frame["warm"] for frame in answer["liveedge"]["frames"])
        (view,) = await cam.windows()
        assert view["hits"] == 1
        assert (await server.client.get(f"{cam.path}/{view['name']}")).json() == view


async def test_an_automatic_window_ends_some_time_after_its_last_use():
    async with serving(window_ttl_s=30) as server:
        cam = await camera(server)
        await server.ask(cam.part())
        await server.clock.advance(29)
        assert len(await cam.windows()) == 1
        await server.ask(cam.part(f"{LIVE}&edge=grid"))
        await server.clock.advance(29)
        assert len(await cam.windows()) == 1
        await server.clock.advance(1.5)
        assert await cam.windows() == []
        assert server.built.windows.expired == 1
        assert server.engine.stats().windows == 0


async def test_a_thread_keeps_its_window_longer():
    async with serving(window_ttl_s=30, thread_window_ttl_s=120) as server:
        cam = await camera(server)
        await server.ask(cam.part(), thread_id="t")
        await server.clock.advance(119)
        assert len(await cam.windows()) == 1
        await server.clock.advance(1.5)
        assert await cam.windows() == []


async def test_the_window_whose_last_use_is_oldest_makes_room():
    async with serving(max_windows=2) as server:
        cam = await camera(server)
        for span in (1000, 2000, 1000, 3000):
            await server.ask(cam.part(f"start_offset_ms=-{span}"))
            await server.clock.advance(1)
        assert [view["seconds"] for view in await cam.windows()] == [1.0, 3.0]
        assert server.built.windows.displaced == 1


async def test_an_explicit_window_displaces_automatic_ones_and_never_the_reverse():
    async with serving(max_windows=2) as server:
        cam = await camera(server)
        for span in (1000, 2000):
            await server.ask(cam.part(f"start_offset_ms=-{span}"))
            await server.clock.advance(1)
        assert (await cam.put("one", seconds=3)).status_code == 201
        assert (await cam.put("two", seconds=2.5)).status_code == 201
        assert [view["kind"] for view in await cam.windows()] == ["explicit", "explicit"]
        assert (await server.ask(cam.part())).status_code == 200
        assert [view["name"] for view in await cam.windows()] == ["one", "two"]
        assert server.built.windows.refused == 1


async def test_a_window_that_is_put_goes_on_from_the_automatic_one():
    async with serving() as server:
        cam = await camera(server)
        await server.ask(cam.part())
        await until_auto(server)
        answer = await cam.put()
        assert (answer.status_code, answer.json()["updates"]) == (201, 1)
        assert [view["kind"] for view in await cam.windows()] == ["explicit"]


@pytest.mark.parametrize(
    "query", ["frame_index=-1", "frame_index=3", "start_frame_index=2&end_frame_index=9"]
)
async def test_a_question_that_would_find_nothing_warm_has_no_window(query):
    async with serving() as server:
        cam = await camera(server)
        kind = video if "start_" in query else image
        assert (await server.ask(kind(f"ovs://streams/{cam.stream_id}?{query}"))).status_code == 200
        assert await cam.windows() == []


async def test_the_choices_of_a_question_and_questions_at_once_share_one_window():
    async with serving() as server:
        cam = await camera(server)
        await server.ask(cam.part(f"{LIVE}&edge=grid"))
        await until_auto(server)
        loaded = len(server.engine.loaded)
        asked = [server.ask(cam.part(f"{LIVE}&edge=grid"), n=2, seed=k) for k in range(4)]
        answers = await asyncio.gather(*asked)
        assert all(len(answer.json()["choices"]) == 2 for answer in answers)
        assert len(server.engine.loaded) == loaded
        (view,) = await cam.windows()
        assert (view["hits"], view["updates"]) == (4, 1)


async def test_what_stands_before_the_frames_is_never_told():
    async with serving() as server:
        cam = await camera(server)
        text = {"type": "text", "text": "the launch code is 4711"}
        await server.ask(text, cam.part())
        await until_auto(server)
        seen = await server.client.get(f"/v1/streams/{cam.stream_id}")
        assert len(seen.json()["windows"]) == 1
        assert "4711" not in seen.text
        listed = await server.client.get("/v1/streams")
        assert len(listed.json()["data"][0]["windows"]) == 1


async def test_a_window_over_two_streams_follows_both_and_ends_with_either():
    async with serving() as server:
        one, two = await camera(server), await camera(server)
        await server.ask(one.part(), two.part())
        await until_auto(server)
        await two.film(0.1)  # to its tick at 5 s
        await until_auto(server, updates=2)
        (view,) = await one.windows()
        assert view["frames"] == 8
        assert await two.windows() == [view]
        await server.client.delete(f"/streams/{two.stream_id}")
        assert await one.windows() == []
        assert server.engine.stats().windows == 0


async def test_a_window_may_name_the_model_by_an_alias():
    async with serving(aliases={"hosted": MODEL}) as server:
        cam = await camera(server)
        answer = await cam.put(model="hosted")
        assert (answer.status_code, answer.json()["model"]) == (201, MODEL)
        await cam.until_warm()
        assert (await server.ask(cam.part())).status_code == 200
        assert (await cam.look())["hits"] == 1


async def test_a_question_that_leaves_early_leaves_its_window():
    async with serving() as server:
        cam = await camera(server)
        server.engine.hold("prefill")
        body = json.dumps(chat_body(cam.part())).encode()
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: len(server.engine.requests) == 1)
            (view,) = await cam.windows()
            assert (view["state"], view["updates"]) == ("warming", 0)  # the answer goes first
            exchange.leave()
        server.engine.release("prefill")
        await until_auto(server)


# ── freshness ──


async def test_a_bound_lets_a_question_use_what_is_warm():
    """`edge=newest` or not: everything is warm, and the answer is as old as was allowed."""
    async with serving() as server:
        cam = await camera(server)
        await cam.put()
        await cam.until_warm()
        await cam.film(0.1)  # to the tick at 5 s
        view = await cam.until_warm(updates=2)
        await cam.film(0.4)
        for query in (f"{LIVE}&max_age_ms=600", f"{LIVE}&edge=grid&max_age_ms=600"):
            told = (await server.ask(cam.part(query))).json()["liveedge"]
            assert all(frame["warm"] for frame in told["frames"])
            assert told["tokens"]["reused"] >= view["tokens"]
            assert 400 <= told["age_ms"] <= 600
            assert told["age_ms"] == (await cam.look())["age_ms"]
        told = (await server.ask(cam.part(), max_age_ms=600)).json()["liveedge"]
        assert 400 <= told["age_ms"] <= 600


@pytest.mark.parametrize("bound_ms", [300, 430])
async def test_a_bound_that_the_warm_frames_break_or_are_about_to_takes_the_newest(bound_ms):
    async with serving() as server:
        cam = await camera(server)
        await cam.put()
        await cam.until_warm()
        await cam.film(0.1)  # to the tick at 5 s
        await cam.until_warm(updates=2)
        await cam.film(0.4)
        told = (await server.ask(cam.part(f"{LIVE}&max_age_ms={bound_ms}"))).json()["liveedge"]
        assert told["age_ms"] <= 2
        assert told["frames"][-1]["frame_index"] == 54


async def test_warm_frames_that_are_not_retained_any_more_are_not_used():
    async with serving(retention_s=5) as server:
        cam = await camera(server)
        await cam.put(max_fps=0.5)
        await cam.until_warm()
        server.engine.hold("warm")
        await cam.film(1.5)
        query = "start_offset_ms=-4000&max_fps=0.5&max_age_ms=60000"
        told = (await server.ask(cam.part(query))).json()["liveedge"]
        used = [frame["frame_index"] for frame in told["frames"]]
        assert used[0] >= cam.store.counters().first_available_frame_index
        server.engine.release("warm")


async def test_a_picture_inside_its_bound_is_warm_too():
    async with serving() as server:
        cam = await camera(server)
        query = f"ovs://streams/{cam.stream_id}?frame_index=-1&max_age_ms=900"
        await server.ask(image(query))
        await until_auto(server)
        await cam.film(0.1)  # to the tick at 5 s
        await until_auto(server, updates=2)
        await cam.film(0.5)
        loaded = len(server.engine.loaded)
        told = (await server.ask(image(query))).json()["liveedge"]
        assert 500 <= told["age_ms"] <= 900
        assert told["frames"][0]["warm"]
        assert len(server.engine.loaded) == loaded


async def test_evidence_that_becomes_stale_in_the_engine_is_a_409():
    async with serving() as server:
        cam = await camera(server)
        server.engine.hold("prefill")
        body = json.dumps(chat_body(cam.part(f"{LIVE}&max_age_ms=500"), stream=True)).encode()
        async with Exchange(server.built.app, "/v1/chat/completions", body) as exchange:
            await until(lambda: len(server.engine.requests) == 1)
            (request,) = server.engine.requests
            assert request.fresh_until_s == pytest.approx(
                server.clock.monotonic_s() + 0.5, abs=0.01
            )
            server.clock.move(0.51)
            server.engine.release("prefill")
            await exchange.ended()
        assert exchange.status == 409
        assert json.loads(exchange.received)["error"]["code"] == "frame_stale"


async def test_a_first_token_that_is_late_on_its_way_is_a_409_too():
    """The engine's check was in time; the answer still never says an age above the bound."""
    async with serving(engine=lambda clock: FarEngine(clock)) as server:
        cam = await camera(server)
        answered = await server.ask(cam.part(f"{LIVE}&max_age_ms=500"))
        assert answered.status_code == 409
        assert answered.json()["error"]["code"] == "frame_stale"


async def test_the_tightest_bound_of_several_references_counts():
    async with serving() as server:
        one, two = await camera(server), await camera(server, seconds=0.5)
        now_s = server.clock.monotonic_s()
        await server.ask(
            one.part(f"{LIVE}&max_age_ms=9000"), two.part(f"{LIVE}&max_age_ms=700"), max_age_ms=20
        )
        (request,) = server.engine.requests
        assert request.fresh_until_s == pytest.approx(now_s + 0.7, abs=0.01)


# ── updates ──


async def test_an_error_is_counted_and_the_next_tick_tries_again():
    async with serving(engine=lambda clock: FakeEngine(clock=clock, n_windows=1)) as server:
        cam = await camera(server)
        await cam.put("first", seconds=2)
        await cam.until_warm("first")
        await cam.put()
        windows = server.built.windows
        await until(lambda: bool(windows.view("open", cam.stream_id, "now").errors))
        view = await cam.look()
        assert (view["state"], view["errors"]) == ("failed", {"window_limit_reached": 1})
        assert "in use" in view["reason"]
        await server.client.delete(f"{cam.path}/first")
        await cam.film(0.1)  # to the tick at 5 s
        view = await cam.until_warm()
        assert (view["state"], view["reason"]) == ("warm", None)
        assert view["errors"] == {"window_limit_reached": 1}


async def test_a_window_is_warm_again_as_soon_as_the_engine_is():
    """Between two ticks, and whether an update was running or not."""
    async with serving() as server:
        cam = await camera(server)
        await cam.put()
        await cam.until_warm()
        for n in (2, 3):
            server.engine.crash()
            await server.clock.advance(0.3)
            server.engine.restart()
            await server.clock.advance(0.3)
            view = await cam.until_warm(updates=n)
            assert (view["state"], server.engine.n_starts) == ("warm", n)


async def test_an_update_that_the_crash_ended_is_made_again_with_the_newest_frames():
    async with serving() as server:
        cam = await camera(server)
        server.engine.hold("warm")
        await cam.put()
        await until(lambda: server.engine.stats().windows == 1)
        server.engine.crash()
        await cam.film(3)
        assert (await cam.look())["state"] == "failed"
        assert (await cam.look())["errors"]["model_unavailable"] >= 1
        server.engine.release("warm")
        server.engine.restart()
        await server.clock.advance(1)
        view = await cam.until_warm()
        assert view["updates"] == 1
        assert view["age_ms"] <= 2000


async def test_a_question_during_a_restart_is_a_503_and_its_window_stays():
    async with serving() as server:
        cam = await camera(server)
        await server.ask(cam.part())
        await until_auto(server)
        server.engine.crash()
        answer = await server.ask(cam.part())
        assert answer.status_code == 503
        assert len(await cam.windows()) == 1


async def test_a_stall_of_the_device_leaves_ingest_alone_and_the_newest_comes_first():
    """Three seconds in which the engine does nothing; after the update that it held up, the next one
    brings the window to now, and none of the moments between."""
    async with serving() as server:
        cam = await camera(server)
        await cam.put()
        await cam.until_warm()
        await cam.film(0.1)  # to the tick at 5 s
        await cam.until_warm(updates=2)
        await cam.film(0.8)
        server.engine.hold("warm")
        before = (await server.client.get(f"/v1/streams/{cam.stream_id}")).json()
        await cam.film(3.2)
        after = (await server.client.get(f"/v1/streams/{cam.stream_id}")).json()
        assert after["last_frame_index"] - before["last_frame_index"] == 32
        assert after["dropped"] == before["dropped"]
        assert after["windows"][0]["state"] == "stale"
        assert after["windows"][0]["age_ms"] >= 3000
        server.engine.release("warm")
        view = await cam.until_warm(updates=4)
        assert (view["updates"], view["superseded"]) == (4, 2)
        assert view["age_ms"] <= 1000
        assert view["state"] == "warm"
        told = (await server.ask(cam.part(f"{LIVE}&max_age_ms=1000"))).json()["liveedge"]
        assert told["age_ms"] <= 1000
        assert all(frame["warm"] for frame in told["frames"])


async def test_a_slow_device_is_not_asked_for_the_next_before_the_last_is_done():
    """Updates of 2.5 s and ticks of 1 s: what is passed over is counted, and the window lives on."""
    async with serving() as server:
        cam = await camera(server)
        server.engine.warm_s = 2.5
        await cam.put()
        view, filmed_s = await cam.look(), 0
        while view["updates"] < 2 and filmed_s < 100:  # a worker may be late on a busy machine
            await cam.film(10)
            view, filmed_s = await cam.look(), filmed_s + 10
        assert view["updates"] >= 2
        assert view["superseded"] >= 2
        assert view["state"] in ("warm", "stale")
        # At least: a prompt that a worker makes late is charged with what the clock moved meanwhile.
        assert view["cost_ms_per_s"] >= 0.9 * 2500 * view["updates"] / filmed_s


async def test_a_camera_that_is_silent_costs_nothing_and_its_window_grows_old():
    async with serving() as server:
        cam = await camera(server)
        await cam.put()
        await cam.until_warm()
        await server.clock.advance(60)
        view = await cam.look()
        assert (view["updates"], view["state"]) == (1, "warm")
        assert view["age_ms"] >= 60_000
        assert view["cost_ms_per_s"] == 0


# ── what can never be warm ──


async def test_a_window_that_could_never_fit_is_refused_while_its_stream_is_young():
    async with serving() as server:
        cam = await camera(server, seconds=1)
        answer = await cam.put(seconds=40, max_fps=2000)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert await cam.windows() == []


async def test_a_window_longer_than_any_number_is_refused():
    async with serving() as server:
        cam = await camera(server, seconds=1)
        assert (await cam.put(seconds=1e308)).status_code == 422


async def test_a_question_that_is_refused_makes_no_window_and_displaces_none():
    async with serving(max_windows=1) as server:
        cam = await camera(server)
        await server.client.post("/v1/chat/completions", json=chat_body(cam.part()))
        await until_auto(server)
        (before,) = await cam.windows()
        body = chat_body(cam.part())
        long_text = "word " * (2 * server.engine.model.max_model_len)
        body["messages"].insert(0, {"role": "system", "content": long_text})
        refused = await server.client.post("/v1/chat/completions", json=body)
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        (after,) = await cam.windows()
        assert after["name"] == before["name"]


async def test_a_window_whose_updates_fail_is_tried_less_and_less_often():
    async with serving() as server:
        cam = await camera(server, seconds=0)
        long_text = "word " * (2 * server.engine.model.max_model_len)
        assert (await cam.put(system=long_text)).status_code == 201  # sizes are not known yet
        await cam.film(20)
        view = await cam.look()
        assert view["state"] == "failed"
        assert 2 <= view["errors"]["context_length_exceeded"] <= 8
        await server.client.delete(f"{cam.path}/now")
        assert len(server.built.windows) == 0

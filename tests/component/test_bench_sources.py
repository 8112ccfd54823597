"""Cameras of the benchmark against the real routes of a server, with an engine that only talks."""

import asyncio
import base64
import io
import random

import httpx
import numpy as np
import pytest
from PIL import Image

from liveedge.bench.record import Record
from liveedge.bench.scenario import scenario_of
from liveedge.bench.sources.choose import media_source
from liveedge.bench.sources.streams import SourceFailed
from liveedge.core.clock import SystemClock
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.sim.clockcode import read_code
from liveedge.sim.questions import expected
from liveedge.sim.scene import Workcell
from liveedge.testing.engine import FakeEngine
from tests.serving import MODEL, SMALL, until

SEED = 2_000_000
FPS = 10.0
LATE_MS = 30_000  # of a busy machine
ROOM = {**SMALL, "hot_mb": 8, "streams_mb": 60}  # for a few streams


@pytest.fixture(scope="module")
def server():
    clock = SystemClock()
    settings = Settings(port=0, **ROOM)
    with BackgroundServer(
        settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock, answer="37")
    ) as running:
        yield running


def cameras(server, *, chance_seed=1, **sections):
    document = {"name": "test", **sections}
    document.setdefault("questions", {})
    document["questions"] = {"kinds": ["display"], **document["questions"]}
    document["target"] = {"base_url": f"{server.url}/v1", **document.get("target", {})}
    document["sources"] = {"fps": FPS, "width": 96, "height": 64, **document.get("sources", {})}
    made = scenario_of(document)
    return media_source(made, clock=SystemClock(), chance=random.Random(chance_seed))


def ask(server, index, prepared):
    """As a load generator does it; the record of the answer."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": list(prepared.content)}],
        **({"thread_id": prepared.thread_id} if prepared.thread_id else {}),
    }
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=20)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    return Record(
        index=index,
        source=prepared.source,
        question=prepared.question,
        outcome="ok",
        text=said["choices"][0]["message"]["content"],
        frames=said["liveedge"]["frames"],
        evidence_at_ms=said["liveedge"]["evidence_at_ms"],
    )


def streams_left(server):
    found = httpx.get(f"{server.url}/v1/streams", timeout=20).json()
    return [one["id"] for one in found["data"] if one["state"] == "active"]


async def asked_and_judged(server, made, n):
    notes = {index: made.prepare(index) for index in range(n)}
    records = [
        await asyncio.to_thread(ask, server, index, prepared) for index, prepared in notes.items()
    ]
    await made.judge(records, notes)
    return records


def shown(record, fps=FPS):
    """The truth by the numbers of the frames, which a pulled simulator counts from its start."""
    cell = Workcell(SEED + record.source)
    times = [frame["timestamp_ms"] / 1000 for frame in record.frames]
    return expected(record.question, [cell.state(t_s) for t_s in times])


async def test_the_truth_about_a_pulled_simulator_is_read_from_its_frames(server):
    made = cameras(server, sources={"kind": "sim", "count": 2})
    await made.open()
    try:
        records = await asked_and_judged(server, made, 4)
    finally:
        await made.close()
    assert {record.source for record in records} == {0, 1}
    assert [record.truth for record in records] == [shown(record) for record in records]
    assert [record.correct for record in records] == [r.truth == "37" for r in records]
    assert all(abs(r.known_evidence_at_ms - r.evidence_at_ms) < LATE_MS for r in records)
    assert streams_left(server) == []


async def test_what_a_pushing_publisher_says_agrees_with_the_pixels_that_arrived(server):
    made = cameras(
        server,
        sources={"kind": "push", "count": 2},
        media={"frames": 3, "max_fps": 5.0},
        questions={"kinds": ["display_event", "belt"], "threads": "related"},
    )
    await made.open()
    try:
        records = await asked_and_judged(server, made, 4)
        report = made.report()
    finally:
        await made.close()
    assert all(1 <= len(record.frames) <= 4 for record in records)
    assert report["pictures_read"] > 0
    assert report["pictures_disagree"] == report["pictures_unreadable"] == 0
    assert all(r.known_evidence_at_ms <= r.evidence_at_ms for r in records)  # sent, then there
    assert streams_left(server) == []


async def frames_come(server, n):
    """Wait until the one stream has so many more."""
    (stream_id,) = streams_left(server)

    def newest():
        view = httpx.get(f"{server.url}/v1/streams/{stream_id}", timeout=20).json()
        return view["last_frame_index"]

    wanted = await asyncio.to_thread(newest) + n
    while await asyncio.to_thread(newest) < wanted:  # noqa: ASYNC110  the server tells no event
        await asyncio.sleep(0.05)


async def test_clips_of_distinct_frames_share_none(server):
    made = cameras(server, media={"frames": 3, "max_fps": FPS, "distinct": True})
    await made.open()
    try:
        records = await asked_and_judged(server, made, 1)
        await frames_come(server, 3)
        records += await asked_and_judged(server, made, 1)
    finally:
        await made.close()
    first, second = ([frame["frame_index"] for frame in r.frames] for r in records)
    assert first
    assert max(first) < min(second)


async def test_media_that_repeat_are_the_same_frames_all_the_time(server):
    made = cameras(server, media={"frames": 2, "max_fps": 5.0, "repeats": True})
    await made.open()
    try:
        records = await asked_and_judged(server, made, 1)
        await frames_come(server, 3)
        records += await asked_and_judged(server, made, 1)
    finally:
        await made.close()
    first, second = ([frame["frame_index"] for frame in r.frames] for r in records)
    assert first == second != []


async def test_pictures_for_servers_without_streams_are_those_of_the_moment_of_sending(server):
    made = cameras(server, target={"delivery": "data"}, sources={"count": 2})
    await made.open()
    try:
        prepared = made.prepare(0)
        sent_ms = SystemClock().wall_ms()
        records = await asked_and_judged(server, made, 3)
        again = made.prepare(4)
    finally:
        await made.close()
    (frame,) = prepared.frames
    code = code_in(prepared.content[0]["image_url"]["url"])
    assert code.wall_ms == frame["captured_at_ms"] <= sent_ms
    assert again.frames[0]["captured_at_ms"] >= frame["captured_at_ms"]
    assert all(record.truth is not None for record in records)
    assert records[0].known_evidence_at_ms is not None


async def test_a_clip_as_data_ends_with_the_newest_frame_and_is_one_url(server):
    made = cameras(
        server,
        target={"delivery": "data", "video": "avi"},
        media={"frames": 3, "max_fps": 5.0},
        questions={"kinds": ["belt"]},
    )
    await made.open()
    try:
        prepared = made.prepare(0)
        record = await asyncio.to_thread(ask, server, 0, prepared)
    finally:
        await made.close()
    part, text = prepared.content
    assert part["type"] == "video_url"
    assert text["type"] == "text"
    times = [frame["captured_at_ms"] for frame in prepared.frames]
    assert times == sorted(times)
    assert len(record.frames) == len(times)  # as the server has read them from the AVI


def code_in(url):
    picture = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    code = read_code(np.asarray(picture.convert("RGB")))
    assert code is not None
    return code


async def test_a_camera_that_cannot_be_opened_leaves_no_stream_behind(server, caplog):
    made = cameras(server, sources={"kind": "sim", "count": 2, "width": 20})
    with pytest.raises(SourceFailed, match="20x64"):
        await made.open()
    many = cameras(server, sources={"kind": "sim", "count": 50})
    with pytest.raises(
        SourceFailed, match=r"answered 429 [a-z_]+: [^{]+$"
    ):  # said, not shown as JSON
        await many.open()
    assert streams_left(server) == []
    assert "Traceback" not in caplog.text


async def test_a_run_that_is_broken_off_while_it_opens_leaves_no_stream_behind(server):
    made = cameras(server, sources={"kind": "push", "count": 2})
    opening = asyncio.create_task(made.open())
    await asyncio.sleep(0.05)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert streams_left(server) == []


async def test_a_publisher_that_dies_is_told_after_the_step(server):
    made = cameras(server, sources={"kind": "push"})
    await made.open()
    try:
        (stream_id,) = streams_left(server)
        delete = f"{server.url}/v1/streams/{stream_id}"
        await asyncio.to_thread(httpx.delete, delete, timeout=20)
        await until(lambda: bool(made.problems.ended))
        with pytest.raises(SourceFailed, match="camera 0 has ended"):
            await made.judge([], {})
    finally:
        await made.close()

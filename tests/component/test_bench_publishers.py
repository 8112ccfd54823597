"""Cameras of the benchmark that publish: WHIP, LiveKit, RTSP, and videos with labels."""

import asyncio

import pytest

from liveedge.bench.sources.streams import SourceFailed
from liveedge.media.record import record
from liveedge.sim.questions import expected
from tests.component.test_bench_sources import (
    LATE_MS,
    asked_and_judged,
    cameras,
    server,
    streams_left,
)
from tests.rtsp_relay import rtsp_relay

__all__ = ["server"]
SIZE = {"width": 192, "height": 128}


@pytest.mark.parametrize("kind", ["whip", "livekit"])
async def test_a_publisher_s_frames_are_dated_by_its_own_clock(server, kind):
    made = cameras(server, sources={"kind": kind, **SIZE})
    await made.open()
    try:
        (record,) = await asked_and_judged(server, made, 1)
    finally:
        await made.close()
    assert record.truth is not None
    assert 0 <= record.evidence_at_ms - record.known_evidence_at_ms < LATE_MS
    assert streams_left(server) == []


async def test_what_is_published_by_rtsp_is_pulled_and_its_truth_known(server):
    with rtsp_relay() as relay:
        url = f"rtsp://127.0.0.1:{relay.port}/bench-{{n}}"
        made = cameras(server, sources={"kind": "rtsp", "rtsp_url": url, "count": 2, **SIZE})
        await made.open()
        try:
            records = await asked_and_judged(server, made, 2)
        finally:
            await made.close()
    assert all(record.truth is not None for record in records)
    assert all(record.known_evidence_at_ms <= record.evidence_at_ms for record in records)
    assert streams_left(server) == []


async def test_a_labelled_video_plays_live_and_its_labels_are_the_truth(server, tmp_path):
    made_of = await asyncio.to_thread(
        record, tmp_path / "cell.mp4", seed=5, seconds=1.0, fps=10.0, size=(192, 128)
    )
    sources = {"kind": "files", "files": [str(made_of.video)], **SIZE}
    made = cameras(server, sources=sources)
    await made.open()
    try:
        await asyncio.sleep(1.2)  # it has begun again by then
        (answered,) = await asked_and_judged(server, made, 1)
        scene = made._scenes[0]
        report = made.report()
    finally:
        await made.close()
    states = scene._states
    assert answered.truth in {expected("display", [state]) for state in states.values()}
    assert abs(answered.known_evidence_at_ms - answered.evidence_at_ms) < LATE_MS
    assert report["pictures_read"] == 1
    assert report["pictures_disagree"] == 0


async def test_a_labelled_video_is_sent_with_questions_too(server, tmp_path):
    made_of = await asyncio.to_thread(
        record, tmp_path / "cell.mp4", seed=5, seconds=1.0, fps=10.0, size=(192, 128)
    )
    sources = {"kind": "files", "files": [str(made_of.video)], **SIZE}
    made = cameras(server, sources=sources, target={"delivery": "data"})
    await made.open()
    try:
        (answered,) = await asked_and_judged(server, made, 1)
    finally:
        await made.close()
    assert answered.truth is not None
    assert made.report()["without_truth"] == 0


async def test_a_video_without_labels_has_no_truth_but_a_time(server, tmp_path):
    made_of = await asyncio.to_thread(
        record, tmp_path / "free.mp4", seed=5, seconds=1.0, fps=10.0, size=(192, 128)
    )
    made_of.labels.unlink()
    made = cameras(server, sources={"kind": "files", "files": [str(made_of.video)], **SIZE})
    await made.open()
    try:
        (answered,) = await asked_and_judged(server, made, 1)
    finally:
        await made.close()
    assert (answered.truth, answered.correct) == (None, None)
    assert made.report()["without_truth"] == 1
    assert answered.known_evidence_at_ms is not None


async def test_a_file_that_is_no_video_ends_the_opening_with_the_reason(server, tmp_path):
    video = tmp_path / "no.mp4"
    video.write_bytes(b"no video")
    made = cameras(server, sources={"kind": "files", "files": [str(video)]})
    with pytest.raises(SourceFailed, match=r"file_publisher ended with status 1: .*no\.mp4"):
        await made.open()
    assert streams_left(server) == []

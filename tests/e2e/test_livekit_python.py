"""The unmodified Python SDK of LiveKit publishes into a real server; its burned-in clock is read back."""

import asyncio
from pathlib import Path

import pytest
from livekit import rtc

from liveedge.client.local_server import running_server
from tests.publishing import (
    CLOCK,
    LIMIT_S,
    MAX_DELAY_MS,
    MIN_FPS,
    Relay,
    SdkPublisher,
    until,
)

pytestmark = pytest.mark.timeout(240)

FLAGS = ("--announced-ip", "127.0.0.1", "--hot-mb", "8", "--history-mb", "8")


@pytest.fixture(scope="module")
def server():
    with running_server(model=None, port=None, clock=CLOCK, flags=FLAGS) as started:
        yield started


@pytest.fixture
async def publisher():
    it = SdkPublisher()
    yield it
    await it.close()


async def connected(publisher, stream, **options):
    return await publisher.connect(stream.publish["url"], stream.publish["token"], **options)


async def live(publisher, stream, **options):
    """It publishes, and its frames arrive."""
    await connected(publisher, stream)
    await publisher.publish(**options)
    return await stream.frame_after(-1)


def threads_of(pid):
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def shown_reason(publisher):
    return [event for event in publisher.events if event.startswith("disconnected")]


@pytest.mark.parametrize(
    ("codec", "simulcast", "single"),
    [
        ("VP8", False, None),
        ("VP8", True, None),
        ("H264", False, None),
        ("H264", True, None),
        ("VP8", False, False),
    ],
    ids=["vp8", "vp8-simulcast", "h264", "h264-simulcast", "vp8-older-way"],
)
async def test_frames_arrive_at_the_full_rate(publisher, stream, codec, simulcast, single):
    connect_ms = await connected(publisher, stream, single=single)
    began_s = CLOCK.monotonic_s()
    await publisher.publish(codec=getattr(rtc.VideoCodec, codec), simulcast=simulcast)
    await stream.frame_after(-1)
    first_ms = (CLOCK.monotonic_s() - began_s) * 1000
    measured = await stream.measured()
    way = "v0" if single is False else "v1"
    name = f"python {codec} simulcast={simulcast} {way}"
    measured.log(name, connect_ms=connect_ms, first_ms=first_ms)
    assert measured.fps > MIN_FPS
    assert measured.delay_p50_ms < MAX_DELAY_MS
    status = stream.status()
    assert status["health"] == "live"
    assert status["codec"] == codec.lower()


async def test_the_picture_has_its_full_size_from_the_first_frame(stream):
    """Publishers begin with little bandwidth and a small picture, unless the answer says otherwise."""
    large = SdkPublisher(width=1280, height=720)
    try:
        await connected(large, stream)
        await large.publish(simulcast=True)
        first = await stream.frame_after(-1)
        assert first.index < 8
        assert first.size == (1280, 720)
    finally:
        await large.close()


async def test_a_track_is_published_again_twenty_times(publisher, stream, server):
    """Case 32: every time its frames arrive, no two tracks mix, and nothing is left of the old."""
    await live(publisher, stream)
    n_threads = threads_of(server.pid)
    newest = stream.newest_index
    for round_number in range(20):
        shade = 60 + 100 * (round_number % 2)
        publication = await publisher.publish(shade=shade)
        seen = await stream.frame_after(newest)
        while abs(seen.mean - shade) > 60:  # still of the round before
            seen = await stream.frame_after(seen.index)
        newest = seen.index
        await publisher.room.local_participant.unpublish_track(publication.sid)
    await until(lambda: threads_of(server.pid) <= n_threads, what="the end of all decoders")


async def test_a_socket_that_drops_does_not_stop_the_picture(publisher, stream, server):
    async with Relay(server.url) as relay:
        await publisher.connect(relay.url, stream.publish["token"])
        await publisher.publish()
        before = await stream.frame_after(20)  # an encoder drops some at its start
        relay.drop()
        await until(lambda: relay.n_connections > 1, what="the client to come back")
        await until(lambda: "reconnected" in " ".join(publisher.events), what="its word for it")
        after = await stream.frame_after(stream.newest_index)
        lost = (after.number - before.number) - (after.index - before.index)
        assert lost <= 6  # of about fifty: the encoder's, which measures its bandwidth anew
        assert stream.status()["gaps"] == []
        await publisher.close()


async def test_a_socket_that_cannot_resume_starts_afresh(publisher, stream, server):
    async with Relay(server.url) as relay:
        relay.refuses_resume = True
        await publisher.connect(relay.url, stream.publish["token"], single=False)
        await publisher.publish()
        before = await stream.frame_after(-1)
        relay.drop()
        await until(lambda: len(stream.status()["gaps"]) > 0, what="the gap of a new connection")
        after = await stream.frame_after(stream.newest_index)
        assert after.number > before.number
        assert stream.health[0] == "live"
        await publisher.close()


async def test_the_newest_publisher_wins(publisher, stream):
    await live(publisher, stream, shade=40)
    second = SdkPublisher()
    try:
        await connected(second, stream)
        await second.publish(shade=200)
        await until(lambda: shown_reason(publisher), what="the first to be told")
        assert str(rtc.DisconnectReason.DUPLICATE_IDENTITY) in shown_reason(publisher)[0]
        seen = await stream.frame_after(stream.newest_index)
        for _ in range(10):
            seen = await stream.frame_after(seen.index)
        assert seen.mean > 120
    finally:
        await second.close()


async def test_sound_and_data_are_tolerated(publisher, stream):
    await connected(publisher, stream)
    microphone = rtc.AudioSource(48_000, 1)
    track = rtc.LocalAudioTrack.create_audio_track("microphone", microphone)
    await publisher.room.local_participant.publish_track(track)
    await publisher.publish()
    seen = await stream.frame_after(-1)
    for _ in range(10):
        await microphone.capture_frame(rtc.AudioFrame.create(48_000, 1, 480))
        await publisher.room.local_participant.publish_data(b"hello", topic="anything")
    await stream.frame_after(seen.index + 5)
    assert stream.health[0] == "live"
    await microphone.aclose()


async def test_a_muted_camera_is_said(publisher, stream):
    await connected(publisher, stream)
    publication = await publisher.publish()
    await stream.frame_after(-1)
    assert publication.track is not None
    publication.track.mute()
    await until(lambda: "muted" in stream.health[1], what="the mute")
    publication.track.unmute()
    await stream.frame_after(stream.newest_index)
    await until(lambda: stream.health[0] == "live", what="the picture")


async def test_a_client_that_leaves_leaves_at_once(publisher, stream):
    await live(publisher, stream)
    await publisher.close()
    await until(lambda: stream.health[0] == "waiting_for_publisher", what="the end")
    # Whichever of its goodbyes arrives first: by signalling, or by the media connection.
    assert stream.health[1] in ("the publisher left", "the publisher closed the connection")


async def test_the_end_of_the_stream_reaches_the_client(publisher, stream, http):
    await live(publisher, stream)
    http.delete(f"/streams/{stream.id}")
    await until(lambda: shown_reason(publisher), what="the client to be told")
    assert str(rtc.DisconnectReason.ROOM_DELETED) in shown_reason(publisher)[0]


async def test_a_renewed_token_is_as_good(publisher, stream, http):
    first = http.post(f"/streams/{stream.id}/keepalive").json()["publish"]
    await publisher.connect(first["url"], first["token"])
    second = http.post(f"/streams/{stream.id}/keepalive").json()["publish"]
    # A connected client is given it, to come back with.
    await until(lambda: "token_refreshed" in publisher.events, what="the newest token")
    await publisher.connect(second["url"], second["token"])
    await publisher.publish()
    await stream.frame_after(-1)


@pytest.mark.parametrize("token", ["nonsense", "eyJhbGciOiJub25lIn0.e30."])
async def test_a_bad_token_is_refused_with_the_reason(publisher, stream, token):
    with pytest.raises(rtc.ConnectError, match="publish token"):
        await publisher.connect(stream.publish["url"], token)
    assert stream.health[0] == "waiting_for_publisher"


async def test_a_token_of_an_ended_stream_is_refused(publisher, stream, http):
    http.delete(f"/streams/{stream.id}")
    with pytest.raises(rtc.ConnectError):
        await connected(publisher, stream)


@pytest.mark.parametrize("codec", ["VP9", "AV1"])
async def test_a_codec_that_cannot_be_decoded_is_said_on_both_sides(publisher, stream, codec):
    await connected(publisher, stream)
    publishing = asyncio.create_task(publisher.publish(codec=getattr(rtc.VideoCodec, codec)))
    await until(lambda: shown_reason(publisher), what="the client to be told")
    await until(lambda: stream.health[0] == "waiting_for_publisher", what="the end")
    assert f"sends {codec}" in stream.health[1]
    publishing.cancel()
    await asyncio.wait([publishing], timeout=LIMIT_S)

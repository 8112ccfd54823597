"""`livekit-client` in Chromium publishes into a real server; its burned-in clock is read back."""

import asyncio
import json

import pytest

from liveedge.client.local_server import running_server
from tests.browsers import Browser, browser_command
from tests.publishing import CLOCK, MAX_DELAY_MS, MIN_FPS, Relay, until

pytestmark = pytest.mark.timeout(240)

FLAGS = ("--announced-ip", "127.0.0.1", "--hot-mb", "8", "--history-mb", "8")


@pytest.fixture(scope="module")
def server():
    browser_command()  # skips before anything is started
    with running_server(model=None, port=None, clock=CLOCK, flags=FLAGS) as started:
        yield started


@pytest.fixture(scope="module")
def page(server):
    with Browser("livekit.html") as browser:
        yield browser


@pytest.fixture(autouse=True)
def left(page):
    yield
    page.reload()


def connect(page, stream, **options):
    """How many milliseconds it took."""
    url, token = (json.dumps(stream.publish[key]) for key in ("url", "token"))
    return page.evaluate(f"connect({url}, {token}, {json.dumps(options)})")


def events(page):
    return page.evaluate("events.map(([name, value]) => `${name} ${value}`)")


@pytest.mark.parametrize(
    ("options", "single"),
    [
        ({"videoCodec": "vp8"}, True),
        ({"videoCodec": "h264"}, True),
        ({"videoCodec": "vp8", "simulcast": True}, True),
        ({"videoCodec": "vp8"}, False),
        ({"videoCodec": "vp9"}, True),
    ],
    ids=["vp8", "h264", "vp8-simulcast", "vp8-older-way", "vp9-falls-back"],
)
async def test_frames_arrive_at_the_full_rate(page, stream, options, single):
    connect_ms = connect(page, stream, singlePeerConnection=single)
    began_s = CLOCK.monotonic_s()
    page.evaluate(f"publish(drawnTrack(), {json.dumps(options)})")
    await stream.frame_after(-1)
    first_ms = (CLOCK.monotonic_s() - began_s) * 1000
    measured = await stream.measured()
    name = f"browser {options} {'v1' if single else 'v0'}"
    measured.log(name, connect_ms=connect_ms, first_ms=first_ms)
    assert measured.fps > MIN_FPS
    assert measured.delay_p50_ms < MAX_DELAY_MS
    wanted = "h264" if options["videoCodec"] == "h264" else "vp8"
    assert stream.status()["codec"] == wanted


async def test_a_real_camera_with_simulcast_arrives(page, stream):
    connect(page, stream)
    page.evaluate("camera().then((track) => publish(track, { simulcast: true }))")
    await until(lambda: stream.newest_index >= 20, what="20 frames")
    assert stream.health[0] == "live"


async def test_the_screen_takes_over_from_the_camera_and_gives_back(page, stream):
    connect(page, stream)
    page.evaluate("publish(drawnTrack({ hue: 0 }))")
    await stream.frame_after(-1)
    size = {"width": 960, "height": 540}
    screen = json.dumps({"source": "screen_share"})
    page.evaluate(f"globalThis.shared = drawnTrack({json.dumps(size)})")
    page.evaluate(f"publish(shared, {screen})")
    await until(lambda: (s := stream.newest()) and s.size[0] > 640, what="the screen")
    page.evaluate("room.localParticipant.unpublishTrack(shared)")
    await until(lambda: (s := stream.newest()) and s.size[0] == 640, what="the camera again")


async def test_a_muted_track_is_said(page, stream):
    connect(page, stream)
    sid = page.evaluate("publish(drawnTrack())")
    await stream.frame_after(-1)
    track = (
        f"[...room.localParticipant.trackPublications.values()].find((p) => p.trackSid === '{sid}')"
    )
    page.evaluate(f"{track}.mute().then(() => 1)")
    await until(lambda: "muted" in stream.health[1], what="the mute")
    page.evaluate(f"{track}.unmute().then(() => 1)")
    await until(lambda: stream.health[0] == "live", what="the picture")


async def test_a_page_that_reloads_is_back_with_a_new_connection(page, stream):
    connect(page, stream)
    page.evaluate("publish(drawnTrack())")
    await stream.frame_after(-1)
    page.reload()
    await until(lambda: stream.health[0] == "waiting_for_publisher", what="the end")
    connect(page, stream)
    page.evaluate("publish(drawnTrack())")
    await stream.frame_after(stream.newest_index)
    assert len(stream.status()["gaps"]) == 1


@pytest.mark.parametrize("resumes", [True, False], ids=["resumed", "started-afresh"])
async def test_a_page_whose_socket_drops_goes_on(page, stream, server, resumes):
    async with Relay(server.url) as relay:
        relay.refuses_resume = not resumes
        stream.publish["url"] = relay.url
        # Its thread waits for the page, which waits for the relay.
        await asyncio.to_thread(connect, page, stream, singlePeerConnection=resumes)
        await asyncio.to_thread(page.evaluate, "publish(drawnTrack())")
        before = await stream.frame_after(10)
        relay.drop()
        await until(lambda: relay.n_connections > 1, what="the client to come back")
        after = await stream.frame_after(before.index + 45)
        assert after.number > before.number
        assert stream.health[0] == "live"
        assert len(stream.status()["gaps"]) == (0 if resumes else 1)


async def test_the_end_of_the_stream_reaches_the_page(page, stream):
    connect(page, stream)
    page.evaluate("publish(drawnTrack())")
    await stream.frame_after(-1)
    stream.http.delete(f"/streams/{stream.id}")
    await until(lambda: any("disconnected" in e for e in events(page)), what="the page to be told")


def test_a_bad_token_is_refused_with_the_reason(page, stream):
    with pytest.raises(AssertionError, match="publish token"):
        page.evaluate(f"connect({json.dumps(stream.publish['url'])}, 'nonsense')")

"""With an external LiveKit server: streams of type livekit are published and watched there."""

import urllib.parse
from typing import Any

import jwt
import pytest

from liveedge.assembly import build_app
from liveedge.core.clock import SystemClock
from liveedge.core.errors import SourceUnavailable, Unsupported
from liveedge.frames.store import StoreLimits
from liveedge.media.livekit.subscriber import RoomSource
from liveedge.service.publishing import Publishing, PublishParts
from liveedge.service.rooms import Rooms, RoomServer
from liveedge.service.sources import Pipelines, SourcePolicy, SourceSpec
from liveedge.settings import Settings
from liveedge.testing.clock import FakeClock
from liveedge.testing.engine import FakeEngine
from tests.serving import SMALL

SECRET = "0123456789abcdef0123456789abcdef"
SERVER = RoomServer(url="wss://livekit.example", api_key="APIkey", api_secret=SECRET)


def room_of(token):
    claims = jwt.decode(token, options={"verify_signature": False})
    return claims["iss"], claims["video"]["room"], claims["video"]["canPublish"]


@pytest.fixture
async def publishing():
    clock = FakeClock()
    parts = PublishParts(
        token_modules=(),
        ingest_modules=(),
        tokens=lambda: pytest.fail("tokens of this server are of no use there"),
        ingest=lambda _tokens: pytest.fail("nobody publishes here"),
        totals=dict,
        close=lambda: None,
        rooms=lambda: Rooms(SERVER, clock=clock),
    )
    made = Publishing(parts, valid_s=300)
    yield made
    await made.close()


async def test_publishers_are_sent_to_that_server(publishing):
    told = await publishing.told("stream-1", "livekit", base_url="http://here")
    assert (told.url, told.whip_url) == ("wss://livekit.example", None)
    assert room_of(told.token) == ("APIkey", "stream-1", True)
    renewed = await publishing.renewed("stream-1", "livekit", base_url="http://here")
    assert room_of(renewed.token) == ("APIkey", "stream-1", True)


async def test_viewers_are_too(publishing):
    view = await publishing.viewed("stream-1", "livekit")
    assert (view.type, view.url, view.expires_in_seconds) == ("livekit", SERVER.url, 300)
    assert room_of(view.token) == ("APIkey", "stream-1", False)


async def test_streams_of_other_types_have_no_viewers(publishing):
    with pytest.raises(Unsupported, match="no LiveKit server here"):
        await publishing.viewed("stream-1", "rtsp")


def test_the_stream_s_frames_come_from_its_room():
    made = []

    def room(stream_id):
        made.append(stream_id)
        return Rooms(SERVER, clock=SystemClock()).source(stream_id)

    pipelines = Pipelines(
        clock=FakeClock(),
        store=StoreLimits(hot_bytes=4 << 20, history_bytes=1 << 20),
        policy=SourcePolicy(),
        room_of=room,
    )
    pipeline = pipelines.make("stream-1", SourceSpec(type="livekit"))
    assert made == ["stream-1"]
    assert pipeline.published is None  # nobody publishes here
    pipeline.close()
    assert pipelines.make("stream-2", SourceSpec(type="whip")).published is not None
    with pytest.raises(SourceUnavailable, match="takes no URL"):
        pipelines.make("stream-3", SourceSpec(type="livekit", url="rtsp://x"))


def test_the_server_takes_it_from_its_settings():
    clock = FakeClock()
    settings = Settings(
        livekit={"url": SERVER.url, "api_key": "APIkey", "api_secret": SECRET}, **SMALL
    )
    built = build_app(settings, clock, load_engine=lambda: FakeEngine(clock=clock))
    pipeline = built.streams._make_pipeline("stream-1", SourceSpec(type="livekit"))
    feed: Any = pipeline.feed
    source = feed._source
    assert isinstance(source, RoomSource)
    token = source._token()
    assert room_of(token) == ("APIkey", "stream-1", False)
    assert urllib.parse.urlsplit(source._url).hostname == "livekit.example"
    pipeline.close()

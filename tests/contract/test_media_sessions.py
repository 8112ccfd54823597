"""Real-time connections: one suite for WebRTC and for the fake with which signalling is tested."""

import asyncio
import random
from contextlib import contextmanager

import pytest

from liveedge.core.clock import SystemClock
from liveedge.core.errors import QueueFull
from liveedge.media.webrtc.engine import WebRtc, WebRtcSettings
from liveedge.media.webrtc.session import OfferInvalid
from liveedge.testing.clock import FakeClock
from liveedge.testing.webrtc import FakeMediaSessions
from tests.livekit_clients import published_stream
from tests.offers import offer
from tests.serving import until

MAX_SESSIONS = 2


@contextmanager
def real():
    settings = WebRtcSettings(announced_ips=("127.0.0.1",), max_sessions=MAX_SESSIONS)
    engine = WebRtc(settings, clock=SystemClock(), rng=random.Random(1))
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def fake():
    yield FakeMediaSessions(max_sessions=MAX_SESSIONS)


@pytest.fixture(params=[fake, real], ids=["fake", "webrtc"])
def sessions(request):
    with request.param() as found:
        yield found


@pytest.fixture
def stream():
    with published_stream(FakeClock()) as found:
        yield found


class Opened:
    """A connection, and how often its end was told."""

    def __init__(self, stream):
        self.publisher = stream.source.attach(lambda _reason: None)
        self.ends = []
        self.session = None


async def opened(sessions, stream):
    it = Opened(stream)
    it.session = await sessions.open(it.publisher, on_end=it.ends.append, label="test")
    return it


def kinds(sdp):
    return [line.split()[0] for line in sdp.splitlines() if line.startswith("m=")]


async def test_an_answer_has_the_sections_of_its_offer_and_candidates(sessions, stream):
    it = await opened(sessions, stream)
    answer = await it.session.answer(offer(audio=True))
    assert kinds(answer) == kinds(offer(audio=True))
    video = answer[answer.index("m=video") :]
    assert "a=recvonly" in video
    assert "a=candidate:" in answer
    await it.session.close("over")


async def test_the_next_offer_is_answered_too(sessions, stream):
    it = await opened(sessions, stream)
    await it.session.answer(offer())
    answer = await it.session.answer(offer(direction="inactive"))
    assert "a=recvonly" not in answer
    await it.session.close("over")


@pytest.mark.parametrize("text", ["hello", "", offer(codec="VP9"), offer(codec="AV1")])
async def test_an_offer_that_cannot_be_answered_is_refused_with_a_reason(sessions, stream, text):
    it = await opened(sessions, stream)
    with pytest.raises(OfferInvalid) as refused:
        await it.session.answer(text)
    assert len(refused.value.reason) > 20
    await it.session.close("over")


async def test_candidates_that_cannot_be_used_are_harmless(sessions, stream):
    it = await opened(sessions, stream)
    await it.session.answer(offer())
    for text in (
        "candidate:1 1 udp 1 abc.local 5 typ host",
        "candidate:1 1 tcp 1 1.2.3.4 9 typ host",
    ):
        await it.session.add_candidate(text, mid="0", line=0)
    await it.session.close("over")


async def test_a_connection_ends_once_and_says_why(sessions, stream):
    it = await opened(sessions, stream)
    await it.session.answer(offer())
    await it.session.close("the publisher left")
    await it.session.close("again")
    await until(lambda: it.ends != [])
    assert it.ends == ["the publisher left"]
    assert it.session.stats().state == "closed"
    assert stream.health == ("waiting_for_publisher", "the publisher left")
    with pytest.raises(OfferInvalid, match="has ended"):
        await it.session.answer(offer())


async def test_connections_are_bounded(sessions, stream):
    first = await opened(sessions, stream)
    await opened(sessions, stream)
    with pytest.raises(QueueFull):
        await opened(sessions, stream)
    await first.session.close("over")
    third = await opened(sessions, stream)
    assert third.session.stats().state == "new"


async def test_a_muted_publisher_is_said(sessions, stream):
    it = await opened(sessions, stream)
    it.session.mute(muted=True)
    it.session.mute(muted=True)
    assert stream.health[0] == "stalled"
    assert "muted" in stream.health[1]
    assert stream.sink.n_gaps == 1
    await it.session.close("over")


async def test_the_end_of_somebody_who_was_replaced_is_not_the_stream_s(sessions, stream):
    first = await opened(sessions, stream)
    await opened(sessions, stream)
    await first.session.close("replaced")
    await asyncio.sleep(0)
    assert stream.health == ("waiting_for_keyframe", "the publisher is connecting")

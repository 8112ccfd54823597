"""Which video of a connection is shown, from one offer to the next."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from liveedge.core.clock import SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.media.published import PublishedSource
from liveedge.media.webrtc.answer import SectionAnswer, decide
from liveedge.media.webrtc.decoder import Task
from liveedge.media.webrtc.sdp import read_offer
from liveedge.media.webrtc.tracks import Tracks
from tests.component.test_webrtc_decoder import units
from tests.webrtc_offers import offer, video
from tests.webrtc_publisher import Sink, until

pytestmark = pytest.mark.component


def answers(*sections: list[str]) -> tuple[SectionAnswer, ...]:
    return decide(read_offer(offer(*sections)), is_first=True)


@asynccontextmanager
async def tracks(sink: Sink, crashes: list[str]) -> AsyncIterator[Tracks]:
    source = PublishedSource("whip")
    running = OwnedThread("published", lambda stop: source.run(sink, stop))
    running.start()
    await until(lambda: bool(sink.states))
    made = Tracks(
        source.attach(lambda _reason: None),
        clock=SystemClock(),
        label="tracks",
        keyframe_every_s=2,
        on_crash=lambda: crashes.append("crashed"),
    )
    yield made
    await made.close()
    assert running.stop()


def n_decoders() -> int:
    return sum(thread.name == "decode:tracks" for thread in threading.enumerate())


async def test_a_video_that_is_shown_again_before_its_old_decoder_has_ended_goes_on() -> None:
    crashes: list[str] = []
    async with tracks(Sink(), crashes) as it:
        it.take(answers(video("0")))
        it.take(answers(video("0"), video("1")))
        it.take(answers(video("0")))
        await until(lambda: n_decoders() == 1, "the other two have ended")
        assert it.shown is not None
        assert it.shown.mid == "0"
    assert crashes == []


async def test_a_decoder_that_breaks_is_told() -> None:
    class Broken(Sink):
        def frame(self, *_given: object, **_named: object) -> None:
            raise RuntimeError("the store is broken")

    crashes: list[str] = []
    async with tracks(Broken(), crashes) as it:
        it.take(answers(video("0")))
        assert it.shown is not None
        assert it.shown.decoder is not None
        it.shown.decoder.offer(Task(unit=units("vp8", 1)[0], time_s=0.0))
        await until(lambda: bool(crashes), "it is told")
    assert crashes == ["crashed"]


async def test_another_best_layer_in_the_next_offer_is_the_one_that_is_taken() -> None:
    async with tracks(Sink(), []) as it:
        it.take(answers(video("0", layers=["q", "h", "f"])))
        track = it.shown
        assert track is not None
        assert track.rid == "f"
        it.take(answers(video("0", layers=["q", "h", "~f"])))
        assert it.shown is track
        assert track.rid == "h"

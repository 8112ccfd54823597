"""Coded pictures to frames: damage is marked, rotation and sizes are followed, nothing hangs."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest

from liveedge.core.tasks import OwnedThread
from liveedge.media.decode import VideoLimits
from liveedge.media.pixels import AS_STORED, Turn
from liveedge.media.published import PublishedSource
from liveedge.media.webrtc.assembler import Unit
from liveedge.media.webrtc.decoder import MAX_WAITING_BYTES, N_WAITING, Task, TrackDecoder, turn_of
from liveedge.media.webrtc.payload import (
    START_CODE,
    Codec,
    has_parameters,
    is_key,
    parameter_sets,
)
from tests.media_files import numbered
from tests.webrtc_publisher import Sink, until

pytestmark = pytest.mark.component
ENCODERS = {"vp8": "libvpx", "h264": "libx264"}


def units(
    codec: Codec,
    n: int,
    *,
    gop: int = 10,
    width: int = 320,
    height: int = 240,
    more: Mapping[str, str] | None = None,
) -> list[Unit]:
    """What the jitter buffer would hand over: one unit per picture."""
    coder = av.CodecContext.create(ENCODERS[codec], "w")
    assert isinstance(coder, av.VideoCodecContext)
    coder.width, coder.height, coder.pix_fmt = width, height, "yuv420p"
    coder.framerate, coder.gop_size = Fraction(30), gop
    fast = {"tune": "zerolatency", "preset": "ultrafast", "crf": "18"}
    coder.options = (
        fast if codec == "h264" else {"deadline": "realtime", "cpu-used": "8", "b": "2M"}
    ) | dict(more or {})
    made = []
    for number in range(n):
        picture = av.VideoFrame.from_ndarray(
            numbered(number, width=width, height=height), format="rgb24"
        )
        for packet in coder.encode(picture.reformat(format="yuv420p")):
            data = bytes(packet)
            if codec == "h264":
                data = b"".join(START_CODE + nal for nal in _nals(data))
            nals = (
                sum(1 << k for k in {nal[0] & 31 for nal in _nals(data)}) if codec == "h264" else 0
            )
            made.append(
                Unit(codec, data, number * 3000, is_key(codec, data, nals), nals, after_loss=False)
            )
    return made


def presentation_order(pictures: list[Unit]) -> list[int]:
    """Which packet has the picture that is shown first, second, ..."""
    decoder = av.CodecContext.create("h264", "r")
    shown = []
    for n, unit in enumerate(pictures):
        packet = av.Packet(unit.data)
        packet.pts = n
        shown += [frame.pts for frame in decoder.decode(packet)]
    return [n for n in [*shown, *(f.pts for f in decoder.decode(None))] if n is not None]


def _nals(data: bytes) -> list[bytes]:
    parts = data.replace(b"\x00\x00\x00\x01", b"\x00\x00\x01").split(b"\x00\x00\x01")
    return [part for part in parts if part]


class Decoding:
    def __init__(self, decoder: TrackDecoder, sink: Sink) -> None:
        self.decoder = decoder
        self.sink = sink
        self.n_wanted = 0
        self._n = 0

    async def feed(self, *parts: Unit, late: bool = False) -> None:
        """One after the other, so that nothing is given up."""
        for unit in parts:
            self._n += 1
            before = self._seen()
            self.decoder.offer(Task(unit=unit, time_s=self._n / 30, is_late=late))
            await self._more_than(before)

    async def _more_than(self, n: int) -> None:
        await until(lambda: self._seen() > n, "it is decoded", within_s=5)

    def _seen(self) -> int:
        return len(self.sink.frames) + self.sink.n_broken + sum(self.sink.n_dropped.values())

    def corrupt(self) -> list[bool]:
        return [frame.corrupt for frame in self.sink.frames]

    def numbers(self) -> list[int | None]:
        return [frame.number for frame in self.sink.frames]


@asynccontextmanager
async def decoding(
    *, limits: VideoLimits | None = None, known: bytes = b""
) -> AsyncIterator[Decoding]:
    sink, source = Sink(), PublishedSource("whip")
    running = OwnedThread("published", lambda stop: source.run(sink, stop))
    running.start()
    await until(lambda: bool(sink.states))
    ended = threading.Event()
    made: list[Decoding] = []

    def want_key() -> None:
        made[0].n_wanted += 1

    decoder = TrackDecoder(
        source.attach(lambda _reason: None),
        label="test",
        want_key=want_key,
        on_end=ended.set,
        limits=limits,
        known_parameters=known,
    )
    made.append(Decoding(decoder, sink))
    decoder.start()
    yield made[0]
    decoder.close()
    assert await asyncio.to_thread(ended.wait, 5)
    assert running.stop()


@pytest.mark.parametrize("codec", ["vp8", "h264"])
async def test_after_a_loss_frames_are_marked_until_the_next_key_frame(codec: Codec) -> None:
    """Case 27."""
    parts = units(codec, 25)
    async with decoding() as it:
        await it.feed(*parts[:4], replace(parts[5], after_loss=True), *parts[6:])
    assert it.corrupt() == [False] * 4 + [True] * 5 + [False] * 15
    assert it.numbers()[9:] == list(range(10, 25))
    coded = [frame.coded is not None for frame in it.sink.frames]
    assert coded == [not corrupt for corrupt in it.corrupt()]


async def test_pictures_that_come_later_than_their_packets_are_not_kept_with_them() -> None:
    """A publisher with B-frames: the frame at hand is that of an earlier packet."""
    pictures = units("h264", 22, more={"tune": "film", "x264-params": "b-adapt=0:bframes=2"})
    async with decoding() as it:
        for n, unit in enumerate(pictures):
            it.decoder.offer(Task(unit=unit, time_s=float(n)))
        await until(lambda: len(it.sink.frames) >= 16, "they are decoded", within_s=5)
    numbers = [number for number in it.numbers() if number is not None]
    assert numbers == list(range(len(numbers)))
    assert [frame.coded for frame in it.sink.frames] == [None] * len(it.sink.frames)
    times_s = [frame.source_time_s for frame in it.sink.frames]
    sent_s = [float(order) for order in presentation_order(pictures)]
    assert times_s == sent_s[: len(times_s)]


@pytest.mark.parametrize("codec", ["vp8", "h264"])
async def test_before_the_first_key_frame_nothing_comes_out_and_one_is_wanted(codec: Codec) -> None:
    parts = units(codec, 12)
    async with decoding() as it:
        await it.feed(*parts[4:])
    assert it.numbers() == [10, 11]
    assert it.sink.n_dropped == {"before_keyframe": 6}
    assert it.n_wanted == 6


@pytest.mark.parametrize("codec", ["vp8", "h264"])
async def test_bytes_that_cannot_be_decoded_are_counted_and_healed_by_a_key_frame(
    codec: Codec,
) -> None:
    parts = units(codec, 25)
    garbage = replace(parts[5], data=parts[5].data[:1] + bytes(3))
    async with decoding() as it:
        await it.feed(*parts[:5], garbage, *parts[6:])
    assert it.sink.n_broken >= 1
    assert it.n_wanted >= 1
    assert it.corrupt()[-15:] == [False] * 15
    assert it.numbers()[-15:] == list(range(10, 25))


async def test_random_bytes_never_end_the_decoder() -> None:
    chance = random.Random(3)
    parts = units("h264", 12) + units("vp8", 12)
    async with decoding() as it:
        for _ in range(150):
            unit = chance.choice(parts)
            data = bytearray(unit.data)
            for _ in range(chance.randrange(1, 30)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            it.decoder.offer(Task(unit=replace(unit, data=bytes(data)), time_s=0.0))
            await asyncio.sleep(0.002)
        await until(lambda: not len(it.decoder._tasks))
        n = len(it.sink.frames)
        fresh = units("vp8", 3)
        for unit in fresh:
            it.decoder.offer(Task(unit=unit, time_s=0.0))
        await until(lambda: len(it.sink.frames) >= n + 3)
    assert [frame.number for frame in it.sink.frames[-3:]] == [0, 1, 2]
    assert not any(it.corrupt()[-3:])


async def test_key_frames_without_parameters_get_those_that_came_before() -> None:
    first, later = units("h264", 1)[0], units("h264", 3)
    sets = parameter_sets(later[0].data)
    bare = replace(later[0], data=later[0].data.replace(sets, b""), nals=1 << 5)
    assert not has_parameters(bare.nals)
    async with decoding() as it:
        await it.feed(first, bare, *later[1:])
        assert it.numbers() == [0, 0, 1, 2]
        for frame in it.sink.frames:
            assert frame.coded is not None
            if frame.coded.is_key:
                assert parameter_sets(frame.coded.packets[-1]) == sets
    async with decoding(known=sets) as it:
        await it.feed(bare, *later[1:])
        assert it.numbers() == [0, 1, 2]


async def test_a_key_frame_whose_parameters_may_be_lost_heals_nothing() -> None:
    parts = units("h264", 4)
    sets = parameter_sets(parts[0].data)
    bare = replace(parts[0], data=parts[0].data.replace(sets, b""), nals=1 << 5, after_loss=True)
    async with decoding() as it:
        await it.feed(parts[0], bare, parts[1])
        assert it.corrupt() == [False, True, True]
        assert it.n_wanted == 1
        await it.feed(parts[0])
        assert it.corrupt()[-1] is False


async def test_a_key_frame_heals_where_the_offer_is_all_that_ever_says_the_parameters() -> None:
    parts = units("h264", 4)
    sets = parameter_sets(parts[0].data)
    bare = replace(parts[0], data=parts[0].data.replace(sets, b""), nals=1 << 5)
    async with decoding(known=sets) as it:
        await it.feed(bare, replace(parts[1], after_loss=True), replace(bare, after_loss=True))
        assert it.corrupt() == [False, True, False]


async def test_a_key_frame_after_pictures_that_were_given_up_needs_its_own_parameters() -> None:
    """New ones may be among them: a decoder with the old ones shows whatever comes out."""
    parts = units("h264", 8)
    sets = parameter_sets(parts[0].data)
    bare = replace(parts[0], data=parts[0].data.replace(sets, b""), nals=1 << 5)
    async with decoding() as it:
        await it.feed(parts[0])
        it.sink.costs_s = 0.3
        for unit in [*parts[1:]] * (N_WAITING // 7 + 2):
            it.decoder.offer(Task(unit=unit, time_s=0.0))
        it.sink.costs_s = 0.0
        assert it.decoder.counts.behind > 0
        n_wanted = it.n_wanted
        n = len(it.sink.frames)
        it.decoder.offer(Task(unit=bare, time_s=1.0))
        await until(lambda: it.n_wanted > n_wanted, "another one is wanted")
        await until(lambda: len(it.sink.frames) > n, "it is shown")
        assert it.corrupt()[-1]


@pytest.mark.parametrize(
    ("orientation", "turned"),
    [
        (0, lambda rgb: rgb),
        (1, lambda rgb: np.rot90(rgb, -1)),
        (2, lambda rgb: np.rot90(rgb, 2)),
        (3, lambda rgb: np.rot90(rgb, 1)),
        (4, lambda rgb: rgb[:, ::-1]),
        (5, lambda rgb: np.rot90(rgb[:, ::-1], -1)),
        (6, lambda rgb: np.rot90(rgb[:, ::-1], 2)),
        (7, lambda rgb: np.rot90(rgb[:, ::-1], 1)),
    ],
)
async def test_pictures_are_turned_upright_as_the_extension_says(
    orientation: int, turned: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Case 14, for real-time publishers."""
    rgb = np.random.default_rng(1).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    assert np.array_equal(turn_of(orientation).apply(rgb), turned(rgb))


async def test_a_turn_holds_until_the_next_one_and_its_packets_are_not_kept() -> None:
    parts = units("vp8", 6, gop=3)
    parts[1].orientation = 1
    parts[4].orientation = 0
    async with decoding() as it:
        await it.feed(*parts)
    sizes = [(frame.pixels.width, frame.pixels.height) for frame in it.sink.frames]
    assert sizes == [(320, 240)] + [(240, 320)] * 3 + [(320, 240)] * 2
    assert [frame.coded is not None for frame in it.sink.frames] == [True] + [False] * 5
    assert turn_of(0) == AS_STORED
    assert turn_of(1) == Turn(swap=True, mirror_x=True)


async def test_frames_beyond_the_limit_are_refused_before_they_take_memory() -> None:
    large, small = units("h264", 2, width=1280, height=960), units("h264", 2)
    limits = VideoLimits(max_pixels=640 * 480, max_side_px=1000)
    async with decoding(limits=limits) as it:
        await it.feed(large[0], small[0])
    assert it.sink.n_broken == 1
    assert [(f.pixels.width, f.pixels.height) for f in it.sink.frames] == [(320, 240)]


async def test_the_codec_may_change_at_a_key_frame() -> None:
    async with decoding() as it:
        await it.feed(*units("vp8", 2), *units("h264", 3), units("vp8", 3)[1], *units("vp8", 2))
    assert it.numbers() == [0, 1, 0, 1, 2, 0, 1]
    assert it.sink.n_dropped == {"before_keyframe": 1}
    codecs = [frame.coded.params.codec for frame in it.sink.frames if frame.coded]
    assert codecs == ["vp8"] * 2 + ["h264"] * 3 + ["vp8"] * 2


async def test_late_pictures_are_decoded_and_dropped() -> None:
    parts = units("vp8", 12, gop=6)
    async with decoding() as it:
        await it.feed(*parts[:3])
        await it.feed(parts[3], late=True)
        await it.feed(*parts[4:])
    assert it.numbers() == [0, 1, 2, *range(4, 12)]
    assert it.sink.n_dropped == {"late": 1}
    assert not any(it.corrupt())
    assert [frame.coded is not None for frame in it.sink.frames] == [True] * 3 + [False] * 2 + [
        True
    ] * 6


async def test_what_piles_up_is_bounded_and_counted_to_the_last_picture() -> None:
    """Case 34."""
    parts = units("vp8", 200, gop=50)
    async with decoding() as it:
        it.sink.costs_s = 0.01
        for unit in parts:
            it.decoder.offer(Task(unit=unit, time_s=0.0))
            assert len(it.decoder._tasks) <= N_WAITING
            await asyncio.sleep(0.001)
        await until(lambda: it._seen() == 200, "all are accounted for")
    assert it.sink.n_dropped["decoder_behind"] > 50
    assert not any(it.corrupt())
    seen = it.numbers()
    assert seen == sorted(seen, key=lambda number: number or 0)


async def test_what_piles_up_is_bounded_in_bytes_too() -> None:
    """A key frame of any size may come alone; more than a few of them may not wait."""
    huge = units("vp8", 1)[0]
    huge = replace(huge, data=huge.data + bytes(6 << 20))
    async with decoding() as it:
        it.sink.costs_s = 0.2
        for _ in range(30):
            it.decoder.offer(Task(unit=huge, time_s=0.0))
            assert it.decoder._n_waiting_bytes <= MAX_WAITING_BYTES
        await until(lambda: it._seen() == 30, "all are accounted for")
    assert it.sink.n_dropped["decoder_behind"] > 20
    assert it.decoder._n_waiting_bytes == 0


async def test_a_picture_that_the_publisher_left_out_marks_what_follows_though_no_packet_is_missing():
    parts = units("h264", 14, gop=10)
    async with decoding() as it:
        await it.feed(*parts[:4], *parts[5:])
        assert it.corrupt() == [False] * 4 + [True] * 5 + [False] * 4
        assert it.n_wanted == 1

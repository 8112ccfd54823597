"""The store over real video: exact where packets are kept, whole chunks, every index its own frame."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from liveedge.core.errors import FrameEvicted, StreamNotFound
from liveedge.core.tasks import OwnedThread
from liveedge.frames.chunks import (
    HistoryCodec,
    PictureHistory,
    Piece,
    PieceEncoder,
    Replay,
    StoredRun,
)
from liveedge.frames.frame import CodecParams, Frame, RgbPixels
from liveedge.frames.history import JpegCodec
from liveedge.frames.segment import MAX_CURSORS, MAX_READY_BYTES
from liveedge.frames.store import FrameStore, StoreLimits
from liveedge.media.history_codec import AvHistoryCodec
from liveedge.testing.clock import FakeClock
from tests.coded_streams import Sent, coded_frames
from tests.media_files import number_of, numbered

LIMITS = StoreLimits(hot_bytes=1, history_bytes=8 * 2**20, prefault=False)  # one frame is hot


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_store(clock) -> Iterator[Callable[..., FrameStore]]:
    stores: list[FrameStore] = []

    def make(**options) -> FrameStore:
        codec = options.pop("codec", None) or AvHistoryCodec()
        stores.append(FrameStore("cam", clock=clock, codec=codec, **{"limits": LIMITS, **options}))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def feed(store: FrameStore, clock: FakeClock, sent: Iterable[Sent], *, step_s=1 / 30) -> None:
    for one in sent:
        store.publish(one.pixels, corrupt=one.corrupt, coded=one.coded)
        assert store.wait_encoded(30)
        clock.move(step_s)


def uncoded(sent: Sequence[Sent]) -> list[Sent]:
    return [replace(one, coded=None) for one in sent]


def numbers(store: FrameStore, indices: Iterable[int] | None = None) -> list[int | None]:
    wanted = store.snapshot().index.tolist() if indices is None else indices
    return [number_of(store.load(index)) for index in wanted]


class CountingEncoder:
    """An encoder that notes which frames it was given."""

    def __init__(self, encoder: PieceEncoder, encoded: list[int]) -> None:
        self._encoder = encoder
        self._encoded = encoded

    @property
    def encode_s(self) -> float:
        return self._encoder.encode_s

    def encode(self, frame: Frame, *, begin: bool) -> Piece:
        self._encoded.append(frame.index)
        return self._encoder.encode(frame, begin=begin)


class Counting:
    """A codec that counts what is decoded and encoded."""

    def __init__(self, codec: HistoryCodec) -> None:
        self._codec = codec
        self.decoded: list[int] = []
        self.encoded: list[int] = []

    def keep(self, frame):
        return self._codec.keep(frame)

    def encoder(self, *, bytes_per_s):
        return CountingEncoder(self._codec.encoder(bytes_per_s=bytes_per_s), self.encoded)

    def replay(self, run: StoredRun) -> Replay:
        for index, pixels in self._codec.replay(run):
            self.decoded.append(index)
            yield index, pixels

    def replay_s(self, format, *, n_pixels):
        return self._codec.replay_s(format, n_pixels=n_pixels)


class Estimating(Counting):
    """A codec that says how long it takes."""

    def __init__(self, codec: HistoryCodec, *, replay_s: float) -> None:
        super().__init__(codec)
        self._replay_s = replay_s

    def replay_s(self, format, *, n_pixels):
        return self._replay_s


# ── packets ──


@pytest.mark.parametrize("encoder", ["libx264", "libx265", "libvpx", "mjpeg"])
def test_old_frames_of_a_camera_are_its_own_pixels(make_store, clock, encoder):
    sent = coded_frames(25, encoder=encoder, gop=10)
    store = make_store()
    feed(store, clock, sent)
    assert store.counters().kept_frames == 25
    assert store.counters().encoded_frames == 0
    for index, one in enumerate(sent):
        assert store.is_exact(index)
        assert np.array_equal(store.load(index), one.pixels.rgb())


def test_a_frame_can_be_loaded_while_its_group_of_pictures_goes_on(make_store, clock):
    store = make_store()
    for one in coded_frames(12, gop=100):
        feed(store, clock, [one])
        assert numbers(store) == list(range(one.number + 1))


def test_a_source_that_reorders_gives_no_packets_and_is_encoded(make_store, clock):
    store = make_store()
    feed(store, clock, uncoded(coded_frames(20, gop=10, bframes="2", tune="film")))
    counters = store.counters()
    assert (counters.kept_frames, counters.encoded_frames) == (0, 20)
    assert numbers(store) == list(range(20))
    assert [store.is_exact(index) for index in (0, 18, 19)] == [False, False, True]  # 19 is hot


def test_a_frame_missing_from_the_packets_costs_only_the_rest_of_its_group(make_store, clock):
    sent = coded_frames(30, gop=10)
    sent[14] = replace(sent[14], coded=None)
    store = make_store()
    feed(store, clock, sent)
    assert numbers(store) == list(range(30))
    exact = [store.is_exact(index) for index in range(29)]
    assert exact == [True] * 14 + [False] * 6 + [True] * 9


def test_frames_that_never_came_break_no_other(make_store, clock):
    sent = coded_frames(30, gop=10)
    lost = sent[:13] + sent[17:]  # dropped between the decoder and the store: packets are missing
    lost[13] = replace(lost[13], coded=None)
    store = make_store()
    feed(store, clock, lost)
    assert numbers(store) == [one.number for one in lost]


@pytest.mark.parametrize("encoder", ["libx264", "libvpx", "mjpeg"])
def test_broken_packets_shift_no_frame_and_are_not_called_exact(make_store, clock, encoder):
    sent = coded_frames(30, encoder=encoder, gop=10, broken=[4, 13, 14, 20])
    store = make_store()
    feed(store, clock, sent)
    assert store.counters().kept_frames == len(sent)
    for index, one in enumerate(sent):
        loaded = store.load(index)
        if not one.corrupt:
            assert number_of(loaded) == one.number
            assert np.array_equal(loaded, one.pixels.rgb())
        elif index < len(sent) - 1:
            assert not store.is_exact(index)


def test_size_codec_and_kind_may_change_at_any_frame(make_store, clock):
    parts = [
        coded_frames(7, gop=10),
        coded_frames(7, first=7, gop=3, width=160, height=120),
        coded_frames(7, first=14, encoder="libvpx", gop=10),
        uncoded(coded_frames(7, first=21, width=640, height=480)),
        [Sent(28, RgbPixels(numbered(28, width=321, height=241)), None)],  # type: ignore[arg-type]
        coded_frames(7, first=29, encoder="libx265", gop=4),
        coded_frames(7, first=36, encoder="mjpeg", width=160, height=120),
    ]
    sent = [one for part in parts for one in part]
    store = make_store()
    feed(store, clock, sent)
    assert numbers(store) == list(range(43))
    sizes = [store.load(index).shape[:2] for index in range(43)]
    assert sizes == [(one.pixels.height, one.pixels.width) for one in sent]
    reader = store.segment(range(43))
    assert [number_of(reader.load(index)) for index in range(43)] == list(range(43))


def test_a_gap_ends_a_chunk(make_store, clock):
    sent = coded_frames(20, gop=100)
    store = make_store()
    feed(store, clock, sent[:10])
    store.mark_gap()
    clock.move(20)
    feed(store, clock, sent[10:])  # goes on in the middle, as no honest source does
    assert numbers(store) == list(range(20))
    assert [store.is_exact(index) for index in (9, 10, 18)] == [True, False, False]


def test_keeping_packets_takes_no_decoding_and_no_encoding(make_store, clock):
    codec = Counting(AvHistoryCodec())
    limits = replace(LIMITS, hot_bytes=2**20, history_bytes=2**26)
    store = make_store(codec=codec, limits=limits)
    sent = coded_frames(60, gop=30)
    feed(store, clock, sent)
    feed(store, clock, sent)
    assert codec.decoded == list(range(60))  # the first two runs, to see whether they give it again
    codec.decoded.clear()
    for _ in range(4):
        feed(store, clock, sent, step_s=0.5)
    assert (codec.decoded, codec.encoded) == ([], [])
    assert store.counters().kept_frames == 360


def test_a_long_group_of_pictures_is_kept_as_far_as_it_is_reached_in_time(make_store, clock):
    codec = Estimating(
        AvHistoryCodec(), replay_s=0.0115
    )  # 10 frames of packets in 120 ms, 7 of ours in 90
    store = make_store(codec=codec)
    feed(store, clock, coded_frames(40, gop=20))
    exact = [store.is_exact(index) for index in range(39)]
    assert exact == ([True] * 10 + [False] * 10 + [True] * 10 + [False] * 9)
    codec.decoded.clear()
    assert numbers(store) == list(range(40))
    codec.decoded.clear()
    store.load(18)
    assert len(codec.decoded) <= 8


def test_a_source_with_more_bytes_than_the_history_has_for_its_time_is_encoded(make_store, clock):
    sent = coded_frames(150, gop=10, crf="1")
    per_s = 30 * sum(one.coded.nbytes for one in sent if one.coded) / len(sent)
    limits = replace(LIMITS, retention_s=600, history_bytes=int(per_s * 600 / 20))
    store = make_store(limits=limits)
    feed(store, clock, sent)
    counters = store.counters()
    assert counters.kept_frames < 60  # until its rate was known
    assert counters.encoded_frames > 90
    assert not store.is_exact(140)


def test_packets_that_do_not_give_their_frames_again_are_not_kept_for_long(
    make_store, clock, caplog
):
    sent = coded_frames(40, gop=10)
    sent = [  # claims to begin anew where it does not, as a camera with rolling refresh does
        replace(one, coded=replace(one.coded, is_key=index % 10 in (0, 5)))
        for index, one in enumerate(sent)
        if one.coded
    ]
    store = make_store(limits=replace(LIMITS, hot_bytes=20 * sent[0].pixels.nbytes))
    feed(store, clock, sent)
    counters = store.counters()
    assert counters.encoded_frames >= 25
    assert "do not give its frames again" in caplog.text
    for index in store.snapshot().index.tolist():
        assert number_of(store.load(index)) == sent[index].number
    assert counters.retained + counters.evicted == 40
    assert not any(store.is_exact(index) for index in range(10, 20))  # what is not hot


def test_frames_that_came_later_than_their_packets_are_not_shown_for_others(make_store, clock):
    """As of a decoder with a delay, whose frames were taken for those of its newest packets."""
    sent = coded_frames(41, gop=20)
    coded = [one.coded for one in sent if one.coded]
    both = replace(coded[0], packets=coded[0].packets + coded[1].packets)
    late = [replace(one, coded=after) for one, after in zip(sent, [both, *coded[2:]], strict=False)]
    store = make_store(limits=replace(LIMITS, hot_bytes=30 * sent[0].pixels.nbytes))
    feed(store, clock, late)
    indices = store.snapshot().index.tolist()
    assert len(indices) > 25
    assert numbers(store) == indices


# ── room ──


def test_the_cap_holds_and_whole_chunks_go(make_store, clock):
    limits = StoreLimits(hot_bytes=200_000, history_bytes=60_000, prefault=False)
    store = make_store(limits=limits)
    for n in range(0, 200, 20):
        part = coded_frames(20, first=n, gop=10)
        feed(store, clock, part if n % 40 else uncoded(part))
        counters = store.counters()
        assert counters.memory_bytes <= limits.reserved_bytes
        assert counters.retained + counters.evicted == counters.received == n + 20
        assert numbers(store) == store.snapshot().index.tolist()
    assert store.counters().evicted_by_reason["history_full"] > 0
    with pytest.raises(FrameEvicted):
        store.load(0)


def test_a_history_smaller_than_a_group_of_pictures_still_gives_what_it_says(make_store, clock):
    limits = StoreLimits(hot_bytes=1, history_bytes=60_000, prefault=False)
    store = make_store(limits=limits)
    feed(store, clock, coded_frames(60, gop=1000))
    assert numbers(store) == store.snapshot().index.tolist()
    counters = store.counters()
    assert counters.retained + counters.evicted == 60
    assert counters.retained > 1


def test_retention_is_by_the_time_of_the_frame(make_store, clock):
    store = make_store(limits=replace(LIMITS, retention_s=1.0))
    feed(store, clock, coded_frames(60, gop=30), step_s=0.05)
    first, *_, last = store.snapshot().index.tolist()
    assert (first, last) == (40, 59)
    assert numbers(store) == list(range(40, 60))
    assert store.counters().evicted_by_reason == {"retention": 40}
    clock.move(0.5)
    assert store.snapshot().index.tolist()[0] == 50


# ── segments ──


@pytest.fixture
def chunked(make_store, clock) -> tuple[FrameStore, Counting]:
    """Sixty frames in chunks of ten, all but the last of them in the history alone."""
    codec = Counting(AvHistoryCodec(n_threads=1))
    store = make_store(codec=codec)
    feed(store, clock, coded_frames(60, gop=10))
    codec.decoded.clear()
    return store, codec


def test_a_segment_decodes_each_chunk_once(chunked):
    store, codec = chunked
    reader = store.segment(range(0, 60, 2))
    assert [number_of(reader.load(i)) for i in range(0, 60, 2)] == list(range(0, 60, 2))
    assert len(codec.decoded) == len(set(codec.decoded))
    assert reader.n_restarts == 0


def test_a_chunk_is_decoded_no_further_than_it_is_wanted(chunked):
    store, codec = chunked
    reader = store.segment([12, 14])
    reader.load(12)
    reader.load(14)
    assert sorted(codec.decoded) == [10, 11, 12, 13, 14]


def test_a_frame_named_twice_is_decoded_once(chunked):
    store, codec = chunked
    reader = store.segment([5, 7, 7, 7])
    assert [number_of(reader.load(i)) for i in (5, 7, 7, 7)] == [5, 7, 7, 7]
    assert sorted(codec.decoded) == list(range(8))


def test_order_does_not_matter_while_frames_may_wait(chunked):
    store, codec = chunked
    reader = store.segment(range(20, 30))
    order = [21, 20, 29, 22, 25, 24, 23, 28, 27, 26]
    assert [number_of(reader.load(i)) for i in order] == order
    assert sorted(codec.decoded) == list(range(20, 30))


def test_a_frame_that_was_not_announced_can_be_loaded_too(chunked):
    store, _ = chunked
    reader = store.segment([3])
    assert [number_of(reader.load(i)) for i in (3, 48, 3, 59, 2)] == [3, 48, 3, 59, 2]


def test_what_waits_is_bounded_and_what_was_given_up_is_decoded_again(make_store, clock):
    codec = Counting(AvHistoryCodec(n_threads=1))
    limits = StoreLimits(hot_bytes=1, history_bytes=64 * 2**20, prefault=False)
    store = make_store(codec=codec, limits=limits)
    sent = coded_frames(24, gop=24, width=1280, height=960)
    feed(store, clock, sent)
    n_fit = MAX_READY_BYTES // sent[0].pixels.nbytes
    assert n_fit < 20
    reader = store.segment(range(23))
    assert number_of(reader.load(22)) == 22
    assert [number_of(reader.load(i)) for i in range(22)] == list(range(22))
    assert reader.n_restarts >= 1


def test_readers_of_a_stream_hold_few_decoders_and_all_get_their_frames(chunked):
    store, _ = chunked
    readers = [store.segment(range(first, first + 10)) for first in range(0, 50, 5)]
    for step in range(10):
        for number in range(len(readers)):
            index = 5 * number + step
            assert number_of(readers[number].load(index)) == index
            assert len(store._cursors) <= MAX_CURSORS
    assert sum(reader.n_restarts for reader in readers) > 0
    readers.clear()
    gc.collect()
    assert len(store._cursors) == 0


def test_many_threads_share_one_pass(chunked):
    store, codec = chunked
    reader = store.segment(range(50))
    waiting = list(range(50))
    wrong: list[int] = []

    def load(_stopping: threading.Event) -> None:
        while waiting:
            try:
                index = waiting.pop(0)
            except IndexError:
                return
            if number_of(reader.load(index)) != index:
                wrong.append(index)

    threads = [OwnedThread(f"reader-{n}", load) for n in range(4)]
    for thread in threads:
        thread.start()
    assert all(thread.stop(30) for thread in threads)
    assert [thread.error for thread in threads] == [None] * 4
    assert wrong == []
    assert len(codec.decoded) <= 50 + 10 * reader.n_restarts


def test_a_segment_of_an_ended_stream_says_so(chunked):
    store, _ = chunked
    reader = store.segment([1, 2])
    reader.load(1)
    store.close()
    with pytest.raises(StreamNotFound):
        reader.load(2)


def test_bytes_that_do_not_give_their_frame_are_told_as_evicted(make_store, clock):
    store = make_store()
    params = CodecParams(codec="h264")
    sent = [
        replace(one, coded=replace(one.coded, params=params, packets=(b"\0\0\1\x09junk",)))
        for one in coded_frames(2, gop=10)
        if one.coded
    ]
    feed(store, clock, sent)
    with pytest.raises(FrameEvicted, match="frame 0 of stream cam could not be decoded"):
        store.load(0)


def test_the_slow_reference_and_the_codec_agree(make_store, clock):
    sent = uncoded(coded_frames(20, gop=10))
    stores = [make_store(codec=PictureHistory(JpegCodec())), make_store()]
    for store in stores:
        feed(store, clock, sent)
    for index in range(20):
        slow, fast = (store.load(index).astype(int) for store in stores)
        assert np.abs(slow - fast).mean() < 8
        assert number_of(stores[0].load(index)) == number_of(stores[1].load(index)) == index


# ── everything at once ──


def read_at_random(
    store: FrameStore, done: threading.Event, wrong: list[tuple[int, int | None]]
) -> OwnedThread:
    """Reads segments of what is retained, whose frames show their index modulo 60."""

    def work(_stopping: threading.Event) -> None:
        rng = np.random.default_rng(0)
        while not done.is_set():
            indices = store.snapshot().index
            picked = sorted(rng.choice(indices, min(5, len(indices)), replace=False).tolist())
            reader = store.segment(picked)
            for index in picked:
                try:
                    number = number_of(reader.load(index))
                except FrameEvicted:
                    continue
                if number != index % 60:
                    wrong.append((index, number))

    return OwnedThread("reader", work)


def test_readers_publisher_and_eviction_at_once_show_only_true_frames(make_store, clock):
    limits = StoreLimits(hot_bytes=400_000, history_bytes=120_000, retention_s=4, prefault=False)
    store = make_store(limits=limits)
    sent = coded_frames(60, gop=10)
    store.publish(sent[0].pixels)
    done = threading.Event()
    wrong: list[tuple[int, int | None]] = []

    def publish(_stopping: threading.Event) -> None:
        for n in range(1, 300):
            one = sent[n % 60]
            store.publish(one.pixels, coded=one.coded if n % 60 < 40 else None)
            clock.move(1 / 30)
            if n % 4 == 0:
                store.wait_encoded(1)
        done.set()

    threads = [
        OwnedThread("publish", publish),
        read_at_random(store, done, wrong),
        read_at_random(store, done, wrong),
    ]
    for thread in threads:
        thread.start()
    assert done.wait(60)
    assert all(thread.stop(30) for thread in threads)
    assert [thread.error for thread in threads] == [None] * 3
    assert wrong == []
    counters = store.counters()
    assert counters.retained + counters.evicted == counters.received == 300
    assert counters.memory_bytes <= limits.reserved_bytes

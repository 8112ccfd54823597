"""The frame store with its real encoder thread and JPEG: times, waiting, freeing, and the books."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from liveedge.core.errors import FrameEvicted, StreamNotFound
from liveedge.core.tasks import OwnedThread, TaskSet
from liveedge.frames.chunks import PICTURE_FORMAT, PictureHistory
from liveedge.frames.frame import RgbPixels
from liveedge.frames.history import JpegCodec
from liveedge.frames.refs import parse_ref
from liveedge.frames.resolve import resolve_image, resolve_segment
from liveedge.frames.store import FrameStore, Gap, StoreCounters, StoreLimits
from liveedge.testing.clock import FakeClock

SMALL = StoreLimits(hot_bytes=300_000, history_bytes=200_000, prefault=False)
HEIGHT, WIDTH = 48, 64
FRAME_BYTES = HEIGHT * WIDTH * 3


def picture(tag: int, *, height: int = HEIGHT, width: int = WIDTH) -> RgbPixels:
    """A flat colour that says which frame it is and survives JPEG."""
    return RgbPixels(np.full((height, width, 3), 8 * (tag % 31), dtype=np.uint8))


def tag_of(rgb: np.ndarray) -> int:
    return round(float(rgb.mean()) / 8)


class HeldCodec:
    """A codec whose encoder stands still until it is let go."""

    def __init__(self) -> None:
        self.may_encode = threading.Event()
        self.has_begun = threading.Event()
        self._jpeg = JpegCodec()

    def encode(self, rgb):
        self.has_begun.set()
        assert self.may_encode.wait(30)
        return self._jpeg.encode(rgb)

    def decode(self, data):
        return self._jpeg.decode(data)


class FixedCodec:
    """Every frame takes the same number of bytes."""

    def __init__(self, *, n_bytes: int) -> None:
        self._data = bytes(n_bytes)

    def encode(self, rgb):
        return self._data

    def decode(self, data):
        raise AssertionError("nobody reads here")


class RefusingCodec(JpegCodec):
    """Takes no frame of one width."""

    def encode(self, rgb):
        if rgb.shape[1] == 33:
            raise ValueError("no width of 33")
        return super().encode(rgb)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_store(clock) -> Iterator[Callable[..., FrameStore]]:
    stores: list[FrameStore] = []

    def make(**options) -> FrameStore:
        codec = PictureHistory(options.pop("codec", None) or JpegCodec())
        store = FrameStore("cam", **{"clock": clock, "limits": SMALL, "codec": codec, **options})
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()


def publish(store: FrameStore, clock: FakeClock, n: int, *, step_s: float = 0.04) -> None:
    for _ in range(n):
        store.publish(picture(store.counters().received))
        clock.move(step_s)


def assert_books_balance(counters: StoreCounters) -> None:
    produced = 0 if counters.last_frame_index is None else counters.last_frame_index + 1
    assert counters.retained + counters.evicted == produced
    assert counters.evicted == sum(counters.evicted_by_reason.values())
    assert counters.received == counters.retained + counters.evicted + counters.dropped
    if counters.last_frame_at_ms is not None:
        assert counters.first_frame_at_ms is not None
        span_ms = counters.last_frame_at_ms - counters.first_frame_at_ms
        assert counters.stream_time_ms == span_ms


# ── time and counters ──


def test_a_new_store_has_nothing(make_store):
    counters = make_store().counters()
    assert (counters.received, counters.retained, counters.stream_time_ms) == (0, 0, 0)
    assert counters.last_frame_index is None
    assert counters.first_frame_at_ms is None
    assert make_store().latest is None
    assert not make_store().snapshot().ever_produced


def test_frames_carry_stream_wall_and_arrival_time(make_store, clock):
    store = make_store()
    first_at_ms, first_s = clock.wall_ms(), clock.monotonic_s()
    publish(store, clock, 3)
    frame = store.latest
    assert frame is not None
    assert (frame.index, frame.stream_time_ms) == (2, 80)
    assert frame.captured_at_ms == first_at_ms + 80
    assert frame.arrived_s == pytest.approx(first_s + 0.08)
    counters = store.counters()
    assert (counters.last_frame_index, counters.stream_time_ms) == (2, 80)
    assert (counters.first_frame_at_ms, counters.last_frame_at_ms) == (
        first_at_ms,
        first_at_ms + 80,
    )
    assert (counters.width, counters.height) == (WIDTH, HEIGHT)
    assert_books_balance(counters)


def test_recent_fps_follows_the_camera(make_store, clock):
    store = make_store()
    publish(store, clock, 30)
    assert store.counters().recent_fps == pytest.approx(25, rel=0.05)
    publish(store, clock, 60, step_s=0.1)
    assert store.counters().recent_fps == pytest.approx(10, rel=0.05)
    clock.move(2.5)
    assert store.counters().recent_fps == pytest.approx(5, rel=0.1)
    clock.move(10)
    assert store.counters().recent_fps == 0


def test_a_gap_is_recorded_and_the_clock_goes_on(make_store, clock):
    store = make_store()
    store.mark_gap()  # before any frame: no gap
    publish(store, clock, 3)
    store.mark_gap()
    store.mark_gap()
    clock.move(20)
    frame = store.publish(picture(3), source_time_s=0.0)
    after = store.publish(picture(4), source_time_s=0.04)
    assert frame is not None
    assert after is not None
    assert (frame.index, frame.stream_time_ms, frame.after_gap) == (3, 20_120, True)
    assert not after.after_gap
    assert store.counters().gaps == (Gap(80, 20_120),)
    clock.move(1000)
    store.publish(picture(5))
    assert store.counters().gaps == ()  # older than the retention


def test_corrupt_frames_are_flagged_and_counted(make_store):
    store = make_store()
    store.publish(picture(0))
    store.publish(picture(1), corrupt=True)
    assert store.counters().corrupt == 1
    assert store.snapshot().corrupt.tolist() == [False, True]


def test_frames_older_than_the_retention_go_while_nobody_publishes(make_store, clock):
    store = make_store(limits=StoreLimits(retention_s=10, history_bytes=100_000, prefault=False))
    publish(store, clock, 3, step_s=4)
    assert store.snapshot().index.tolist() == [1, 2]
    clock.move(100)
    counters = store.counters()
    assert (counters.retained, counters.evicted_by_reason) == (0, {"retention": 3})
    assert counters.first_available_frame_index is None
    assert (counters.last_frame_index, counters.stream_time_ms) == (2, 8000)
    assert_books_balance(counters)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hot_bytes", 0), ("history_bytes", -1), ("max_frames", 0), ("retention_s", 0.0)],
)
def test_a_limit_that_makes_no_sense_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        StoreLimits(**{name: value})


# ── pixels ──


def test_a_hot_frame_is_exact_and_an_old_one_close(make_store, clock):
    store = make_store(limits=StoreLimits(hot_bytes=3 * FRAME_BYTES, prefault=False))
    rng = np.random.default_rng(0)
    smooth = np.linspace(0, 200, WIDTH, dtype=np.float64)[None, :, None]
    published = [
        (smooth + rng.integers(0, 40, (1, 1, 3)) + np.zeros((HEIGHT, 1, 1))).astype(np.uint8)
        for _ in range(10)
    ]
    for pixels in published:
        store.publish(RgbPixels(pixels))
        assert store.wait_encoded(30)
        clock.move(0.04)
    assert [store.is_exact(index) for index in range(10)] == [False] * 7 + [True] * 3
    for index in (7, 8, 9):
        assert np.array_equal(store.load(index), published[index])
    for index in range(7):
        loaded = store.load(index)
        assert loaded.shape == published[index].shape
        assert loaded.flags.writeable
        assert np.abs(loaded.astype(int) - published[index]).mean() < 3


def test_size_may_change_at_any_frame(make_store):
    store = make_store(limits=StoreLimits(hot_bytes=1, history_bytes=10**6, prefault=False))
    sizes = [(48, 64), (72, 128), (41, 21), (1, 1), (48, 64)]
    for tag, (height, width) in enumerate(sizes):
        store.publish(picture(tag, height=height, width=width))
        assert store.wait_encoded(30)
    assert [store.load(index).shape[:2] for index in range(5)] == sizes
    assert [tag_of(store.load(index)) for index in range(5)] == list(range(5))


def test_an_evicted_or_future_frame_cannot_be_loaded(make_store, clock):
    store = make_store(limits=StoreLimits(hot_bytes=FRAME_BYTES, history_bytes=0))
    publish(store, clock, 3)
    with pytest.raises(FrameEvicted, match="frame 0 of stream cam"):
        store.load(0)
    with pytest.raises(FrameEvicted):
        store.load(3)


def test_a_frame_the_codec_refuses_is_counted_when_it_leaves_the_hot_ring(make_store):
    limits = StoreLimits(hot_bytes=2 * FRAME_BYTES, history_bytes=10**6, prefault=False)
    store = make_store(limits=limits, codec=RefusingCodec())
    store.publish(picture(0, width=33))
    for tag in (1, 2, 3):
        store.publish(picture(tag))
        assert store.wait_encoded(30)
    counters = store.counters()
    assert counters.evicted_by_reason == {"encode_failed": 1}
    assert store.snapshot().index.tolist() == [1, 2, 3]
    assert_books_balance(counters)


def test_a_standing_encoder_never_blocks_the_publisher_and_its_losses_are_counted(make_store):
    codec = HeldCodec()
    limits = StoreLimits(hot_bytes=5 * FRAME_BYTES, history_bytes=10**6, prefault=False)
    store = make_store(limits=limits, codec=codec)
    store.publish(picture(0))
    assert codec.has_begun.wait(30)
    for tag in range(1, 50):
        store.publish(picture(tag))
    counters = store.counters()
    assert counters.evicted_by_reason == {"encoder_behind": 44}
    assert store.snapshot().index.tolist() == [0, 45, 46, 47, 48, 49]  # 0 is being compressed
    assert tag_of(store.load(0)) == 0
    assert counters.n_unencoded == 6
    assert_books_balance(counters)
    codec.may_encode.set()
    assert store.wait_encoded(30)
    assert store.counters().n_unencoded == 0
    assert [tag_of(store.load(index)) for index in (0, 45, 49)] == [0, 45 % 31, 49 % 31]


def test_memory_stays_below_what_the_limits_reserve(make_store, clock):
    store = make_store()
    peak = 0
    for _ in range(40):
        publish(store, clock, 25)
        assert store.wait_encoded(30)
        peak = max(peak, store.counters().memory_bytes)
    assert store.counters().evicted_by_reason["history_full"] > 0
    assert peak <= SMALL.reserved_bytes == store.counters().reserved_bytes


def test_memory_is_what_the_frames_hold_and_not_what_is_set_aside(make_store, clock):
    codec = FixedCodec(n_bytes=1000)
    limits = StoreLimits(hot_bytes=2 * FRAME_BYTES, history_bytes=2**20, prefault=True)
    store = make_store(limits=limits, codec=codec)
    for _ in range(5):
        publish(store, clock, 1)
        assert store.wait_encoded(30)
    assert store.wait_prefaulted(30)
    counters = store.counters()
    around = len(PICTURE_FORMAT) + 8  # an entry of the history: the format, and two lengths
    assert counters.memory_bytes == 2 * FRAME_BYTES + 5 * (1000 + around)
    assert counters.reserved_bytes == 2 * FRAME_BYTES + 2**20


def test_the_first_frames_are_compressed_before_memory_is_touched(make_store, clock):
    codec = HeldCodec()
    limits = StoreLimits(hot_bytes=2 * FRAME_BYTES, history_bytes=2**24, prefault=True)
    store = make_store(limits=limits, codec=codec)
    publish(store, clock, 1)
    assert codec.has_begun.wait(30)
    assert not store.wait_prefaulted(0)
    codec.may_encode.set()
    for _ in range(20):
        assert store.wait_encoded(30)
        publish(store, clock, 1)
    assert store.wait_prefaulted(30)
    assert store.counters().evicted == 0
    assert [tag_of(store.load(index)) for index in range(21)] == list(range(21))


# ── references over a living store ──


def test_references_resolve_over_a_snapshot_and_load(make_store, clock):
    limits = StoreLimits(hot_bytes=40 * FRAME_BYTES, history_bytes=10**6, prefault=False)
    store = make_store(limits=limits)
    for _ in range(101):
        publish(store, clock, 1)
        assert store.wait_encoded(30)
    snapshot = store.snapshot()
    publish(store, clock, 5)  # the snapshot does not see these
    pick = resolve_image(parse_ref("ovs://streams/cam?frame_index=-1", kind="image"), snapshot)
    assert (pick.index, tag_of(store.load(pick.index))) == (100, 100 % 31)
    segment = parse_ref("ovs://streams/cam?start_offset_ms=-2000&max_fps=2", kind="video")
    assert [p.index for p in resolve_segment(segment, snapshot).picks] == [50, 63, 75, 88, 100]


# ── waiting for a newer frame ──


async def test_a_waiting_coroutine_gets_the_next_frame(make_store, clock):
    store = make_store()
    tasks = TaskSet("test")
    waiting = tasks.start(store.wait_newer(None, 10), name="waits")
    await clock.advance(1)
    assert store.n_waiting == 1
    store.publish(picture(0))
    frame = await waiting
    assert frame is not None
    assert frame.index == 0
    assert (store.n_waiting, clock.n_sleepers) == (0, 0)


async def test_a_frame_that_is_newer_already_is_returned_at_once(make_store, clock):
    store = make_store()
    publish(store, clock, 2)
    frame = await store.wait_newer(0, 10)
    assert frame is not None
    assert frame.index == 1


async def test_waiting_ends_with_the_time(make_store, clock):
    store = make_store()
    publish(store, clock, 1)
    tasks = TaskSet("test")
    waiting = tasks.start(store.wait_newer(0, 2), name="waits")
    await clock.advance(1.9)
    assert not waiting.done()
    await clock.advance(0.1)
    assert await waiting is None
    assert store.n_waiting == 0


async def test_a_cancelled_wait_leaves_nothing_behind(make_store, clock):
    store = make_store()
    tasks = TaskSet("test")
    tasks.start(store.wait_newer(None, 10), name="waits")
    await clock.advance(1)
    await tasks.close()
    assert (store.n_waiting, clock.n_sleepers) == (0, 0)


async def test_the_end_of_the_stream_wakes_those_who_wait(make_store, clock):
    store = make_store()
    tasks = TaskSet("test")
    waiting = tasks.start(store.wait_newer(None, 10), name="waits")
    await clock.advance(1)
    await asyncio.to_thread(store.close)
    assert await waiting is None


def test_a_waiting_thread_gets_the_next_frame_and_sees_the_end(make_store):
    store = make_store()
    seen: list[int | None] = []
    waits = threading.Event()

    def work(_stopping: threading.Event) -> None:
        waits.set()
        frame = store.wait_newer_blocking(None, 1000)
        seen.append(frame.index if frame else None)
        waits.set()
        seen.append(0 if store.wait_newer_blocking(5, 1000) else None)

    thread = OwnedThread("waiter", work)
    thread.start()
    assert waits.wait(30)
    waits.clear()
    store.publish(picture(0))
    assert waits.wait(30)
    store.close()
    assert thread.stop(30)
    assert thread.error is None
    assert seen == [0, None]


def test_a_waiting_thread_gives_up_when_the_time_is_over(make_store, clock):
    store = make_store()
    assert store.wait_newer_blocking(None, 0) is None
    assert store.n_waiting == 0


# ── the end ──


def test_closing_frees_the_frames_at_once_and_keeps_the_last_counters(make_store, clock):
    store = make_store()
    publish(store, clock, 10)
    before = store.counters()
    store.close()
    after = store.counters()
    assert (after.retained, after.evicted) == (before.retained, before.evicted)
    assert (after.last_frame_index, after.stream_time_ms) == (9, 360)
    assert after.memory_bytes == 0
    assert store.latest is None
    assert len(store.snapshot()) == 0
    with pytest.raises(StreamNotFound, match="stream cam has ended"):
        store.load(9)
    clock.move(1000)
    assert store.counters() == after


def test_a_frame_after_the_end_is_dropped_and_counted(make_store, clock):
    store = make_store()
    publish(store, clock, 2)
    store.close()
    assert store.publish(picture(9)) is None
    counters = store.counters()
    assert counters.dropped_by_reason == {"ended": 1}
    assert (counters.received, counters.last_frame_index) == (3, 1)
    assert_books_balance(counters)


def test_closing_while_a_frame_is_compressed_ends_the_encoder(make_store, caplog):
    codec = HeldCodec()
    store = make_store(codec=codec)
    store.publish(picture(0))
    assert codec.has_begun.wait(30)
    closing = OwnedThread("closer", lambda _stopping: store.close())
    closing.start()
    assert store.wait_newer_blocking(0, 1000) is None  # returns once the store is closed
    codec.may_encode.set()
    assert closing.stop(30)
    assert store.counters().memory_bytes == 0
    assert store.wait_encoded(0)
    assert caplog.records == []  # no thread crashed


# ── case 34: no silent drop, whatever happens at the same time ──


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from(["publish", "drop", "gap", "age", "encode"]), st.integers(1, 9)),
        max_size=40,
    ),
    st.sampled_from([0, 3_000, 50_000]),
)
def test_received_is_retained_plus_evicted_plus_dropped_in_any_order(steps, history_bytes):
    clock = FakeClock()
    limits = StoreLimits(
        hot_bytes=2 * FRAME_BYTES, history_bytes=history_bytes, retention_s=5, prefault=False
    )
    store = FrameStore("cam", clock=clock, limits=limits)
    try:
        for what, n in steps:
            if what == "publish":
                publish(store, clock, n)
            elif what == "drop":
                store.count_dropped("undecodable", n=n)
            elif what == "gap":
                store.mark_gap()
            elif what == "age":
                clock.move(n / 2)
            else:
                assert store.wait_encoded(30)
            counters, snapshot = store.counters(), store.snapshot()
            assert_books_balance(counters)
            assert counters.retained >= len(snapshot)  # the encoder may evict between the two
    finally:
        store.close()
    assert_books_balance(store.counters())


def read_at_random(store: FrameStore, wrong: list[tuple[int, int]]) -> OwnedThread:
    """A reader that checks the books and that every frame shows its own index."""

    def work(stopping: threading.Event) -> None:
        rng = np.random.default_rng(0)
        while not stopping.is_set():
            assert_books_balance(store.counters())
            snapshot = store.snapshot()
            if len(snapshot) == 0:
                continue
            index = int(rng.choice(snapshot.index))
            try:
                tag = tag_of(store.load(index))
            except (FrameEvicted, StreamNotFound):  # since the snapshot
                continue
            if tag != index % 31:
                wrong.append((index, tag))

    return OwnedThread("reader", work)


def test_the_books_balance_with_a_publisher_readers_and_the_end_at_once(clock):
    store = FrameStore("cam", clock=clock, limits=SMALL)
    n_frames, n_dropped = 600, 12

    def produce(_stopping: threading.Event) -> None:
        for tag in range(n_frames):
            store.publish(picture(tag))
            clock.move(0.01)
            if tag % 50 == 0:
                store.count_dropped("undecodable")

    wrong: list[tuple[int, int]] = []
    threads = [
        OwnedThread("producer", produce),
        read_at_random(store, wrong),
        read_at_random(store, wrong),
    ]
    for thread in threads:
        thread.start()
    assert store.wait_newer_blocking(n_frames // 2, 1000) is not None
    store.close()
    assert all(thread.stop(60) for thread in threads)
    assert [thread.error for thread in threads] == [None] * 3
    assert wrong == []
    counters = store.counters()
    assert_books_balance(counters)
    assert counters.received == n_frames + n_dropped
    assert counters.dropped_by_reason["undecodable"] == n_dropped

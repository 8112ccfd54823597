"""The history in files: what an earlier process left goes on, and nothing else is believed."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from liveedge.core.errors import FrameEvicted
from liveedge.frames.chunks import Piece, Replay, StoredRun
from liveedge.frames.frame import CodecParams, CodedFrame, Frame, RgbPixels
from liveedge.frames.journal import VERSION, open_history
from liveedge.frames.store import (
    INDICES_AHEAD,
    FrameStore,
    Gap,
    StoreCounters,
    StoreLimits,
)
from liveedge.media.history_codec import AvHistoryCodec
from liveedge.testing.clock import FakeClock
from tests.coded_streams import coded_frames
from tests.media_files import number_of

FRAME_BYTES = 4 * 6 * 3
LIMITS = StoreLimits(
    hot_bytes=3 * FRAME_BYTES, history_bytes=4000, retention_s=60, max_frames=200, prefault=False
)
PARAMS = CodecParams(codec="tags", extradata=b"extra")


class TagCodec:
    """Frames of one colour. Only a whole run from its beginning gives them again."""

    encode_s = 0.0

    def keep(self, frame: Frame) -> Piece | None:
        coded = frame.coded
        if coded is None:
            return None
        return Piece(
            format=coded.params.extradata, packets=coded.packets, is_key=coded.is_key, exact=True
        )

    def encoder(self, *, bytes_per_s: float) -> TagCodec:
        return self

    def encode(self, frame: Frame, *, begin: bool) -> Piece:
        data = frame.pixels.rgb().tobytes()[:1] * 20
        return Piece(format=b"own", packets=(data,), is_key=begin, exact=False)

    def replay(self, run: StoredRun) -> Replay:
        for index, packets in run.pieces:
            yield index, RgbPixels(np.full((4, 6, 3), packets[-1][0], np.uint8))

    def replay_s(self, format: bytes, *, n_pixels: int) -> float:
        return 0.0


class Standing(TagCodec):
    """Nothing that comes without packets gets into the history."""

    def encode(self, frame: Frame, *, begin: bool) -> Piece:
        raise ValueError("not today")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_store(clock, tmp_path) -> Iterator[Callable[..., FrameStore]]:
    stores: list[FrameStore] = []

    def make(folder: Path | None = None, **options) -> FrameStore:
        given = {"clock": clock, "limits": LIMITS, "codec": TagCodec(), **options}
        stores.append(FrameStore("cam", folder=folder or tmp_path / "cam", **given))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def publish(store: FrameStore, clock: FakeClock, n: int, *, gop: int | None = 5) -> None:
    """Frames that show their index, kept in groups of `gop` or encoded by us."""
    for _ in range(n):
        index = (store.counters().last_frame_index or -1) + 1
        if store.counters().last_frame_index == 0:
            index = 1
        coded = None
        if gop is not None:
            data = bytes([index % 256]) * 30
            coded = CodedFrame(params=PARAMS, packets=(data,), is_key=index % gop == 0)
        store.publish(RgbPixels(np.full((4, 6, 3), index % 256, np.uint8)), coded=coded)
        assert store.wait_encoded(30)
        clock.move(0.1)


def check(store: FrameStore) -> list[int]:
    """The retained frames, each of which shows its own index; the books balance."""
    indices: list[int] = store.snapshot().index.tolist()
    for index in indices:
        assert set(store.load(index).ravel().tolist()) == {index % 256}
    assert_books_balance(store.counters())
    return indices


def assert_books_balance(counters: StoreCounters) -> None:
    produced = 0 if counters.last_frame_index is None else counters.last_frame_index + 1
    assert counters.retained + counters.evicted == produced
    assert counters.evicted == sum(counters.evicted_by_reason.values())
    assert counters.received == counters.retained + counters.evicted + counters.dropped
    assert all(n > 0 for n in counters.evicted_by_reason.values())


def test_a_store_goes_on_where_the_one_before_it_ended(make_store, clock):
    store = make_store()
    publish(store, clock, 20)
    store.count_dropped("undecodable", n=2)
    before = store.counters()
    store.close()
    clock.move(7)
    store = make_store()
    after = store.counters()
    assert check(store) == list(range(20))  # the hot ones were in the history too
    assert (after.received, after.dropped_by_reason) == (22, {"undecodable": 2})
    assert after.evicted == before.evicted
    assert (after.last_frame_index, after.stream_time_ms) == (19, before.stream_time_ms)
    assert after.first_frame_at_ms == before.first_frame_at_ms
    assert (after.width, after.height) == (6, 4)
    assert store.latest is None
    assert store.is_exact(0)
    frame = store.publish(RgbPixels(np.full((4, 6, 3), 20, np.uint8)))
    assert frame is not None
    assert (frame.index, frame.after_gap) == (20, True)
    assert frame.stream_time_ms == 9000
    assert frame.captured_at_ms == clock.wall_ms()
    assert store.counters().gaps == (Gap(1900, 9000),)
    clock.move(0.1)
    publish(store, clock, 10)
    assert check(store) == list(range(31))


def test_frames_that_were_only_hot_are_counted_as_lost_by_the_restart(make_store, clock, tmp_path):
    store = make_store(codec=Standing())
    publish(store, clock, 2, gop=2)
    for _ in range(2):
        publish(store, clock, 1, gop=None)
    assert check(store) == [0, 1, 2, 3]
    again = make_store(copied(tmp_path / "cam"))
    assert check(again) == [0, 1]
    assert again.counters().evicted_by_reason == {"restart": 2}
    publish(again, clock, 3)
    assert check(again)[-1] == 6


def test_counts_go_on_over_many_lives(make_store, clock):
    expected = 0
    store = make_store()
    for life in range(5):
        store.close()
        store = make_store()
        publish(store, clock, 30, gop=None if life % 2 else 7)
        expected += 30
        assert store.counters().received == expected
        assert check(store)[-1] == expected - 1
    assert store.counters().evicted_by_reason["history_full"] > 0


def test_a_clock_that_was_set_back_does_not_turn_the_stream_back(make_store, clock, tmp_path):
    store = make_store()
    publish(store, clock, 20)
    store.close()
    early = FakeClock()  # a new process on a machine that thinks it is earlier
    again = make_store(clock=early)
    frame = again.publish(RgbPixels(np.zeros((4, 6, 3), np.uint8)))
    assert frame is not None
    assert frame.stream_time_ms >= 1900
    assert check_monotonic(again)


def check_monotonic(store: FrameStore) -> bool:
    return bool((np.diff(store.snapshot().stream_time_ms) >= 0).all())


def test_what_grew_too_old_meanwhile_goes(make_store, clock):
    store = make_store()
    publish(store, clock, 20)
    store.close()
    clock.move(59)
    store = make_store()
    indices = check(store)
    assert 0 < len(indices) < 20
    assert indices[-1] == 19
    clock.move(60)
    assert check(store) == []
    assert store.counters().evicted_by_reason == {"retention": 20}


def test_a_store_without_frames_leaves_its_counts(make_store, clock):
    store = make_store()
    store.count_dropped("undecodable", n=3)
    store.close()
    store = make_store()
    assert store.counters().dropped_by_reason == {"undecodable": 3}
    assert store.counters().last_frame_index is None
    publish(store, clock, 2)
    assert store.counters().gaps == ()
    assert check(store) == [0, 1]


def test_a_kill_before_the_first_frame_leaves_nothing_to_complain_of(make_store, tmp_path, caplog):
    make_store()
    again = make_store(copied(tmp_path / "cam"))
    assert again.counters().received == 0
    assert caplog.text == ""
    assert {path.name for path in tmp_path.iterdir()} == {"cam", "copy"}


def test_files_that_were_made_and_never_counted_in_are_new_ones(tmp_path):
    for _ in range(2):
        files = open_history(tmp_path / "cam", capacity_bytes=4000, max_rows=200)
        assert files.earlier is None
        files.close()
    assert [path.name for path in tmp_path.iterdir()] == ["cam"]


def test_without_a_history_the_index_and_the_clock_go_on(make_store, clock):
    limits = StoreLimits(hot_bytes=1000, history_bytes=0)
    store = make_store(limits=limits)
    publish(store, clock, 5)
    store.close()
    store = make_store(limits=limits)
    assert store.counters().evicted_by_reason == {"restart": 5}
    publish(store, clock, 1)
    assert check(store) == [5]


@pytest.mark.parametrize("history_bytes", [LIMITS.history_bytes // 3, 3 * LIMITS.history_bytes, 0])
def test_a_history_keeps_the_size_with_which_it_was_made(make_store, clock, history_bytes):
    store = make_store()
    publish(store, clock, 20)
    store.close()
    store = make_store(limits=replace(LIMITS, history_bytes=history_bytes))
    assert check(store) == list(range(20))
    assert store.limits.history_bytes == LIMITS.history_bytes
    assert "restart" not in store.counters().evicted_by_reason
    publish(store, clock, 5)
    assert check(store) == list(range(25))


def test_an_index_of_other_rows_keeps_the_counts_and_gives_up_the_frames(make_store, clock):
    store = make_store()
    publish(store, clock, 20)
    store.close()
    store = make_store(limits=replace(LIMITS, max_frames=LIMITS.max_frames // 2))
    assert check(store) == []
    assert store.counters().evicted_by_reason["restart"] == 20
    publish(store, clock, 5)
    assert check(store) == [20, 21, 22, 23, 24]


def test_touching_the_memory_of_a_file_leaves_it_as_it_is(make_store, clock):
    limits = StoreLimits(hot_bytes=1, history_bytes=2**20, prefault=True)
    store = make_store(limits=limits)
    publish(store, clock, 20)
    assert store.wait_prefaulted(30)
    store.close()
    store = make_store(limits=limits)
    assert check(store) == list(range(20))
    publish(store, clock, 5)
    assert store.wait_prefaulted(30)
    assert check(store) == list(range(25))


# ── the end of a process ──

_CHILD = """
import sys
from pathlib import Path
from liveedge.core.clock import SystemClock
from liveedge.frames.store import FrameStore, StoreLimits
from liveedge.media.history_codec import AvHistoryCodec
from tests.coded_streams import coded_frames

clock = SystemClock()
limits = StoreLimits(hot_bytes=1, history_bytes=2**21, prefault=True)
store = FrameStore("cam", clock=clock, limits=limits, codec=AvHistoryCodec(),
                   folder=Path(sys.argv[1]))
for one in coded_frames(100, gop=10):
    store.publish(one.pixels, coded=one.coded if one.number % 30 < 20 else None)
    store.wait_encoded(30)
    print(one.number, flush=True)
"""


def test_a_killed_process_loses_nothing_that_was_in_the_history(tmp_path):
    folder = tmp_path / "cam"
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    told = -1
    with child:
        assert child.stdout is not None
        for line in child.stdout:
            told = int(line)
            if told == 57:
                os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert told >= 57
    clock = FakeClock()
    limits = StoreLimits(hot_bytes=1, history_bytes=2**21, prefault=False, retention_s=1e9)
    store = FrameStore("cam", clock=clock, limits=limits, codec=AvHistoryCodec(), folder=folder)
    try:
        indices = store.snapshot().index.tolist()
        assert indices[: told + 1] == list(range(told + 1))
        whole = coded_frames(100, gop=10)
        for index in indices:
            loaded = store.load(index)
            assert number_of(loaded) == index
            if store.is_exact(index):
                assert np.array_equal(loaded, whole[index].pixels.rgb())
        assert [store.is_exact(index) for index in range(40)] == ([True] * 20 + [False] * 10) + (
            [True] * 10
        )
        assert_books_balance(store.counters())
    finally:
        store.close()


def copied(folder: Path) -> Path:
    """The files as a kill at this moment would leave them."""
    other = folder.with_name("copy")
    shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(folder, other)
    return other


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["camera", "ours", "drop", "gap", "age", "kill"]), st.integers(1, 25)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_at_whatever_moment_it_ends_the_next_one_has_what_was_there(tmp_path_factory, steps):
    clock = FakeClock()
    folder = tmp_path_factory.mktemp("life") / "cam"
    lives = [FrameStore("cam", clock=clock, limits=LIMITS, codec=TagCodec(), folder=folder)]
    try:
        for what, n in [*steps, ("kill", 1)]:
            store = lives[-1]
            if what == "camera":
                publish(store, clock, n)
            elif what == "ours":
                publish(store, clock, n, gop=None)
            elif what == "drop":
                store.count_dropped("undecodable", n=n)
            elif what == "gap":
                store.mark_gap()
            elif what == "age":
                clock.move(n)
            else:
                before = check(store)
                counters = store.counters()
                folder = copied(folder).rename(folder.with_name(f"cam-{len(lives)}"))
                lives.append(
                    FrameStore("cam", clock=clock, limits=LIMITS, codec=TagCodec(), folder=folder)
                )
                after = check(lives[-1])
                assert after == before  # every one of them was in the history
                again = lives[-1].counters()
                assert again.received == counters.received
                assert again.last_frame_index == counters.last_frame_index
                assert again.evicted == counters.evicted
                assert again.stream_time_ms == counters.stream_time_ms
            assert check_monotonic(lives[-1])
    finally:
        for store in lives:
            store.close()


# ── files that are not what they should be ──


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["index", "frames"]), st.floats(0, 1), st.binary(min_size=1, max_size=9)
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([None, 5]),
)
def test_foreign_bytes_show_no_wrong_frame_and_harm_nothing_else(tmp_path_factory, spots, gop):
    clock = FakeClock()
    folder = tmp_path_factory.mktemp("bytes") / "cam"
    store = FrameStore("cam", clock=clock, limits=LIMITS, codec=TagCodec(), folder=folder)
    publish(store, clock, 90, gop=gop)
    store.close()
    for name, where, foreign in spots:
        data = bytearray((folder / name).read_bytes())
        at = int(where * (len(data) - len(foreign)))
        data[at : at + len(foreign)] = foreign
        (folder / name).write_bytes(data)
    store = FrameStore("cam", clock=clock, limits=LIMITS, codec=TagCodec(), folder=folder)
    try:
        check(store)
        publish(store, clock, 10)
        assert len(check(store)) >= 10
    finally:
        store.close()


@pytest.mark.parametrize("position", [0, 3])
def test_a_damaged_frame_takes_only_what_is_decoded_from_it(make_store, clock, tmp_path, position):
    store = make_store()
    publish(store, clock, 20)
    where = store._tiers.chunks.chunk(10).entries[position]
    store.close()
    frames = tmp_path / "cam" / "frames"
    data = bytearray(frames.read_bytes())
    data[where.offset + where.size - 1] ^= 1
    frames.write_bytes(data)
    store = make_store()
    assert check(store) == [*range(10), *range(10, 10 + position), *range(15, 20)]
    assert store.counters().evicted_by_reason == {"restart": 5 - position}


def test_a_state_torn_in_writing_is_the_one_before(make_store, clock, tmp_path):
    store = make_store()
    publish(store, clock, 10)
    sequence = store._files._sequence if store._files else 0
    store.close()
    index = tmp_path / "cam" / "index"
    data = bytearray(index.read_bytes())
    data[4096 + (sequence + 1) % 2 * 8192 + 40] ^= 1
    index.write_bytes(data)
    assert check(make_store()) == list(range(10))


def test_a_picture_ahead_of_the_counts_is_not_taken_for_a_later_one(make_store, clock, tmp_path):
    """A loss of power may take the newest counts and leave the newest rows."""
    store = make_store()
    publish(store, clock, 10)
    before = (tmp_path / "cam" / "index").read_bytes()[:20480]
    publish(store, clock, 10)
    store.close()
    overwrite(tmp_path / "cam" / "index", 0, before)
    store = make_store(codec=Standing())
    assert check(store) == list(range(10))
    for _ in range(10):  # other pictures under the same indices, none of them in the history
        store.publish(RgbPixels(np.full((4, 6, 3), 200, np.uint8)))
        assert store.wait_encoded(30)
    assert check(make_store(copied(tmp_path / "cam"))) == list(range(10))


_ON_A_SMALL_DISK = """
import sys
from pathlib import Path
from liveedge.core.clock import SystemClock
from liveedge.frames.store import FrameStore, StoreLimits

folder = Path(sys.argv[1]) / "cam"
limits = StoreLimits(history_bytes=4 << 20, max_frames=100, prefault=False)
store = FrameStore("cam", clock=SystemClock(), limits=limits, folder=folder)
print((folder / "frames").stat().st_size)
"""
_MOUNT = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=2m none "$0" && exec "$@"')


def test_files_that_do_not_fit_on_the_disk_take_nothing_of_it(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("needs the right to mount a small disk of its own")
    command = [*_MOUNT, str(tmp_path), sys.executable, "-c", _ON_A_SMALL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "denied" in done.stderr or "not permitted" in done.stderr:
        pytest.skip("needs the right to mount a small disk of its own")
    assert done.stdout == "0\n", done.stderr
    assert "kept in memory only: No space left on device" in done.stderr


def overwrite(path: Path, at: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: overwrite(folder / "index", 0, b"SOMETHING ELSE"),
        lambda folder: overwrite(folder / "index", 4096, bytes(2 * 8192)),
        lambda folder: (folder / "index").write_bytes(b"LIVEEDGE"),
        lambda folder: os.truncate(folder / "index", 9000),
    ],
    ids=["foreign", "no state", "tiny", "cut"],
)
def test_a_folder_of_no_use_is_set_aside_and_said(make_store, clock, tmp_path, spoil, caplog):
    folder = tmp_path / "cam"
    store = make_store()
    publish(store, clock, 10)
    store.close()
    spoil(folder)
    store = make_store()
    assert store.counters().received == 0
    assert "cannot be read" in caplog.text
    assert (tmp_path / "cam.unreadable").is_dir()
    publish(store, clock, 5)
    assert check(store) == [0, 1, 2, 3, 4]
    store.close()
    FrameStore.forget(folder)
    assert list(tmp_path.iterdir()) == []


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def to_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder")


@pytest.mark.parametrize(
    "lose",
    [
        lambda folder: shutil.rmtree(folder),
        lambda folder: (folder / "index").unlink(),
        lambda folder: zero(folder / "index"),
        lambda folder: os.truncate(folder / "index", 9000),
        to_file,
    ],
    ids=["folder gone", "index gone", "index zeroed", "index cut", "not usable"],
)
def test_a_lost_history_gives_no_index_and_no_moment_twice(
    make_store, clock, tmp_path, lose, caplog
):
    store = make_store()
    publish(store, clock, 10)
    mark = store.mark()
    assert mark is not None
    publish(store, clock, 10)  # of which the mark knows nothing
    first_at_ms = store.counters().first_frame_at_ms
    store.close()
    lose(tmp_path / "cam")
    clock.move(5)
    store = make_store()
    store.go_on_after(mark)
    assert "frames 0 to 9" in caplog.text
    assert f"next frame has index {10 + INDICES_AHEAD}" in caplog.text
    with pytest.raises(FrameEvicted):
        store.load(15)
    shade = (10 + INDICES_AHEAD) % 256
    frame = store.publish(RgbPixels(np.full((4, 6, 3), shade, np.uint8)))
    assert frame is not None
    assert (frame.index, frame.after_gap) == (10 + INDICES_AHEAD, True)
    assert frame.captured_at_ms == clock.wall_ms()
    counters = store.counters()
    assert counters.first_frame_at_ms == first_at_ms
    assert counters.gaps == (Gap(900, frame.stream_time_ms),)
    assert_books_balance(counters)
    clock.move(0.1)
    publish(store, clock, 12)
    check(store)


def test_an_index_that_is_back_in_an_older_state_gives_no_index_twice(make_store, clock, tmp_path):
    store = make_store()
    publish(store, clock, 5)
    old = copied(tmp_path / "cam")
    publish(store, clock, 10)
    mark = store.mark()
    assert mark is not None
    again = make_store(old)
    again.go_on_after(mark)
    assert again.snapshot().index.tolist() == []
    publish(again, clock, 1, gop=None)
    assert again.counters().last_frame_index == 15 + INDICES_AHEAD
    assert_books_balance(again.counters())


def test_the_history_of_another_stream_is_not_taken_for_ones_own(make_store, clock, tmp_path):
    store = make_store()
    publish(store, clock, 5)
    mark = store.mark()
    clock.move(1)
    other = make_store(tmp_path / "other")
    publish(other, clock, 20)
    other.close()
    again = make_store(tmp_path / "other")
    assert mark is not None
    again.go_on_after(mark)
    assert again.snapshot().index.tolist() == []
    assert again.counters().first_frame_at_ms == store.counters().first_frame_at_ms


def test_a_mark_says_nothing_to_a_history_that_is_whole(make_store, clock, caplog):
    store = make_store()
    assert store.mark() is None
    publish(store, clock, 10)
    mark = store.mark()
    assert mark is not None
    publish(store, clock, 10)
    store.close()
    store = make_store()
    store.go_on_after(mark)
    assert check(store) == list(range(20))
    assert caplog.text == ""


def test_a_store_says_why_it_does_not_outlive_the_process(make_store, tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert make_store().failure is None
    assert make_store(tmp_path / "file" / "cam").failure == "Not a directory"


def test_files_of_another_version_are_set_aside(make_store, clock, tmp_path, caplog):
    store = make_store()
    publish(store, clock, 3)
    store.close()
    index = tmp_path / "cam" / "index"
    header = bytearray(index.read_bytes()[:28])
    struct.pack_into("<I", header, 8, VERSION + 1)
    overwrite(index, 0, bytes(header) + struct.pack("<I", zlib.crc32(header)))
    assert make_store().counters().received == 0
    assert f"version {VERSION + 1}" in caplog.text


def test_lost_bytes_of_the_frames_cost_the_frames_alone(make_store, clock, tmp_path, caplog):
    store = make_store()
    publish(store, clock, 10)
    store.close()
    (tmp_path / "cam" / "frames").unlink()
    store = make_store()
    assert check(store) == []
    assert store.counters().evicted_by_reason == {"restart": 10}
    assert "10 frames of the history of cam are lost or damaged" in caplog.text


def test_frames_that_are_damaged_are_said(make_store, clock, tmp_path, caplog):
    store = make_store()
    publish(store, clock, 10)
    store.close()
    overwrite(tmp_path / "cam" / "frames", 3, b"x")  # in the first of two chunks
    assert check(make_store()) == [5, 6, 7, 8, 9]
    assert "5 frames of the history of cam are lost or damaged" in caplog.text


def test_a_folder_that_cannot_be_is_said_and_the_history_is_in_memory(
    make_store, clock, tmp_path, caplog
):
    (tmp_path / "file").write_text("no folder")
    store = make_store(tmp_path / "file" / "cam")
    publish(store, clock, 10)
    assert check(store) == list(range(10))
    assert "kept in memory only" in caplog.text


def test_two_stores_never_share_a_folder(make_store, clock, caplog):
    first = make_store()
    publish(first, clock, 5)
    second = make_store()
    assert "kept in memory only" in caplog.text
    publish(second, clock, 1)
    assert check(first) == [0, 1, 2, 3, 4]
    with pytest.raises(FrameEvicted):
        second.load(4)


def test_nobody_else_can_read_the_files(make_store, tmp_path):
    make_store()
    folder = tmp_path / "cam"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_forgotten_folder_is_gone(make_store, clock, tmp_path):
    store = make_store()
    publish(store, clock, 5)
    store.close()
    FrameStore.forget(tmp_path / "cam")
    FrameStore.forget(tmp_path / "cam")
    assert not (tmp_path / "cam").exists()


def test_a_real_camera_goes_on_over_a_restart(make_store, clock):
    sent = coded_frames(60, gop=10)
    limits = StoreLimits(hot_bytes=1, history_bytes=2**21, prefault=False)
    for life in range(3):
        store = make_store(limits=limits, codec=AvHistoryCodec())
        for one in sent[life * 20 : life * 20 + 20]:
            store.publish(one.pixels, coded=one.coded)
            assert store.wait_encoded(30)
            clock.move(1 / 30)
        for index in store.snapshot().index.tolist():
            assert np.array_equal(store.load(index), sent[index].pixels.rgb())
        assert store.counters().retained == life * 20 + 20
        store.close()

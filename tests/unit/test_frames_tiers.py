"""The tiers: whatever the order of publishing, compressing and expiring, nothing is lost, doubled or
uncounted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from liveedge.frames.chunks import Piece
from liveedge.frames.frame import CodecParams, CodedFrame, Frame
from liveedge.frames.history import Arena
from liveedge.frames.tiers import FrameTiers, InChunk


@dataclass(frozen=True, slots=True)
class FakePixels:
    """Pixels of a claimed size; their content is their tag."""

    tag: int
    nbytes: int
    width: int = 4
    height: int = 2

    def rgb(self):
        return np.full((self.height, self.width, 3), self.tag % 256, dtype=np.uint8)


def frame(index: int, *, at_ms: int = 0, nbytes: int = 10, corrupt: bool = False) -> Frame:
    return Frame(
        index=index,
        stream_time_ms=at_ms,
        captured_at_ms=at_ms,
        arrived_s=at_ms / 1000,
        pixels=FakePixels(index, nbytes),
        corrupt=corrupt,
    )


def make_tiers(*, hot=30, history=100, retention_ms=1000, max_frames=100) -> FrameTiers:
    return FrameTiers(
        hot_bytes=hot, retention_ms=retention_ms, max_frames=max_frames, arena=Arena(history)
    )


HEAD_BYTES = 4 + 1 + 4  # of a key piece: the length of its format, the format, its packet's length


def encode_next(tiers: FrameTiers, size: int = 15, *, is_key: bool = True) -> int | None:
    """Give the next frame to an encoder that makes an entry of `size` bytes of it."""
    given = tiers.next_to_encode()
    if given is None:
        return None
    if not tiers.finish_encode(piece(given.index, size, is_key=is_key)):
        assert tiers.finish_encode(piece(given.index, size))
    return given.index


def piece(index: int, size: int, *, is_key: bool = True, exact: bool = False) -> Piece:
    """What takes `size` bytes in the arena and names its frame."""
    n_bytes = size - (HEAD_BYTES if is_key else 4)
    return Piece(format=b"f", packets=(bytes([index % 256]) * n_bytes,), is_key=is_key, exact=exact)


def stored(tiers: FrameTiers, index: int) -> list[int]:
    """The frames of the chunk of a frame, up to it, as their bytes name them."""
    run = tiers.read(index, until=index)
    assert run is not None
    for at, (data,) in run.pieces:
        assert set(data) == {at % 256}
    return [at for at, _ in run.pieces]


def where(tiers: FrameTiers) -> list[str]:
    kinds = {Frame: "hot", InChunk: "chunk", type(None): "gone"}
    return [kinds[type(tiers.find(index))] for index in range(tiers.n_produced)]


def retained(tiers: FrameTiers) -> list[int]:
    return [index for index in range(tiers.n_produced) if tiers.find(index) is not None]


def test_a_frame_stays_raw_while_hot_and_compressed_after():
    tiers = make_tiers(hot=30)
    for index in range(5):
        tiers.append(frame(index))
        encode_next(tiers)
    assert where(tiers) == ["chunk", "chunk", "hot", "hot", "hot"]
    assert (stored(tiers, 0), stored(tiers, 1)) == ([0], [1])
    assert tiers.evicted == {}


def test_a_slow_encoder_costs_old_frames_evenly_and_they_are_counted():
    tiers = make_tiers(hot=40, history=300)
    for index in range(20):
        tiers.append(frame(index))
        if index % 2:
            encode_next(tiers)
    kept = retained(tiers)
    assert tiers.evicted == {"encoder_behind": 20 - len(kept)}
    assert kept[-4:] == [16, 17, 18, 19]
    gaps = [b - a for a, b in pairwise(kept)]
    assert max(gaps) == 2
    assert len(kept) >= 12


def test_a_frame_in_the_encoders_hands_is_retained_after_leaving_the_hot_ring():
    tiers = make_tiers(hot=20)
    tiers.append(frame(0))
    given = tiers.next_to_encode()
    for index in (1, 2, 3):
        tiers.append(frame(index))
    assert tiers.find(0) is given
    assert tiers.raw_bytes == 30
    tiers.finish_encode(piece(0, 15))
    assert stored(tiers, 0) == [0]
    assert tiers.raw_bytes == 20
    assert tiers.evicted == {"encoder_behind": 1}  # frame 1 left while 0 was being compressed


def test_the_encoder_is_woken_for_some_frames_at_once():
    tiers = make_tiers(hot=120)
    due = []
    for index in range(24):
        tiers.append(frame(index, at_ms=33 * index))
        due.append(tiers.is_due(250))
        while due[-1] and encode_next(tiers) is not None:
            pass
    assert [index for index, is_due in enumerate(due) if is_due] == [0, 1, 2, 4, 6, 9, 13, 17, 21]


def test_the_encoder_is_woken_at_each_frame_that_comes_late():
    tiers = make_tiers(hot=120)
    for index in range(12):
        tiers.append(frame(index, at_ms=250 * (index + 1)))
        assert tiers.is_due(250)
        encode_next(tiers)


def test_a_frame_that_cannot_be_compressed_is_kept_while_hot_and_then_counted():
    tiers = make_tiers(hot=20)
    tiers.append(frame(0))
    assert tiers.next_to_encode() is not None
    tiers.finish_encode(None)
    assert isinstance(tiers.find(0), Frame)
    for index in (1, 2):
        tiers.append(frame(index))
        encode_next(tiers)
    assert tiers.find(0) is None
    assert tiers.evicted == {"encode_failed": 1}


def test_the_newest_frame_is_kept_even_when_it_alone_exceeds_the_hot_bytes():
    tiers = make_tiers(hot=30)
    tiers.append(frame(0, nbytes=500))
    assert tiers.latest is not None
    tiers.append(frame(1, nbytes=500))
    assert retained(tiers) == [1]


def test_a_compressed_frame_larger_than_the_history_lives_only_while_hot():
    tiers = make_tiers(hot=10, history=14)
    tiers.append(frame(0))
    encode_next(tiers, size=15)
    assert retained(tiers) == [0]
    tiers.append(frame(1))
    assert retained(tiers) == [1]
    assert tiers.evicted == {"history_full": 1}


def test_a_hot_frame_outlives_its_compressed_copy():
    tiers = make_tiers(hot=30, history=20)
    for index in range(3):
        tiers.append(frame(index))
        encode_next(tiers, size=19)
    assert retained(tiers) == [0, 1, 2]
    tiers.append(frame(3))
    assert retained(tiers) == [1, 2, 3]
    assert tiers.evicted == {"history_full": 1}


def test_without_a_history_frames_live_in_the_hot_ring_alone():
    tiers = make_tiers(hot=30, history=0)
    for index in range(5):
        tiers.append(frame(index))
    assert tiers.next_to_encode() is None
    assert tiers.n_unencoded == 0
    assert retained(tiers) == [2, 3, 4]
    assert tiers.evicted == {"history_full": 2}


def test_a_full_history_gives_up_its_oldest():
    tiers = make_tiers(hot=10, history=60)
    for index in range(10):
        tiers.append(frame(index))
        encode_next(tiers, size=15)
    assert retained(tiers) == [6, 7, 8, 9]
    assert tiers.evicted == {"history_full": 6}


def test_what_is_older_than_the_retention_goes_even_the_newest():
    tiers = make_tiers(retention_ms=1000)
    for index, at_ms in enumerate([0, 500, 1000]):
        tiers.append(frame(index, at_ms=at_ms))
    tiers.expire(1000)
    assert retained(tiers) == [0, 1, 2]
    tiers.expire(1001)
    assert retained(tiers) == [1, 2]
    tiers.expire(9999)
    assert retained(tiers) == []
    assert tiers.latest is None
    assert tiers.evicted == {"retention": 3}
    tiers.append(frame(3, at_ms=10_000))
    assert retained(tiers) == [3]


def test_a_frame_that_expires_in_the_encoders_hands_is_counted_once():
    tiers = make_tiers(retention_ms=1000)
    tiers.append(frame(0))
    assert tiers.next_to_encode() is not None
    tiers.expire(5000)
    tiers.finish_encode(piece(0, 15))
    assert tiers.evicted == {"retention": 1}
    assert (tiers.n_retained, len(tiers.arena)) == (0, 0)


def test_the_index_has_a_bound_too():
    tiers = make_tiers(hot=1000, max_frames=4)
    for index in range(25):  # over the end of the columns, several times
        tiers.append(frame(index))
    assert retained(tiers) == [21, 22, 23, 24]
    assert tiers.evicted == {"index_full": 21}


def test_clearing_frees_everything():
    tiers = make_tiers()
    for index in range(5):
        tiers.append(frame(index))
        encode_next(tiers)
    tiers.next_to_encode()
    tiers.clear()
    assert (tiers.raw_bytes, tiers.arena.touched_bytes, tiers.n_retained) == (0, 0, 0)
    assert tiers.latest is None
    assert tiers.find(4) is None


def test_only_the_next_index_can_be_appended():
    tiers = make_tiers()
    with pytest.raises(AssertionError):
        tiers.append(frame(1))


def test_a_full_history_gives_up_whole_chunks():
    tiers = make_tiers(hot=10, history=100)
    for index in range(12):
        tiers.append(frame(index))
        encode_next(tiers, size=10, is_key=index % 5 == 0)
    assert where(tiers)[:5] == ["gone"] * 5
    assert stored(tiers, 7) == [5, 6, 7]
    assert tiers.evicted == {"history_full": 5}


def test_a_frame_can_be_read_while_its_chunk_grows_and_while_its_elders_are_gone():
    tiers = make_tiers(hot=10, retention_ms=1000)
    for index in range(6):
        tiers.append(frame(index, at_ms=500 * index))
        encode_next(tiers, size=10, is_key=index == 0)
    assert retained(tiers) == [3, 4, 5]
    assert stored(tiers, 4) == [0, 1, 2, 3, 4]  # the bytes of 0 to 2 are still needed
    tiers.append(frame(6, at_ms=9000))
    assert (len(tiers.chunks), tiers.arena.used_bytes) == (0, 0)


def test_a_piece_whose_chunk_made_room_for_it_has_to_begin_one():
    tiers = make_tiers(hot=10, history=40)
    for index in range(4):
        tiers.append(frame(index))
        given = tiers.next_to_encode()
        assert given is not None
        if index < 3:
            assert tiers.finish_encode(piece(index, 13, is_key=index == 0))
    assert not tiers.finish_encode(piece(3, 13, is_key=False))
    assert (tiers.n_unencoded, tiers.must_begin) == (1, True)
    assert tiers.finish_encode(piece(3, 13))
    tiers.append(frame(4))
    assert stored(tiers, 3) == [3]
    assert tiers.evicted == {"history_full": 3}


def test_what_follows_a_frame_that_expired_in_the_encoders_hands_begins_a_chunk():
    tiers = make_tiers(retention_ms=1000)
    tiers.append(frame(0))
    encode_next(tiers)
    tiers.append(frame(1, at_ms=900))
    assert tiers.next_to_encode() is not None
    tiers.append(frame(2, at_ms=1950))
    tiers.finish_encode(piece(1, 10, is_key=False))
    assert tiers.must_begin
    tiers.next_to_encode()
    assert not tiers.finish_encode(piece(2, 10, is_key=False))


def test_a_chunk_that_does_not_give_its_frames_is_evicted_but_for_what_is_hot():
    tiers = make_tiers(hot=20)
    for index in range(5):
        tiers.append(frame(index))
        encode_next(tiers, size=15, is_key=index in (0, 1))
    tiers.drop_chunk_of(4)
    assert where(tiers) == ["chunk", "gone", "gone", "hot", "hot"]
    assert tiers.evicted == {"replay_differs": 2}
    tiers.append(frame(5))
    assert where(tiers)[3:] == ["gone", "hot", "hot"]
    assert tiers.evicted == {"replay_differs": 3}


def test_the_packets_of_a_hot_frame_count_as_its_pixels_do():
    tiers = make_tiers(hot=30)
    coded = CodedFrame(params=CodecParams(codec="any"), packets=(bytes(7), bytes(3)), is_key=True)
    for index in range(3):
        tiers.append(replace(frame(index), coded=coded))
    assert (tiers.n_hot, tiers.raw_bytes) == (1, 20)


def test_a_frame_of_its_sources_packets_is_exact_unless_it_is_corrupt():
    tiers = make_tiers(hot=10)
    for index, is_exact in enumerate([True, True, False, True]):
        tiers.append(frame(index, corrupt=index == 1))
        given = tiers.next_to_encode()
        assert given is not None
        assert tiers.finish_encode(piece(index, 15, exact=is_exact))
    assert [tiers.is_exact(index) for index in range(5)] == [True, False, False, True, False]


class TiersMachine(RuleBasedStateMachine):
    """Every interleaving of a publisher, an encoder and a clock, against plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.tiers = make_tiers(hot=40, history=60, retention_ms=500, max_frames=12)
        self.now_ms = 0
        self.given: int | None = None
        self.ever_given: list[int] = []
        self.gone: set[int] = set()

    @rule(step_ms=st.integers(0, 120), nbytes=st.sampled_from([1, 10, 15, 39, 41, 90]))
    def publish(self, step_ms: int, nbytes: int) -> None:
        self.now_ms += step_ms
        index = self.tiers.n_produced
        self.tiers.append(frame(index, at_ms=self.now_ms, nbytes=nbytes))
        latest = self.tiers.latest
        assert latest is not None
        assert latest.index == index

    @precondition(lambda self: self.given is None)
    @rule()
    def take(self) -> None:
        frame_given = self.tiers.next_to_encode()
        if frame_given is not None:
            self.given = frame_given.index
            self.ever_given.append(frame_given.index)

    @precondition(lambda self: self.given is not None)
    @rule(size=st.sampled_from([10, 12, 20, 33, 60, 61]), is_key=st.booleans())
    def give_back(self, size: int, is_key: bool) -> None:
        assert self.given is not None
        if not self.tiers.finish_encode(piece(self.given, size, is_key=is_key)):
            assert not is_key
            assert self.tiers.must_begin
            assert self.tiers.finish_encode(piece(self.given, size))
        self.given = None

    @precondition(lambda self: self.given is None)
    @rule(back=st.integers(0, 12))
    def distrust(self, back: int) -> None:
        self.tiers.drop_chunk_of(self.tiers.n_produced - 1 - back)

    @precondition(lambda self: self.given is not None)
    @rule()
    def give_up(self) -> None:
        self.tiers.finish_encode(None)
        self.given = None

    @rule(step_ms=st.integers(0, 700))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.tiers.expire(self.now_ms)

    @invariant()
    def every_frame_is_retained_or_counted_as_evicted(self) -> None:
        tiers = self.tiers
        assert tiers.n_retained + tiers.evicted.total() == tiers.n_produced
        assert len(retained(tiers)) == tiers.n_retained

    @invariant()
    def retained_pixels_are_the_ones_that_were_published(self) -> None:
        for index in retained(self.tiers):
            found = self.tiers.find(index)
            if isinstance(found, InChunk):
                assert (found.width, found.height) == (4, 2)
                assert stored(self.tiers, index)[0] == found.first_index
                assert stored(self.tiers, index)[-1] == index
            else:
                assert isinstance(found, Frame)
                assert isinstance(found.pixels, FakePixels)
                assert found.pixels.tag == index

    @invariant()
    def what_is_evicted_never_comes_back(self) -> None:
        gone = set(range(self.tiers.n_produced)) - set(retained(self.tiers))
        assert gone >= self.gone
        self.gone = gone

    @invariant()
    def the_snapshot_shows_exactly_the_retained(self) -> None:
        newest_ms = self.now_ms
        snapshot = self.tiers.index.snapshot(
            stream_id="cam", taken_at_s=0.0, first_at_ms=7, newest_ms=newest_ms
        )
        assert snapshot.index.tolist() == retained(self.tiers)
        assert snapshot.n_produced == self.tiers.n_produced
        assert (snapshot.captured_at_ms == snapshot.stream_time_ms + 7).all()
        assert (np.diff(snapshot.stream_time_ms) >= 0).all()
        first = snapshot.index[0] if len(snapshot) else None
        assert self.tiers.index.first_index == first

    @invariant()
    def memory_is_bounded(self) -> None:
        tiers = self.tiers
        biggest = 90
        newest = tiers.latest
        alone = newest is not None and newest.pixels.nbytes > 40
        assert tiers.raw_bytes <= (biggest if alone else 40) + biggest
        assert tiers.arena.used_bytes <= 60
        assert tiers.index.n_rows <= 12

    @invariant()
    def the_arena_holds_the_chunks_and_nothing_else(self) -> None:
        chunks = list(self.tiers.chunks)
        entries = [entry for chunk in chunks for entry in chunk.entries]
        assert len(self.tiers.arena) == len(entries)
        assert self.tiers.arena.used_bytes == sum(entry.size for entry in entries)
        for chunk in chunks:
            assert chunk.n_alive == sum(
                self.tiers.index.is_alive(entry.index) for entry in chunk.entries
            ) or (chunk.n_alive == 0)
        assert not chunks or chunks[0].n_alive > 0

    @invariant()
    def the_encoder_gets_each_frame_at_most_once_and_oldest_first(self) -> None:
        assert self.ever_given == sorted(set(self.ever_given))

    @invariant()
    def what_waits_for_the_encoder_is_known(self) -> None:
        assert 0 <= self.tiers.n_unencoded <= self.tiers.n_hot + 1


TestTiersMachine = TiersMachine.TestCase
TestTiersMachine.settings = settings(max_examples=60, stateful_step_count=40)

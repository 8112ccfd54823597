"""The tiers: whatever the order of publishing, compressing and expiring, nothing is lost, doubled or
uncounted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from liveedge.frames.frame import Frame
from liveedge.frames.tiers import Compressed, FrameTiers


@dataclass(frozen=True, slots=True)
class FakePixels:
    """Pixels of a claimed size; their content is their tag."""

    tag: int
    nbytes: int
    width: int = 4
    height: int = 2

    def rgb(self):
        return np.full((self.height, self.width, 3), self.tag % 256, dtype=np.uint8)


def frame(index: int, *, at_ms: int = 0, nbytes: int = 10) -> Frame:
    return Frame(
        index=index,
        stream_time_ms=at_ms,
        captured_at_ms=at_ms,
        arrived_s=at_ms / 1000,
        pixels=FakePixels(index, nbytes),
    )


def make_tiers(*, hot=30, history=100, retention_ms=1000, max_frames=100) -> FrameTiers:
    return FrameTiers(
        hot_bytes=hot, history_bytes=history, retention_ms=retention_ms, max_frames=max_frames
    )


def encode_next(tiers: FrameTiers, size: int = 5) -> int | None:
    given = tiers.next_to_encode()
    if given is None:
        return None
    tiers.finish_encode(payload(given.index, size))
    return given.index


def payload(index: int, size: int) -> bytes:
    return bytes([index % 256]) * size


def retained(tiers: FrameTiers) -> list[int]:
    return [index for index in range(tiers.n_produced) if tiers.find(index) is not None]


def test_a_frame_stays_raw_while_hot_and_compressed_after():
    tiers = make_tiers(hot=30)
    for index in range(5):
        tiers.append(frame(index))
        encode_next(tiers)
    found = [tiers.find(index) for index in range(5)]
    assert found[:2] == [Compressed(payload(0, 5)), Compressed(payload(1, 5))]
    assert [f.index for f in found[2:] if isinstance(f, Frame)] == [2, 3, 4]
    assert tiers.evicted == {}


def test_a_slow_encoder_costs_old_frames_evenly_and_they_are_counted():
    tiers = make_tiers(hot=40)
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
    tiers.finish_encode(payload(0, 5))
    assert tiers.find(0) == Compressed(payload(0, 5))
    assert tiers.raw_bytes == 20
    assert tiers.evicted == {"encoder_behind": 1}  # frame 1 left while 0 was being compressed


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
    tiers = make_tiers(hot=10, history=4)
    tiers.append(frame(0))
    encode_next(tiers, size=5)
    assert retained(tiers) == [0]
    tiers.append(frame(1))
    assert retained(tiers) == [1]
    assert tiers.evicted == {"history_full": 1}


def test_a_hot_frame_outlives_its_compressed_copy():
    tiers = make_tiers(hot=30, history=10)
    for index in range(3):
        tiers.append(frame(index))
        encode_next(tiers, size=9)
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
    tiers = make_tiers(hot=10, history=20)
    for index in range(10):
        tiers.append(frame(index))
        encode_next(tiers, size=5)
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
    tiers.finish_encode(payload(0, 5))
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
    @rule(size=st.sampled_from([1, 7, 20, 33, 60, 61]))
    def give_back(self, size: int) -> None:
        assert self.given is not None
        self.tiers.finish_encode(payload(self.given, size))
        self.given = None

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
            if isinstance(found, Compressed):
                assert set(found.data) == {index % 256}
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
    def the_encoder_gets_each_frame_at_most_once_and_oldest_first(self) -> None:
        assert self.ever_given == sorted(set(self.ever_given))

    @invariant()
    def what_waits_for_the_encoder_is_known(self) -> None:
        assert 0 <= self.tiers.n_unencoded <= self.tiers.n_hot + 1


TestTiersMachine = TiersMachine.TestCase
TestTiersMachine.settings = settings(max_examples=60, stateful_step_count=40)

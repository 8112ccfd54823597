"""Pairs of frames: by absolute tick, so that sliding windows share groups."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import assume, given, strategies as st

from liveedge.core.errors import SegmentEmpty
from liveedge.frames.pairs import pair_ticks
from liveedge.frames.refs import Anchor, SegmentRef, parse_ref
from liveedge.frames.resolve import resolve_segment
from tests.snapshots import make_snapshot, pasts

RATES = st.sampled_from([Fraction(1), Fraction(2), Fraction(5), Fraction("29.97")])


def grid_segment(start_ms: int, *, end_ms: int | None = None, rate: Fraction = Fraction(1)):
    end = None if end_ms is None else Anchor("timestamp_ms", end_ms)
    return SegmentRef(
        stream_id="cam",
        start=Anchor("timestamp_ms", start_ms),
        end=end,
        max_fps=rate,
        edge="grid",
    )


def pair_indices(ref, snapshot):
    pairs = pair_ticks(resolve_segment(ref, snapshot).picks)
    return [(a.index, b.index) for a, b in pairs]


def test_ticks_2j_and_2j_plus_1_form_a_pair_and_ends_are_doubled():
    snapshot = make_snapshot([1000 * i for i in range(8)])
    assert pair_indices(grid_segment(2000), snapshot) == [(2, 3), (4, 5), (6, 7)]
    assert pair_indices(grid_segment(1000), snapshot) == [(1, 1), (2, 3), (4, 5), (6, 7)]
    assert pair_indices(grid_segment(2000, end_ms=5000), snapshot) == [(2, 3), (4, 4)]
    assert pair_indices(grid_segment(7000), snapshot) == [(7, 7)]


def test_the_newest_frame_takes_the_place_of_its_tick():
    snapshot = make_snapshot([0, 1000, 2000, 3000, 3700])
    ref = parse_ref("ovs://streams/cam?start_timestamp_ms=0", kind="video")
    assert pair_indices(ref, snapshot) == [(0, 1), (2, 4)]


def test_a_frame_whose_partner_is_missing_stands_twice():
    snapshot = make_snapshot([0, 1000, 5000, 6000, 7000])
    assert pair_indices(grid_segment(0), snapshot) == [(0, 1), (2, 2), (3, 4)]


def test_frames_of_unequal_size_never_share_a_group():
    sizes = [(640, 480), (320, 240), (320, 240), (320, 240)]
    snapshot = make_snapshot([0, 1000, 2000, 3000], sizes=sizes)
    assert pair_indices(grid_segment(0), snapshot) == [(0, 0), (1, 1), (2, 3)]


def test_nothing_gives_no_pairs():
    assert pair_ticks([]) == []


@given(pasts(), RATES)
def test_every_pick_is_in_exactly_one_group_in_order(past, rate):
    assume(past.retained)
    picks = resolve_segment(grid_segment(0, rate=rate), past.snapshot()).picks
    pairs = pair_ticks(picks)
    assert [p for a, b in pairs for p in ((a,) if a is b else (a, b))] == list(picks)


@given(pasts(), RATES, st.data())
def test_a_sliding_window_keeps_all_groups_but_those_at_its_ends(past, rate, data):
    assume(past.retained)
    snapshot = past.snapshot()
    newest_ms = past.times_ms[-1]
    start = data.draw(st.integers(0, newest_ms))
    end = data.draw(st.integers(start + 1, newest_ms + 1))
    whole = pair_indices(grid_segment(0, rate=rate), snapshot)
    try:
        part = pair_indices(grid_segment(start, end_ms=end, rate=rate), snapshot)
    except SegmentEmpty:
        return
    assert set(part[1:-1]) <= set(whole)

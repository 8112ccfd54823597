"""The resolver: examples that read like the specification, and equality with a naive reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import pytest
from hypothesis import assume, given, settings, strategies as st

from liveedge.core.errors import (
    FrameEvicted,
    FrameNotYetProduced,
    SegmentEmpty,
    SegmentInvalid,
    StreamError,
)
from liveedge.frames.refs import Anchor, ImageRef, SegmentRef, parse_ref
from liveedge.frames.resolve import resolve_image, resolve_segment
from tests.snapshots import FIRST_AT_MS, Past, make_snapshot, pasts

TEN_FPS = [100 * i for i in range(101)]  # 0 to 10 s


def image_index(query, snapshot):
    return resolve_image(parse_ref(f"ovs://streams/cam?{query}", kind="image"), snapshot).index


def segment_pick(query, snapshot):
    return resolve_segment(parse_ref(f"ovs://streams/cam?{query}", kind="video"), snapshot)


def segment_indices(query, snapshot):
    return [pick.index for pick in segment_pick(query, snapshot).picks]


# ── images ──


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("frame_index=0", 0),
        ("frame_index=100", 100),
        ("frame_index=-1", 100),
        ("frame_index=-101", 0),
        ("frame_index=7&tolerance_ms=1&direction=forward", 7),
        ("timestamp_ms=500", 5),
        ("timestamp_ms=540", 5),
        ("timestamp_ms=560", 6),
        ("timestamp_ms=550", 5),  # a tie: the earlier
        ("timestamp_ms=540&direction=forward", 6),
        ("timestamp_ms=560&direction=backward", 5),
        ("timestamp_ms=500&direction=forward", 5),
        ("timestamp_ms=500&direction=backward", 5),
        ("timestamp_ms=10050", 100),
        ("timestamp_ms=-100", 0),
        ("offset_ms=-1000", 90),
        ("offset_ms=0", 0),
        ("offset_ms=1000", 10),
        ("offset_ms=-9999&tolerance_ms=99&direction=forward", 1),
    ],
)
def test_an_image_reference_names_one_frame(query, index):
    assert image_index(query, make_snapshot(TEN_FPS)) == index


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("frame_index=101", FrameNotYetProduced),
        ("frame_index=49", FrameEvicted),
        ("frame_index=-60", FrameEvicted),
        ("frame_index=-102", SegmentEmpty),
        ("timestamp_ms=4800", SegmentEmpty),
        ("timestamp_ms=10101", SegmentEmpty),
        ("timestamp_ms=10001&direction=forward", SegmentEmpty),
        ("timestamp_ms=4999&direction=backward", SegmentEmpty),
        ("timestamp_ms=5050&tolerance_ms=49", SegmentEmpty),
        ("offset_ms=-5101", SegmentEmpty),
        ("offset_ms=5101", SegmentEmpty),
    ],
)
def test_an_image_reference_that_names_none_says_why(query, error):
    with pytest.raises(error):
        image_index(query, make_snapshot(TEN_FPS, retained=range(50, 101)))


GAPPED = [0, 100, 200, 36_200, 36_300]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("timestamp_ms=5000", "the gap from 200 to 36200 ms, between frames 2 and 3"),
        ("offset_ms=-5000", "the gap from 200 to 36200 ms, between frames 2 and 3"),
        ("timestamp_ms=5000", "; tolerance_ms=4800 would give frame 2"),
        ("timestamp_ms=5000&direction=forward", "; direction=nearest and tolerance_ms=4800 would"),
        ("timestamp_ms=35000&direction=forward", "; tolerance_ms=1200 would give frame 3"),
        ("timestamp_ms=40000", "; tolerance_ms=3700 would give frame 4"),
    ],
)
def test_a_moment_without_a_frame_is_told_with_its_gap_and_the_way_out(query, told):
    snapshot = make_snapshot(GAPPED)
    with pytest.raises(SegmentEmpty) as caught:
        image_index(query, snapshot)
    assert told in caught.value.message
    if "would" in told:
        parameters = told.split(" would")[0].removeprefix("; ").replace(" and ", "&")
        kept = query if "tolerance" in parameters else ""
        asked = query.split("&")[0] if "direction" in parameters else kept
        image_index(f"{asked}&{parameters}", snapshot)  # the way out is one


def test_a_moment_after_the_newest_frame_is_in_no_gap():
    with pytest.raises(SegmentEmpty) as caught:
        image_index("timestamp_ms=40000", make_snapshot(GAPPED))
    assert "gap" not in caught.value.message


def test_a_segment_inside_a_gap_names_it():
    with pytest.raises(SegmentEmpty, match=r"lies in the gap from 200 to 36200 ms"):
        segment_indices("start_timestamp_ms=5000&end_timestamp_ms=6000", make_snapshot(GAPPED))


def test_tolerance_includes_its_bound():
    snapshot = make_snapshot(TEN_FPS, retained=range(50, 101))
    assert image_index("timestamp_ms=4900", snapshot) == 50
    assert image_index("timestamp_ms=10100", snapshot) == 100


def test_an_offset_counts_from_the_oldest_retained_frame():
    assert image_index("offset_ms=0", make_snapshot(TEN_FPS, retained=range(50, 101))) == 50


def test_of_frames_with_one_time_the_earliest_is_taken():
    snapshot = make_snapshot([0, 100, 100, 100, 200])
    for direction in ("nearest", "forward", "backward"):
        assert image_index(f"timestamp_ms=100&direction={direction}", snapshot) == 1


def test_a_frame_in_a_hole_of_the_history_is_evicted():
    snapshot = make_snapshot(TEN_FPS, retained=[i for i in range(101) if i != 42])
    with pytest.raises(FrameEvicted, match="frame 42 of stream cam"):
        image_index("frame_index=42", snapshot)


def test_a_pick_carries_everything_known_about_the_frame():
    snapshot = make_snapshot([0, 40], sizes=[(640, 480), (320, 240)], corrupt=[1])
    pick = resolve_image(parse_ref("ovs://streams/cam?frame_index=-1", kind="image"), snapshot)
    assert (pick.stream_id, pick.index, pick.stream_time_ms) == ("cam", 1, 40)
    assert (pick.captured_at_ms, pick.arrived_s) == (FIRST_AT_MS + 40, 0.04)
    assert (pick.width, pick.height, pick.corrupt, pick.tick) == (320, 240, True, None)


# ── segments ──


@pytest.mark.parametrize(
    ("query", "indices"),
    [
        ("start_offset_ms=-3000", [70, 80, 90, 100]),
        ("start_offset_ms=-2950", [80, 90, 100]),
        ("start_offset_ms=-2950&end_offset_ms=0", [80, 90, 100]),
        ("start_offset_ms=-2950&end_offset_ms=-50", [80, 90]),
        ("start_offset_ms=0&end_offset_ms=2000", [0, 10]),
        ("start_offset_ms=0&end_offset_ms=2001", [0, 10, 20]),
        ("start_timestamp_ms=1000&end_timestamp_ms=3000", [10, 20]),
        ("start_frame_index=10&end_frame_index=30", [10, 20]),
        ("start_frame_index=11&end_frame_index=31", [20, 30]),
        ("start_frame_index=-21", [80, 90, 100]),
        ("start_frame_index=-21&end_frame_index=-1", [80, 90]),
        ("start_frame_index=-500", list(range(0, 101, 10))),
        ("start_frame_index=80&end_timestamp_ms=9000", [80]),
        ("start_timestamp_ms=8000&end_frame_index=91", [80, 90]),
        ("start_timestamp_ms=9000&end_frame_index=5000", [90, 100]),
        ("start_timestamp_ms=9000&max_fps=2", [90, 95, 100]),
        ("start_timestamp_ms=9000&max_fps=0.5", [100]),
        ("start_timestamp_ms=9700&max_fps=1000", [97, 98, 99, 100]),
    ],
)
def test_a_segment_is_sampled_on_the_grid(query, indices):
    assert segment_indices(query, make_snapshot(TEN_FPS)) == indices


def test_at_the_live_edge_the_last_picked_frame_is_replaced_by_the_newest():
    snapshot = make_snapshot(TEN_FPS[:98])  # newest: 97 at 9.7 s
    assert segment_indices("start_offset_ms=-2700", snapshot) == [70, 80, 97]
    assert segment_indices("start_offset_ms=-2700&edge=grid", snapshot) == [70, 80, 90]
    assert segment_pick("start_offset_ms=-2700", snapshot).at_live_edge


def test_ticks_before_the_oldest_retained_frame_are_outside():
    snapshot = make_snapshot(TEN_FPS, retained=range(55, 101))
    assert segment_indices("start_timestamp_ms=0", snapshot) == [60, 70, 80, 90, 100]
    assert segment_indices("start_frame_index=0", snapshot) == [60, 70, 80, 90, 100]


def test_an_explicit_end_keeps_the_grid_even_beyond_the_newest_frame():
    snapshot = make_snapshot(TEN_FPS[:98])
    pick = segment_pick("start_offset_ms=-2700&end_frame_index=98", snapshot)
    assert [p.index for p in pick.picks] == [70, 80, 90]
    assert not pick.at_live_edge


def test_a_segment_shorter_than_the_grid_gives_one_frame():
    snapshot = make_snapshot(TEN_FPS[:98])
    assert segment_indices("start_offset_ms=-300", snapshot) == [97]
    assert segment_indices("start_offset_ms=-300&edge=grid", snapshot) == [94]
    assert segment_indices("start_frame_index=42&end_frame_index=43", snapshot) == [42]


def test_a_gap_gives_the_frame_after_it_once():
    snapshot = make_snapshot([0, 500, 1000, 5300, 5800, 6300])
    pick = segment_pick("start_timestamp_ms=0&edge=grid", snapshot)
    assert [(p.index, p.tick) for p in pick.picks] == [(0, 0), (2, 1), (3, 5), (5, 6)]


def test_ticks_are_exact_for_rates_that_binary_fractions_miss():
    snapshot = make_snapshot([99_900, 100_000, 100_100])
    pick = segment_pick("start_timestamp_ms=100000&max_fps=4.35&edge=grid", snapshot)
    assert [(p.index, p.tick) for p in pick.picks] == [(1, 435)]  # 4.35 * 100000 < 435000 in floats


@pytest.mark.parametrize("rate", ["1e300", "1e-300", "123456789.123456789"])
def test_absurd_rates_are_exact_too(rate):
    indices = segment_indices(f"start_timestamp_ms=0&max_fps={rate}", make_snapshot(TEN_FPS))
    assert indices == ([100] if rate == "1e-300" else list(range(101)))


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("start_frame_index=101", FrameNotYetProduced),
        ("start_frame_index=101&end_frame_index=3", FrameNotYetProduced),
        ("start_frame_index=60&end_frame_index=60", SegmentInvalid),
        ("start_frame_index=60&end_frame_index=59", SegmentInvalid),
        ("start_frame_index=9&end_frame_index=8", SegmentInvalid),  # before clipping
        ("start_timestamp_ms=800&end_timestamp_ms=800", SegmentInvalid),
        ("start_timestamp_ms=20000&end_timestamp_ms=20000", SegmentInvalid),
        ("start_offset_ms=-100&end_offset_ms=-200", SegmentInvalid),
        ("start_offset_ms=0&end_offset_ms=0", SegmentInvalid),
        ("start_frame_index=60&end_timestamp_ms=6000", SegmentInvalid),
        ("start_frame_index=60&end_offset_ms=0", SegmentInvalid),  # 0 counts from the oldest here
        ("start_timestamp_ms=6000&end_frame_index=60", SegmentInvalid),
        ("start_timestamp_ms=6000&end_frame_index=10", SegmentInvalid),
        ("start_frame_index=0&end_timestamp_ms=0", SegmentInvalid),
        ("start_frame_index=8&end_frame_index=9", SegmentEmpty),
        ("start_frame_index=0&end_frame_index=50", SegmentEmpty),
        ("start_timestamp_ms=0&end_timestamp_ms=5000", SegmentEmpty),
        ("start_timestamp_ms=20000", SegmentEmpty),
        ("start_timestamp_ms=10001&end_timestamp_ms=10002", SegmentEmpty),
        ("start_frame_index=-500&end_frame_index=-400", SegmentEmpty),
        ("start_frame_index=3&end_timestamp_ms=10", SegmentEmpty),
        ("start_frame_index=-102&end_timestamp_ms=0", SegmentEmpty),  # starts before frame 0
        ("start_timestamp_ms=0&end_frame_index=-102", SegmentInvalid),
    ],
)
def test_a_segment_that_names_nothing_says_why(query, error):
    with pytest.raises(error):
        segment_indices(query, make_snapshot(TEN_FPS, retained=range(50, 101)))


@pytest.mark.parametrize(
    "query", ["frame_index=0", "frame_index=-1", "timestamp_ms=0", "offset_ms=0"]
)
def test_before_the_first_frame_every_image_is_too_early(query):
    with pytest.raises(FrameNotYetProduced):
        image_index(query, make_snapshot([]))


@pytest.mark.parametrize("query", ["start_offset_ms=-5", "start_frame_index=9&end_frame_index=3"])
def test_before_the_first_frame_every_segment_is_too_early(query):
    with pytest.raises(FrameNotYetProduced):
        segment_indices(query, make_snapshot([]))


def test_frames_of_one_segment_may_differ_in_size():
    sizes = [(640, 480), (1280, 720), (321, 241)]
    picks = segment_pick("start_frame_index=0", make_snapshot([0, 1000, 2000], sizes=sizes)).picks
    assert [(pick.width, pick.height) for pick in picks] == sizes


# ── for all streams and references: equal to the naive reference ──


def outcome(resolve, *args) -> Any:
    """What came out: indices, or the class of the error."""
    try:
        return resolve(*args)
    except StreamError as error:
        return type(error)


def naive_image(ref: ImageRef, past: Past) -> int:
    """The specification, read frame by frame."""
    times, n = past.times_ms, len(past.times_ms)
    if ref.anchor.kind == "frame_index":
        index = ref.anchor.value if ref.anchor.value >= 0 else n + ref.anchor.value
        if index >= n:
            raise FrameNotYetProduced("")
        if index < 0:
            raise SegmentEmpty("")
        if index not in past.retained:
            raise FrameEvicted("")
        return index
    if not past.retained:
        raise SegmentEmpty("")
    target = naive_time(ref.anchor, past)
    near = []
    for index in sorted(past.retained):
        distance = times[index] - target
        wrong_side = (ref.direction == "forward" and distance < 0) or (
            ref.direction == "backward" and distance > 0
        )
        if abs(distance) <= ref.tolerance_ms and not wrong_side:
            near.append((abs(distance), index))
    if not near:
        raise SegmentEmpty("")
    return min(near)[1]


def naive_time(anchor: Anchor, past: Past) -> int:
    if anchor.kind == "timestamp_ms":
        return anchor.value
    base = past.times_ms[-1]
    if anchor.value >= 0 and past.retained:
        base = past.times_ms[min(past.retained)]
    return base + anchor.value


Position: TypeAlias = tuple[str, float]  # "index" or "time", and which


def naive_segment(ref: SegmentRef, past: Past) -> list[int]:
    """The specification, read tick by tick; knows the times of evicted frames."""
    times, n = past.times_ms, len(past.times_ms)
    start = naive_position(ref.start, past)
    end = None if ref.at_live_edge or ref.end is None else naive_position(ref.end, past)
    if start[0] == "index" and start[1] >= n:
        raise FrameNotYetProduced("")
    if end is not None and naive_is_reversed(start, end, past):
        raise SegmentInvalid("")

    def holds(index: int) -> bool:
        value = {"index": index, "time": times[index]}
        return value[start[0]] >= start[1] and (end is None or value[end[0]] < end[1])

    inside = [index for index in sorted(past.retained) if holds(index)]
    if not inside:
        raise SegmentEmpty("")
    from_ms = times[inside[0]]
    if start[0] == "time":
        from_ms = max(int(start[1]), times[min(past.retained)])
    picked = naive_grid(inside, from_ms, ref.max_fps, times)
    if end is None and ref.edge == "newest":
        return [*picked[:-1], inside[-1]]
    return picked or [inside[0]]


def naive_position(anchor: Anchor, past: Past) -> Position:
    if anchor.kind == "frame_index":
        n = len(past.times_ms)
        return "index", anchor.value if anchor.value >= 0 else n + anchor.value
    return "time", naive_time(anchor, past)


def naive_is_reversed(start: Position, end: Position, past: Past) -> bool:
    def time_of(index: float) -> float:
        if index < 0:
            return -math.inf
        return past.times_ms[int(index)] if index < len(past.times_ms) else math.inf

    if start[0] == end[0]:
        return end[1] <= start[1]
    start_ms, end_ms = (time_of(v) if kind == "index" else v for kind, v in (start, end))
    return end_ms <= start_ms


def naive_grid(inside: list[int], from_ms: int, rate: Fraction, times: Sequence[int]) -> list[int]:
    picked: list[int] = []
    k = math.ceil(Fraction(from_ms, 1000) * rate)
    while (tick_ms := Fraction(1000 * k) / rate) <= times[inside[-1]]:
        first = next(index for index in inside if times[index] >= tick_ms)
        if first not in picked:
            picked.append(first)
        k += 1
    return picked


KINDS = st.sampled_from(["frame_index", "timestamp_ms", "offset_ms"])
RATES = st.sampled_from([Fraction(text) for text in ("0.1", "1", "2", "29.97", "30", "10.1", "7")])


@st.composite
def anchors(draw, past: Past):
    """Anchors in, at the ends of, and around the stream."""
    kind = draw(KINDS)
    span = len(past.times_ms) if kind == "frame_index" else past.times_ms[-1]
    near_a_frame = st.sampled_from(past.times_ms).flatmap(lambda t: st.sampled_from([t, t - 1]))
    wide = st.integers(-span - 3, span + 3)
    return Anchor(kind, draw(wide if kind == "frame_index" else wide | near_a_frame))


@st.composite
def image_cases(draw):
    past = draw(pasts())
    direction = draw(st.sampled_from(["nearest", "forward", "backward"]))
    tolerance = draw(st.sampled_from([1, 17, 100, 5000]))
    ref = ImageRef(
        stream_id="cam",
        anchor=draw(anchors(past)),
        tolerance_ms=tolerance,
        direction=direction,
    )
    return ref, past


@st.composite
def segment_cases(draw):
    past = draw(pasts())
    ref = SegmentRef(
        stream_id="cam",
        start=draw(anchors(past)),
        end=draw(st.none() | anchors(past)),
        max_fps=draw(RATES),
        edge=draw(st.sampled_from(["newest", "grid"])),
    )
    return ref, past


@settings(max_examples=200)
@given(image_cases())
def test_an_image_resolves_like_the_naive_reference(case):
    ref, past = case
    expected = outcome(naive_image, ref, past)
    assert outcome(lambda: resolve_image(ref, past.snapshot()).index) == expected


@settings(max_examples=300)
@given(segment_cases())
def test_a_segment_resolves_like_the_naive_reference(case):
    ref, past = case
    expected = outcome(naive_segment, ref, past)
    got = outcome(lambda: [p.index for p in resolve_segment(ref, past.snapshot()).picks])
    if expected is SegmentInvalid and got is SegmentEmpty:
        # An index whose frame is gone has no time to compare: what is left decides.
        assert ref.end is not None
        assert (ref.start.kind == "frame_index") != (ref.end.kind == "frame_index")
        assume(False)
    assert got == expected


@given(segment_cases())
def test_a_segment_never_yields_more_than_its_grid_allows(case):
    ref, past = case
    picks = outcome(lambda: resolve_segment(ref, past.snapshot()).picks)
    assume(isinstance(picks, tuple))
    seconds = Fraction(picks[-1].stream_time_ms - picks[0].stream_time_ms, 1000)
    assert 1 <= len(picks) <= math.ceil(seconds * ref.max_fps) + 1
    assert [p.index for p in picks] == sorted({p.index for p in picks})
    ticks = [p.tick for p in picks]
    assert ticks == sorted(set(ticks))


@given(segment_cases())
def test_at_the_live_edge_the_answer_is_never_older_than_the_stream(case):
    ref, past = case
    assume(ref.at_live_edge and ref.edge == "newest")
    got = outcome(lambda: resolve_segment(ref, past.snapshot()).newest.index)
    assert got in (len(past.times_ms) - 1, SegmentEmpty, FrameNotYetProduced)


@given(pasts(), RATES, st.data())
def test_overlapping_segments_pick_the_same_frames_where_both_reach(past, rate, data):
    """What shares encodings: away from its ends, a segment's picks do not depend on its ends."""
    assume(past.retained)
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, past.times_ms[-1])] * 2)))
    wide = SegmentRef(stream_id="cam", start=Anchor("timestamp_ms", 0), max_fps=rate, edge="grid")
    part = SegmentRef(
        stream_id="cam",
        start=Anchor("timestamp_ms", low),
        end=Anchor("timestamp_ms", high + 1),
        max_fps=rate,
    )
    snapshot = past.snapshot()
    everything = {pick.index: pick for pick in resolve_segment(wide, snapshot).picks}
    try:
        picks = resolve_segment(part, snapshot).picks
    except SegmentEmpty:
        return
    if len(picks) == 1:  # may be the fallback of a segment without a tick
        return
    assert all(everything[pick.index] == pick for pick in picks)

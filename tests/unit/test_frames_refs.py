"""The `ovs://` grammar: what is read, and which offence is named."""

from __future__ import annotations

from fractions import Fraction
from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from liveedge.core.errors import QueryParamInvalid, StreamUrlInvalid
from liveedge.frames.refs import (
    Anchor,
    ImageRef,
    SegmentRef,
    is_ref,
    parse_image_query,
    parse_ref,
)

BASE = "ovs://streams/4d1c8f5e-0001?"


def image(query: str) -> ImageRef:
    return parse_ref(BASE + query, kind="image")


def segment(query: str) -> SegmentRef:
    return parse_ref(BASE + query, kind="video")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ovs:",
        "ovs:/streams/a?frame_index=1",
        "OVS://streams/a?frame_index=1",
        " ovs://streams/a?frame_index=1",
        "https://streams/a?frame_index=1",
        "ovs://stream/a?frame_index=1",
        "ovs://Streams/a?frame_index=1",
        "ovs://user@streams/a?frame_index=1",
        "ovs://streams:80/a?frame_index=1",
        "ovs://streams?frame_index=1",
        "ovs://streams/?frame_index=1",
        "ovs://streams//a?frame_index=1",
        "ovs://streams/a/?frame_index=1",
        "ovs://streams/a/b?frame_index=1",
        "ovs://streams/a b?frame_index=1",
        "ovs://streams/a%20b?frame_index=1",
        "ovs://streams/a\n?frame_index=1",
        "ovs://streams/a?frame_index=1#",
        "ovs://streams/a?frame_index=1#x",
        "ovs://streams/a#?frame_index=1",
        "ovs://streams/" + "a" * 129 + "?frame_index=1",
    ],
)
@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_wrong_shape_is_an_invalid_url_whatever_the_query(url, kind):
    with pytest.raises(StreamUrlInvalid):
        parse_ref(url, kind=kind)


def test_the_shape_is_judged_before_the_query():
    with pytest.raises(StreamUrlInvalid):
        parse_ref("ovs://streams/a/b?nonsense", kind="image")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "&",
        "frame_index",
        "frame_index=",
        "frame_index=1&",
        "&frame_index=1",
        "frame_index=1&&tolerance_ms=5",
        "=1",
        "frame_index=1&frame_index=1",
        "frame_index=1&frame_index=2",
        "frame_index=1&timestamp_ms=1",
        "timestamp_ms=1&offset_ms=1",
        "Frame_Index=1",
        "frame_index=1&max_fps=1",
        "frame_index=1&edge=grid",
        "start_frame_index=1",
        "tolerance_ms=5",
        "frame_index=one",
        "frame_index=1.0",
        "frame_index=1e3",
        "frame_index=+1",
        "frame_index= 1",
        "frame_index=1 ",
        "frame_index=--1",
        "frame_index=1_000",
        "frame_index=\u0661",
        "frame_index=" + "9" * 16,
        "timestamp_ms=nan",
        "offset_ms=0x10",
        "frame_index=1&tolerance_ms=0",
        "frame_index=1&tolerance_ms=-5",
        "frame_index=1&tolerance_ms=1.5",
        "frame_index=1&direction=up",
        "frame_index=1&direction=Nearest",
        "frame_index=1&max_age_ms=0",
        "frame_index=1&max_pixels=0",
        "frame_index=1&max_pixels=big",
        "frame_index=%zz",
        "frame_index=%",
        "frame_index=%ff",
        "frame_index=1?max_pixels=5",
    ],
)
def test_a_bad_image_query_is_named(query):
    with pytest.raises(QueryParamInvalid):
        image(query)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "end_frame_index=5",
        "frame_index=5",
        "start_offset_ms=-5&tolerance_ms=5",
        "start_offset_ms=-5&direction=forward",
        "start_offset_ms=-5&start_frame_index=5",
        "start_offset_ms=-5&end_offset_ms=0&end_frame_index=5",
        "start_offset_ms=-5&start_offset_ms=-5",
        "start_offset_ms=",
        "start_offset_ms=-5&max_fps=0",
        "start_offset_ms=-5&max_fps=-1",
        "start_offset_ms=-5&max_fps=nan",
        "start_offset_ms=-5&max_fps=inf",
        "start_offset_ms=-5&max_fps=1e999",
        "start_offset_ms=-5&max_fps=1e-999",
        "start_offset_ms=-5&max_fps=1_0",
        "start_offset_ms=-5&max_fps=1/2",
        "start_offset_ms=-5&max_fps=.",
        "start_offset_ms=-5&max_fps=0x1",
        "start_offset_ms=-5&max_fps=" + "1" * 65,
        "start_offset_ms=-5&edge=last",
    ],
)
def test_a_bad_segment_query_is_named(query):
    with pytest.raises(QueryParamInvalid):
        segment(query)


def test_an_error_names_the_key_the_value_and_the_way_out():
    with pytest.raises(QueryParamInvalid, match=r"max_fps is 'fast'; it must be a finite number"):
        segment("start_offset_ms=-5&max_fps=fast")
    with pytest.raises(
        QueryParamInvalid, match=r"'fps' is not a key of a video_url .* legal: .*max_fps"
    ):
        segment("start_offset_ms=-5&fps=2")


def test_an_error_never_repeats_a_long_value():
    with pytest.raises(QueryParamInvalid) as caught:
        image("frame_index=" + "x" * 1_000_000)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5", Fraction(5)),
        ("5.0", Fraction(5)),
        ("5.", Fraction(5)),
        (".5", Fraction(1, 2)),
        ("1e0", Fraction(1)),
        ("1E+1", Fraction(10)),
        ("25e-1", Fraction(5, 2)),
        ("29.97", Fraction(2997, 100)),
        ("%35", Fraction(5)),
    ],
)
def test_a_rate_is_read_as_written(text, rate):
    assert segment(f"start_offset_ms=-5&max_fps={text}").max_fps == rate


def test_defaults_are_those_of_the_specification():
    assert image("frame_index=-1") == ImageRef(
        stream_id="4d1c8f5e-0001",
        anchor=Anchor("frame_index", -1),
        tolerance_ms=100,
        direction="nearest",
        max_age_ms=None,
        max_pixels=None,
    )
    assert segment("start_timestamp_ms=7") == SegmentRef(
        stream_id="4d1c8f5e-0001",
        start=Anchor("timestamp_ms", 7),
        end=None,
        max_fps=Fraction(1),
        edge="newest",
        max_age_ms=None,
        max_pixels=None,
    )


def test_tolerance_and_direction_are_legal_beside_an_index():
    ref = image("frame_index=3&tolerance_ms=5&direction=backward")
    assert ref.anchor == Anchor("frame_index", 3)


@pytest.mark.parametrize(
    ("query", "at_live_edge"),
    [
        ("start_offset_ms=-5", True),
        ("start_frame_index=0", True),
        ("start_offset_ms=-5&end_offset_ms=0", True),
        ("start_offset_ms=0&end_offset_ms=0", False),
        ("start_frame_index=-5&end_offset_ms=0", False),
        ("start_offset_ms=-5&end_offset_ms=-1", False),
        ("start_offset_ms=-5&end_frame_index=0", False),
    ],
)
def test_the_live_edge_is_no_end_or_offset_zero_after_a_negative_start_offset(query, at_live_edge):
    assert segment(query).at_live_edge is at_live_edge


def test_a_picture_route_reads_the_same_query():
    assert parse_image_query("a", "offset_ms=-5") == parse_ref(
        "ovs://streams/a?offset_ms=-5", kind="image"
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ovs://streams/a?frame_index=1", True),
        ("OVS://streams/a", True),
        (" ovs:/x", True),
        ("data:image/png;base64,", False),
        ("https://host/ovs://", False),
        ("", False),
    ],
)
def test_a_malformed_reference_is_still_told_from_other_urls(url, expected):
    assert is_ref(url) is expected


# ── for all references: written down and read back, they are the same ──

KINDS = st.sampled_from(["frame_index", "timestamp_ms", "offset_ms"])
ANCHORS = st.builds(Anchor, KINDS, st.integers(-(10**15) + 1, 10**15 - 1))
STREAM_IDS = st.from_regex(r"[A-Za-z0-9._~-]{1,40}", fullmatch=True)
POSITIVE = st.integers(1, 10**15 - 1)
IMAGE_REFS = st.builds(
    ImageRef,
    stream_id=STREAM_IDS,
    anchor=ANCHORS,
    tolerance_ms=POSITIVE,
    direction=st.sampled_from(["nearest", "forward", "backward"]),
    max_age_ms=st.none() | POSITIVE,
    max_pixels=st.none() | POSITIVE,
)
SEGMENT_REFS = st.builds(
    SegmentRef,
    stream_id=STREAM_IDS,
    start=ANCHORS,
    end=st.none() | ANCHORS,
    max_fps=st.decimals("0.001", "1000", places=3).map(Fraction),
    edge=st.sampled_from(["newest", "grid"]),
    max_age_ms=st.none() | POSITIVE,
    max_pixels=st.none() | POSITIVE,
)


def pairs_of(ref: ImageRef | SegmentRef) -> list[tuple[str, str]]:
    common = {"max_age_ms": ref.max_age_ms, "max_pixels": ref.max_pixels}
    own: dict[str, object]
    if isinstance(ref, ImageRef):
        own = {
            ref.anchor.kind: ref.anchor.value,
            "tolerance_ms": ref.tolerance_ms,
            "direction": ref.direction,
        }
    else:
        own = {f"start_{ref.start.kind}": ref.start.value, "edge": ref.edge}
        own["max_fps"] = str(float(ref.max_fps))
        if ref.end is not None:
            own[f"end_{ref.end.kind}"] = ref.end.value
    return [(key, str(value)) for key, value in {**own, **common}.items() if value is not None]


@st.composite
def written(draw, refs):
    """A reference and one of the ways to write it: any order, any characters escaped."""
    ref = draw(refs)
    pairs = draw(st.permutations(pairs_of(ref)))

    def escaped(text: str) -> str:
        return "".join(
            f"%{ord(char):02X}" if draw(st.integers(0, 9)) == 0 else quote(char) for char in text
        )

    query = "&".join(f"{escaped(key)}={escaped(value)}" for key, value in pairs)
    return ref, f"ovs://streams/{ref.stream_id}?{query}"


@given(written(IMAGE_REFS))
def test_every_image_reference_reads_back(case):
    ref, url = case
    assert parse_ref(url, kind="image") == ref


@given(written(SEGMENT_REFS))
def test_every_segment_reference_reads_back(case):
    ref, url = case
    assert parse_ref(url, kind="video") == ref


@given(written(IMAGE_REFS | SEGMENT_REFS))
def test_no_reference_is_legal_in_the_other_kind_of_part(case):
    ref, url = case
    with pytest.raises(QueryParamInvalid):
        parse_ref(url, kind="video" if isinstance(ref, ImageRef) else "image")


@given(st.text(), st.sampled_from(["image", "video"]))
def test_any_text_is_read_or_refused_with_one_of_two_errors(text, kind):
    for url in (text, BASE + text):
        try:
            ref = parse_ref(url, kind=kind)
        except (StreamUrlInvalid, QueryParamInvalid):
            continue
        assert isinstance(ref, ImageRef if kind == "image" else SegmentRef)

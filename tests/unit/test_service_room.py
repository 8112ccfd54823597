"""What no prompt can hold is refused with the count, the limit and what fits; what may fit passes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from liveedge.core.errors import ContextLengthExceeded
from liveedge.frames.refs import ImageRef, SegmentRef, parse_ref
from liveedge.frames.resolve import resolve_image, resolve_segment
from liveedge.service.parts import Reference
from liveedge.service.room import check_room
from liveedge.testing.engine import FAKE_MODEL
from tests.snapshots import make_snapshot

MODEL = replace(FAKE_MODEL, max_model_len=101)  # 100 tokens of prompt: 25 pairs at most
SNAPSHOT = make_snapshot([100 * n for n in range(600)])
TEN_MINUTES = make_snapshot([34 * n for n in range(18_000)])


def segment(n_frames, *, snapshot=SNAPSHOT, query=""):
    url = f"ovs://streams/cam?start_frame_index=-{n_frames}&max_fps=30{query}"
    item = Reference(f"messages[0].content[{n_frames}]", parse_ref(url, kind="video"))
    assert isinstance(item.ref, SegmentRef)
    return item, resolve_segment(item.ref, snapshot)


def picture(n):
    item = Reference(
        f"messages[0].content[{n}]", parse_ref(f"ovs://streams/cam?frame_index={n}", kind="image")
    )
    assert isinstance(item.ref, ImageRef)
    return item, resolve_image(item.ref, SNAPSHOT)


def check(*pairs, model=MODEL):
    check_room([item for item, _ in pairs], [one for _, one in pairs], model)


def test_ten_minutes_at_thirty_frames_a_second_are_refused_with_numbers():
    model = replace(FAKE_MODEL, max_model_len=4096, video_max_pixels=128 * 128, token_px=32)
    with pytest.raises(ContextLengthExceeded) as caught:
        check(segment(18_000, snapshot=TEN_MINUTES), model=model)
    # 16 visual tokens and 10 around them for two frames: 2 * (4095 // 26)
    assert caught.value.message == (
        "the question has 18000 frames, and liveedge/fake takes 4095 tokens: about 314 frames of"
        " 640x480 would fit; ask for less time (messages[0].content[18000] alone has 18000 frames),"
        " or lower max_fps or max_pixels"
    )


@pytest.mark.parametrize("n_frames", [1, 2, 49, 50])
def test_what_may_fit_is_left_to_the_exact_count(n_frames):
    check(segment(n_frames))


def test_the_first_frame_too_many_is_refused():
    with pytest.raises(ContextLengthExceeded, match="51 frames"):
        check(segment(51))


def test_segments_and_pictures_are_counted_together():
    check(segment(30), segment(18), *map(picture, range(1)))
    with pytest.raises(ContextLengthExceeded, match="50 frames"):
        check(segment(30), segment(18), *map(picture, range(2)))


def test_pictures_alone_are_counted_too():
    check(*map(picture, range(33)))
    with pytest.raises(ContextLengthExceeded, match=r"34 frames.*at most 33 pictures; send fewer"):
        check(*map(picture, range(34)))


def test_smaller_frames_let_more_fit():
    def fits(query):
        with pytest.raises(ContextLengthExceeded) as caught:
            check(segment(600, query=query))
        match = re.search(r"about (\d+) frames", caught.value.message)
        assert match is not None
        return int(match.group(1))

    assert fits("&max_pixels=4096") == 2 * (100 // 14)
    assert fits("&max_pixels=1024") == 2 * (100 // 11)
    assert fits("") == 0


def test_a_question_without_frames_has_room():
    check()

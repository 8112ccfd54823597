"""From resolved media to messages: groups, runs of equal size, times, keys, the list of frames."""

import numpy as np
import pytest

from liveedge.engine.request import ImagePart, MediaUse, TextPart, VideoPart
from liveedge.frames.frame import RgbPixels
from liveedge.frames.refs import parse_ref
from liveedge.frames.resolve import Pick
from liveedge.service.lookup import Found
from liveedge.service.parts import Reference, Upload
from liveedge.service.prompt import Media, make_prompt
from liveedge.service.question import TextContent, Turn
from liveedge.service.uploads import Uploaded, UploadedFrame

TURN = Turn(role="user", content=())
URL = "ovs://streams/cam?start_frame_index=0"


def pick(index, *, tick, size=(64, 48), corrupt=False):
    return Pick(
        stream_id="cam",
        index=index,
        stream_time_ms=1000 + 500 * tick,
        captured_at_ms=5_000_000 + 500 * tick,
        arrived_s=100 + tick / 2,
        width=size[0],
        height=size[1],
        corrupt=corrupt,
        tick=tick,
    )


def load(stream_id, index):
    return np.full((1, 1, 3), index, np.uint8)


def prompt_of(parts, *, found=None, uploaded=None):
    media = Media(tenant="me", found=found or {}, uploaded=uploaded or {}, load=load)
    return make_prompt([TURN], [parts], media)


def segment(*picks, query=""):
    reference = Reference("here", parse_ref(URL + query, kind="video"))
    found = {"here": Found(tuple(picks), at_live_edge=False)}
    return prompt_of([reference], found=found)


def indices(part):
    return [int(frame.load()[0, 0, 0]) for frame in part.frames]


def test_ticks_of_one_pair_share_a_group_and_a_lonely_one_stands_twice():
    prompt = segment(*(pick(i, tick=i) for i in (1, 2, 3, 4)))
    (video,) = prompt.messages[0].content
    assert isinstance(video, VideoPart)
    assert indices(video) == [1, 1, 2, 3, 4, 4]
    assert [shown.frame_index for shown in prompt.shown] == [1, 2, 3, 4]
    assert [frame.time_s for frame in video.frames] == [0, 0, 0.5, 1.0, 1.5, 1.5]


def test_runs_of_equal_size_become_videos_of_their_own():
    sizes = [(64, 48), (64, 48), (128, 72), (64, 48)]
    picks = [pick(i, tick=i, size=size) for i, size in enumerate(sizes)]
    prompt = segment(*picks, query="&max_pixels=9999")
    videos = prompt.messages[0].content
    assert [indices(video) for video in videos] == [[0, 1], [2, 2], [3, 3]]
    assert {video.max_pixels for video in videos} == {9999}
    assert videos[2].frames[0].time_s == 1.5  # from the first frame of the segment, not of the run
    assert [shown.frame_index for shown in prompt.shown] == [0, 1, 2, 3]


def test_the_frames_of_a_segment_are_announced_together_as_often_as_they_are_loaded():
    announced = []

    def load_segment(stream_id, frames):
        announced.append((stream_id, list(frames)))
        return lambda index: load(stream_id, index + 100)

    moving = Reference("moving", parse_ref(URL, kind="video"))
    still = Reference("still", parse_ref("ovs://streams/cam?frame_index=9", kind="image"))
    found = {
        "moving": Found(tuple(pick(i, tick=i) for i in (1, 2, 3, 4)), at_live_edge=False),
        "still": Found((pick(9, tick=9),), at_live_edge=False),
    }
    media = Media(tenant="me", found=found, uploaded={}, load=load, load_segment=load_segment)
    prompt = make_prompt([TURN], [[moving, still]], media)
    video, image = prompt.messages[0].content
    assert isinstance(image, ImagePart)
    assert announced == [("cam", [1, 1, 2, 3, 4, 4])]
    assert indices(video) == [101, 101, 102, 103, 104, 104]
    assert int(image.frame.load()[0, 0, 0]) == 9


def test_keys_name_the_tenant_the_stream_and_the_frame():
    prompt = segment(pick(7, tick=7))
    assert prompt.shown[0].frame.key == "me/cam/7"


def test_parts_keep_their_order_and_every_frame_is_listed_once_in_it():
    still = Reference("still", parse_ref("ovs://streams/cam?frame_index=9", kind="image"))
    moving = Reference("moving", parse_ref(URL, kind="video"))
    sent = Upload("sent", "image", "data:")
    black = RgbPixels(np.zeros((10, 20, 3), np.uint8))
    prompt = prompt_of(
        [sent, TextContent("then"), moving, still],
        found={
            "still": Found((pick(9, tick=9, corrupt=True),), at_live_edge=False),
            "moving": Found((pick(2, tick=2), pick(3, tick=3)), at_live_edge=False),
        },
        uploaded={"sent": Uploaded((UploadedFrame("abc", black),))},
    )
    kinds = [type(part) for part in prompt.messages[0].content]
    assert kinds == [ImagePart, TextPart, VideoPart, ImagePart]
    uses = prompt.uses(
        [MediaUse(key=s.frame.key, n_tokens=i, warm=i == 1) for i, s in enumerate(prompt.shown)]
    )
    assert [use.frame_index for use in uses] == [None, 2, 3, 9]
    assert [use.n_tokens for use in uses] == [0, 1, 2, 3]
    assert [use.warm for use in uses] == [False, True, False, False]
    assert [use.corrupt for use in uses] == [False, False, False, True]
    assert (uses[0].width, uses[0].height, uses[0].timestamp_ms) == (20, 10, None)
    assert prompt.newest is not None
    assert prompt.newest.frame_index == 9


def test_an_engine_that_reports_other_frames_is_a_defect():
    prompt = segment(pick(1, tick=1), pick(2, tick=2))
    with pytest.raises(ValueError, match="zip"):
        prompt.uses([MediaUse(key="me/cam/1", n_tokens=1, warm=False)])


def test_frames_of_a_clip_are_paired_with_their_neighbours_and_keep_their_times():
    def frame(i, time_s, size=(16, 12)):
        pixels = RgbPixels(np.full((size[1], size[0], 3), i, np.uint8))
        return UploadedFrame(f"clip@{i}", pixels, time_s, corrupt=i == 2)

    frames = (frame(0, 0.2), frame(1, 0.3), frame(2, 1.7), frame(3, 1.9, size=(32, 24)))
    upload = Upload("clip", "video", "data:")
    prompt = prompt_of([upload], uploaded={"clip": Uploaded(frames, n_broken=2)})
    first, second = prompt.messages[0].content
    assert indices(first) == [0, 1, 2, 2]
    assert indices(second) == [3, 3]
    assert [f.time_s for f in first.frames] == pytest.approx([0, 0.1, 1.5, 1.5])
    assert [s.timestamp_ms for s in prompt.shown] == [0, 100, 1500, 1700]
    assert prompt.n_broken == 2
    assert prompt.newest is None

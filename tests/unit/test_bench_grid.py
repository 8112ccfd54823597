"""Which frames a question looks at: as the wire format has it, computed from outside."""

import pytest

from liveedge.bench.scenario import Media
from liveedge.bench.sources.grid import frames_of, n_held
from liveedge.bench.sources.references import Opened, references
from liveedge.frames.refs import parse_ref
from liveedge.frames.resolve import resolve_segment
from tests.snapshots import make_snapshot

STREAM = Opened(stream_id="s", newest=40, stream_time_ms=8_000)


def picked_by_the_server(media, fps, newest, *, off_ms=0):
    """The frame indices that the server's own resolver finds for our reference; all frames but the
    first may lie off the grid."""
    times = [0, *(round(n * 1000 / fps) + off_ms for n in range(1, newest + 1))]
    (part,) = references(STREAM, media, fps=fps)
    ref = parse_ref(part["video_url"]["url"], kind="video")
    return [pick.index for pick in resolve_segment(ref, make_snapshot(times)).picks]


@pytest.mark.parametrize("fps", [2.0, 4.0, 5.0, 10.0, 15.0])
@pytest.mark.parametrize("newest", range(60, 75))
def test_frames_that_we_send_are_those_that_a_stream_gives_for_the_same_clip(fps, newest):
    media = Media(frames=4, max_fps=2.0)
    ours = frames_of(newest, media, fps)
    assert ours == picked_by_the_server(media, fps, newest)
    assert len(ours) == 4
    assert ours[-1] == newest
    assert newest - ours[0] < n_held(media, fps)


@pytest.mark.parametrize("off_ms", [0, 1, 70, 199])
@pytest.mark.parametrize("newest", range(60, 66))
def test_distinct_frames_are_the_newest_by_number_and_open_no_window(newest, off_ms):
    media = Media(frames=4, max_fps=5.0, distinct=True)
    ours = [newest - 3, newest - 2, newest - 1, newest]
    assert frames_of(newest, media, 5.0) == ours
    assert picked_by_the_server(media, 5.0, newest, off_ms=off_ms) == ours
    (part,) = references(STREAM, media, fps=5.0)
    assert not parse_ref(part["video_url"]["url"], kind="video").at_live_edge


def test_media_that_repeat_are_counted_from_where_the_stream_was_when_it_opened():
    media = Media(frames=4, max_fps=2.0, repeats=True)
    picked = picked_by_the_server(media, 5.0, 50)
    assert picked == picked_by_the_server(media, 5.0, 60)
    assert len(picked) == 4
    assert max(picked) <= STREAM.newest


def test_a_clip_as_pictures_is_one_reference_per_frame_and_the_newest_comes_last():
    parts = references(STREAM, Media(frames=3, max_fps=2.0, clip="images"), fps=4.0)
    refs = [parse_ref(part["image_url"]["url"], kind="image") for part in parts]
    assert [ref.anchor.value for ref in refs] == [-5, -3, -1]
    assert frames_of(10, Media(frames=3, max_fps=2.0, clip="images"), 4.0) == [6, 8, 10]


def test_bounds_of_a_question_are_part_of_each_reference():
    (part,) = references(STREAM, Media(max_age_ms=500, max_pixels=50_000), fps=5.0)
    ref = parse_ref(part["image_url"]["url"], kind="image")
    assert (ref.anchor.value, ref.max_age_ms, ref.max_pixels) == (-1, 500, 50_000)

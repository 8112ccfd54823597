"""What a window holds and when to look again, on the grid of the stream clock."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from liveedge.core.errors import FrameNotYetProduced
from liveedge.frames.refs import parse_ref
from liveedge.service.lookup import frames_of, resolve
from liveedge.service.parts import Reference, Upload
from liveedge.service.question import TextContent, Turn
from liveedge.service.windows_plan import (
    MAX_REFERENCES,
    Change,
    WindowPlan,
    next_changes,
    next_ticks,
    plan_window,
    prompt_id,
    resolve_window,
)
from tests.snapshots import make_snapshot

LIVE = "start_offset_ms=-4000&max_fps=2"


def segment(query: str = LIVE, *, stream_id: str = "cam", where: str = "messages[0].content[0]"):
    return Reference(where, parse_ref(f"ovs://streams/{stream_id}?{query}", kind="video"))


def picture(query: str):
    return Reference(
        "messages[0].content[0]", parse_ref(f"ovs://streams/cam?{query}", kind="image")
    )


def plan(*parts, role="user", before=(), tenant="t", max_age_ms=None, n_media=None, after=()):
    turns = [*before, (role, parts), *after]
    return plan_window(
        (tenant, "local/m"),
        [Turn(role=name, content=()) for name, _ in turns],
        [tuple(contents) for _, contents in turns],
        max_age_ms=max_age_ms,
        n_media=n_media,
    )


def key(*parts, **options):
    made = plan(*parts, **options)
    assert isinstance(made, WindowPlan)
    return made.key


SECRET = b"of this server"
WORDS, OTHER = TextContent("what is there"), TextContent("how many")


def test_a_prompt_id_tells_texts_apart_and_nothing_else():
    def id_of(*parts, secret=SECRET, **options):
        return prompt_id(key(*parts, **options), secret=secret)

    system = [("system", [WORDS])]
    assert id_of(segment(), before=system) == id_of(segment("start_offset_ms=-900"), before=system)
    others = [
        id_of(segment()),
        id_of(segment(), before=system),
        id_of(segment(), before=[("system", [OTHER])]),
        id_of(segment(), before=[("assistant", [WORDS])]),
        id_of(WORDS, segment()),
    ]
    assert len(set(others)) == len(others)
    assert id_of(segment(), secret=b"of another run") != id_of(segment())


def test_text_after_the_media_is_no_matter_of_the_window():
    assert key(segment(), WORDS) == key(segment(), OTHER) == key(segment())
    later = [("assistant", (OTHER,)), ("user", (WORDS,))]
    assert key(segment(), WORDS, after=later) == key(segment())


@pytest.mark.parametrize(
    "other",
    [
        {"parts": (WORDS, segment())},
        {"parts": (segment(),), "before": [("system", (WORDS,))]},
        {"parts": (segment(),), "role": "system"},
        {"parts": (segment(),), "tenant": "u"},
        {"parts": (segment(stream_id="door"),)},
        {"parts": (segment("start_offset_ms=-4001&max_fps=2"),)},
        {"parts": (segment("start_offset_ms=-4000&max_fps=3"),)},
        {"parts": (segment(f"{LIVE}&max_pixels=1000"),)},
        {"parts": (segment(), segment())},
    ],
)
def test_everything_up_to_the_last_media_part_is_a_matter_of_the_window(other):
    options = dict(other)
    assert key(*options.pop("parts"), **options) != key(segment())


@pytest.mark.parametrize("extra", ["edge=grid", "edge=newest", "max_age_ms=5", "end_offset_ms=0"])
def test_how_fresh_a_question_wants_it_is_no_matter_of_the_window(extra):
    assert key(segment(f"{LIVE}&{extra}")) == key(segment())


@pytest.mark.parametrize("fps", ["2.0", "2e0", "02"])
def test_a_rate_is_the_same_however_it_is_written(fps):
    assert key(segment(f"start_offset_ms=-4000&max_fps={fps}")) == key(segment())


def test_the_window_of_the_first_media_part_can_be_asked_for():
    assert key(segment(), WORDS, segment("start_offset_ms=-1"), n_media=1) == key(segment())
    assert plan(segment(), n_media=2) is None


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (WORDS,),
        (Upload("x", "image", "data:,"), segment()),
        (segment(), Upload("x", "image", "data:,")),
        (segment("start_offset_ms=-4000&end_offset_ms=-1000"),),
        (segment("start_frame_index=3&end_frame_index=9"),),
        (segment(), segment("start_frame_index=3&end_frame_index=-1")),
        (picture("frame_index=-1"), segment()),
        (picture("frame_index=3"),),
        (picture("offset_ms=0"), segment()),
        tuple(segment() for _ in range(MAX_REFERENCES + 1)),
    ],
)
def test_a_question_that_does_not_come_again_the_same_way_has_no_window(parts):
    assert plan(*parts) is None


@pytest.mark.parametrize(
    "parts",
    [
        (segment("start_timestamp_ms=0"),),
        (segment("start_frame_index=-20"),),
        (picture("frame_index=3"), segment()),
        (picture("timestamp_ms=300"), WORDS, segment()),
        (segment("start_frame_index=3&end_frame_index=9"), segment()),
        (picture("frame_index=-1&max_age_ms=500"),),
        tuple(segment() for _ in range(MAX_REFERENCES)),
    ],
)
def test_frames_of_the_live_edge_and_frames_that_stay_make_a_window(parts):
    assert plan(*parts) is not None


def test_a_bound_of_the_whole_question_counts_for_its_pictures():
    assert plan(picture("frame_index=-1")) is None
    assert plan(picture("frame_index=-1"), max_age_ms=500) is not None


# ── the grid ──


class Watcher:
    """What a keeper does, without tasks: it looks at the frames that may change something."""

    def __init__(self, reference: Reference) -> None:
        self.references = [reference]
        self.changes: tuple[Change, ...] | None = None
        self.held: tuple[int, ...] | None = None
        self.n_looks = 0
        self.n_updates = 0

    def see(self, times_ms: list[int]) -> None:
        snapshots = {"cam": make_snapshot(times_ms)}
        newest = {"time_ms": times_ms[-1], "index": len(times_ms) - 1}
        if self.changes is not None and not any(c.has_come(**newest) for c in self.changes):
            return
        self.n_looks += 1
        found = [frames_of(one) for one in resolve_window(self.references, snapshots)]
        self.changes = next_changes(self.references, found, snapshots)
        held = tuple(pick.index for pick in found[0].picks)
        self.n_updates += held != self.held
        self.held = held


def asked(reference: Reference, times_ms: list[int]) -> tuple[int, ...]:
    """What a question gets now."""
    found = frames_of(resolve(reference, make_snapshot(times_ms)))
    return tuple(pick.index for pick in found.picks)


def camera(n: int, *, step_ms: float, first_ms: float = 0) -> list[int]:
    return [round(first_ms + i * step_ms) for i in range(n)]


@pytest.mark.parametrize("fps", ["0.5", "1", "2", "3", "4.35", "7", "10", "15", "29.97", "30"])
@pytest.mark.parametrize(("first_ms", "span_ms"), [(0, 4000), (1, 3300), (17, 1000)])
def test_a_steady_camera_is_looked_at_once_or_twice_a_tick(fps, first_ms, span_ms):
    reference = segment(f"start_offset_ms=-{span_ms}&max_fps={fps}&edge=grid")
    watcher = Watcher(reference)
    times = camera(160, step_ms=1000 / 30, first_ms=first_ms)
    n_equal = 0
    for n in range(1, len(times) + 1):
        watcher.see(times[:n])
        n_equal += watcher.held == asked(reference, times[:n])
    n_ticks = (times[-1] - times[0]) * Fraction(fps) / 1000
    assert watcher.n_updates <= 2 * n_ticks + 3
    if Fraction(fps) <= 10:
        assert watcher.n_looks <= 2.2 * float(n_ticks) + 3  # 33 ms are followed by 34 ms
    if 1000 / Fraction(fps) <= span_ms and Fraction(fps) <= 10:
        # It lets a frame go one frame early at most; never is it late.
        assert n_equal >= 160 - watcher.n_updates - 2


@pytest.mark.parametrize("fps", [1, 2, 5])
def test_frames_exactly_on_the_ticks_cost_one_update_per_tick(fps):
    """At such an instant a question has one frame more than between two ticks."""
    reference = segment(f"start_offset_ms=-2000&max_fps={fps}&edge=grid")
    watcher = Watcher(reference)
    times = camera(160, step_ms=20)
    for n in range(1, len(times) + 1):
        watcher.see(times[:n])
        if n % (50 // fps) != 1:  # not at the tick itself
            assert watcher.held == asked(reference, times[:n])
    assert watcher.n_updates <= times[-1] * fps // 1000 + 2


def test_a_camera_as_slow_as_the_grid_is_held_as_it_is_asked_for():
    reference = segment("start_offset_ms=-4000&max_fps=1&edge=grid")
    watcher = Watcher(reference)
    times = camera(30, step_ms=1000)
    for n in range(1, len(times) + 1):
        watcher.see(times[:n])
        assert watcher.held == asked(reference, times[:n])


@given(
    steps=st.lists(st.sampled_from([0, 1, 20, 33, 34, 100, 470, 2000, 7000]), max_size=60),
    fps=st.sampled_from(["0.5", "1", "2", "4.35", "15", "30"]),
    start=st.sampled_from(
        ["offset_ms=-3000", "offset_ms=-250", "timestamp_ms=0", "frame_index=-7"]
    ),
)
def test_whatever_the_camera_does_the_newest_tick_is_held(steps, fps, start):
    reference = segment(f"start_{start}&max_fps={fps}&edge=grid")
    watcher = Watcher(reference)
    times = [0]
    for step in [0, *steps]:
        times.append(times[-1] + step)
        watcher.see(times)
        question = asked(reference, times)
        assert watcher.held is not None
        # Without a tick inside, one frame stands for all of them, until the next tick.
        if len(question) > 1:
            assert watcher.held[-1] == question[-1]
        assert set(watcher.held) <= set(range(len(times)))


def test_before_the_first_frame_any_frame_is_waited_for():
    empty = {"cam": make_snapshot([])}
    with pytest.raises(FrameNotYetProduced):
        resolve_window([segment()], empty)
    (change,) = next_ticks([segment()], empty)
    assert change.has_come(time_ms=0, index=0)


def test_only_references_to_the_live_edge_are_waited_for():
    snapshots = {"cam": make_snapshot(camera(40, step_ms=100))}
    references = [picture("frame_index=3"), segment()]
    found = [frames_of(one) for one in resolve_window(references, snapshots)]
    assert len(next_changes(references, found, snapshots)) == 1
    assert len(next_ticks(references, snapshots)) == 1


def test_the_newest_picture_is_renewed_every_second():
    references = [picture("frame_index=-1")]
    times = camera(25, step_ms=100)
    snapshots = {"cam": make_snapshot(times)}
    (found,) = [frames_of(one) for one in resolve_window(references, snapshots)]
    assert found.picks[0].index == 24
    (change,) = next_changes(references, [found], snapshots)
    assert change.at_ms == 3000


def test_a_rate_of_almost_nothing_is_a_tick_that_never_comes():
    references = [segment("start_offset_ms=-4000&max_fps=1e-300")]
    snapshots = {"cam": make_snapshot(camera(5, step_ms=100))}
    (change,) = next_ticks(references, snapshots)
    assert not change.has_come(time_ms=10**15, index=10**9)

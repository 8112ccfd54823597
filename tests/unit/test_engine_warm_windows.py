"""Warm windows in the scheduler: what questions find, what is computed once, who waits for whom."""

from __future__ import annotations

import pytest

from liveedge.core.errors import FrameEvicted, WindowLimitReached
from liveedge.engine.decide.limits import BYTES_PER_PIXEL, Limits
from liveedge.engine.request import Failed, Finished
from tests.scheduling import Bench, prepare

WIDE = Limits(
    prefill_chunk=40,
    encode_pixels=4,
    patch_bytes=20 * BYTES_PER_PIXEL,
    max_loading=4,
    min_piece=4,
    warm_chunk=4,
)
PREFIX: list[int | str] = [10, 11, 10, 11, "a", 12, 12, "b"]  # 10 tokens


def warm(bench: Bench, name: str = "w", window_id: str = "window", pieces=PREFIX) -> None:
    bench.warm(window_id, prepare(name, pieces))
    while bench.waiting() & {name}:
        bench.load_all()
        bench.step()


def finished(bench: Bench, name: str) -> Finished:
    end = bench.end(name)
    assert isinstance(end, Finished), end
    return end


def test_a_question_about_a_warm_window_computes_its_own_tokens_alone():
    bench = Bench(limits=WIDE)
    warm(bench)
    assert bench.warmed("w").n_prefilled == bench.warmed("w").n_tokens == 10
    assert bench.warmed("w").n_encoded == 2
    bench.submit(prepare("q", [*PREFIX, 13, 14]))
    bench.finish()
    assert finished(bench, "q").usage.cached_tokens == 10
    assert bench.prefilled["q"] == 2
    assert bench.scheduler.counters.warm_prefilled == 10


@pytest.mark.parametrize("is_warm", [True, False])
def test_eight_questions_at_once_cost_one_window_and_eight_questions(is_warm: bool):
    """However they come: window first, or all of them before anything was computed."""
    bench = Bench(limits=WIDE, n_slots=8)
    if is_warm:
        warm(bench)
    names = [f"q{n}" for n in range(8)]
    for n, name in enumerate(names):
        bench.submit(prepare(name, [*PREFIX, 14 + n, 13, 13], max_tokens=1))
    passes = []
    while bench.waiting():
        bench.load_all()
        passes.append(bench.step().prefills)
    window = 0 if is_warm else 10
    assert sum(bench.prefilled[name] for name in names) == window + 8 * 3
    most = max(passes, key=len)
    assert len(most) == (8 if is_warm else 7)  # packed into one pass
    assert all(len(chunk.ids) == 3 for chunk in most)
    bench.finish()


def test_a_prefix_that_is_resident_already_costs_nothing():
    bench = Bench(limits=WIDE)
    warm(bench)
    steps = bench.scheduler.counters.steps
    warm(bench, "again")
    assert bench.warmed("again").n_prefilled == 0
    assert bench.scheduler.counters.steps == steps
    bench.finish()


def test_a_window_takes_over_what_a_question_has_computed():
    bench = Bench(limits=WIDE)
    bench.submit(prepare("q", [*PREFIX, 13, 14]))
    bench.finish()
    warm(bench)
    assert bench.warmed("w").n_prefilled == 0
    assert bench.warmed("w").n_encoded == 0
    bench.finish()


def test_a_window_that_grows_goes_on_from_what_it_holds():
    bench = Bench(limits=WIDE)
    warm(bench)
    warm(bench, "next", pieces=[*PREFIX, 12, "c"])
    assert bench.warmed("next").n_prefilled == 4
    assert bench.warmed("next").n_encoded == 1
    bench.submit(prepare("q", [*PREFIX, 12, "c", 13]))
    bench.finish()
    assert finished(bench, "q").usage.cached_tokens == 14


def test_the_old_prefix_serves_while_the_next_one_is_made():
    bench = Bench(limits=WIDE)
    warm(bench)
    bench.warm("window", prepare("next", [14, 15, *PREFIX]))
    bench.step()
    bench.submit(prepare("q", [*PREFIX, 13], max_tokens=1))
    bench.step()
    bench.finish()
    assert finished(bench, "q").usage.cached_tokens == 10
    assert not bench.warmed("next").superseded


def test_a_question_that_needs_a_half_done_window_waits_no_longer_than_for_its_own_work():
    """The rest of the window is done at the question's rank and size of slices."""
    long = [10, 11] * 12
    bench = Bench(limits=WIDE)
    bench.warm("window", prepare("w", [*long, "a"]))
    bench.step()
    bench.load_all()
    bench.step()
    bench.step()
    assert 0 < bench.prefilled["w"] < 24  # in pieces of warm_chunk
    bench.submit(prepare("q", [*long, "a", 13, 14], max_tokens=1))
    assert bench.step().encode is not None  # what is loaded is encoded first
    plan = bench.step()
    assert [chunk.request_id for chunk in plan.prefills] == ["w"]
    assert len(plan.prefills[0].ids) > WIDE.warm_chunk
    bench.finish()
    assert bench.prefilled["w"] == 26
    assert bench.prefilled["q"] == 2


def test_a_question_that_came_first_is_not_held_up_by_the_window():
    bench = Bench(limits=WIDE)
    bench.submit(prepare("q", [*PREFIX, 13, 14], max_tokens=1))
    bench.warm("window", prepare("w", PREFIX))
    bench.finish()
    assert bench.prefilled["q"] == 12
    assert bench.warmed("w").n_prefilled == 0


def test_the_newest_prefix_of_a_window_wins():
    bench = Bench(limits=WIDE)
    for name in ("first", "second", "third"):
        bench.warm(
            "window", prepare(name, [*PREFIX, {"first": 13, "second": 14, "third": 15}[name]])
        )
    bench.finish()
    assert bench.warmed("first").superseded
    assert bench.warmed("second").superseded
    assert not bench.warmed("third").superseded
    assert bench.scheduler.counters.warm_superseded == 2


def test_a_window_whose_frames_come_too_fast_still_gets_on():
    bench = Bench(limits=WIDE)
    for tick in range(30):
        bench.warm("window", prepare(f"tick {tick}", [tick + 20, *[10, 11] * 8]))
        bench.step()
        bench.step()
    assert bench.scheduler.counters.warm_updates >= 5
    bench.finish()


def test_one_window_too_many_is_refused_until_another_is_dropped():
    bench = Bench(limits=WIDE)
    warm(bench, "one", "first")
    warm(bench, "two", "second")
    bench.warm("third", prepare("three", PREFIX))
    end = bench.end("three")
    assert isinstance(end, Failed)
    assert isinstance(end.error, WindowLimitReached)
    assert "2 windows" in end.error.message
    bench.drop_window("first")
    warm(bench, "again", "third")
    assert bench.scheduler.stats(row_bytes=1).windows == 2
    bench.finish()


def test_windows_under_way_count():
    bench = Bench(limits=WIDE)
    for name in ("one", "two", "three"):
        bench.warm(name, prepare(name, PREFIX))
    assert isinstance(bench.end("three"), Failed)
    bench.finish()


def test_a_dropped_window_ends_what_is_under_way_for_it():
    bench = Bench(limits=WIDE)
    bench.warm("window", prepare("w", PREFIX))
    bench.step()
    bench.drop_window("window")
    assert bench.warmed("w").superseded
    bench.finish()
    assert bench.scheduler.stats(row_bytes=1).windows == 0


def test_a_frame_that_is_gone_fails_the_update_and_the_old_prefix_stays():
    bench = Bench(limits=WIDE)
    warm(bench)
    bench.warm("window", prepare("next", [*PREFIX, "c"]))
    job = bench.step().loads[0]
    bench.load(job, works=False)
    end = bench.end("next")
    assert isinstance(end, Failed)
    assert isinstance(end.error, FrameEvicted)
    assert bench.scheduler.counters.warm_failed == 1
    bench.submit(prepare("q", [*PREFIX, 13]))
    bench.finish()
    assert finished(bench, "q").usage.cached_tokens == 10


def test_features_of_windows_outlive_those_of_passing_questions():
    """8 rows: the window's 4, and others that come and go."""
    bench = Bench(limits=WIDE, n_rows=8)
    warm(bench)
    for n in range(3):
        for key in ("c", "d"):
            bench.submit(prepare(f"{key}{n}", [key, 13], max_tokens=1))
            bench.finish()
    assert bench.cache.is_ready("a")
    assert bench.cache.is_ready("b")
    warm(bench, "moved", pieces=[15, "a", "b"])
    assert bench.warmed("moved").n_encoded == 0


def test_a_question_that_needs_the_room_gets_it_from_a_window():
    bench = Bench(limits=WIDE, n_rows=8)
    warm(bench)
    bench.submit(prepare("q", ["c", "d", 13], max_tokens=1))
    bench.finish()
    assert isinstance(bench.end("q"), Finished)
    assert not (bench.cache.is_ready("a") and bench.cache.is_ready("b"))


def test_an_update_gives_way_to_a_question_that_needs_its_room():
    """7 rows: either the window's four or the question's four."""
    bench = Bench(limits=WIDE, n_rows=7)
    bench.warm("window", prepare("w", PREFIX))
    bench.step()
    assert bench.scheduler.stats(row_bytes=1).encoder_pinned_bytes == 4
    bench.submit(prepare("q", ["d", 13], max_tokens=1))
    bench.load_all()
    bench.step()
    assert bench.scheduler.stats(row_bytes=1).running == 1
    bench.finish()
    assert isinstance(bench.end("q"), Finished)
    assert not bench.warmed("w").superseded


def test_windows_are_kept_up_to_date_under_a_flood_of_questions():
    """One slice in eight that do other work."""
    bench = Bench(limits=WIDE)
    bench.warm("window", prepare("w", [10, 11] * 8))
    slices = 0
    for n in range(200):
        if len(bench.waiting()) < 6:
            bench.submit(prepare(f"q{n}", [15 + n % 5] * 20, max_tokens=1))
        plan = bench.step()
        slices += bool(plan.prefills)
        if "w" not in bench.waiting():
            break
    assert not bench.warmed("w").superseded
    assert slices <= 4 * 8 + 1  # four pieces
    bench.finish()


def test_a_step_that_fails_fails_the_update_and_its_memory_is_not_used():
    bench = Bench(limits=WIDE)
    bench.warm("window", prepare("w", [10, 11] * 4))
    bench.step()
    bench.step(failing={"w"})
    assert isinstance(bench.end("w"), Failed)
    bench.submit(prepare("q", [10, 11] * 4))
    bench.finish()
    assert finished(bench, "q").usage.cached_tokens == 0


def test_a_window_nobody_waits_for_any_more_ends_at_once():
    bench = Bench(limits=WIDE)
    bench.warm("window", prepare("w", PREFIX))
    bench.step()
    bench.abort("w")
    bench.step()
    assert bench.slots.owner(bench.slots.spare) is None
    bench.finish()
    assert not bench.told["w"]

"""The held-out test: what is drawn, and how it is counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from liveedge.sim.clockcode import read_code
from liveedge.sim.questions import CLIP_KINDS, KINDS, TEST_SEEDS, expected
from workcell_exam import Moment, Tally, draw_exams, draw_moment, draw_workcell, pooled, shares


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def some_moment(random: np.random.Generator, *, n_frames: int) -> Moment:
    return draw_moment(random, draw_workcell(random), n_frames=n_frames)


def layout(moment: Moment) -> list[tuple[int, int]]:
    place = {pick.index: i for i, pick in enumerate(moment.picks)}
    return [(place[a.index], place[b.index]) for a, b in moment.pairs()]


def test_a_clip_is_three_frames_of_the_grid_and_the_newest() -> None:
    for seed in range(50):
        moment = some_moment(rng(seed), n_frames=4)
        times = [pick.stream_time_ms for pick in moment.picks]
        assert moment.picks[-1].index == moment.newest
        assert all(0 <= time % 500 < 1000 / moment.fps for time in times[:3])
        assert 440 < times[1] - times[0] < 560
        assert 440 < times[2] - times[1] < 560
        assert 440 < times[3] - times[2] < 1000


def test_both_alignments_of_pairs_occur_about_equally() -> None:
    random = rng()
    seen = Counter(str(layout(some_moment(random, n_frames=4))) for _ in range(300))
    assert set(seen) == {"[(0, 1), (2, 3)]", "[(0, 0), (1, 2), (3, 3)]"}
    assert min(seen.values()) > 100


@pytest.mark.parametrize("n_frames", [1, 2, 4, 8])
def test_any_number_of_frames_can_be_shown(n_frames: int) -> None:
    random = rng(n_frames)
    for _ in range(30):
        moment = some_moment(random, n_frames=n_frames)
        assert len(moment.picks) == len(moment.states) == n_frames
        assert moment.time_s(moment.picks[0]) == 0.0


def test_only_held_out_workcells_are_drawn() -> None:
    random = rng()
    assert all(some_moment(random, n_frames=1).seed in TEST_SEEDS for _ in range(100))


def test_rendered_frames_show_their_moments() -> None:
    moment = some_moment(rng(3), n_frames=4)
    pictures = moment.render(width=284, height=160)
    assert list(pictures) == [pick.index for pick in moment.picks]
    for pick, state in zip(moment.picks, moment.states, strict=True):
        code = read_code(pictures[pick.index])
        assert code is not None
        assert code.frame_number == pick.index
        assert code.t_ms == round(state.t_s * 1000)


def test_every_closed_answer_has_its_share_of_questions_and_the_truth_is_true() -> None:
    exams = draw_exams(rng(), wanted=shares(tuple(KINDS), 16 * 12), n_frames=4)
    asked = Counter((q.kind, q.truth) for exam in exams for q in exam.questions)
    for name, kind in KINDS.items():
        for answer in kind.answers:
            assert asked[name, answer] == -(-12 // len(kind.answers))
        assert sum(n for (k, _), n in asked.items() if k == name) >= 12
    for exam in exams:
        for question in exam.questions:
            assert question.truth == expected(question.kind, exam.moment.states)
            assert question.text in KINDS[question.kind].phrasings


def test_the_same_seed_draws_the_same_exam() -> None:
    wanted = shares(CLIP_KINDS, 30)
    one, two = (draw_exams(rng(5), wanted=wanted, n_frames=4) for _ in range(2))
    assert [(e.moment, e.questions) for e in one] == [(e.moment, e.questions) for e in two]


def test_shares_round_up_so_that_no_kind_falls_short() -> None:
    wanted = shares(("shirt", "display"), 39)
    assert wanted["shirt", "red"] == 4
    assert wanted["display", None] == 20
    assert wanted.total() == 24 + 20


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (95, 100, 0.8882, 0.9785)],
)
def test_intervals_are_wilsons(right: int, n: int, low: float, high: float) -> None:
    assert Tally(right, n).interval == pytest.approx((low, high), abs=5e-4)


def test_pooling_adds_what_is_there() -> None:
    tallies = {"door": Tally(3, 4), "lamp": Tally(5, 5)}
    assert pooled(tallies, ("door", "lamp", "person")) == Tally(8, 9)

"""The score of a changed picture, and when it is worth a question."""

import numpy as np
import pytest

from liveedge.service.change import COLUMNS, ROWS, ChangeDetector, ChangeRule, thumbnail

RULE = ChangeRule(threshold=0.6, debounce_s=0.2, min_interval_s=1.0)


def scene(grey=0.4, *, patch=None, at=(5, 5), size=6):
    """A thumbnail with a brighter or darker patch."""
    picture = np.full((ROWS, COLUMNS), grey, dtype=np.float32)
    if patch is not None:
        y, x = at
        picture[y : y + size, x : x + size] = patch
    return picture


class Watched:
    """Looks ten times a second; an answer comes at once."""

    def __init__(self, rule=RULE):
        self.detector = ChangeDetector(rule)
        self.now_s = 100.0
        self.asked_s = []

    def see(self, picture, *, for_s=0.1):
        for _ in range(round(for_s * 10)):
            self.now_s += 0.1
            self.detector.look(picture() if callable(picture) else picture, self.now_s)
            due_in_s = self.detector.due_in_s(self.now_s)
            if due_in_s is not None and due_in_s < 1e-6:
                self.detector.asked(self.now_s)
                assert self.detector.newest is not None
                self.detector.answered(self.detector.newest, self.now_s)
                self.asked_s.append(self.now_s)
        return len(self.asked_s)


def test_the_first_picture_is_due_at_once():
    assert Watched().see(scene()) == 1


def test_a_scene_that_stays_is_never_asked_about_again():
    assert Watched().see(scene(), for_s=60) == 1


def test_a_change_that_lasts_is_asked_about_once():
    watched = Watched()
    watched.see(scene(), for_s=3)
    assert watched.see(scene(patch=0.7), for_s=10) == 2


def test_a_change_shorter_than_the_debounce_is_not():
    watched = Watched()
    watched.see(scene(), for_s=3)
    watched.see(scene(patch=0.7), for_s=0.1)
    assert watched.see(scene(), for_s=10) == 1


def test_a_scene_that_changes_and_returns_is_two_changes():
    watched = Watched()
    watched.see(scene(), for_s=3)
    watched.see(scene(patch=0.7), for_s=3)
    assert watched.see(scene(), for_s=3) == 3


def test_slow_drift_adds_up_against_the_answered_picture():
    watched = Watched()
    watched.see(scene(patch=0.4), for_s=1)
    for step in range(300):
        watched.see(scene(patch=0.4 + step * 0.001))
    assert 2 <= len(watched.asked_s) <= 5


def test_questions_keep_their_distance():
    watched = Watched()
    for n in range(50):
        watched.see(scene(patch=0.7 if n % 2 else 0.1), for_s=0.4)
    assert len(watched.asked_s) > 5
    assert min(np.diff(watched.asked_s)) >= 0.99


def test_a_burned_in_clock_is_learnt_and_passes_for_no_change():
    rng = np.random.default_rng(1)

    def with_clock():
        picture = scene()
        picture[-1] = rng.uniform(0, 1, COLUMNS)
        return picture

    watched = Watched()
    watched.see(with_clock, for_s=3)  # learns
    n_before = len(watched.asked_s)
    assert watched.see(with_clock, for_s=20) == n_before

    def with_clock_and_change():
        picture = with_clock()
        picture[5:11, 5:11] = 0.7
        return picture

    assert watched.see(with_clock_and_change, for_s=2) == n_before + 1


def test_a_small_step_of_exposure_is_no_change_and_lights_out_is():
    watched = Watched()
    watched.see(scene(0.40), for_s=3)
    assert watched.see(scene(0.44), for_s=3) == 1
    assert watched.see(scene(0.10), for_s=3) == 2


def test_pictures_far_apart_teach_no_noise():
    watched = Watched()
    for n in range(20):
        watched.now_s += 5
        watched.see(scene(patch=0.2 + 0.5 * (n % 2)), for_s=0.3)
    assert len(watched.asked_s) == 20


def test_while_a_change_waits_the_time_until_it_is_due_is_known():
    watched = Watched()
    watched.see(scene(), for_s=3)
    watched.see(scene(patch=0.7))
    assert watched.detector.due_in_s(watched.now_s) == pytest.approx(0.2)
    assert watched.detector.due_in_s(watched.now_s + 0.2) == pytest.approx(0)


def test_nothing_is_due_before_there_is_a_picture():
    assert ChangeDetector(RULE).due_in_s(1.0) is None


@pytest.mark.parametrize("size", [(480, 854), (1, 1), (7, 3), (1080, 1920), (19, 33)])
def test_thumbnails_of_any_size_are_the_mean_luma_of_blocks(size):
    height, width = size
    rgb = np.zeros((height, width, 3), dtype=np.uint8)
    rgb[:, : max(1, width // 2)] = 255
    shown = thumbnail(rgb)
    assert shown.shape == (ROWS, COLUMNS)
    assert shown[:, 0] == pytest.approx(1.0, abs=1e-5)
    if width > COLUMNS:
        assert shown[:, -1] == pytest.approx(0.0, abs=1e-5)

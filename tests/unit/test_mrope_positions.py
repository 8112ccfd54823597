"""Places of tokens in time, height and width."""

from __future__ import annotations

from liveedge.models.qwen3_vl.positions import mrope_positions


def test_text_advances_all_three_together():
    positions, delta = mrope_positions(4, [])
    assert positions.tolist() == [[0, 1, 2, 3]] * 3
    assert delta == 0


def test_a_group_spreads_from_one_place_and_text_goes_on_behind_its_longer_side():
    positions, delta = mrope_positions(9, [(1, 2, 3)])
    assert positions.tolist() == [
        [0, 1, 1, 1, 1, 1, 1, 4, 5],
        [0, 1, 1, 1, 2, 2, 2, 4, 5],
        [0, 1, 2, 3, 1, 2, 3, 4, 5],
    ]
    assert delta == 6 - 9  # the tenth token sits at 6


def test_groups_may_open_and_close_a_prompt_and_touch():
    positions, delta = mrope_positions(6, [(0, 2, 1), (2, 1, 4)])
    assert positions.tolist() == [
        [0, 0, 2, 2, 2, 2],
        [0, 1, 2, 2, 2, 2],
        [0, 0, 2, 3, 4, 5],
    ]
    assert delta == 0


def test_an_empty_prompt_has_no_positions():
    positions, delta = mrope_positions(0, [])
    assert positions.shape == (3, 0)
    assert delta == 0

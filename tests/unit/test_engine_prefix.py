"""Identities of prompt tokens and their common prefixes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from liveedge.engine.decide.prefix import common_prefix, prompt_identity, visual_identity

IDS = st.lists(st.integers(0, 3), max_size=12)


@given(IDS, IDS)
def test_the_common_prefix_is_what_a_loop_finds(a: list[int], b: list[int]) -> None:
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert common_prefix(np.array(a, np.int64), np.array(b, np.int64)) == expected


def test_visual_tokens_differ_by_content_and_by_place_and_never_meet_text() -> None:
    red, blue = visual_identity("red", 200), visual_identity("blue", 200)
    assert len({*red.tolist(), *blue.tolist()}) == 400
    assert max(red.max(), blue.max()) < 0


def test_equal_pictures_have_equal_identities() -> None:
    assert np.array_equal(visual_identity("red", 7), visual_identity("red", 9)[:7])


def test_a_prompt_with_another_picture_shares_only_what_stands_before_it() -> None:
    ids = np.array([5, 6, 9, 9, 9, 7], np.int64)
    red = prompt_identity(ids, [(2, 3, "red")])
    blue = prompt_identity(ids, [(2, 3, "blue")])
    assert common_prefix(red, blue) == 2
    assert common_prefix(red, prompt_identity(ids, [(2, 3, "red")])) == 6
    assert ids.tolist() == [5, 6, 9, 9, 9, 7]


def test_prompts_of_two_tenants_have_nothing_in_common_and_those_of_one_have_all() -> None:
    ids = np.array([5, 6, 9, 9, 7], np.int64)
    ours, theirs, nobodys = (
        prompt_identity(ids, [(2, 2, "red")], tenant=tenant) for tenant in ("us", "them", "")
    )
    assert common_prefix(ours, theirs) == common_prefix(ours, nobodys) == 0
    assert common_prefix(ours, prompt_identity(ids, [(2, 2, "red")], tenant="us")) == 5
    assert common_prefix(ours, prompt_identity(ids[:2], [], tenant="us")) == 2
    other = prompt_identity(np.array([4, 6], np.int64), [], tenant="us")
    assert common_prefix(ours, other) == 0

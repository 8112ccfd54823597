"""The encoder cache: rows, holders and eviction, in any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from liveedge.engine.decide.encoder_cache import EncoderCache

N_ROWS = 12
SIZES = {"a": 1, "b": 3, "c": 4, "d": 5, "e": 12}
KEYS = st.sets(st.sampled_from(sorted(SIZES)), min_size=1, max_size=3)


class CacheMachine(RuleBasedStateMachine):
    """Compares the cache with a plain list of what every holder was promised."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = EncoderCache(n_rows=N_ROWS)
        self.holders: list[set[str]] = []
        self.ready: dict[str, list[int]] = {}
        self.kept: dict[str, set[str]] = {}

    @rule(window=st.sampled_from(["one", "two"]), keys=KEYS)
    def keep(self, window: str, keys: set[str]) -> None:
        self.cache.keep(window, keys)
        self.kept[window] = keys

    @rule(window=st.sampled_from(["one", "two"]))
    def keep_no_more(self, window: str) -> None:
        self.cache.keep_no_more(window)
        self.kept.pop(window, None)

    @rule(key=st.sampled_from(sorted(SIZES)))
    def forget(self, key: str) -> None:
        self.cache.forget(key)
        held = set().union(*self.holders) if self.holders else set()
        assert (key in self.cache) <= (key in held)

    @rule(keys=KEYS)
    def hold(self, keys: set[str]) -> None:
        before = {key for key in SIZES if key in self.cache}
        if self.cache.hold({key: SIZES[key] for key in keys}):
            self.holders.append(keys)
            kept = set().union(*self.kept.values()) if self.kept else set()
            held = set().union(*self.holders)
            if (before - set(self.cache)) & kept:  # windows lose theirs after all others
                assert set(self.cache) <= kept | held
        else:
            assert {key for key in SIZES if key in self.cache} == before
            held = set().union(*self.holders) if self.holders else set()
            assert sum(SIZES[key] for key in held | keys) > N_ROWS  # it truly does not fit

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        keys = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        for key in keys:
            self.cache.release(key)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def encode(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(set().union(*self.holders))))
        self.cache.mark_ready(key)
        self.ready[key] = self.cache.rows(key).tolist()

    @invariant()
    def rows_belong_to_one_group_or_are_free(self) -> None:
        used = [row for k in SIZES if k in self.cache for row in self.cache.rows(k).tolist()]
        assert len(used) == len(set(used)) == self.cache.used_rows

    @invariant()
    def held_groups_stay_where_they_are(self) -> None:
        held = set().union(*self.holders) if self.holders else set()
        assert all(key in self.cache for key in held)
        assert self.cache.held_rows == sum(SIZES[key] for key in held)

    @invariant()
    def ready_features_do_not_move(self) -> None:
        for key in SIZES:
            if self.cache.is_ready(key):
                assert self.cache.rows(key).tolist() == self.ready[key]


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_the_group_used_longest_ago_makes_room() -> None:
    cache = EncoderCache(n_rows=10)
    for key in ("old", "new"):
        assert cache.hold({key: 5})
        cache.mark_ready(key)
        cache.release(key)
    assert cache.hold({"old": 5})
    cache.release("old")
    assert cache.hold({"third": 5})
    assert (cache.is_ready("old"), cache.is_ready("new")) == (True, False)


def test_a_request_that_does_not_fit_evicts_nothing() -> None:
    cache = EncoderCache(n_rows=10)
    assert cache.hold({"held": 6})
    assert not cache.hold({"big": 5, "small": 1})
    assert "small" not in cache


def test_unfinished_features_leave_with_their_last_holder() -> None:
    cache = EncoderCache(n_rows=10)
    cache.hold({"a": 4})
    cache.hold({"a": 4})
    cache.release("a")
    assert "a" in cache
    cache.release("a")
    assert ("a" in cache, cache.used_rows) == (False, 0)


def test_releasing_more_than_held_is_refused() -> None:
    cache = EncoderCache(n_rows=10)
    cache.hold({"a": 4})
    cache.mark_ready("a")
    cache.release("a")
    with pytest.raises(ValueError, match="more often than held"):
        cache.release("a")

"""Answers computed again cold: which, how, and what is said about them."""

from __future__ import annotations

import logging

import pytest

from liveedge.engine.decide.limits import BYTES_PER_PIXEL, Limits
from liveedge.engine.decide.verify import Verifier
from liveedge.engine.request import Finished
from tests.scheduling import EOS, Bench, prepare

LIMITS = Limits(
    prefill_chunk=40,
    encode_pixels=4,
    patch_bytes=20 * BYTES_PER_PIXEL,
    max_loading=4,
    min_piece=4,
    warm_chunk=4,
    max_verifications=2,
)
PROMPT: list[int | str] = [10, 11, "a", 12, "b", 13]  # 8 tokens


def checked(*, share: float = 1.0, chance: float = 0.0) -> Bench:
    return Bench(limits=LIMITS, verifier=Verifier(share=share, chance=lambda: chance))


def ask(bench: Bench, name: str, pieces=PROMPT, max_tokens: int = 4) -> None:
    bench.submit(prepare(name, pieces, max_tokens=max_tokens))
    while name in bench.waiting():
        bench.load_all()
        bench.step()


def test_an_answer_that_reused_something_is_computed_again_from_its_frames():
    bench = checked()
    ask(bench, "first")
    ask(bench, "second")
    assert isinstance(bench.end("second"), Finished)  # told before it is verified
    bench.finish()
    counters = bench.scheduler.stats(row_bytes=1)
    assert (counters.verified, counters.verify_differences, counters.verify_skipped) == (1, 0, 0)
    rows = [number for compare in bench.device.verified for _, number in compare.rows]
    assert rows == [0, 1, 2, 3]
    assert {compare.request_id for compare in bench.device.verified} == {"second"}
    assert sorted(bench.loaded) == ["a", "a", "b", "b"]  # once more for the verification


def test_its_frames_and_logits_are_kept_until_it_is_verified():
    bench = checked()
    ask(bench, "first")
    ask(bench, "second")
    assert bench.ended.count("second") == 0
    bench.finish()
    assert bench.ended.count("second") == 1


def test_an_answer_that_computed_everything_is_not_verified():
    bench = checked()
    ask(bench, "alone")
    bench.finish()
    assert bench.scheduler.stats(row_bytes=1).verified == 0


def test_cached_features_alone_are_reuse():
    bench = checked()
    ask(bench, "first", ["a", 10])
    ask(bench, "second", [11, "a"])
    bench.finish()
    assert bench.scheduler.stats(row_bytes=1).verified == 1


@pytest.mark.parametrize(("chance", "n_verified"), [(0.19, 1), (0.2, 0)])
def test_a_share_of_them_is_chosen_by_chance(chance: float, n_verified: int):
    bench = checked(share=0.2, chance=chance)
    ask(bench, "first")
    ask(bench, "second")
    bench.finish()
    assert bench.scheduler.stats(row_bytes=1).verified == n_verified


def test_a_difference_is_counted_and_told_with_both_sides(caplog: pytest.LogCaptureFixture):
    bench = checked()
    bench.device.drifts = True
    ask(bench, "first")
    ask(bench, "second")
    with caplog.at_level(logging.ERROR):
        bench.finish()
    assert bench.scheduler.stats(row_bytes=1).verify_differences == 1
    text = caplog.text
    assert "request second (7 tokens and 0 groups reused)" in text
    assert "logits by 0.5, allowed 0.001" in text
    assert "token 0: 1 warm, 2 cold" in text


def lose(bench: Bench, *keys: str) -> None:
    """The pixels of these groups are gone when they are asked for."""
    bench.step()
    for job in list(bench.loading):
        bench.load(job, works=job.source_key not in keys)


def outcome(bench: Bench) -> tuple[int, int, int, int]:
    """Verified cold, verified with cached features, different, skipped."""
    counters = bench.scheduler.stats(row_bytes=1)
    return (
        counters.verified,
        counters.verified_with_cached_features,
        counters.verify_differences,
        counters.verify_skipped,
    )


def test_cached_features_stand_in_for_pixels_that_are_gone():
    bench = checked()
    ask(bench, "first")
    ask(bench, "second")
    lose(bench, "a", "b")
    bench.finish()
    assert outcome(bench) == (0, 1, 0, 0)
    rows = [number for compare in bench.device.verified for _, number in compare.rows]
    assert rows == [0, 1, 2, 3]
    assert {"a", "b"} <= set(bench.cache)  # and others can still use them


def test_only_what_is_gone_is_taken_from_the_cache():
    bench = checked()
    ask(bench, "first")
    ask(bench, "second")
    lose(bench, "b")
    encoded: set[str] = set()
    while bench.busy():
        plan = bench.step()
        encoded |= set(plan.encode.keys) if plan.encode else set()
    assert len(encoded) == 1
    assert encoded.pop().startswith("a")
    assert outcome(bench) == (0, 1, 0, 0)


def test_a_group_that_is_shown_twice_is_taken_from_the_cache_twice():
    bench = checked()
    ask(bench, "first", ["a", 10, "a", 11])
    ask(bench, "second", ["a", 10, "a", 11])
    lose(bench, "a")
    bench.finish()
    assert outcome(bench) == (0, 1, 0, 0)


def test_a_difference_with_cached_features_is_one_too(caplog: pytest.LogCaptureFixture):
    bench = checked()
    bench.device.drifts = True
    ask(bench, "first")
    ask(bench, "second")
    lose(bench, "b")
    bench.finish()
    assert outcome(bench) == (0, 1, 1, 0)
    assert "computed again with cached features of 1 groups differs" in caplog.text


def test_without_pixels_and_features_an_answer_is_skipped_and_is_no_difference():
    bench = checked()
    ask(bench, "first")
    ask(bench, "second")
    bench.step()
    bench.cache.forget("b")
    for job in list(bench.loading):
        bench.load(job, works=False)
    bench.finish()
    assert outcome(bench) == (0, 0, 0, 1)


def test_a_verification_that_begins_again_asks_for_the_pixels_again():
    """Its cached features may be evicted meanwhile: a new encoding of another copy would differ."""
    bench = checked()
    ask(bench, "first")
    ask(bench, "second")
    lose(bench, "a", "b")  # holds the 4 cached rows of 10 now
    bench.submit(prepare("large", ["c", "d", 14]))  # 7 rows
    bench.step()
    assert bench.scheduler.stats(row_bytes=1).running == 1  # the verification gave way
    n_asked = len(bench.loaded)
    bench.finish()
    assert [key for key in bench.loaded[n_asked:] if key in ("a", "b")] == ["a", "b"]
    assert sum(outcome(bench)) == 1


def test_only_so_many_wait_to_be_verified():
    bench = checked()
    ask(bench, "first")
    for n in range(6):
        bench.submit(prepare(f"q{n}", PROMPT, max_tokens=1))
        while f"q{n}" in bench.waiting():
            bench.step()  # nothing is loaded meanwhile
    assert bench.scheduler.stats(row_bytes=1).verify_skipped == 3  # one runs, two wait
    bench.finish()
    assert bench.scheduler.stats(row_bytes=1).verified == 3


def test_nothing_of_a_verification_is_found_by_others():
    bench = checked()
    ask(bench, "first")
    ask(bench, "second")
    bench.finish()
    assert all("verification" not in key for key in bench.cache)
    salted = bench.slots.content(bench.slots.spare)
    assert bench.slots.match(salted).slot == bench.slots.spare
    assert salted[0] < 0  # no text token


def test_an_answer_without_a_token_is_verified_by_the_end_it_chose():
    bench = checked()
    ask(bench, "first")
    bench.submit(prepare("silent", PROMPT))
    while "silent" in bench.waiting():
        bench.step({"silent": EOS})
    bench.finish()
    assert [compare.rows for compare in bench.device.verified] == [((3, 0),)]
    assert bench.scheduler.stats(row_bytes=1).verified == 1


def test_an_aborted_answer_is_not_verified():
    bench = checked()
    ask(bench, "first")
    bench.submit(prepare("left", PROMPT, max_tokens=9))
    while not bench.told["left"]:
        bench.step()
    bench.abort("left")
    bench.finish()
    assert bench.scheduler.stats(row_bytes=1).verified == 0

"""Short runs of `tools/fuzz.py`, and that it would see what it looks for."""

from __future__ import annotations

import dataclasses
import random
import time

import pytest

from fuzz import Mutator, run
from fuzz_targets import TARGETS, read_events, refs

N_INPUTS = 400


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_changed_examples_are_read_or_refused_and_nothing_else(name: str) -> None:
    tally = run(TARGETS[name](), n=N_INPUTS, seed=random.randrange(10**6))
    assert tally.broken == []
    assert tally.n == N_INPUTS
    assert tally.accepted > 0


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_examples_themselves_are_good_with_few_exceptions(name: str) -> None:
    target = TARGETS[name]()
    tally = run(target, n=len(target.corpus), seed=1)
    assert tally.broken == []
    assert tally.accepted >= len(target.corpus) / 3


def test_another_error_a_slow_input_and_a_failed_promise_are_found() -> None:
    def check(data: bytes) -> None:
        if len(data) % 3 == 0:
            raise KeyError("undeclared")
        if len(data) % 3 == 1:
            assert not data, "a promise"
        begun_s = time.thread_time()
        while time.thread_time() - begun_s < 0.11:
            pass

    kept: list[bytes] = []
    found = run(
        dataclasses.replace(refs(), check=check, corpus=[b"aaa", b"aaaa", b"aaaaa"]),
        n=3,
        seed=1,
        on_broken=kept.append,
    )
    said = [trouble.partition(" ")[0] for trouble in found.broken]
    assert said == ["KeyError:", "AssertionError:", "took"]
    assert kept == [b"aaa", b"aaaa", b"aaaaa"]
    assert not found.is_good


def test_the_same_seed_gives_the_same_inputs() -> None:
    def inputs(seed: int) -> list[bytes]:
        make = Mutator(refs(), random.Random(seed))
        return [make() for _ in range(50)]

    assert inputs(3) == inputs(3) != inputs(4)


def test_the_reader_of_events_takes_no_event_that_is_not_one() -> None:
    assert read_events(b"data: 1\n\n: ping\n\ndata: a\ndata:b\r\n\r\n") == ["1", "a\nb"]
    for broken in (b"data: 1\n", b"event: x\n\n", b"data\n\n", b"data: \xff\n\n"):
        with pytest.raises((AssertionError, UnicodeDecodeError)):
            read_events(broken)

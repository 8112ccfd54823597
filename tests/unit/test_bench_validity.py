"""Steps that say nothing about the server are found out; what misleads is warned of."""

import random
from dataclasses import replace

import pytest

from liveedge.bench.measures import summarise
from tests.bench_records import answer, constant

OWN = {
    "kind": "generator",
    "begun_s": 1.0,
    "repeat": 0,
    "step": 0,
    "seconds": 10.0,
    "cpu_share": 0.1,
    "loop_stalled_s": 0.0,
}


def run(records, asked=None, own=None, looks=(), clock=None):
    return summarise(asked or constant(), records, [{**OWN, **(own or {})}, *looks], clock=clock)


def answers(n=100, **more):
    chance = random.Random(0)
    more = {"correct": True, **more}
    return [answer(i, total_s=0.4 + 0.2 * chance.random(), **more) for i in range(n)]


def look(**machine):
    return [{"at_s": 2.0 + n, "metrics": {}, "machine": machine} for n in range(8)]


def test_a_step_with_nothing_wrong_is_valid():
    summary = run(answers())
    assert summary.valid
    assert summary.invalid == []
    assert summary.warnings == [
        "step 0: too few samples: 100 independent answers; needed are for p99 368"
    ]


@pytest.mark.parametrize(
    ("own", "looks", "reason"),
    [
        ({"cpu_share": 0.97}, (), "the generator was busy 97%"),
        ({}, look(generator_cpu_share=0.95), "the generator was busy 95%"),
        ({"loop_stalled_s": 0.36}, (), "stood still for 0.36 of 10.0 s"),
        ({"loop_late_ms_p99": 60.0}, (), "event loop was late: p99 is 60.0 ms, allowed are 5"),
    ],
    ids=["cpu of its process", "cpu of its thread", "stalls", "loop late"],
)
def test_a_generator_that_was_the_bottleneck_makes_the_step_invalid(own, looks, reason):
    summary = run(answers(), own=own, looks=looks)
    assert not summary.valid
    assert reason in summary.invalid[0]
    assert summary.steps[0].invalid


def test_cameras_in_the_process_are_not_held_against_the_thread_that_sends():
    assert run(answers(), own={"cpu_share": 1.4}, looks=look(generator_cpu_share=0.2)).valid


def test_a_single_short_stall_is_no_reason():
    assert run(answers(), own={"loop_stalled_s": 0.06}).valid


def test_a_late_generator_makes_the_step_invalid():
    late = [answer(i, late_s=0.2 if i % 20 == 0 else 0.001) for i in range(100)]
    summary = run(late)
    assert "the generator was late: p99 of sending after due is 200.0 ms" in summary.invalid[0]
    assert run([answer(i, late_s=0.02) for i in range(100)]).valid  # 4 % of an answer of 0.5 s


def test_requests_that_were_not_sent_make_the_step_invalid():
    records = answers(98)
    records += [answer(i, outcome="not_sent", sent_s=None, ended_s=None) for i in (98, 99)]
    summary = run(records)
    assert "2 of 100 requests were not sent" in summary.invalid[0]
    assert summary.steps[0].outcomes["not_sent"] == 2


def test_a_schedule_that_was_not_carried_out_makes_the_step_invalid():
    assert "50 requests were due in 10.0 s, 100 are 10 per second" in run(answers(50)).invalid[0]


def test_a_run_that_broke_off_is_invalid():
    summary = run(answers(), constant(rates_per_s=[10.0, 20.0]))
    assert summary.invalid == ["the run has 1 of 2 steps: it broke off"]
    half = run(answers(), constant(repeats=2))
    assert half.invalid == ["step 0: it has 1 of 2 repeats: the run broke off"]


def test_an_invalid_step_counts_for_no_capacity():
    assert run(answers()).capacity["sustained_per_s"] == 10.0
    assert "sustained_per_s" not in run(answers(), own={"cpu_share": 0.97}).capacity


def test_a_queue_that_grows_is_not_steady():
    growing = [answer(i, total_s=0.5 + i * 0.02) for i in range(100)]
    summary = run(growing)
    assert summary.valid  # it says something: that this is too much
    assert any(
        "not steady: the median answer of the second half" in one for one in summary.warnings
    )
    assert "sustained_per_s" not in summary.capacity
    assert summary.capacity["saturated_per_s"] == 10.0


def test_a_wave_is_no_growth():
    wave = [answer(i, total_s=0.5 + (0.4 if 40 <= i < 60 else 0.0)) for i in range(100)]
    assert not any("not steady" in one for one in run(wave).warnings)


def test_neighbours_in_one_queue_are_told_and_widen_the_intervals():
    waves = [answer(i, total_s=0.5 + 0.4 * (i // 10 % 2)) for i in range(100)]
    told = run(waves)
    assert any(
        "neighbours resemble each other: 100 answers count as" in one for one in told.warnings
    )
    total = told.steps[0].latencies["total_ms"]
    assert (total.n_independent or 0) < 30


def test_repeats_that_disagree_are_told():
    first = answers(100)
    second = [
        replace(one, repeat=1, index=one.index + 100, ended_s=(one.ended_s or 0) + 0.3)
        for one in answers(100)
    ]
    asked = constant(repeats=2)
    both = summarise(asked, first + second, [OWN, {**OWN, "repeat": 1}])
    assert any("repeats disagree: p50 of total_ms" in one for one in both.warnings)
    alike = [replace(one, repeat=1) for one in answers(100)]
    both = summarise(asked, first + alike, [OWN, {**OWN, "repeat": 1}])
    assert not any("repeats disagree" in one for one in both.warnings)


def test_answers_that_could_not_be_judged_are_told():
    half = [replace(one, correct=True if one.index % 2 else None) for one in answers()]
    assert any("50 of 100 answers could not be judged" in one for one in run(half).warnings)


def test_a_machine_without_rest_is_told():
    busy = run(answers(), looks=look(cpu_share=0.99))
    assert busy.valid
    assert any("the machine was 99% busy" in one for one in busy.warnings)


@pytest.mark.parametrize("uncertainty_ms", [400.0, None, float("inf")])
def test_a_clock_that_is_hardly_known_is_told(uncertainty_ms):
    records = [replace(one, evidence_at_ms=(one.sent_at_ms or 0) - 100) for one in answers()]
    rough = run(records, clock={"offset_ms": 0.0, "uncertainty_ms": uncertainty_ms})
    assert any("the server's clock is known to" in one for one in rough.warnings)
    fine = run(records, clock={"offset_ms": 0.0, "uncertainty_ms": 2.0})
    assert not any("clock" in one for one in fine.warnings)

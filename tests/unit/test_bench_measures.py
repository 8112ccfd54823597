"""Records with known moments: every measure is what its definition says."""

import math
import random
from dataclasses import replace

import pytest

from liveedge.bench.definitions import LATENCIES, MACHINE
from liveedge.bench.measures import bounded_latency, is_good, latency, summarise, summarise_folder
from liveedge.bench.result import summary_of
from liveedge.bench.scenario import Objectives
from liveedge.bench.windows import estimated_windows, windows_from
from tests.bench_records import RATE, answer, constant
from tests.bench_results import WALL_MS, Simulated, make_result, scenario, simulated


def only_step(records, asked=None, samples=(), **more):
    return summarise(asked or constant(), records, samples, **more).steps[0]


def spread_out(n, quantile, seed=0):
    """n values whose distribution is known exactly, in random order."""
    values = [quantile((i + 0.5) / n) for i in range(n)]
    random.Random(seed).shuffle(values)
    return values


def test_every_measure_of_a_known_distribution_is_recovered_within_2_percent():
    n = 1000
    ttft = spread_out(n, lambda p: 0.1 - 0.08 * math.log(1 - p))
    rest = spread_out(n, lambda p: 0.2 + 0.4 * p, seed=1)
    age = spread_out(n, lambda p: 20 + 200 * p, seed=2)
    records = []
    for i in range(n):
        one = answer(i, ttft_s=ttft[i], total_s=ttft[i] + rest[i], late_s=0.001)
        evidence = (one.sent_at_ms or 0) - age[i]
        records.append(
            replace(
                one,
                evidence_at_ms=evidence,
                known_evidence_at_ms=evidence - 30,
                age_ms=age[i] + ttft[i] * 1000,
                connected_s=(one.sent_s or 0) + 0.004,
            )
        )
    step = only_step(records, constant(duration_s=100.0))
    assert set(step.latencies) == set(LATENCIES)
    for percent in (50, 90, 95, 99):
        p, name = percent / 100, f"p{percent}"
        true_ttft = 100 - 80 * math.log(1 - p)
        expected = {
            "ttft_ms": true_ttft + 1,
            "service_ttft_ms": true_ttft,
            "headers_ms": 0.8 * true_ttft,
            "itl_ms": (200 + 400 * p) / 4,
            "tpot_ms": (200 + 400 * p) / 8,
            "capture_to_request_ms": 20 + 200 * p,
            "connect_ms": 4.0,
        }
        for measure, true in expected.items():
            found = step.latencies[measure].percentiles[name]
            assert found == pytest.approx(true, rel=0.02), (measure, name)
    sums = step.latencies
    whole = sums["service_total_ms"].mean or 0
    assert whole == pytest.approx(100 + 80 + 400, rel=0.02)
    assert sums["total_ms"].mean == pytest.approx(whole + 1)
    assert sums["freshness_ms"].mean == pytest.approx(whole + 120, rel=0.02)
    assert sums["known_freshness_ms"].mean == pytest.approx(whole + 150, rel=0.02)
    assert sums["age_ms"].mean == pytest.approx(180 + 120, rel=0.02)


def test_waiting_to_be_sent_counts_from_the_moment_at_which_it_was_due():
    late = answer(0, late_s=0.3)
    assert latency(late, "ttft_ms") == pytest.approx(500)
    assert latency(late, "service_ttft_ms") == pytest.approx(200)
    assert latency(late, "total_ms") == pytest.approx(800)
    assert latency(late, "service_total_ms") == pytest.approx(500)


def test_events_without_content_are_no_first_token():
    early = answer(0, first_event_s=1.001, headers_s=1.0005)
    assert latency(early, "ttft_ms") == pytest.approx(200)


def test_a_whole_answer_in_one_event_has_no_pace():
    at_once = answer(0, content_s=[1.5])
    assert latency(at_once, "tpot_ms") is None
    assert "itl_ms" not in only_step([at_once] * 5).latencies


def test_time_outs_count_at_their_bound_in_a_series_of_their_own():
    records = [answer(i) for i in range(95)]
    lost = [
        answer(i, outcome="timeout", first_content_s=None, content_s=(), ended_s=None)
        for i in range(95, 100)
    ]
    step = only_step(records + lost)
    assert step.outcomes["ok"] == 95
    assert step.outcomes["timeout"] == 5
    assert step.codes == {"timeout": 5}
    assert step.latencies["total_ms"].n == 95
    assert step.latencies["total_ms"].high == pytest.approx(500)
    assert step.with_timeouts["total_ms"].n == 100
    assert step.with_timeouts["total_ms"].percentiles["p99"] == 5000
    assert step.with_timeouts["ttft_ms"].high == 5000


def test_a_time_out_after_its_first_content_has_its_own_first_token():
    cut = answer(0, outcome="timeout", ended_s=6.0)
    assert bounded_latency(cut, "ttft_ms", 5.0) == pytest.approx(200)
    assert bounded_latency(cut, "total_ms", 5.0) == 5000
    assert bounded_latency(replace(cut, outcome="refused"), "total_ms", 5.0) is None


def test_every_measured_request_is_in_one_outcome_and_warm_up_in_none():
    outcomes = ["ok", "refused", "failed", "unreachable", "timeout", "not_sent"]
    records = [
        answer(i, outcome=outcomes[i % 6], status=429 if i % 6 == 1 else 0, code="queue_full")
        for i in range(60)
    ]
    step = only_step([*records, *(answer(i, warmup=True) for i in range(60, 70))])
    assert step.sent == 60
    assert set(step.outcomes.values()) == {10}
    assert sum(step.codes.values()) == 50
    assert step.codes["429 queue_full"] == 10


def test_the_achieved_rate_counts_what_ends_within_the_measured_time():
    asked = constant(warmup_s=2.0, duration_s=10.0)
    own = {"kind": "generator", "begun_s": 1.0, "repeat": 0, "step": 0, "seconds": 12.0}
    records = [answer(i, total_s=1.0, warmup=i < 20) for i in range(120)]
    step = only_step(records, asked, [own])
    assert step.seconds == 10.0
    assert step.sent == 100
    # Those of the warm-up's last second end in it, those of its own last second do not.
    assert step.achieved_per_s == pytest.approx(RATE)
    slow = [answer(i, total_s=1.0 + 0.05 * i, warmup=i < 20) for i in range(120)]
    assert only_step(slow, asked, [own]).achieved_per_s == pytest.approx(RATE / 1.5, rel=0.02)


def test_the_measured_time_is_told_by_the_run_or_seen_in_its_records(tmp_path):
    folder = make_result(
        tmp_path, asked=scenario(rates_per_s=[4.0, 8.0], repeats=2, duration_s=10.0)
    )
    records, samples = list(folder.records()), list(folder.samples())
    told = windows_from(folder.scenario(), samples)
    seen = estimated_windows(folder.scenario(), records)
    assert [(one.repeat, one.step) for one in told] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for one, other in zip(told, seen, strict=True):
        assert (one.repeat, one.step) == (other.repeat, other.step)
        assert one.seconds == pytest.approx(other.seconds)
        assert other.start_s == pytest.approx(one.start_s, abs=0.5)


def test_goodput_asks_for_all_objectives_at_once():
    slo = Objectives(ttft_ms=300, total_ms=600, freshness_ms=700, correct=True)
    base = answer(0, correct=True)
    good = replace(base, evidence_at_ms=(base.sent_at_ms or 0) - 100)
    assert is_good(good, slo)
    assert is_good(replace(good, correct=None), slo)  # not decidable: not held to be wrong
    assert not is_good(replace(good, correct=False), slo)
    assert not is_good(replace(good, outcome="timeout"), slo)
    assert not is_good(replace(good, due_s=good.due_s - 0.2), slo)
    assert not is_good(replace(good, evidence_at_ms=(good.sent_at_ms or 0) - 250), slo)
    assert not is_good(replace(good, evidence_at_ms=None), slo)  # nobody knows how old it is
    assert is_good(replace(good, evidence_at_ms=None), replace(slo, freshness_ms=0))


def test_what_the_bench_knows_of_a_frame_wins_over_what_the_server_says():
    slo = Objectives(freshness_ms=700)
    base = answer(0)
    stale = replace(
        base,
        evidence_at_ms=(base.sent_at_ms or 0) - 10,
        known_evidence_at_ms=(base.sent_at_ms or 0) - 900,
    )
    assert not is_good(stale, slo)


@pytest.mark.parametrize(
    ("kind", "delivery", "known_is_theirs"),
    [
        ("sim", "ovs", True),  # drawn by the server
        ("rtsp", "ovs", False),  # drawn by the bench
        ("push", "ovs", False),
        ("sim", "data", False),
    ],
)
def test_a_frame_of_another_machine_is_placed_on_our_clock(kind, delivery, known_is_theirs):
    ahead_ms = 250_000.0
    asked = constant()
    asked = replace(
        asked,
        sources=replace(asked.sources, kind=kind),
        target=replace(asked.target, delivery=delivery),
    )
    captured_ms = WALL_MS + 1000.0 - 100
    one = answer(
        0,
        evidence_at_ms=captured_ms + ahead_ms,
        known_evidence_at_ms=captured_ms + ahead_ms * known_is_theirs,
    )
    step = only_step([one] * 10, asked, clock={"offset_ms": ahead_ms, "uncertainty_ms": 2.0})
    assert step.latencies["freshness_ms"].percentiles["p50"] == pytest.approx(600)
    assert step.latencies["known_freshness_ms"].percentiles["p50"] == pytest.approx(600)
    assert step.latencies["capture_to_request_ms"].percentiles["p50"] == pytest.approx(100)


def test_accuracy_is_of_whole_answers_that_can_be_judged_by_kind():
    records = [
        *(answer(i, correct=i % 10 > 0) for i in range(50)),
        *(answer(i, question="door", correct=None) for i in range(50, 60)),
        *(answer(i, question="door", correct=True) for i in range(60, 80)),
        *(answer(i, outcome="timeout", correct=None) for i in range(80, 100)),
    ]
    step = only_step(records)
    assert (step.accuracy.k, step.accuracy.n) == (65, 70)
    assert step.accuracy_by_kind["lamp"].share == pytest.approx(0.9)
    assert (step.accuracy_by_kind["door"].k, step.accuracy_by_kind["door"].n) == (20, 20)


def test_shares_of_a_mix_have_figures_of_their_own():
    records = [
        answer(i, share="window", total_s=2.0, correct=False)
        if i % 4 == 0
        else answer(i, share="now", correct=True)
        for i in range(100)
    ]
    step = only_step(records)
    assert {name: one.sent for name, one in step.shares.items()} == {"now": 75, "window": 25}
    assert step.shares["window"].latencies["total_ms"].percentiles["p50"] == pytest.approx(2000)
    assert step.shares["now"].with_timeouts["total_ms"].high == pytest.approx(500)
    assert step.shares["window"].accuracy.share == 0
    assert only_step([answer(i) for i in range(10)]).shares == {}
    again = summary_of(summarise(constant(), records, []).as_json())
    assert again.steps[0].shares["now"].good.k == 75


def test_tokens_are_per_second_per_answer_and_per_event():
    step = only_step([answer(i, cached_tokens=75) for i in range(100)])
    assert step.tokens["completion_per_event"] == pytest.approx(9 / 5)
    assert step.tokens["cached_share"] == pytest.approx(0.75)
    assert step.tokens["prompt_per_answer"] == 100
    assert step.tokens["completion_per_s"] == pytest.approx(9 * step.achieved_per_s)


def test_the_servers_stages_are_told_and_what_lies_outside_of_them():
    step = only_step([answer(i, timings_ms={"queue": 40.0, "total": 460.0}) for i in range(20)])
    assert step.server_ms["queue"].percentiles["p50"] == 40
    assert step.server_ms["outside"].percentiles["p50"] == pytest.approx(40)


def test_looks_beside_count_within_the_measured_time():
    looks = [
        {"at_s": at_s, "metrics": {"queue_depth": at_s}, "machine": {"cpu_share": 0.5}}
        for at_s in range(30)
    ]
    own = {"kind": "generator", "begun_s": 1.0, "repeat": 0, "step": 0, "seconds": 10.0}
    step = only_step([answer(i) for i in range(100)], None, [*looks, own])
    assert step.machine["queue_depth"].n == 10
    assert (step.machine["queue_depth"].low, step.machine["queue_depth"].high) == (1, 10)
    assert set(step.machine) <= set(MACHINE)


def test_a_sweep_through_saturation_finds_the_capacity():
    asked = scenario(duration_s=30.0)
    summary = summarise(asked, *simulated(asked, Simulated()))
    assert summary.valid
    found = summary.capacity  # of 4 places with answers of 0.32 s: 12.4 per second
    assert found["peak_achieved_per_s"] == pytest.approx(4 / 0.3236, rel=0.02)
    assert found["sustained_per_s"] == 12.0
    assert found["saturated_per_s"] == 16.0
    assert found["within_slo_per_s"] == 8.0
    assert summary.cold == {
        "process_start_ms": 640.0,
        "model_load_ms": 2210.0,
        "first_request_ms": 890.0,
    }


def test_a_summary_survives_its_file(tmp_path):
    folder = make_result(tmp_path, asked=scenario(rates_per_s=[4.0], duration_s=10.0))
    made = summarise_folder(folder).as_json()
    assert folder.summary().as_json() == made
    assert summarise_folder(folder).as_json() == made  # chance is seeded


def test_nothing_answered_is_still_a_summary():
    lost = [answer(i, outcome="unreachable", sent_s=None, ended_s=None) for i in range(100)]
    summary = summarise(constant(), lost, [])
    assert summary.steps[0].latencies == {}
    assert summary.steps[0].achieved_per_s == 0
    assert any("no request was answered" in warning for warning in summary.warnings)


def test_a_server_without_bounds_loses_by_time_outs(tmp_path):
    server = Simulated(most_wait_s=math.inf)
    asked = scenario(rates_per_s=[16.0], timeout_s=6.0, duration_s=30.0)
    folder = make_result(tmp_path, server=server, asked=asked)
    step = folder.summary().steps[0]
    assert step.outcomes["refused"] == 0
    assert step.outcomes["timeout"] > 0.2 * step.sent
    assert step.with_timeouts["total_ms"].percentiles["p95"] == 6000
    assert any(warning.startswith("not steady") for warning in step.warnings)

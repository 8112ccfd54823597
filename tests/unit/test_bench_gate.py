"""Rules for a release: kept, broken, or not shown; each with its value."""

import math
from dataclasses import replace

import pytest

from liveedge.bench.compare import compare, markdown as compared_as_text
from liveedge.bench.figures import COUNTS, NoSuchFigure, names
from liveedge.bench.gate import GateInvalid, gate_of, judge, load_gate, markdown
from tests.bench_results import Simulated, scenario
from tests.unit.test_bench_compare import run, slower

SWEEP = scenario(rates_per_s=[4.0, 16.0], duration_s=60.0)


@pytest.fixture(scope="module")
def sweep():
    return run(work=SWEEP)


@pytest.fixture(scope="module")
def worse():
    return run(slower(1.25), work=SWEEP, seed=2)


def held(b, a=None, **rule):
    """Outcomes of one rule by where."""
    gate = gate_of({"rule": [rule]})
    judged = judge(gate, b, None if a is None else compare(a, b))
    return {one.where: one.outcome for one in judged.held if one.rule != "the run is valid"}


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        ({"figure": "total_ms.p95", "at_most": 600}, "pass"),
        ({"figure": "total_ms.p95", "at_most": 300}, "fail"),
        ({"figure": "total_ms.p95", "at_most": 430}, "undecided"),
        ({"figure": "total_ms.p99", "at_most": 5000}, "undecided"),  # too few samples for p99
        ({"figure": "with_timeouts.ttft_ms.p90", "at_most": 400}, "pass"),
        ({"figure": "freshness_ms.p90", "at_most": 700}, "pass"),
        ({"figure": "accuracy", "at_least": 0.85}, "pass"),
        ({"figure": "accuracy", "at_least": 0.999}, "fail"),
        ({"figure": "accuracy.lamp", "at_least": 0.80}, "pass"),
        ({"figure": "accuracy.colour", "at_least": 0.80}, "fail"),  # never asked
        ({"figure": "timeout_share", "at_most": 0.05}, "pass"),
        ({"figure": "timeout_share", "at_most": 0.001}, "undecided"),  # 240 requests cannot show it
        ({"figure": "timeouts", "at_most": 0}, "pass"),
        ({"figure": "server_errors", "at_most": 0}, "pass"),
        ({"figure": "achieved_per_s", "at_least": 3}, "pass"),
        ({"figure": "goodput_per_s", "at_least": 5}, "fail"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value.values())),
)
def test_a_limit_is_kept_broken_or_not_shown(sweep, rule, outcome):
    assert held(sweep, steps="lowest", **rule) == {"4 per s": outcome}


def test_a_rule_holds_at_every_step_unless_it_says_where(sweep):
    rule = {"figure": "timeouts", "at_most": 1e9}
    assert list(held(sweep, **rule)) == ["4 per s", "16 per s"]
    assert list(held(sweep, steps="highest", **rule)) == ["16 per s"]
    assert list(held(sweep, steps=[0], **rule)) == ["4 per s"]
    assert list(held(sweep, up_to_per_s=8.0, **rule)) == ["4 per s"]
    assert held(sweep, up_to_per_s=1.0, **rule) == {"no step": "fail"}


def test_overload_is_held_to_what_it_was_below_it(sweep):
    assert held(sweep, figure="achieved_of_peak", at_least=0.9) == {"run": "pass"}
    assert held(sweep, figure="goodput_of_peak", at_least=0.9) == {"run": "fail"}
    assert held(sweep, figure="capacity.sustained_per_s", at_least=4) == {"run": "pass"}
    assert held(sweep, figure="capacity.within_slo_per_s", at_least=8) == {"run": "fail"}
    assert held(sweep, figure="capacity.nonsense", at_least=8) == {"run": "fail"}


def test_refusals_must_say_when_to_come_back(sweep):
    rule = {"figure": "refusals_without_retry_after", "at_most": 0, "steps": "highest"}
    assert sweep.summary.steps[1].outcomes["refused"] > 50
    assert held(sweep, **rule) == {"16 per s": "pass"}
    silent = [replace(one, retry_after_s=None) for one in sweep.records]
    assert held(replace(sweep, records=silent), **rule) == {"16 per s": "fail"}


def test_errors_of_the_server_and_cut_streams_are_counted(sweep):
    broken = [
        replace(one, outcome="refused", status=500) if one.index % 50 == 3 else one
        for one in sweep.records
    ]
    assert held(replace(sweep, records=broken), figure="server_errors", at_most=0, steps=[0]) == {
        "4 per s": "fail"
    }
    cut = run(Simulated(share_cut=0.05), work=SWEEP)
    assert held(cut, figure="disconnects", at_most=0, steps=[0]) == {"4 per s": "fail"}


def test_a_change_is_held_against_the_other_run(sweep, worse):
    rule = {"figure": "total_ms.p50", "steps": "lowest"}
    assert held(worse, sweep, change_at_most=1.1, **rule) == {"4 per s": "fail"}
    assert held(worse, sweep, change_at_most=1.5, **rule) == {"4 per s": "pass"}
    assert held(sweep, worse, change_at_most=1.0, **rule) == {"4 per s": "pass"}
    shares = {"figure": "accuracy", "steps": "lowest"}
    assert held(worse, sweep, change_at_least=-0.15, **shares) == {"4 per s": "pass"}
    with pytest.raises(GateInvalid, match="compares two runs: give both"):
        held(worse, change_at_most=1.1, **rule)


def test_a_change_that_the_samples_cannot_tell_is_undecided_and_no_error(sweep):
    few = run(work=scenario(rates_per_s=[1.0], duration_s=8.0))
    rule = {"figure": "with_timeouts.ttft_ms.p99", "change_at_most": 1.1}
    judged = judge(gate_of({"rule": [rule]}), few, compare(few, few))
    assert [one.outcome for one in judged.held] == ["pass", "undecided"]
    assert "too few samples in one of the two runs" in markdown(judged)


def test_losses_that_neither_run_had_can_be_asked_for(sweep):
    rule = {"figure": "disconnected_share", "change_at_most": 0.05, "steps": "lowest"}
    assert held(sweep, sweep, **rule) == {"4 per s": "pass"}
    assert "disconnected_share" not in compared_as_text(compare(sweep, sweep))


def test_what_is_not_shown_fails_unless_the_gate_lets_it_pass(sweep):
    rules = [{"figure": "total_ms.p99", "at_most": 5000, "steps": "lowest"}]
    assert not judge(gate_of({"rule": rules}), sweep, None).passed
    assert judge(gate_of({"rule": rules, "undecided": "pass"}), sweep, None).passed


def test_an_invalid_run_passes_no_gate(sweep):
    invalid = replace(sweep, summary=replace(sweep.summary, valid=False, invalid=["late"]))
    judged = judge(gate_of({"rule": [{"figure": "timeouts", "at_most": 9e9}]}), invalid, None)
    assert not judged.passed
    assert "late" in markdown(judged)


def test_every_rule_is_printed_with_its_value(sweep):
    rules = [
        {"figure": "total_ms.p50", "at_most": 1, "why": "people wait for it"},
        {"figure": "timeouts", "at_most": 1e9},
    ]
    text = markdown(judge(gate_of({"rule": rules}), sweep, None))
    assert text.count("| total_ms.p50 at most 1 |") == 2
    assert "fail (people wait for it)" in text
    assert text.splitlines()[-1] == "gate FAILED: 5 rules held, 2 failed, 0 undecided"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "the gate has no rule"),
        ({"rule": [], "rules": 1}, "rules: no key here"),
        ({"rule": [1]}, "rule 1 is 1, it must be a table"),
        ({"rule": [{"at_most": 1}]}, "rule 1 has no figure"),
        ({"rule": [{"figure": "a"}]}, "needs exactly one of at_least"),
        ({"rule": [{"figure": "a", "at_most": 1, "at_least": 0}]}, "needs exactly one"),
        ({"rule": [{"figure": "a", "max": 1}]}, "max is no key; known: at_least"),
        ({"rule": [{"figure": "a", "at_most": "1"}]}, "at_most is '1', it must be a number"),
        ({"rule": [{"figure": "a", "at_most": True}]}, "at_most is True"),
        ({"rule": [{"figure": "a", "at_most": 1, "steps": "some"}]}, "steps is 'some'; one of all"),
        ({"rule": [{"figure": "a", "at_most": 1, "steps": ["a"]}]}, "steps is"),
        ({"rule": [{"figure": "a", "at_most": 1}], "undecided": "maybe"}, "undecided is 'maybe'"),
    ],
    ids=range(12),
)
def test_a_gate_that_cannot_be_used_says_why(document, message):
    with pytest.raises(GateInvalid, match=message):
        gate_of(document)


def test_an_unknown_figure_is_told_with_those_there_are(sweep):
    with pytest.raises(NoSuchFigure, match=r"ttfb is no figure; known: ttft_ms\.PNN"):
        held(sweep, figure="ttfb", at_most=1)
    with pytest.raises(NoSuchFigure, match=r"total_ms\.p42 must end in one of p50"):
        held(sweep, figure="total_ms.p42", at_most=1)
    with pytest.raises(NoSuchFigure, match="tokens is not compared; compared are"):
        held(sweep, sweep, figure="tokens", change_at_most=1)
    assert set(COUNTS) <= set(names())


def test_a_gate_is_read_from_its_file(tmp_path):
    path = tmp_path / "gate.toml"
    path.write_text('undecided = "pass"\n[[rule]]\nfigure = "accuracy"\nat_least = 0.9\n')
    gate = load_gate(path)
    assert (gate.undecided, gate.rules[0].limit) == ("pass", 0.9)
    path.write_text("rule = [")
    with pytest.raises(GateInvalid, match="is no TOML"):
        load_gate(path)
    with pytest.raises(GateInvalid, match="cannot be read"):
        load_gate(tmp_path / "none.toml")


def test_a_limit_of_infinity_is_no_reason_to_fail(sweep):
    assert held(sweep, figure="total_ms.p50", at_most=math.inf, steps=[0]) == {"4 per s": "pass"}

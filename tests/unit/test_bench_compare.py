"""Two runs side by side: a change of 10 % is found, noise is not called one."""

import json
from dataclasses import replace

import pytest

from liveedge.bench.compare import (
    NotComparable,
    Run,
    check_comparable,
    compare,
    differences,
    markdown,
)
from liveedge.bench.measures import summarise
from liveedge.bench.windows import windows_from
from liveedge.cli import main
from tests.bench_results import Simulated, make_result, scenario, simulated

RATE = 4.0
SECONDS = 80.0  # 320 requests


def asked(**load):
    return scenario(rates_per_s=[RATE], duration_s=SECONDS, warmup_s=2.0, **load)


def run(server=None, seed=1, work=None, name="run", **target):
    work = work or asked()
    if target:
        work = replace(work, target=replace(work.target, **target))
    records, samples = simulated(work, server or Simulated(share_cut=0.0), seed)
    summary = summarise(work, records, samples)
    return Run(name, work, summary, records, windows_from(work, samples))


def verdicts(a, b):
    return {line.figure: line.verdict for line in compare(a, b).lines}


def slower(factor):
    return Simulated(service_s=0.32 * factor, share_cut=0.0)


def test_a_regression_of_10_percent_is_found_in_300_requests():
    a = run()
    found = compare(a, run(slower(1.10), seed=2))
    lines = {line.figure: line for line in found.lines}
    line = lines["with_timeouts.total_ms.p50"]
    assert line.verdict == "worse"
    assert line.change == pytest.approx(1.10, abs=0.04)
    assert line.interval is not None
    assert line.interval[0] > 1.0
    assert lines["tpot_ms.p50"].verdict == "worse"
    assert lines["accuracy"].verdict in ("undecided", "same")


def test_an_improvement_of_10_percent_is_found_too():
    found = verdicts(run(), run(slower(0.90), seed=2))
    assert found["with_timeouts.total_ms.p50"] == "better"
    assert found["freshness_ms.p50"] == "better"


def test_noise_is_not_called_a_change():
    a = run()
    called = [
        verdict
        for seed in (2, 3, 4, 5)
        for verdict in verdicts(a, run(seed=seed)).values()
        if verdict in ("better", "worse")
    ]
    n_lines = 4 * len(compare(a, a).lines)
    assert len(called) <= 0.15 * n_lines  # 5 % are expected; lines of one run resemble each other


def test_a_run_equals_itself():
    a = run()
    assert not {"better", "worse"} & set(verdicts(a, a).values())


def test_time_outs_are_no_way_to_become_faster():
    work = asked(timeout_s=0.5)
    a, b = run(work=work), run(slower(1.5), work=work, seed=2)
    found = verdicts(a, b)
    assert b.summary.steps[0].outcomes["timeout"] > 50
    assert found["with_timeouts.total_ms.p50"] == "worse"
    assert found["with_timeouts.total_ms.p95"] == "worse"
    assert found["timeout_share"] == "worse"
    assert found["good_share"] == "worse"


def test_a_lower_rate_of_answers_is_worse():
    work = scenario(rates_per_s=[16.0], duration_s=60.0)
    found = verdicts(run(work=work), run(slower(1.15), work=work, seed=2))
    assert found["achieved_per_s"] == "worse"
    assert found["refused_share"] == "worse"


def test_worse_answers_are_worse():
    wrong = Simulated(accuracy=dict.fromkeys(("lamp", "door", "display", "count"), 0.80))
    assert verdicts(run(), run(wrong, seed=2))["accuracy"] == "worse"


def test_other_work_is_refused_and_each_difference_named():
    other = asked(timeout_s=9.0)
    other = replace(other, media=replace(other.media, frames=8))
    with pytest.raises(
        NotComparable, match=r"load.timeout_s: 3.0 in A, 9.0 in B; media.frames: 4.*--anyway"
    ):
        check_comparable(run(), run(work=other))
    assert differences(asked(), asked()) == []


def test_another_target_or_delivery_is_the_same_work_and_said():
    a, b = run(), run(delivery="data", base_url="http://peer:8000/v1", model="x/y")
    check_comparable(a, b)
    notes = compare(a, b).notes
    assert any("delivery differs: ovs in A, data in B" in note for note in notes)
    assert not any("delivery" in note for note in compare(a, a).notes)


def test_a_run_that_says_nothing_is_refused_and_decides_nothing():
    a, b = run(), run(slower(1.5), seed=2)
    step = replace(b.summary.steps[0], invalid=("the generator was late",))
    b = replace(b, summary=replace(b.summary, steps=[step], invalid=["step 0: late"], valid=False))
    with pytest.raises(NotComparable, match="B is invalid: step 0: late"):
        check_comparable(a, b)
    assert set(verdicts(a, b).values()) == {"undecided"}


def test_few_samples_leave_it_undecided():
    work = scenario(rates_per_s=[1.0], duration_s=8.0)
    found = verdicts(run(work=work), run(slower(1.05), work=work, seed=3))
    assert found["with_timeouts.total_ms.p50"] == "undecided"
    assert "with_timeouts.total_ms.p95" not in found


def test_the_table_has_a_line_for_every_line():
    found = compare(run(name="before"), run(slower(1.1), seed=2, name="after"))
    text = markdown(found)
    assert text.startswith("A: before\nB: after\n")
    assert text.count("| 4 per s |") == len(found.shown)
    assert "by chance alone" in text


@pytest.fixture
def folders(tmp_path):
    work = scenario(rates_per_s=[RATE], duration_s=40.0)
    make_result(tmp_path / "a", asked=work)
    make_result(tmp_path / "b", asked=work, server=slower(1.3), seed=2)
    make_result(tmp_path / "other", asked=scenario(rates_per_s=[RATE], duration_s=10.0))
    return tmp_path


def test_the_command_prints_a_table_or_json(folders, capsys):
    a, b = str(folders / "a"), str(folders / "b")
    assert main(["bench", "compare", a, b]) == 0
    assert "| 4 per s | with_timeouts.total_ms.p50 |" in capsys.readouterr().out
    assert main(["bench", "compare", a, b, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["gate"] is None
    assert {"worse"} <= {line["verdict"] for line in told["comparison"]["lines"]}


def test_the_command_refuses_what_cannot_be_compared(folders, capsys):
    a, other = str(folders / "a"), str(folders / "other")
    assert main(["bench", "compare", a, other]) == 1
    assert "load.duration_s: 40.0 in A, 10.0 in B" in capsys.readouterr().err
    assert main(["bench", "compare", a, other, "--anyway"]) == 0
    assert "not the same work: load.duration_s" in capsys.readouterr().out
    assert main(["bench", "compare", a, str(folders / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(["bench", "compare", a]) == 1
    assert "give B or --gate" in capsys.readouterr().err


def test_the_command_ends_with_4_where_a_gate_fails(folders, capsys):
    gate = folders / "gate.toml"
    a, b = str(folders / "a"), str(folders / "b")
    gate.write_text('[[rule]]\nfigure = "total_ms.p50"\nchange_at_most = 1.1\n')
    assert main(["bench", "compare", a, b, "--gate", str(gate)]) == 4
    assert "gate FAILED" in capsys.readouterr().out
    gate.write_text('[[rule]]\nfigure = "total_ms.p50"\nchange_at_most = 2\n')
    assert main(["bench", "compare", a, b, "--gate", str(gate)]) == 0
    assert "gate passed" in capsys.readouterr().out
    gate.write_text('[[rule]]\nfigure = "total_ms.p50"\nat_most = 900\n')
    assert main(["bench", "compare", a, "--gate", str(gate)]) == 0  # one result alone
    capsys.readouterr()
    gate.write_text("[[rule]]\n")
    assert main(["bench", "compare", a, b, "--gate", str(gate)]) == 1
    assert "rule 1 has no figure" in capsys.readouterr().err

"""The demonstration's arithmetic: when it passes, and how a bar shows shares of time."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest

from liveedge.demo.report import (
    BAR_CELLS,
    ERASE,
    STAGES,
    STARTS,
    JsonReport,
    Result,
    TextReport,
    Waiting,
    bar,
    passed,
    summarise,
)
from liveedge.demo.script import SCRIPT, media_part
from liveedge.sim.questions import KINDS

MODEL_STAGES = ("tokenizer", "imports", "vocabulary", "weights", "memory")
RIGHT = Result(
    question="Is the lamp on or off?",
    kind="lamp",
    answer="on",
    expected="on",
    correct=True,
    ttft_ms=80.0,
    total_ms=90.0,
    age_ms=40.0,
    frames=1,
    reused_tokens=12,
    timings_ms={"resolve": 1.0, "encode": 30.0, "prefill": 30.0, "decode": 19.0},
    moment="now",
)
WRONG = dataclasses.replace(RIGHT, answer="off", correct=False)
FAILED = dataclasses.replace(RIGHT, correct=False, error="503 model_unavailable: loading")


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ([RIGHT] * 10, True),
        ([RIGHT] * 9 + [WRONG], True),
        ([RIGHT] * 8 + [WRONG] * 2, False),
        ([RIGHT] * 9 + [FAILED], False),
    ],
)
def test_the_demo_passes_with_nine_of_ten_right_and_no_error(results, verdict):
    assert passed(summarise(results, {})) is verdict


def test_the_summary_counts_and_leaves_failed_questions_out_of_the_times():
    slow = dataclasses.replace(WRONG, ttft_ms=200.0)
    summary = summarise([RIGHT, slow, FAILED], {"server": 1000.04})
    assert (summary["questions"], summary["correct"], summary["errors"]) == (3, 1, 1)
    assert summary["ttft_ms_median"] == 140.0
    assert summary["startup_ms"] == {"server": 1000.0}


def test_the_bar_is_always_full_and_in_the_order_of_the_stages():
    shown = bar({"decode": 25.0, "encode": 50.0, "prefill": 25.0, "first_token": 75.0})
    assert shown == "e" * (BAR_CELLS // 2) + "f" * (BAR_CELLS // 4) + "d" * (BAR_CELLS // 4)


def test_the_bar_of_no_time_is_empty():
    assert bar({}) == ""


def test_json_lines_hold_one_question_each_and_the_summary_last(capsys):
    report = JsonReport()
    report.started({"server": 1000.0}, {})
    report.result(1, RIGHT)
    report.summary(summarise([RIGHT], {}))
    first, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["reused_tokens"] == 12
    assert last["summary"]["correct"] == 1


def test_people_read_answer_truth_verdict_and_stages(capsys):
    TextReport(colours=False).result(1, WRONG)
    text = capsys.readouterr().out
    assert "off   (truth: on)   WRONG" in text
    assert "encode 30" in text
    assert "\x1b" not in text


def test_a_start_says_what_each_stage_includes_and_what_the_model_spent_its_time_on(capsys):
    TextReport(colours=False).started(
        {"server": 1500.0, "model": 4000.0}, {"imports": 3000.0, "weights": 900.0}
    )
    text = capsys.readouterr().out
    assert "start to first answer 5.50 s" in text
    assert "server         1.50 s  Python, its imports" in text
    assert "model          4.00 s  until the model is ready" in text
    assert " imports 3.00, weights 0.90\n" in text
    assert "e encode, f prefill, d decode" in text


def test_a_report_fits_into_a_hundred_columns(capsys):
    state = json.dumps(
        {
            "door": "closed",
            "lamp": "off",
            "person": False,
            "shirt": "yellow",
            "boxes": 4,
            "display": "12",
        }
    )
    slow = dict.fromkeys(STAGES, 999.0) | {"resolve": 99.0}
    report = TextReport(colours=False)
    report.started(dict.fromkeys(STARTS, 99_000.0), dict.fromkeys(MODEL_STAGES, 99_000.0))
    result = dataclasses.replace(RIGHT, kind="state", answer=state, expected=state)
    report.result(
        10,
        dataclasses.replace(
            result,
            ttft_ms=9999.0,
            total_ms=9999.0,
            age_ms=99999.0,
            reused_tokens=9999,
            timings_ms=slow,
        ),
    )
    lines = capsys.readouterr().out.splitlines()
    assert any("truth  {" in line for line in lines)
    assert [line for line in lines if len(line) > 100] == []


def test_a_summary_of_nothing_but_failures_can_be_printed(capsys):
    TextReport(colours=False).summary(summarise([FAILED], {}))
    assert "0 of 1 right, 1 errors" in capsys.readouterr().out


def test_the_script_asks_known_kinds_with_clips_where_one_frame_cannot_tell():
    assert len(SCRIPT) == 10
    for step in SCRIPT:
        assert step.question in KINDS[step.kind].phrasings
        kind = media_part(step, "id", exact_index=7)["type"]
        assert (kind == "video_url") == KINDS[step.kind].needs_clip


def test_an_exact_frame_is_named_by_its_index():
    step = next(step for step in SCRIPT if step.moment == "same frame")
    assert media_part(step, "id", exact_index=7) == {
        "type": "image_url",
        "image_url": {"url": "ovs://streams/id?frame_index=7"},
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_step_is_a_bar_on_a_terminal():
    terminal = Terminal()
    waiting = Waiting(terminal)
    waiting.show("waiting", 0.5)
    waiting.count("loading", 3.2)
    half = f"[{'#' * (BAR_CELLS // 2)}{'.' * (BAR_CELLS // 2)}] waiting"
    assert terminal.getvalue() == f"{ERASE}{half}{ERASE}loading: 3 s"


def test_nothing_of_a_step_that_is_over_stays_on_a_terminal():
    terminal = Terminal()
    waiting = Waiting(terminal)
    waiting.show("waiting", 0.5)
    waiting.clear()
    assert terminal.getvalue().endswith(ERASE)
    length = len(terminal.getvalue())
    waiting.clear()
    assert len(terminal.getvalue()) == length, "there was nothing to clear"


def test_a_long_step_is_one_plain_line_elsewhere():
    output = io.StringIO()
    waiting = Waiting(output)
    for share in (0.1, 0.5, 0.9):
        waiting.show("waiting", share)
    waiting.clear()
    assert output.getvalue() == "waiting\n"

"""The demonstration's arithmetic: when it passes, and how a bar shows shares of time."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest

from liveedge.demo.report import (
    BAR_CELLS,
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
    report.started({"server": 1000.0})
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
    waiting.show("waiting", 1.0)
    half, full = terminal.getvalue().split("\r")[1:]
    assert half == f"[{'#' * (BAR_CELLS // 2)}{'.' * (BAR_CELLS // 2)}] waiting"
    assert full == f"[{'#' * BAR_CELLS}] waiting\n"


def test_a_long_step_is_one_plain_line_elsewhere():
    output = io.StringIO()
    waiting = Waiting(output)
    for share in (0.1, 0.5, 0.9, 1.0):
        waiting.show("waiting", share)
    assert output.getvalue() == "waiting\n"


def test_a_step_that_is_over_at_once_is_not_shown_elsewhere():
    output = io.StringIO()
    Waiting(output).show("waiting", 1.0)
    assert output.getvalue() == ""

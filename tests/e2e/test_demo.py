"""`liveedge demo` as a user runs it: a process, a shipped model, true answers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from typing import Any

import httpx
import pytest

KEYS = {
    "question",
    "kind",
    "answer",
    "expected",
    "correct",
    "ttft_ms",
    "total_ms",
    "age_ms",
    "frames",
    "reused_tokens",
    "timings_ms",
}
DEMO = (sys.executable, "-m", "liveedge", "demo")


@pytest.fixture(scope="module")
def performance() -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, printed objects, and progress of one `demo --once --json`."""
    done = subprocess.run(
        [*DEMO, "--once", "--json"], capture_output=True, text=True, check=False, timeout=240
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.timeout(300)
def test_the_demo_ends_well(performance):
    status, objects, progress = performance
    assert status == 0, (objects, progress)
    summary = objects[-1]["summary"]
    assert summary["errors"] == 0
    assert summary["correct"] * 10 >= summary["questions"] * 9


@pytest.mark.timeout(300)
def test_every_question_is_reported_with_answer_truth_and_figures(performance):
    _, objects, _ = performance
    *questions, _ = objects
    assert len(questions) == 10
    for question in questions:
        assert question.keys() >= KEYS
        assert question["expected"], question
        assert 0 < question["ttft_ms"] <= question["total_ms"]
        assert question["frames"] >= 1
        assert question["timings_ms"]["total"] > 0


@pytest.mark.timeout(300)
def test_the_demo_covers_now_the_last_seconds_an_exact_frame_a_json_state_and_the_past(performance):
    _, objects, _ = performance
    questions = objects[:-1]
    moments = {question["moment"] for question in questions}
    assert moments == {"now", "last 2 s", "frame", "same frame", "10 s ago"}
    clips = [q for q in questions if q["moment"] == "last 2 s"]
    assert all(q["frames"] >= 3 for q in clips)
    (state,) = (q for q in questions if q["kind"] == "state")
    assert json.loads(state["answer"]).keys() == json.loads(state["expected"]).keys()
    (past,) = (q for q in questions if q["moment"] == "10 s ago")
    assert past["age_ms"] >= 9_000
    assert all(q["age_ms"] < 5_000 for q in questions if q["moment"] == "now")


@pytest.mark.timeout(300)
def test_a_second_question_about_the_same_frame_reuses_what_is_known(performance):
    _, objects, _ = performance
    (again,) = (q for q in objects[:-1] if q["moment"] == "same frame")
    assert again["reused_tokens"] > 50


@pytest.mark.timeout(300)
def test_without_once_the_demo_serves_until_it_is_told_to_stop_and_leaves_no_server_behind():
    child = subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    limit = threading.Timer(240, child.kill)  # a silent demo fails instead of hanging
    limit.start()
    try:
        seen = []
        for line in child.stdout:
            seen.append(line)
            if line.startswith("  ask "):  # the last of the printed addresses
                break
        text = "".join(seen)
        found = re.search(r"picture +(\S+)", text)
        assert found, text
        with httpx.Client(trust_env=False, timeout=30) as http:
            assert http.get(found[1]).headers["content-type"] == "image/jpeg"
            child.send_signal(signal.SIGTERM)
            child.stdout.read()
            assert child.wait() == 130
            with pytest.raises(httpx.ConnectError):
                http.get(found[1])
    finally:
        limit.cancel()
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_server_that_does_not_start_is_explained_with_its_last_words(tmp_path):
    missing = tmp_path / "no-model"
    command = [*DEMO, "--once", "--json", "--model", str(missing)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"model {missing} is neither a folder nor" in done.stderr
    assert "Traceback" not in done.stderr

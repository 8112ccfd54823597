"""`liveedge bench run` as a user runs it: a process of its own, against a server that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from liveedge.bench.record import measured
from liveedge.bench.result import UNJUDGED, ResultFolder, summary_of

SCENARIO = """
name = "short"
[sources]
kind = "push"
width = 320
height = 240
[load]
rates_per_s = [3.0]
warmup_s = 0.5
duration_s = 2.0
timeout_s = 30.0
[questions]
kinds = ["lamp"]
max_tokens = 8
"""


@pytest.mark.timeout(300)  # thirteen seconds where the machine is free
def test_a_run_starts_a_server_asks_it_and_leaves_a_whole_result(tmp_path: Path) -> None:
    scenario, out = tmp_path / "short.toml", tmp_path / "result"
    scenario.write_text(SCENARIO)
    command = [sys.executable, "-m", "liveedge", "bench", "run", str(scenario), "--json"]
    command += ["--out", str(out), "--set", "load.kind=constant", "--start-server", "--threads 1"]

    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ, timeout=280, check=False
    )

    # A machine that is busy enough makes the generator late: then the run says so.
    assert done.returncode in (0, 3), done.stderr
    where, document = done.stdout.splitlines()
    folder, summary = ResultFolder(Path(where)), summary_of(json.loads(document))
    assert Path(where) == out
    assert summary.valid == (done.returncode == 0)
    assert folder.summary() == summary
    records = list(folder.records())
    assert [record.outcome for record in records] == ["ok"] * len(records), done.stderr
    assert len(list(measured(records))) == 6
    assert all(record.timings_ms and record.frames for record in records)
    assert all(record.first_content_s and record.finish_reason for record in records)
    assert summary.cold["process_start_ms"] > 0
    assert summary.cold["same_media_ms"] > 0
    assert folder.environment()["model"]["id"] == folder.scenario().target.model
    assert not (out / UNJUDGED).exists()
    assert {"report.html", "report.md"} <= {path.name for path in out.iterdir()}
    assert "step 1/1: offered 3/s: 6 sent" in done.stderr

"""Every program under `bench/` runs, and ends with one line of JSON that has its figures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from cameras.rtsp_camera import NEEDED

BENCH = Path(__file__).resolve().parents[2] / "bench"
FIGURES = {
    "warm_ttft": {
        "model",
        "frames",
        "stock_ms",
        "cold_ms",
        "warm_ms",
        "limit_ms",
        "cold_ratio",
        "warm_ratio",
        "limit_ratio",
        "warm_newest_ms",
        "newest_ratio",
        "newest_limit_ratio",
        "newest_limit_ms",
        "slide_warm_ms",
        "slide_newest_ms",
        "slide_stock_ms",
        "slide_ratio",
        "encoder_hit_rate",
        "prefix_hit_rate",
        "warm_work_ms",
        "prepare_ms",
        "http_ms",
    },
    "fork": {"p95_ratio", "work_tokens", "expected_tokens", "http_p95_ratio"},
    "mixed_load": {
        "itl_ratio",
        "ttft_p95_ratio_80",
        "serial_itl_ratio",
        "serial_ttft_p95_ratio_80",
    },
    "preprocess": {
        "stock_p90_ms",
        "ours_p90_ms",
        "ratio",
        "identical",
        "stock_load_p90_ms",
        "ours_load_p90_ms",
    },
    "decode": {"ours_tok_s", "stock_tok_s", "ratio"},
    "cold_start": {"median_s", "torch_import_s", "ratio"},
    "disconnects": {"left", "left_behind", "ended_ms_max", "control_right"},
    "engine_kill": {"recover_p95_s", "leases_lost", "index_ok"},
    "memory_slope": {
        "pictures",
        "errors",
        "held",
        "verdict",
        "clean_server_mb_per_1000",
        "clean_engine_mb_per_1000",
        "faults_server_mb_per_1000",
        "faults_engine_mb_per_1000",
    },
    "history": {"mb", "frame_p95_ms", "segment_speed", "identity_ok"},
    "ingest": {"rtsp_ratio", "livekit_cores", "whip_cores", "sources", "rtsp_streams"},
    "consumers": {"age_p95_ms", "age_ms_per_min", "rss_mb_per_min", "unaccounted", "kept"},
    "overload": {
        "capacity_per_s",
        "goodput_share",
        "p95_ratio",
        "statuses",
        "server_errors",
        "broken",
        "retry_after_missing",
        "late_p99_ms",
        "alive",
        "residue",
    },
    "faults": {"faults", "failed", "shown_clean", "fds_grown", "threads_grown"},
}
# Shared code, the program that runs the others, and the one for a GPU.
HELPERS = {
    "all",
    "asking",
    "gpu_check",  # has a test of its own
    "hostile_http",  # its cases are tests of their own: component/test_api_cases.py
    "hostile_media",
    "lean_http",
    "live",
    "load_clients",
    "machine",
    "observe",
    "report",
    "tape",
    "yardsticks",
}
# Their cameras are played by GStreamer, under the system's Python.
CAMERAS = {"ingest", "consumers", "faults"}
PROBE = (
    "import gi; gi.require_version('GstApp', '1.0'); gi.require_version('GstRtspServer', '1.0');"
    "from gi.repository import Gst, GstApp, GstRtspServer; Gst.init(None);"
    "assert all(map(Gst.ElementFactory.find, ['appsrc', 'h264parse', 'rtph264pay']))"
)
# What must hold however busy the machine is.
ALWAYS = {
    "errors": 0,
    "held": 0,
    "server_errors": 0,
    "counters_add_up": True,
    "identical": True,
    "leases_lost": 0,
    "left_behind": {},
    "control_right": True,
    "index_ok": True,
    "identity_ok": True,
    "shown_clean": 0,
    "failed": 0,
    "unaccounted": 0,
    "broken": 0,
    "retry_after_missing": 0,
    "alive": True,
    "residue": 0,
}


def require_cameras() -> None:
    """Skip where there is no GStreamer; in CI there has to be one."""
    python = shutil.which("/usr/bin/python3")
    if python is not None:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, check=False)
        if done.returncode == 0:
            return
    missing = f"no GStreamer RTSP server; apt-get install {NEEDED}"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


def test_every_program_is_known_here():
    assert {path.stem for path in BENCH.glob("*.py")} == FIGURES.keys() | HELPERS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", sorted(FIGURES))
def test_a_benchmark_prints_a_table_and_ends_with_its_figures_as_json(program: str):
    if program in CAMERAS:
        require_cameras()
    command = [sys.executable, str(BENCH / f"{program}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *table, last = done.stdout.splitlines()
    assert any(set(line) <= {"-", " "} and line.strip() for line in table), "there is no table"
    figures = json.loads(last)
    assert figures.keys() >= FIGURES[program]
    for key, expected in ALWAYS.items():
        assert figures.get(key, expected) == expected, f"{key} is {figures[key]}\n{done.stdout}"
    assert figures.get("work_tokens", 0) <= figures.get("expected_tokens", 0)

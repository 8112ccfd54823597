"""The program for a machine with a GPU runs here too, small and on the CPU, with few packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bench" / "gpu_check.py"
# What the server needs and the program must do without.
ABSENT = (
    *("av", "fastapi", "httpx", "jinja2", "llguidance", "msgspec", "PIL", "pydantic"),
    *("starlette", "transformers", "uvicorn", "websockets", "yaml"),
)
WITHOUT = f"""
import runpy, sys
for name in {ABSENT!r}:
    sys.modules[name] = None  # importing it is an ImportError
sys.path[:0] = [{str(ROOT / "src")!r}, {str(PROGRAM.parent)!r}]
sys.argv = [{str(PROGRAM)!r}, *sys.argv[1:]]
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
"""
FIGURES = {
    "device",
    "equal",
    "logits_difference",
    "cold_ttft_ms",
    "warm_ttft_ms",
    "itl_idle_ms",
    "itl_video_ms",
    "itl_ratio",
    "encode_groups_s",
    "decode_eager_tok_s",
    "decode_graphs_tok_s",
    "planned_mb",
}


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, "--device", "cpu", "--quick", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_every_section_gives_its_figures_with_torch_and_little_else() -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() >= FIGURES
    assert figures["equal"] is True
    assert (figures["left_out"], figures["failed"]) == ([], [])
    for name in ("decode_eager_tok_s", "decode_graphs_tok_s"):
        assert set(figures[name]) == {"1", "4", "8"}
        assert all(speed is not None and speed > 0 for speed in figures[name].values())
    assert figures["cold_ttft_ms"] > 0
    assert figures["warm_ttft_ms"] > 0


def test_without_time_sections_are_left_out_by_name_and_the_last_line_is_still_json() -> None:
    done = run("--seconds", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert len(figures["left_out"]) == 6
    assert "decoding: left out" in done.stdout

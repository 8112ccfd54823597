"""`liveedge soak`: what it writes, says and ends with; a soak itself is in `test_soak_run.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from liveedge.bench.soak.log import NAME
from liveedge.cli import main
from tests.soak_logs import Script

pytestmark = pytest.mark.unit


def logged(folder: Path, script: Script) -> Path:
    folder.mkdir()
    (folder / "server-1.log").write_text("")
    lines = "".join(json.dumps(line) + "\n" for line in script.lines())
    (folder / NAME).write_text(lines)
    return folder


@pytest.mark.parametrize(
    ("script", "status", "verdict"),
    [
        (Script(), 0, "PASS"),
        (Script(server_mb_per_h=20.0), 1, "FAIL"),
        (Script(is_over=False), 3, "UNDECIDED"),
    ],
    ids=["pass", "fail", "undecided"],
)
def test_a_log_is_judged_and_the_status_says_how(
    script: Script,
    status: int,
    verdict: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = logged(tmp_path / "soak", script)
    assert main(["soak", "--report", str(folder)], {}) == status
    said = capsys.readouterr().out
    assert said.startswith(f"VERDICT  {verdict}  (2 hours, real time)")
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == verdict.lower()
    assert f"</span> {verdict}</p>" in (folder / "report.html").read_text()


def test_a_verdict_that_cannot_be_written_is_told_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = logged(tmp_path / "soak", Script())
    (folder / "verdict.json").symlink_to("/dev/full")
    assert main(["soak", "--report", str(folder)], {}) == 1
    said = capsys.readouterr()
    assert said.out.startswith("VERDICT  PASS")
    assert "verdict.json cannot be written: No space left" in said.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--out", "new"], "how long? give --hours"),
        (["--out", "new", "--hours", "0"], "hours is 0"),
        (["--out", "old", "--hours", "2"], "go on with --resume"),
        (["--resume", "old", "--fps", "9"], "these settings differ: fps was 2.0, and now is 9.0"),
        (["--report", "nowhere"], "cannot be read"),
    ],
    ids=["no hours", "no time", "begun already", "other settings", "no log"],
)
def test_a_command_that_cannot_be_followed_says_why(
    words: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    logged(tmp_path / "old", Script())
    assert main(["soak", *words], {}) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "new").exists()

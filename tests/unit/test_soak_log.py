"""The log of a soak survives whoever writes it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from liveedge.bench.result import ResultUnwritable
from liveedge.bench.soak.log import NAME, Log, LogBroken, read_log
from liveedge.bench.soak.options import (
    OptionsInvalid,
    SoakOptions,
    differences,
    from_json,
    logged_options,
)
from liveedge.bench.soak.run import begin, passed_s

pytestmark = pytest.mark.unit


def test_lines_are_there_as_soon_as_they_are_written(tmp_path: Path) -> None:
    log = Log(tmp_path / NAME, now_s=lambda: 1.25)
    log.write("ask", status=200)
    assert read_log(tmp_path / NAME) == [{"what": "ask", "at_s": 1.25, "status": 200}]
    log.close()


def test_a_half_written_last_line_is_passed_over_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text('{"what":"look","at_s":7}\n{"what":"ask","at_')
    assert [line["what"] for line in read_log(path)] == ["look"]
    log = Log(path, now_s=lambda: 8.0)
    log.write("segment", number=2)
    log.close()
    assert [line["what"] for line in read_log(path)] == ["look", "segment"]
    assert passed_s(read_log(tmp_path / NAME)) == 8.0


def test_a_line_that_does_not_fit_on_the_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / NAME
    log = Log(path, now_s=lambda: 1.0)
    log.write("look")
    small = path.stat().st_size + 10
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (small, hard))
    try:
        with pytest.raises(ResultUnwritable, match=r"soak\.jsonl cannot be written"):
            log.write("ask", status=200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write("ask", status=503)
    log.close()
    assert [line.get("status") for line in read_log(path)] == [None, 503]


def test_a_log_on_a_full_disk_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to("/dev/full")
    log = Log(tmp_path / NAME, now_s=lambda: 1.0)
    with pytest.raises(ResultUnwritable, match="No space left"):
        log.write("look")
    log.close()


def test_a_broken_line_that_no_killed_writer_leaves_is_told_with_its_number(
    tmp_path: Path,
) -> None:
    path = tmp_path / NAME
    path.write_text('{"what":"look","at_s":7}\nnonsense\n{"what":"look","at_s":9}\n')
    with pytest.raises(LogBroken, match=r"line 2 is no line of a soak"):
        read_log(path)
    with pytest.raises(LogBroken, match="cannot be read"):
        read_log(tmp_path / "none")


def test_a_soak_begins_once_in_a_folder_and_its_options_are_read_back(tmp_path: Path) -> None:
    options = SoakOptions(hours=3, speed=8, serve_flags=("--queue=8",))
    begin(tmp_path / "soak", options)
    assert logged_options(tmp_path / "soak") == options
    with pytest.raises(OptionsInvalid, match="--resume"):
        begin(tmp_path / "soak", options)


def test_what_was_asked_for_otherwise_is_named() -> None:
    logged = SoakOptions(hours=3, fps=2.0)
    assert differences(logged, {"hours": 3, "fps": 2.0}) == []
    assert differences(logged, {"fps": 5.0}) == ["fps was 2.0, and now is 5.0"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"hours": 0.0}, "hours is 0"),
        ({"sim_streams": 1, "push_streams": 1}, "it takes 4 at least"),
        ({"sim_streams": 0, "push_streams": 4}, "sim_streams is 0"),
        ({"url": "http://127.0.0.1:8000", "speed": 8.0}, "leave them out beside url"),
    ],
)
def test_options_that_make_no_soak_are_refused(options: dict[str, object], reason: str) -> None:
    given: dict[str, object] = {"hours": 1.0, **options}
    with pytest.raises(OptionsInvalid, match=reason):
        SoakOptions(**given)  # type: ignore[arg-type]  # of any field


def test_options_of_another_version_are_refused() -> None:
    with pytest.raises(OptionsInvalid, match="not known: wings"):
        from_json({"hours": 1.0, "wings": 2})


def test_a_folder_without_a_log_of_a_soak_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"what":"look","at_s":0}\n')
    with pytest.raises(OptionsInvalid, match="does not begin as the log of a soak"):
        logged_options(tmp_path)

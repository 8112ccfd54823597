"""`liveedge bench run`: mistakes become one line and a status."""

from __future__ import annotations

from pathlib import Path

import pytest

from liveedge.bench.scenario import ScenarioInvalid
from liveedge.bench.wiring import new_folder, overrides_of
from liveedge.cli import main
from liveedge.client.local_server import free_port
from liveedge.testing.clock import FakeClock

SHORT = 'name = "short"\n[load]\nrates_per_s = [1.0]\nduration_s = 1.0\n'


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "short.toml"
    path.write_text(SHORT)
    return path


def status_and_said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    status = main(["bench", "run", *map(str, arguments)], {})
    return status, capsys.readouterr().err


def test_a_scenario_that_is_wrong_is_a_wrong_command_line(
    capsys: pytest.CaptureFixture[str], scenario: Path, tmp_path: Path
) -> None:
    status, said = status_and_said(capsys, tmp_path / "none.toml")
    assert (status, "cannot be read" in said) == (2, True)

    status, said = status_and_said(capsys, scenario, "--set", "load.rates=5")
    assert (status, "load.rates is no key here" in said) == (2, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--sizes", "320"), "write it as 320x240"),
        (("--sizes", "320x240", "--frames", "one"), "write it as 1,2,4"),
        (("--sizes", "320x240", "--threshold", "1"), "it must be between 0 and 1"),
    ],
)
def test_an_envelope_that_is_none_is_a_wrong_command_line(
    capsys: pytest.CaptureFixture[str], scenario: Path, flags: tuple[str, ...], message: str
) -> None:
    status = main(["bench", "envelope", str(scenario), *flags], {})
    assert (status, message in capsys.readouterr().err) == (2, True)


def test_a_server_that_does_not_answer_fails_the_run(
    capsys: pytest.CaptureFixture[str], scenario: Path, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"

    status, said = status_and_said(
        capsys, scenario, "--base-url", url, "--out", tmp_path / "result"
    )

    assert status == 1
    assert "is the server up?" in said
    assert len(said.splitlines()) == 1


def test_an_address_that_is_none_is_a_wrong_scenario(
    capsys: pytest.CaptureFixture[str], scenario: Path, tmp_path: Path
) -> None:
    status, said = status_and_said(
        capsys, scenario, "--base-url", "localhost:80", "--out", tmp_path / "result"
    )

    assert (status, "'localhost:80' is no http:// or https:// address" in said) == (2, True)


def test_a_folder_that_holds_something_is_not_written_into(
    capsys: pytest.CaptureFixture[str], scenario: Path, tmp_path: Path
) -> None:
    status, said = status_and_said(capsys, scenario, "--out", tmp_path)

    assert (status, "is not empty" in said) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["short.toml"]


def test_a_result_has_a_folder_of_its_own_named_by_scenario_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    folder = new_folder(None, "short", FakeClock())

    assert folder.path == Path("bench-results/short-20250615-150640")
    assert folder.path.is_dir()


def test_values_of_set_are_toml_and_texts_where_they_are_none() -> None:
    found = overrides_of(
        ["load.duration_s=5", "load.rates_per_s=[1, 2.5]", "media.repeats=true", "target.model=a/b"]
    )

    assert found == {
        "load.duration_s": 5,
        "load.rates_per_s": [1, 2.5],
        "media.repeats": True,
        "target.model": "a/b",
    }


@pytest.mark.parametrize("setting", ["load.duration_s", "=5"])
def test_a_setting_without_key_or_value_is_refused(setting: str) -> None:
    with pytest.raises(ScenarioInvalid, match="must be KEY=VALUE"):
        overrides_of([setting])

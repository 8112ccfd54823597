"""The command line: flags become settings, mistakes become one line and a status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from liveedge.cli import build_parser, main
from liveedge.core.version import VERSION
from liveedge.settings import MASK, Settings


def shown(capsys, *arguments: str, **environment: str) -> tuple[dict[str, object], dict[str, str]]:
    """Values and origins as `config show` prints them."""
    assert main(["config", "show", *arguments], environment) == 0
    text = capsys.readouterr().out
    origins = {
        line.split(":")[0]: line.rsplit("# ", 1)[1] for line in text.splitlines() if "# " in line
    }
    return yaml.safe_load(text), origins


def test_every_setting_is_shown_with_its_default_and_its_origin(capsys):
    values, origins = shown(capsys)
    assert values == Settings().model_dump(mode="json")
    assert origins == dict.fromkeys(Settings.model_fields, "default")


def test_flags_win_over_the_environment_and_the_environment_over_the_file(capsys, tmp_path: Path):
    config = tmp_path / "liveedge.yaml"
    config.write_text("port: 1\nmax-sessions: 1\nqueue: 1\n")
    values, origins = shown(
        capsys, "--config", str(config), "--port", "3", LIVEEDGE_PORT="2", LIVEEDGE_MAX_SESSIONS="2"
    )
    assert (values["port"], values["max_sessions"], values["queue"]) == (3, 2, 1)
    assert (origins["port"], origins["max_sessions"], origins["queue"]) == (
        "flag",
        "environment",
        "file",
    )


def test_secrets_are_masked(capsys):
    values, _ = shown(capsys, "--api-key", "s3cret", "--api-key", "an0ther")
    assert values["api_key"] == [MASK, MASK]


def test_lists_mappings_and_switches_have_flags(capsys):
    values, _ = shown(
        capsys,
        "--aliases",
        "gpt-4o=liveedge/a",
        "--cors-origins",
        "https://a.example",
        "--insecure",
    )
    assert values["aliases"] == {"gpt-4o": "liveedge/a"}
    assert values["cors_origins"] == ["https://a.example"]
    assert values["insecure"] is True


def test_what_publishers_are_told_has_flags(capsys):
    values, _ = shown(
        capsys,
        "--udp-ports=50000-50100",
        "--announced-ip=203.0.113.7",
        "--ice-servers=stun:stun.example",
        "--public-url=https://cameras.example",
        "--livekit",
        '{"url": "wss://lk.example", "api_key": "k", "api_secret": "s3cret"}',
        "--state-dir=/var/lib/cameras",
    )
    assert values["udp_ports"] == "50000-50100"
    assert values["announced_ip"] == ["203.0.113.7"]
    assert values["ice_servers"] == ["stun:stun.example"]
    assert values["public_url"] == "https://cameras.example"
    assert values["livekit"] == {"url": "wss://lk.example", "api_key": MASK, "api_secret": MASK}
    assert values["state_dir"] == "/var/lib/cameras"


def test_a_flag_that_is_no_json_is_refused_without_being_repeated(capsys):
    with pytest.raises(SystemExit):
        main(["config", "show", "--livekit", "{s3cret"], {})
    error = capsys.readouterr().err
    assert "--livekit: this is not JSON" in error
    assert "s3cret" not in error


def test_a_flag_of_a_share_has_a_meaning_of_its_own(capsys):
    assert shown(capsys, "--verify-warm")[0]["verify_warm"] == 0.05
    assert shown(capsys, "--verify-warm", "0.5")[0]["verify_warm"] == 0.5
    assert shown(capsys)[0]["verify_warm"] == 0.0


def test_the_memory_of_a_server_is_shown_without_starting_it(capsys):
    assert main(["config", "memory", "--max-sessions", "3", "--max-windows", "1"], {}) == 0
    text = capsys.readouterr().out
    assert text.startswith("memory plan: ")
    assert "5 of 4096 tokens: 3 sessions, 1 window, 1 spare" in text


def test_memory_that_does_not_suffice_is_shown_and_told_with_what_would(capsys):
    assert main(["config", "memory", "--memory", "700MiB"], {}) == 2
    out, error = capsys.readouterr()
    assert " of 700 MiB (--memory)" in out.splitlines()[0]
    assert error.startswith("liveedge: the memory plan needs ")
    assert error.count("\n") == 1


def test_a_model_that_is_missing_is_one_line_that_says_where_it_was_looked_for(
    capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("liveedge.assembly.files", lambda _package: tmp_path)
    assert main(["config", "memory"], {}) == 2
    shipped = capsys.readouterr().err
    assert "liveedge/workcell-tiny, which comes with liveedge, is not at" in shipped
    assert str(tmp_path) in shipped
    assert main(["config", "memory", str(tmp_path)], {}) == 1  # a folder without a model
    given = capsys.readouterr().err
    assert "config.json" in given
    assert "is this a model folder?" in given
    assert shipped.count("\n") == given.count("\n") == 1


def test_the_memory_of_a_server_is_planned_without_torch(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("liveedge.engine.device.find_spec", lambda _name: None)
    assert main(["config", "memory"], {}) == 0
    assert main(["config", "memory", "--device", "cuda"], {}) == 2
    assert "no CUDA device or no build of torch" in capsys.readouterr().err


def test_the_model_is_the_only_positional_argument_of_serve(capsys):
    values, origins = shown(capsys, "/models/mine")
    assert (values["model"], origins["model"]) == ("/models/mine", "flag")


def help_of(capsys, *command: str) -> str:
    """Its help, lines and columns joined."""
    with pytest.raises(SystemExit):
        build_parser({}).parse_args([*command, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", sorted(Settings.model_fields.keys() - {"model"}))
def test_serve_has_a_flag_with_help_for_every_setting(name: str, capsys):
    text = help_of(capsys, "serve")
    assert f"--{name.replace('_', '-')}" in text
    assert f"{Settings.model_fields[name].description}" in text


@pytest.mark.parametrize(
    "says",
    [
        "--api-key KEY accepted key;",
        "on this machine only; may be repeated",
        "--aliases ALIAS=ID",
        "--history-mb MB memory reserved per stream for its older frames, compressed (default: 512)",
        "--retention-s SECONDS",
        "allow sources of type file and device (default: no)",
        "--remote-media-ports PORT port that they are fetched from; may be repeated (default: 80, 443)",
    ],
)
def test_the_help_of_serve_tells_units_defaults_and_lists(says: str, capsys):
    assert says in help_of(capsys, "serve")


def test_the_help_of_ask_tells_where_address_and_key_come_from(capsys):
    text = help_of(capsys, "ask")
    assert "default: LIVEEDGE_URL, or http://127.0.0.1:8000" in text
    assert "default: LIVEEDGE_API_KEY" in text


@pytest.mark.parametrize("command", [(), ("config",), ("sim",)])
def test_without_a_command_the_help_is_shown(command: tuple[str, ...], capsys):
    assert main(command, {}) == 2
    assert "usage: " + " ".join(["liveedge", *command]) in capsys.readouterr().err


def test_a_wrong_value_is_one_line_that_names_the_setting_and_status_2(capsys):
    assert main(["config", "show", "--max-sessions", "none"], {}) == 2
    error = capsys.readouterr().err
    assert "max_sessions (from flag)" in error
    assert error.count("\n") == 1


def test_an_unknown_environment_variable_is_an_error(capsys):
    assert main(["config", "show"], {"LIVEEDGE_PROT": "1"}) == 2
    assert "LIVEEDGE_PROT; did you mean LIVEEDGE_PORT?" in capsys.readouterr().err


def test_serve_refuses_an_open_server_for_everybody_before_loading_anything(capsys):
    assert main(["serve", "--host", "0.0.0.0"], {}) == 2
    assert "api_key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5.0), ("500ms", 0.5), ("2m", 120.0), ("3", 3.0)]
)
def test_ask_takes_times_with_units(text: str, seconds: float):
    options = build_parser({}).parse_args(["ask", "--stream", "x", "--last", text, "What?"])
    assert options.last == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["0s", "-1s", "5h", "", "s"])
def test_ask_refuses_what_is_no_time(text: str, capsys):
    with pytest.raises(SystemExit) as exit_:
        build_parser({}).parse_args(["ask", "--stream", "x", f"--last={text}", "What?"])
    assert exit_.value.code == 2
    assert "is not a time such as" in capsys.readouterr().err


def test_ask_says_where_it_got_no_answer(capsys):
    assert main(["ask", "--stream", "x", "--url", "http://127.0.0.1:1", "What?"], {}) == 1
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error():
    command = [sys.executable, "-m", "liveedge", "config", "show"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


def test_version_is_printed(capsys):
    assert main(["version"], {}) == 0
    assert capsys.readouterr().out == f"liveedge {VERSION}\n"
    with pytest.raises(SystemExit):
        main(["--version"], {})
    assert capsys.readouterr().out == f"liveedge {VERSION}\n"


def test_the_help_of_publish_tells_what_can_be_sent_and_how(capsys):
    text = help_of(capsys, "publish")
    assert "sim (or sim://workcell?seed=3), a video file, or a device such as /dev/video0" in text
    assert "--via {livekit,whip}" in text
    assert "default: LIVEEDGE_URL, or http://127.0.0.1:8000" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sim", "--size", "big"], "'big' is not a size"),
        (["sim", "--fps", "0"], "'0' is not a number above 0"),
        (["sim", "--seconds", "inf"], "'inf' is not a number above 0"),
        (["sim", "--codec", "av1"], "invalid choice: 'av1'"),
        ([], "the following arguments are required: SOURCE"),
    ],
)
def test_publish_refuses_what_it_cannot_do(arguments: list[str], says: str, capsys):
    with pytest.raises(SystemExit) as exit_:
        build_parser({}).parse_args(["publish", *arguments])
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "arguments", "says"),
    [
        ("aiortc", ["sim"], "needs the package aiortc: install liveedge[server]"),
        ("av", ["sim"], "needs the package av: install liveedge[server]"),
        ("nothing", ["none.mp4"], "none.mp4 is neither a file nor a device"),
        ("nothing", ["sim"], "no answer from http://127.0.0.1:1"),
    ],
)
def test_publish_says_in_one_line_what_is_missing(missing: str, arguments: list[str], says: str):
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from liveedge.cli import main;"
        f" sys.exit(main(['publish', '--url', 'http://127.0.0.1:1', *{arguments!r}], {{}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1

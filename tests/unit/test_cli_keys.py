"""`liveedge keys`: what is printed, what is stored, and every command of docs/keys.md."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import closing
from pathlib import Path

import pytest

from liveedge.cli import build_parser, main
from liveedge.core.clock import SystemClock
from liveedge.service.audit import Audit
from liveedge.service.caller import DEFAULT_SCOPES, Caller
from liveedge.service.key_file import KeyFile
from liveedge.service.keys import KeyRing, Refused
from liveedge.testing.clock import FakeClock

DOC = (Path(__file__).parents[2] / "docs" / "keys.md").read_text(encoding="utf-8")
DAY_MS = 86_400_000


@pytest.fixture
def place(tmp_path):
    return ["--keys-file", str(tmp_path / "keys.sqlite")]


def ring(path):
    clock = FakeClock(wall_ms=SystemClock().wall_ms())
    return KeyRing([], clock=clock, audit=Audit(clock), path=path)


def told(capsys, *arguments, **environment):
    assert main(["keys", *arguments], environment) == 0
    return capsys.readouterr()


def test_a_key_is_printed_alone_and_opens_the_server(capsys, place):
    said = told(capsys, "create", "line 4", *place)
    key = said.out.strip()
    assert re.fullmatch(r"le_[0-9a-f]{10}_[0-9a-f]{64}", key)
    assert key not in said.err
    assert key.split("_")[1] in said.err
    assert place[1] in said.err, "a file that nobody meant is made as well"
    caller = ring(Path(place[1])).find(key)
    assert isinstance(caller, Caller)
    assert caller.scopes == DEFAULT_SCOPES


def test_json_holds_everything(capsys, place):
    arguments = "--owner us --scopes ask,metrics --requests-per-second 2.5 --request-burst 9"
    arguments += " --max-requests 3 --max-streams 1 --expires 30d --json"
    made = json.loads(told(capsys, "create", "all", *arguments.split(), *place).out)
    key = made.pop("key")
    (listed,) = json.loads(told(capsys, "list", "--json", *place).out)
    assert listed == made
    assert made["id"] == key.split("_")[1]
    assert made["expires_at_ms"] - made["created_at_ms"] == pytest.approx(30 * DAY_MS, abs=5000)
    expected = {
        "name": "all",
        "owner": "us",
        "state": "active",
        "scopes": ["ask", "metrics"],
        "requests_per_second": 2.5,
        "request_burst": 9,
        "max_requests": 3,
        "max_streams": 1,
        "revoked_at_ms": None,
    }
    assert {name: made[name] for name in expected} == expected
    revoked = json.loads(told(capsys, "revoke", made["id"], "--json", *place).out)
    assert revoked["state"] == "revoked"
    assert isinstance(ring(Path(place[1])).find(key), Refused)


def test_the_list_shows_ends_and_limits_and_no_key(capsys, place):
    first = told(capsys, "create", "first", "--max-streams", "2", *place).out.strip()
    second = told(capsys, "create", "second", "--expires", "2999-01-31", *place).out.strip()
    told(capsys, "revoke", first.split("_")[1], *place)
    head, *rows = told(capsys, "list", *place).out.splitlines()
    assert head.split() == [
        "ID",
        "STATE",
        "NAME",
        "OWNER",
        "SCOPES",
        "CREATED",
        "EXPIRES",
        "LIMITS",
    ]
    assert [row.split()[1:3] for row in rows] == [["revoked", "first"], ["active", "second"]]
    assert "max_streams=2" in rows[0]
    assert "2999-01-31 00:00" in rows[1]
    assert not any(key.split("_")[2] in "".join(rows) for key in (first, second))


def test_the_place_comes_from_flags_variables_and_the_configuration(capsys, tmp_path):
    config = tmp_path / "liveedge.yaml"
    # A server that could not start yet: its first key is about to be made.
    config.write_text(f"state_dir: {tmp_path / 'state'}\nhost: 0.0.0.0\n")
    told(capsys, "create", "one", "--config", str(config))
    told(capsys, "create", "two", LIVEEDGE_STATE_DIR=str(tmp_path / "state"))
    told(capsys, "create", "three", "--state-dir", str(tmp_path / "state"))
    with closing(KeyFile(tmp_path / "state" / "keys.sqlite", create=False)) as file:
        assert sorted(key.name for key in file.keys()) == ["one", "three", "two"]  # noqa: SIM118
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("list", "where are the keys?"),
        ("list --keys-file nowhere.sqlite", "there is no file of keys at"),
        ("revoke x --keys-file nowhere.sqlite", "there is no file of keys at"),
    ],
)
def test_mistakes_are_one_line(capsys, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert main(["keys", *arguments.split()], {}) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--scopes", "ask,everything", "'everything' is not a scope: ask, streams, view, metrics"),
        ("--owner", "us/them", "no owner"),
        ("--expires", "soon", "30d, 12h or 45m"),
        ("--expires", "2020-01-31", "over already"),
        ("--expires", "0d", "over already"),
        ("--max-streams", "0", "above 0"),
        ("--max-requests", "1.5", "whole number"),
        ("--requests-per-second", "nan", "above 0"),
        ("--requests-per-second", "-1", "above 0"),
    ],
)
def test_wrong_values_are_explained(capsys, place, flag, value, says):
    with pytest.raises(SystemExit, match="2"):
        main(["keys", "create", "name", f"{flag}={value}", *place], {})
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", " x", "a\nb", "x" * 65, "\x1b[31m"])
def test_names_can_be_shown(capsys, place, name):
    with pytest.raises(SystemExit, match="2"):
        main(["keys", "create", name, *place], {})
    assert "is no name" in capsys.readouterr().err


def test_every_command_of_the_guide_works(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```bash\n(.*?)```", DOC, re.DOTALL)
    lines = block.strip().splitlines()
    assert len(lines) == 5
    key_id = ""
    for line in lines:
        program, *arguments = shlex.split(line.replace("ID", key_id))
        assert program == "liveedge"
        assert main(arguments, {}) == 0, line
        out = capsys.readouterr().out
        key_id = out.split("_")[1] if out.startswith("le_") else key_id
    (serve,) = re.findall(r"```\n(liveedge serve .*?)\n```", DOC)
    build_parser({}).parse_args(shlex.split(serve)[1:])


def test_the_guide_names_every_flag():
    flags = set(re.findall(r"--[a-z][a-z-]+", DOC))
    for name in ("owner", "scopes", "requests-per-second", "request-burst", "max-requests",
                 "max-streams", "expires", "keys-file", "state-dir", "json", "config"):  # fmt: skip
        assert f"--{name}" in flags

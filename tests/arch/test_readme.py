"""README and map are true: the map is the tree, the commands exist, and every command is explained."""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path

import pytest

from liveedge.cli import build_parser
from liveedge.settings import CLIENT_VARIABLES, PREFIX, Settings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
MAP = (ROOT / "docs" / "map.md").read_text()
SOURCE = ROOT / "src" / "liveedge"
CHECKED_FOLDERS = ("bench", "examples", "tools")


def file_map() -> dict[str, str]:
    """Entry of the map -> the words behind it, continuation lines joined."""
    block = MAP.split("```", 2)[1]
    entries: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        match = re.match(r"(\S+)  +(.*)", line)
        if match:
            name = match[1]
            entries[name] = (
                f"{entries.get(name, '')} {match[2]}"  # bench/ is a package and a folder
            )
        elif line.strip():
            entries[name] += " " + line.strip()
    return entries


def commands(parser: argparse.ArgumentParser, before: tuple[str, ...] = ()) -> list[str]:
    """Every command line of the program: `serve`, `config show`, ..."""
    found: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                found += commands(inner, (*before, name)) or [" ".join((*before, name))]
    return found


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def test_the_map_names_every_package_and_module():
    entries = file_map()
    words = {name: set(re.findall(r"[\w-]+", text)) for name, text in entries.items()}
    for path in sorted(SOURCE.iterdir()):
        if path.name in ("__pycache__", "__init__.py", "py.typed"):
            continue
        if path.is_file():
            assert any(path.name in name for name in entries), f"{path.name} is not in the map"
            continue
        entry = f"{path.name}/"
        assert entry in entries, f"{entry} is not in the map"
        for module in path.rglob("*.py"):
            if module.name != "__init__.py":
                assert module.stem in words[entry], f"{module.stem} is missing behind {entry}"


@pytest.mark.parametrize("folder", CHECKED_FOLDERS)
def test_the_map_names_every_program(folder: str):
    words = set(re.findall(r"[\w-]+", file_map()[f"{folder}/"]))
    for program in (ROOT / folder).glob("*.py"):
        assert program.stem in words, f"{program.stem} is missing behind {folder}/"


def test_the_map_names_nothing_that_does_not_exist():
    for name in file_map():
        for one in name.split("|"):
            assert (SOURCE / one).exists() or (ROOT / one).exists(), f"{one} is not in the tree"


def test_every_command_is_explained():
    for command in commands(build_parser({})):
        assert re.search(rf"liveedge {command}\b", README), f"liveedge {command} is not explained"


def test_every_command_that_is_explained_exists():
    known = commands(build_parser({}))
    for line in re.findall(r"^(?:python -m )?liveedge ((?:[a-z]+ ?)+)", README, re.MULTILINE):
        assert any(line.strip().startswith(command) for command in known), f"liveedge {line}"


def test_flags_and_variables_of_the_readme_exist():
    parsers = [build_parser({})]
    known: set[str] = set()
    while parsers:
        for action in parsers.pop()._actions:
            known.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    assert set(re.findall(r"--[a-z][a-z-]+", README)) <= known
    variables = set(re.findall(r"LIVEEDGE_[A-Z_]+", README))
    assert variables <= CLIENT_VARIABLES | {PREFIX + name.upper() for name in Settings.model_fields}


def test_make_targets_in_the_readme_exist():
    for target in re.findall(r"make ([a-z][a-z-]*)", README):
        assert target in targets(), f"make {target} does not exist"


def test_the_two_commands_stand_on_the_first_screen():
    first_screen = "\n".join(README.splitlines()[:30])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_python_in_the_readme_is_python():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        ast.parse(block)


def test_json_in_the_readme_is_json():
    bodies = re.findall(r"-d '(.*?)'", README, re.DOTALL)
    assert bodies
    for body in bodies:
        json.loads(body)


def test_the_readme_is_short():
    assert len(README.splitlines()) < 150


def test_every_file_that_the_architecture_names_exists():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z0-9_]+/[a-z0-9_/]*\.py)`", text))
    assert named
    for name in named:
        assert (SOURCE / name).exists(), f"docs/architecture.md names {name}"

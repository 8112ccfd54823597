"""`docs/security.md` names what exists, and no threat is without a test."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| what they try")
]
# Whom the page speaks about, whatever else is added.
SECTIONS = (
    "An untrusted client", "An untrusted publisher", "An untrusted camera URL", "Untrusted media bytes",
    "An untrusted checkpoint", "Another tenant", "The operator's mistakes", "The supply chain", "An untrusted URL in a question", "The network",
)  # fmt: skip


@cache
def names_in(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_every_threat_has_a_defence_a_place_and_tests_that_exist(row):
    threat, defence, code, tests = row
    assert threat
    assert defence
    places = re.findall(r"`([^`]+)`", code)
    assert places, threat
    for place in places:
        assert (ROOT / "src" / "liveedge" / place).exists() or (ROOT / place).exists(), place
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
    assert named, f"{threat!r} has no test"
    for file, name in named:
        assert name in names_in(ROOT / "tests" / file), f"there is no test {file}::{name}"


def test_everybody_of_whom_harm_may_come_has_a_section():
    headings = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    for section in SECTIONS:
        assert any(heading.startswith(section) for heading in headings), section
    assert len(ROWS) >= 40


def test_what_the_page_says_to_run_exists():
    for script in re.findall(r"^python (\S+)", TEXT, re.MULTILINE):
        assert (ROOT / script).exists()

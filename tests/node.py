"""What tests of JavaScript clients need: Node.js and the packages of `tests/browser`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "browser"


def node_script(name: str, *, package: str) -> list[str]:
    """How a script is run. Without Node.js or the package its test is skipped, but not in CI."""
    node = shutil.which("node")
    if node is None:
        _missing("needs Node.js on this machine")
    if not (FOLDER / "node_modules" / package).is_dir():
        _missing("needs the packages of the tests: npm ci --prefix tests/browser")
    return [str(node), str(FOLDER / name)]


def _missing(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)

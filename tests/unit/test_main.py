"""When an engine process is started before anything is known for certain."""

from __future__ import annotations

import subprocess
import sys

import pytest

from liveedge.__main__ import wants_engine, what_is_missing

# An installation without one package: an import system that does not find it.
WITHOUT = """
import sys
package, sys.argv = sys.argv[1], ["liveedge", *sys.argv[2:]]
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
from liveedge.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "arguments",
    [["serve"], ["serve", "--port", "0"], ["serve", "folder", "--engine", "process"]],
)
def test_a_server_most_likely_wants_one(arguments: list[str]) -> None:
    assert wants_engine(arguments, {})


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--version"],
        ["ask", "serve"],
        ["serve", "--help"],
        ["serve", "-h"],
        ["serve", "--engine", "inproc"],
        ["serve", "--engine=inproc"],
    ],
)
def test_nothing_else_does(arguments: list[str]) -> None:
    assert not wants_engine(arguments, {})


def test_a_variable_can_say_no() -> None:
    assert not wants_engine(["serve"], {"LIVEEDGE_ENGINE": "inproc"})
    assert wants_engine(["serve"], {"LIVEEDGE_ENGINE": "process"})


@pytest.mark.parametrize("package", ["uvicorn", "fastapi", "pydantic"])
def test_a_command_without_a_package_that_it_needs_says_which_and_how_to_get_it(
    package: str,
) -> None:
    command = [sys.executable, "-c", WITHOUT, package, "config", "memory"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"liveedge: this command needs the Python package {package}, which is not installed;"
    )
    assert "pip install 'liveedge[server]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_package_that_is_damaged_is_told_with_its_own_words() -> None:
    error = ImportError("libtorch.so: cannot open shared object file", name="torch.lib")
    assert "package torch, which is damaged (libtorch.so: cannot open" in what_is_missing(error)


def test_an_import_of_our_own_that_fails_stays_a_defect() -> None:
    with pytest.raises(ImportError):
        what_is_missing(ImportError("cannot import name 'x'", name="liveedge.settings"))

"""The environment of a checkout: found without being asked, shared by equals, clear when impossible."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.compiler import needs_compiler

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    # A make that runs these tests must not hand its own flags down.
    inherited = {
        k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(
        ["make", *arguments],
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def environment_path(checkout: Path, **environment: str) -> str:
    command = [sys.executable, str(checkout / "tools" / "environment.py"), "path"]
    inherited = {k: v for k, v in os.environ.items() if k != "LIVEEDGE_VENV"}
    done = subprocess.run(
        command, env={**inherited, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def copy_of_checkout(folder: Path) -> Path:
    (folder / "tools").mkdir(parents=True)
    for name in (
        "pyproject.toml",
        "constraints.txt",
        "tools/environment.py",
        "tools/python.sh",
        "Makefile",
    ):
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_without_a_usable_python_one_sentence_says_what_is_missing():
    done = make("setup", PYTHON="no-such-python")
    assert done.returncode != 0
    assert "liveedge needs Python 3.11 or newer" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_checkouts_with_equal_dependencies_share_one_environment(tmp_path: Path):
    one, other = copy_of_checkout(tmp_path / "one"), copy_of_checkout(tmp_path / "other")
    assert environment_path(one) == environment_path(other) == environment_path(ROOT)


def test_another_pin_is_another_environment(tmp_path: Path):
    changed = copy_of_checkout(tmp_path / "changed")
    with (changed / "constraints.txt").open("a") as file:
        file.write("another==1.0\n")
    assert environment_path(changed) != environment_path(ROOT)


def test_the_environment_can_be_named(tmp_path: Path):
    assert environment_path(ROOT, LIVEEDGE_VENV=str(tmp_path)) == str(tmp_path)


def test_the_environment_lies_outside_the_checkout():
    assert not Path(environment_path(ROOT)).is_relative_to(ROOT)


def set_up(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`setup` where everything but the kernels is there already."""
    program = ROOT / "tools" / "environment.py"
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").symlink_to(sys.executable)
    done = "import environment as e; e.folder().joinpath(e.DONE).write_text(e.fingerprint())"
    own = {"LIVEEDGE_VENV": str(folder / "venv"), "XDG_CACHE_HOME": str(folder / "cache")}
    variables = {**os.environ, **own, "PYTHONPATH": str(program.parent), **environment}
    subprocess.run([sys.executable, "-c", done], env=variables, check=True)
    return subprocess.run(
        [sys.executable, str(program), "setup"],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


@needs_compiler
def test_setup_compiles_the_kernels_into_the_cache(tmp_path: Path):
    done = set_up(tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "cache/liveedge/native").glob("*.so"))) == 1


def test_setup_without_a_compiler_says_so_and_succeeds(tmp_path: Path):
    done = set_up(tmp_path, CC="no-such-compiler")
    assert done.returncode == 0, done.stderr
    assert "native kernels not built, torch will do their work" in done.stderr
    assert "no-such-compiler" in done.stderr


def test_every_requirement_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    core = project["project"]
    asked = [*core["dependencies"], *core["optional-dependencies"]["server"]]
    for group in project["dependency-groups"].values():
        asked += [entry for entry in group if isinstance(entry, str)]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {plain(line.split("==")[0]) for line in pins if "==" in line}
    for requirement in asked:
        name = re.split(r"[\[<>=~! ]", requirement)[0]
        assert plain(name) in pinned, f"{name} has no pin in constraints.txt"


def test_pins_name_no_machine_and_no_address():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", line), (
            line
        )


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

"""What users install: the built wheel has its data and runs from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from liveedge.core.version import VERSION
from liveedge.native.build import SHIPPED
from tests.compiler import needs_compiler

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
MAX_WHEEL_BYTES = 25 << 20


def run(*command: str, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(folder: Path, **environment: str) -> Path:
    build = ("-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT))
    run(sys.executable, *build, env={**os.environ, **environment})
    (built,) = folder.glob("*.whl")
    return built


def install(wheel: Path, target: Path) -> Path:
    pip = ("-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    run(sys.executable, *pip)
    return target


def loaded_library(installed: Path, folder: Path) -> str:
    """Path of the kernels that this installation finds on a machine with an empty cache."""
    code = "from liveedge.native.library import load; print(getattr(load(), '_name', None))"
    environment = {**os.environ, "PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(folder)}
    return run(sys.executable, "-c", code, cwd=folder, env=environment).strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("site"))


@needs_compiler
def test_a_wheel_made_with_a_compiler_has_the_kernels_inside(
    wheel: Path, installed: Path, tmp_path: Path
):
    assert "-py3-none-" in wheel.name
    assert "-any" not in wheel.name
    assert Path(loaded_library(installed, tmp_path)) == installed / "liveedge/native" / SHIPPED


def test_a_wheel_made_without_a_compiler_is_for_every_machine(tmp_path: Path):
    for name in ("dist", "site", "empty"):
        (tmp_path / name).mkdir()
    wheel = build_wheel(tmp_path / "dist", CC="no-such-compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    installed = install(wheel, tmp_path / "site")
    assert loaded_library(installed, tmp_path / "empty") == "None"
    assert (installed / "liveedge/native/patchify.c").exists()  # to be compiled later


def test_the_wheel_is_small_enough_to_download(wheel: Path):
    assert wheel.name.startswith(f"liveedge-{VERSION}-")
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES


@pytest.mark.parametrize("name", ASSETS)
def test_the_shipped_model_is_in_the_wheel(installed: Path, name: str):
    assert (installed / "liveedge" / "assets" / "workcell-tiny" / name).stat().st_size > 0


def test_the_shipped_model_has_its_chat_template(installed: Path):
    folder = installed / "liveedge" / "assets" / "workcell-tiny"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (folder / "chat_template.jinja").exists() or config.get("chat_template")


def test_the_wheel_says_that_it_is_typed(installed: Path):
    assert (installed / "liveedge" / "py.typed").exists()


def test_the_installed_command_runs_without_the_checkout(installed: Path, tmp_path: Path):
    code = "import liveedge.cli, sys; print(liveedge.cli.__file__); sys.exit(liveedge.cli.main())"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found, version = run(
        sys.executable, "-c", code, "version", cwd=tmp_path, env=environment
    ).splitlines()
    assert Path(found).is_relative_to(installed)
    assert version == f"liveedge {VERSION}"


def test_the_installed_package_runs_as_a_module(installed: Path, tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    text = run(sys.executable, "-m", "liveedge", "version", cwd=tmp_path, env=environment)
    assert text == f"liveedge {VERSION}\n"

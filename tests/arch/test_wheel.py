"""What users install: the built wheel has its data and runs from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from liveedge.core.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
MAX_WHEEL_BYTES = 25 << 20


def run(*command: str, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = ("-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT))
    run(sys.executable, *build)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("site")
    pip = ("-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    run(sys.executable, *pip)
    return target


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

"""The direction of imports, and what may be imported without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "liveedge"
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]

# Importable without torch, also indirectly: decisions, and everything of the HTTP process.
TORCH_FREE_EDGE = (
    "api",
    "assembly",
    "cli",
    "client",
    "demo",
    "engine.client",
    "engine.process.main",
    "media",
    "server",
    "service",
    "settings",
)


def modules(name: str) -> list[str]:
    """A module, or every module of a package."""
    path = ROOT / "src" / Path(*name.split("."))
    if path.with_suffix(".py").exists():
        return [name]
    files = sorted(path.rglob("*.py"))
    assert files, f"{name} of pyproject.toml does not exist"
    parts = [file.relative_to(ROOT / "src").with_suffix("").parts for file in files]
    return [".".join(part).removesuffix(".__init__") for part in parts]


def decisions() -> list[str]:
    contract = next(c for c in LINTER["contracts"] if c["name"] == "Decisions are torch-free")
    return [module for name in contract["source_modules"] for module in modules(name)]


def test_imports_point_downward_only():
    # In a process of its own: it configures logging, which would silence the loggers of all others.
    code = (
        "import sys; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(config_filename=sys.argv[1], no_cache=True))"
    )
    command = [sys.executable, "-c", code, str(ROOT / "pyproject.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_init_holds_a_docstring_and_nothing_else():
    for file in SOURCE.rglob("__init__.py"):
        body = ast.parse(file.read_text()).body
        assert len(body) == 1, f"{file} does more than describe its package"
        assert ast.get_docstring(ast.parse(file.read_text())), f"{file} has no docstring"


@pytest.mark.parametrize("group", ["decisions", *TORCH_FREE_EDGE])
def test_importing_it_does_not_import_torch(group: str):
    names = decisions() if group == "decisions" else modules(f"liveedge.{group}")
    lines = [f"import {name}" for name in names]
    lines += ["import sys", "assert 'torch' not in sys.modules, 'torch was imported'"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_server_listens_before_it_imports_what_only_publishers_or_prompts_need():
    publishers = ("aiortc", "aioice", "cryptography", "google.protobuf", "jwt", "livekit")
    heavy = (*publishers, "jinja2", "tokenizers")
    code = f"import sys, liveedge.server; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_never_imports_the_reference():
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            roots = {name.split(".")[0] for name in names}
            assert not roots & {"transformers", "torchvision"}, f"{file}: {names}"

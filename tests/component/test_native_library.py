"""The C kernels' library: compiled once, found again, and missed without harm."""

from __future__ import annotations

import concurrent.futures
import ctypes
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from liveedge.native import build as native
from liveedge.native.build import BuildFailed, build, cached
from liveedge.native.library import open_library
from tests.compiler import needs_compiler

ANSWER = "int le_answer(void) { return %d; }\n"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.c").write_text(ANSWER % 42)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An empty cache, and the machine's own compiler."""
    kept = {name: os.environ[name] for name in ("CC", "PATH") if name in os.environ}
    return {**kept, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@needs_compiler
def test_a_built_library_opens_and_answers(sources, environment):
    build(environment=environment, sources=sources)
    library = open_library(environment=environment, sources=sources)
    assert library is not None
    assert library.le_answer() == 42


@needs_compiler
def test_the_kernels_of_this_package_compile_without_a_warning(tmp_path):
    compiler = native.find_compiler(os.environ)
    for path in sorted(native.SOURCES.glob("*.c")):
        flags = (*native.FLAGS, *native.FILE_FLAGS.get(path.name, ()), "-Wall", "-Wextra")
        command = [*compiler, *flags, "-c", str(path), "-o", str(tmp_path / "one.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@needs_compiler
def test_building_twice_compiles_once(sources, environment, tmp_path):
    count = tmp_path / "count"
    real = shutil.which("cc", path=environment["PATH"]) or "gcc"
    logged = script(
        tmp_path / "logged-cc",
        f'case "$1" in --version) ;; *) echo one >> {count} ;; esac\nexec {real} "$@"',
    )
    first = build(environment={**environment, "CC": logged}, sources=sources)
    begun = count.read_text()
    assert begun
    assert build(environment={**environment, "CC": logged}, sources=sources) == first
    assert count.read_text() == begun


@needs_compiler
def test_a_changed_source_is_another_library(sources, environment):
    old = build(environment=environment, sources=sources)
    (sources / "answer.c").write_text(ANSWER % 43)
    assert cached(environment=environment, sources=sources) is None
    new = build(environment=environment, sources=sources)
    assert new != old
    assert cached(environment=environment, sources=sources) == new


@needs_compiler
def test_a_changed_header_is_another_library(sources, environment):
    (sources / "answer.h").write_text("#define A 1\n")
    old = build(environment=environment, sources=sources)
    (sources / "answer.h").write_text("#define A 2\n")
    assert build(environment=environment, sources=sources) != old


@needs_compiler
def test_several_processes_that_build_at_once_all_get_a_whole_library(sources, environment):
    code = (
        "import os, sys, ctypes; from pathlib import Path; from liveedge.native.build import build\n"
        "print(ctypes.CDLL(str(build(sources=Path(sys.argv[1])))).le_answer())"
    )
    path = os.pathsep.join(sys.path)

    def one(_: int) -> str:
        command = [sys.executable, "-c", code, str(sources)]
        inherited = {**os.environ, **environment, "PYTHONPATH": path}
        return subprocess.run(
            command, env=inherited, capture_output=True, text=True, check=True
        ).stdout

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(one, range(3))) == ["42\n"] * 3
    left = [path.name for path in native.cache_folder(environment).iterdir()]
    assert len(left) == 1, left


def test_without_a_compiler_there_is_no_library_and_the_message_names_one(
    sources, environment, tmp_path
):
    bare = {**environment, "PATH": str(tmp_path)}
    bare.pop("CC", None)
    with pytest.raises(BuildFailed, match="install gcc"):
        build(environment=bare, sources=sources)
    assert open_library(environment=bare, sources=sources) is None


def test_a_compiler_that_does_not_exist_is_named(sources, environment):
    with pytest.raises(BuildFailed, match="no-such-cc"):
        build(environment={**environment, "CC": "no-such-cc"}, sources=sources)


def test_a_broken_compiler_gives_its_own_words_and_leaves_nothing(sources, environment, tmp_path):
    broken = script(
        tmp_path / "broken-cc",
        'case "$1" in --version) echo broken 1.0 ;; *) echo "out of order" >&2; exit 3 ;; esac',
    )
    asked = {**environment, "CC": broken}
    with pytest.raises(BuildFailed, match=r"(?s)status 3.*out of order"):
        build(environment=asked, sources=sources)
    assert list(native.cache_folder(asked).iterdir()) == []
    assert open_library(environment=asked, sources=sources) is None


@needs_compiler
def test_an_error_in_a_source_gives_the_compilers_message(sources, environment):
    (sources / "answer.c").write_text("int le_answer(void) { return nothing; }\n")
    with pytest.raises(BuildFailed, match="nothing"):
        build(environment=environment, sources=sources)


@needs_compiler
def test_a_cache_that_cannot_be_written_is_named(sources, environment, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildFailed, match="cannot write"):
        build(
            environment={**environment, "XDG_CACHE_HOME": str(tmp_path / "file")}, sources=sources
        )


def test_a_missing_library_says_how_to_get_it(sources, environment, caplog):
    with caplog.at_level(logging.WARNING, "liveedge.native"):
        assert open_library(environment=environment, sources=sources) is None
    assert "python -m liveedge.native.build" in caplog.text


def test_a_library_that_cannot_be_opened_is_missed_without_harm(sources, environment, caplog):
    (sources / native.SHIPPED).write_text("not a library")
    with caplog.at_level(logging.WARNING, "liveedge.native"):
        assert open_library(environment=environment, sources=sources) is None
    assert "cannot be loaded" in caplog.text


@needs_compiler
def test_the_switch_turns_the_kernels_off(sources, environment):
    build(environment=environment, sources=sources)
    off = {**environment, "LIVEEDGE_NATIVE": "0"}
    assert open_library(environment=off, sources=sources) is None


@needs_compiler
def test_a_library_inside_the_package_comes_before_the_cache(sources, environment, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "answer.c").write_text(ANSWER % 7)
    shutil.copy(build(environment=environment, sources=other), sources / native.SHIPPED)
    build(environment=environment, sources=sources)
    library = open_library(environment=environment, sources=sources)
    assert isinstance(library, ctypes.CDLL)
    assert library.le_answer() == 7


@needs_compiler
def test_the_program_prints_the_library(environment):
    command = [sys.executable, str(native.SOURCES / "build.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).exists()


def test_the_program_fails_with_one_sentence(environment):
    command = [sys.executable, str(native.SOURCES / "build.py")]
    done = subprocess.run(
        command,
        env={**environment, "CC": "no-such-cc"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "native kernels not built, torch will do their work" in done.stderr
    assert "Traceback" not in done.stderr

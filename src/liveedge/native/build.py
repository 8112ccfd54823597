"""Compiles the C files of this folder into one shared library in the user's cache.

    python -m liveedge.native.build        build unless that is done; print where it is

Standard library only: it also runs before anything is installed, and inside the wheel's build.
The library's name is made of everything that goes into it, so that a changed source is another
library and an old one is never loaded. Two processes may build at once: each writes a file of its
own and renames it, and the contents are the same.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent
SHIPPED: Final = "liveedge_native.so"  # name inside a wheel
COMPILERS: Final = ("cc", "gcc", "clang")
FLAGS: Final = ("-O3", "-std=gnu11", "-fPIC", "-pthread")
# What one file needs beyond that. No product may be fused with a sum where results must equal
# the reference to the bit.
FILE_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {"patchify.c": ("-ffp-contract=off",)}
TIMEOUT_S: Final = 120.0


class BuildFailed(Exception):
    """No library; the message says why and what would help."""


def build(*, environment: Mapping[str, str] = os.environ, sources: Path = SOURCES) -> Path:
    """The library in the cache, compiled now unless this compiler already did."""
    compiler = find_compiler(environment)
    target = cache_folder(environment) / f"{source_key(sources)}-{_version_key(compiler)}.so"
    if not target.exists():
        compile_library(compiler, target, sources=sources)
    return target


def cached(*, environment: Mapping[str, str] = os.environ, sources: Path = SOURCES) -> Path | None:
    """A library of exactly these sources, by whatever compiler; asks none."""
    found = sorted(cache_folder(environment).glob(f"{source_key(sources)}-*.so"))
    return found[0] if found else None


def cache_folder(environment: Mapping[str, str]) -> Path:
    cache = environment.get("XDG_CACHE_HOME")
    home = environment.get("HOME")
    base = Path(cache) if cache else (Path(home) if home else Path.home()) / ".cache"
    return base / "liveedge" / "native"


def source_key(sources: Path) -> str:
    """Names what is compiled: the files, the flags, the kind of machine."""
    digest = hashlib.sha256(repr((FLAGS, FILE_FLAGS, sys.platform, platform.machine())).encode())
    for path in sorted([*sources.glob("*.c"), *sources.glob("*.h")]):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def find_compiler(environment: Mapping[str, str]) -> list[str]:
    """The command of CC, or the first compiler on the PATH."""
    chosen = environment.get("CC")
    if chosen:
        return shlex.split(chosen)
    for name in COMPILERS:
        found = shutil.which(name, path=environment.get("PATH", os.defpath))
        if found:
            return [found]
    raise BuildFailed(f"no C compiler ({', '.join(COMPILERS)}) is on the PATH; install gcc")


def compile_library(compiler: list[str], target: Path, *, sources: Path = SOURCES) -> None:
    """One object per file, for its own flags; then linked, and put in place at once."""
    files = sorted(sources.glob("*.c"))
    if not files:
        raise BuildFailed(f"{sources} has no C files; install liveedge again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
            objects = [Path(folder, f"{path.stem}.o") for path in files]
            for path, made in zip(files, objects, strict=True):
                flags = (*FLAGS, *FILE_FLAGS.get(path.name, ()))
                _run([*compiler, *flags, "-c", str(path), "-o", str(made)])
            linked = Path(folder, target.name)
            _run([*compiler, *FLAGS, "-shared", *map(str, objects), "-o", str(linked), "-lm"])
            linked.replace(target)
    except OSError as error:
        raise BuildFailed(f"cannot write {target}: {error}") from error


def _version_key(compiler: list[str]) -> str:
    return hashlib.sha256(_run([*compiler, "--version"]).encode()).hexdigest()[:8]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"`{shlex.join(command)}` did not run: {error}") from error
    if done.returncode != 0:
        raise BuildFailed(
            f"`{shlex.join(command)}` ended with status {done.returncode}:\n{done.stderr.strip()}"
        )
    return done.stdout


def main() -> int:
    try:
        print(build())  # noqa: T201 - a program's output
    except BuildFailed as error:
        print(f"native kernels not built, torch will do their work: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

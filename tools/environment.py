"""The virtual environment of a checkout: where it is, and how it is filled. Standard library only.

It lies outside the checkout, under a name made of what is installed in it, so that every checkout
with the same dependencies shares one environment and a clean checkout is ready at once. For the
same reason liveedge itself is not installed in it: an editable install would point at whichever
checkout came last. The Makefile puts this checkout's `src` on PYTHONPATH instead.

    python tools/environment.py path     print the folder
    python tools/environment.py setup    create and fill it, and compile the kernels, unless done
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
DONE = "liveedge-requirements"  # file in the environment: fingerprint of what was installed


def group(project: dict[str, Any], name: str) -> list[str]:
    """The requirements of a dependency group, includes followed."""
    found: list[str] = []
    for entry in project["dependency-groups"][name]:
        found += [entry] if isinstance(entry, str) else group(project, entry["include-group"])
    return found


def requirements() -> list[str]:
    """Everything to run, test and develop: one environment for all commands."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    core = project["project"]
    return [*core["dependencies"], *core["optional-dependencies"]["server"], *group(project, "dev")]


def fingerprint() -> str:
    what = [requirements(), CONSTRAINTS.read_text(), list(sys.version_info[:3])]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]


def folder() -> Path:
    """LIVEEDGE_VENV, or a folder of the user's cache named by the fingerprint."""
    chosen = os.environ.get("LIVEEDGE_VENV")
    if chosen:
        return Path(chosen).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "liveedge" / f"venv-{fingerprint()}"


def fill(environment: Path) -> None:
    """Install what is missing; running it again after an interruption goes on from there."""
    python = environment / "bin" / "python"
    if not python.exists():
        say(f"creating {environment}")
        venv.create(environment, with_pip=True)
    say("installing dependencies (PyTorch is large: minutes the first time, once per machine)")
    pip = [str(python), "-m", "pip", "install", "--constraint", str(CONSTRAINTS), *requirements()]
    subprocess.run([*pip, "--disable-pip-version-check"], check=True, stdout=sys.stderr)
    (environment / DONE).write_text(fingerprint())


def setup() -> None:
    environment = folder()
    environment.mkdir(parents=True, exist_ok=True)
    done = environment / DONE
    with (environment / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second checkout waits for the first to finish
        if not done.exists() or done.read_text() != fingerprint():
            fill(environment)
            say(f"ready: {environment}")
    build_kernels(environment)


def build_kernels(environment: Path) -> None:
    """The C kernels of this checkout, in the user's cache; without a compiler torch does their work."""
    if os.environ.get("LIVEEDGE_NATIVE") == "0":
        return
    command = [str(environment / "bin" / "python"), str(ROOT / "src/liveedge/native/build.py")]
    # A failure is told by the program itself and stops nothing.
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["path"]:
            print(folder())
        case ["setup"]:
            try:
                setup()
            except subprocess.CalledProcessError as error:
                say(
                    f"pip ended with status {error.returncode}; its message is above. Run it again."
                )
                return 1
        case _:
            print("usage: environment.py path|setup", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

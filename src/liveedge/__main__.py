"""The command, also as `python -m liveedge`.

A server's engine process is started before anything else is imported: torch takes seconds, and the
server's own imports go on beside it on another core.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from liveedge.engine.process.spawn import Nursery


def main() -> int:
    """Run one command; see `cli.main`."""
    nursery = Nursery() if wants_engine(sys.argv[1:], os.environ) else None
    try:
        if nursery is not None:
            nursery.prepare()
        status: int = importlib.import_module("liveedge.cli").main(nursery=nursery)
        return status
    except ImportError as error:
        sys.stderr.write(f"liveedge: {what_is_missing(error)}\n")
        return 1
    finally:
        if nursery is not None:
            nursery.close()


def what_is_missing(error: ImportError) -> str:
    """Which package a command lacks, and how to get it. Raises the error where it is one of ours."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "liveedge"):
        raise error
    why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"is damaged ({error})"
    return (
        f"this command needs the Python package {package}, which {why}; install liveedge with"
        " everything that a server needs: pip install 'liveedge[server]'"
    )


def wants_engine(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this will most likely be a server with an engine process. A wrong guess costs some
    work of another core; what is right is decided by the settings."""
    if arguments[:1] != ["serve"] or {"-h", "--help"} & set(arguments):
        return False
    if "inproc" in arguments or "--engine=inproc" in arguments:
        return False
    return environment.get("LIVEEDGE_ENGINE") != "inproc"


if __name__ == "__main__":
    sys.exit(main())

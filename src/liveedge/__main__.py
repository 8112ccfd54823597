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
    finally:
        if nursery is not None:
            nursery.close()


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

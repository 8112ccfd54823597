"""Finds and opens the shared library of C kernels, or says once that there is none.

Never compiles: a server start that sometimes takes seconds longer is a surprise. `make setup`
builds the library of a checkout, a wheel that was made where a compiler is has it inside, and
`python -m liveedge.native.build` makes it anywhere else. LIVEEDGE_NATIVE=0 switches it off.
What the processor must have for a kernel is that kernel's own question, answered in C.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from liveedge.native.build import SHIPPED, SOURCES, cached

log = logging.getLogger("liveedge.native")

SWITCH: Final = "LIVEEDGE_NATIVE"


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL | None:
    """The kernels; None: use torch. Looked for once in a process."""
    return open_library(environment=os.environ)


def open_library(*, environment: Mapping[str, str], sources: Path = SOURCES) -> ctypes.CDLL | None:
    """The library inside the package, else the one in the cache; None says why in the log."""
    if environment.get(SWITCH) == "0":
        log.info("native kernels are off: %s is 0; torch does their work", SWITCH)
        return None
    shipped = sources / SHIPPED
    path = shipped if shipped.exists() else cached(environment=environment, sources=sources)
    if path is None:
        log.warning(
            "no native kernels: torch does their work, several times slower on a CPU; with a C "
            "compiler `python -m liveedge.native.build` makes them"
        )
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("native kernels cannot be loaded, torch does their work: %s", error)
        return None

"""What tests of the C kernels need: a compiler, and the library that it makes."""

from __future__ import annotations

import ctypes
import os
import shutil
from functools import lru_cache

import pytest

from liveedge.native.build import COMPILERS, build
from liveedge.native.library import SWITCH, open_library

needs_compiler = pytest.mark.skipif(
    not os.environ.get("CC") and not any(map(shutil.which, COMPILERS)),
    reason="needs a C compiler",
)


@lru_cache(maxsize=1)
def built_library() -> ctypes.CDLL:
    """The kernels of this checkout, compiled now if nobody did."""
    build()
    library = open_library(environment={k: v for k, v in os.environ.items() if k != SWITCH})
    assert library is not None
    return library

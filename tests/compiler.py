"""What tests of the C kernels need: a compiler, and the library that it makes."""

from __future__ import annotations

import ctypes
import os
import shutil
from functools import lru_cache

import pytest

from liveedge.native.build import COMPILERS, build
from liveedge.native.library import SWITCH, open_library

REASON = "needs a C compiler"
IS_MISSING = (
    os.environ.get("CI") != "true"  # there a missing one is a failure
    and not os.environ.get("CC")
    and not any(map(shutil.which, COMPILERS))
)
needs_compiler = pytest.mark.skipif(IS_MISSING, reason=REASON)


@lru_cache(maxsize=1)
def built_library() -> ctypes.CDLL:
    """The kernels of this checkout, compiled now if nobody did."""
    if IS_MISSING:
        pytest.skip(REASON)
    build()
    library = open_library(environment={k: v for k, v in os.environ.items() if k != SWITCH})
    assert library is not None
    return library

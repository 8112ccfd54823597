"""The activation kernel (`gelu.c`) with Python types."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from liveedge.native.library import load

# Address and number of float32 values, which are replaced by their GELU (tanh form).
GeluKernel: TypeAlias = Callable[[int, int], None]


def open_gelu(library: ctypes.CDLL) -> GeluKernel | None:
    """None: this processor lacks the instructions."""
    function = library.le_gelu_tanh
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    function.restype = ctypes.c_int
    return function if function(None, 0) else None


@lru_cache(maxsize=1)
def gelu_kernel() -> GeluKernel | None:
    """The kernel of this process; None: torch does its work."""
    library = load()
    return None if library is None else open_gelu(library)

"""What objects hold: counted from the objects themselves, so nothing else in the process matters."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import ModuleType

import numpy as np


def held_bytes(*roots: object) -> int:
    """The sizes of everything that can be reached from the roots, each once; bytes.

    Classes, modules and what is global in them are not followed: they are everybody's.
    """
    seen = {id(module.__dict__) for module in list(sys.modules.values())}
    waiting: list[object] = list(roots)
    total = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        waiting += _referents(one)
    return total


def _referents(one: object) -> Iterable[object]:
    if isinstance(one, np.ndarray):  # its base is none of the garbage collector's business
        return (one.base, *one.flat) if one.dtype == object else (one.base,)
    return gc.get_referents(one)

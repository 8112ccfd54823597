"""What the threads of a server do, by their names: numbers and ids of streams are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
_COUNT = re.compile(r"[:_-]?\d+$")


def spent_s(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Processor time between two looks, by kind of thread; most first."""
    spent: dict[str, float] = {}
    for name, at_s in after.items():
        kind = kind_of(name)
        spent[kind] = spent.get(kind, 0.0) + at_s - before.get(name, 0.0)
    ranked = sorted(spent.items(), key=lambda one: -one[1])
    return {kind: s for kind, s in ranked if s > 0}


def kind_of(name: str) -> str:
    """`source:3f2a…:2` and `source:77b1…:1` are both `source:…`."""
    without_id = _ID.sub("…", name)
    return _COUNT.sub("", without_id) or without_id

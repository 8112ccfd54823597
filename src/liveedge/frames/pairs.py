"""Which two frames share a temporal group of the model.

Ticks (2j, 2j+1) of the grid form a pair by their absolute number, so a window that slides by one
tick keeps its groups, and with them their encodings. A frame without its partner stands twice.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from liveedge.frames.resolve import Pick


def pair_ticks(picks: Sequence[Pick]) -> list[tuple[Pick, Pick]]:
    """Group the picks of one segment, oldest first.

    Frames of unequal size cannot share a group: each stands twice.
    """
    pairs: list[tuple[Pick, Pick]] = []
    waiting: Pick | None = None
    for pick in picks:
        if waiting is not None and _are_partners(waiting, pick):
            pairs.append((waiting, pick))
            waiting = None
            continue
        if waiting is not None:
            pairs.append((waiting, waiting))
        waiting = pick
    if waiting is not None:
        pairs.append((waiting, waiting))
    return pairs


def _are_partners(a: Pick, b: Pick) -> bool:
    assert a.tick is not None, "only picks of a segment have ticks"
    assert b.tick is not None, "only picks of a segment have ticks"
    same_pair = a.tick // 2 == b.tick // 2
    return same_pair and (a.width, a.height) == (b.width, b.height)

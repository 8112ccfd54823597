"""Requests that no honest client sends, as `liveedge soak` sends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from liveedge.bench.soak.hostile import attacks as bodies
from liveedge.bench.soak.raw import CHAT

__all__ = ["CHAT", "Attack", "attacks"]


@dataclass(frozen=True, slots=True)
class Attack:
    """A name and what is sent."""

    name: str
    body: bytes = field(repr=False)


def attacks(model: str) -> Sequence[Attack]:
    """One of each kind; the same every time."""
    return [Attack(name, body) for name, body in bodies(model).items()]

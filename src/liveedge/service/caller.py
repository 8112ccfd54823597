"""Who asks, as a value: what the key of a request stands for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The key behind a request. Never holds the key itself."""

    tenant: str  # the name under which everything of its owner is kept
    key_id: str  # of this key, for logs and limits

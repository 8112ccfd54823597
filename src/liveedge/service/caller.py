"""Who asks, as a value: what the key of a request stands for, and what it may."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

Scope: TypeAlias = Literal["ask", "streams", "view", "metrics"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
ALL_SCOPES: frozenset[Scope] = frozenset(SCOPES)
# Of a stored key that names none. Metrics are sums over every key: they are of whoever runs the
# server, whose monitoring gets a key that can do nothing else.
DEFAULT_SCOPES: frozenset[Scope] = frozenset({"ask", "streams", "view"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one key may take. None: what the settings give to every key."""

    requests_per_second: float | None = None
    request_burst: int | None = None
    max_requests: int | None = None  # answers in progress
    max_streams: int | None = None  # of its owner, counted when this key makes one


USUAL = Allowance()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The key behind a request. Never holds the key itself."""

    tenant: str  # its owner: the name under which everything of an owner is kept
    key_id: str  # of this key, for logs and limits
    scopes: frozenset[Scope] = field(default=ALL_SCOPES)
    allowance: Allowance = USUAL

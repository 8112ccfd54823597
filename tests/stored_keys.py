"""Files of keys for tests of servers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from liveedge.service.caller import DEFAULT_SCOPES, USUAL, Allowance, Scope
from liveedge.service.key_file import KeyFile
from liveedge.service.keys import NewKey, made

NOW_MS = 1_750_000_000_000  # of a FakeClock that nobody has moved


def new_key(
    path: Path,
    *,
    owner: str | None = None,
    scopes: frozenset[Scope] = DEFAULT_SCOPES,
    allowance: Allowance = USUAL,
    expires_at_ms: int | None = None,
) -> dict[str, str]:
    """Make a key; the headers of a request with it."""
    new = NewKey(
        name="a test",
        owner=owner,
        scopes=scopes,
        allowance=allowance,
        expires_at_ms=expires_at_ms,
    )
    key, row = made(new, now_ms=NOW_MS)
    with closing(KeyFile(path, create=True)) as file:
        file.add(row)
    return {"authorization": f"Bearer {key}"}


def id_of(headers: dict[str, str]) -> str:
    """The id of the key in these headers."""
    return headers["authorization"].split("_")[1]


def revoke(path: Path, headers: dict[str, str]) -> None:
    with closing(KeyFile(path, create=False)) as file:
        file.revoke(id_of(headers), now_ms=NOW_MS)

"""The header `Authorization`: from its text to the key behind it, and to whose that is."""

from __future__ import annotations

from liveedge.service.caller import Caller
from liveedge.service.keys import OPEN, KeyRing, Refused


def caller_of(keys: KeyRing, authorization: str | None) -> Caller | Refused:
    """Who is behind an Authorization header. The answer never repeats it."""
    if keys.is_open:
        return OPEN
    if not authorization:
        return Refused("no_key", "no key: send the header `Authorization: Bearer <key>`")
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        return Refused("malformed", "the Authorization header must read `Bearer <key>`")
    return keys.find(key)

"""Who asks: a bearer key becomes a tenant, the name under which everything of a key is kept.

A tenant is a digest, so that a key never reaches a log, a cache key or an error.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from liveedge.core.errors import Unauthorized
from liveedge.service.caller import Caller

OPEN = Caller(tenant="open", key_id="open")


class Keys:
    """The accepted keys. With none configured everybody is the same tenant."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = {_digest(key) for key in keys}

    @property
    def is_open(self) -> bool:
        return not self._digests

    def caller(self, authorization: str | None) -> Caller:
        """Who is behind an Authorization header. Raises Unauthorized."""
        if self.is_open:
            return OPEN
        if not authorization:
            raise Unauthorized("no key: send the header `Authorization: Bearer <key>`")
        scheme, _, key = authorization.partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized("the Authorization header must read `Bearer <key>`")
        digest = _digest(key)
        # Compared one by one in constant time: how long it takes must not tell how near a guess is.
        if not any([hmac.compare_digest(digest, known) for known in self._digests]):  # noqa: C419  all of them, always
            raise Unauthorized("unknown key")
        return Caller(tenant=digest[:16], key_id=digest[:16])


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()

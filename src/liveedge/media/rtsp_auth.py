"""Who we are to a camera: Basic and Digest authentication (RFC 7617, 2617 and 7616). Pure.

The password is in nothing but the answer to a challenge: not in requests' URLs, not in `repr`.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes, urlsplit

_PART = re.compile(r'[\s,]*([A-Za-z0-9_-]+)(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*)))?')
_MAX_PARTS = 64  # of one header: schemes and their parameters
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name and a password, as the camera counts them: in bytes."""

    user: bytes = field(repr=False)
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way in that the camera offers."""

    scheme: str  # basic or digest, in small letters
    parameters: Mapping[str, str]

    @property
    def algorithm(self) -> str:
        return self.parameters.get("algorithm", "").upper() or "MD5"

    @property
    def is_stale(self) -> bool:
        """Only the nonce was too old; the password may be right."""
        return self.parameters.get("stale", "").lower() == "true"


def credentials_of(url: str) -> Credentials | None:
    """Those of a URL, percent-decoded; None if it has none, or such as no header can carry."""
    login, at, _ = urlsplit(url).netloc.rpartition("@")
    if not at:
        return None
    user, _, password = login.partition(":")
    found = Credentials(unquote_to_bytes(user), unquote_to_bytes(password))
    return None if _CONTROL.search(found.user + found.password) else found


def challenges_in(headers: Iterable[str]) -> list[Challenge]:
    """All challenges of all `WWW-Authenticate` headers; malformed rests are left out."""
    found: list[Challenge] = []
    for header in headers:
        parameters: dict[str, str] = {}
        at = 0
        for _ in range(_MAX_PARTS):
            part = _PART.match(header, at)
            if part is None:
                break
            at = part.end()
            name, quoted, plain = part.groups()
            if quoted is None and plain is None:
                parameters = {}
                found.append(Challenge(name.lower(), parameters))
            else:
                parameters[name.lower()] = plain if quoted is None else quoted
    return found


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_HASHES: Mapping[str, Callable[[bytes], str]] = {
    "SHA-256": _sha256,
    "SHA-256-SESS": _sha256,
    "MD5": _md5,
    "MD5-SESS": _md5,
}
_ORDER = (*_HASHES, "BASIC")  # the strongest first


class Authorizer:
    """Answers challenges for one connection."""

    def __init__(
        self,
        credentials: Credentials | None,
        *,
        make_nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._credentials = credentials
        self._make_nonce = make_nonce
        self._challenge: Challenge | None = None
        self._n_used = 0  # of the camera's nonce
        self._was_accepted = False

    def accepted(self) -> None:
        """A request was not challenged: if it was signed, the password is right."""
        self._was_accepted = self._n_used > 0

    def challenged(self, headers: Iterable[str]) -> bool:
        """After a 401: whether asking again may help. Twice without success is a refusal, unless only
        the nonce was too old; some cameras do not say that, but change it with each request."""
        usable = [c for c in challenges_in(headers) if _rank(c) < len(_ORDER)]
        if self._credentials is None or not usable:
            return False
        was_answered = self._challenge is not None
        best = min(usable, key=_rank)
        self._challenge = best
        self._n_used = 0
        is_other_nonce = best.scheme == "digest" and (best.is_stale or self._was_accepted)
        return not was_answered or is_other_nonce

    def header(self, method: str, url: str) -> tuple[tuple[str, str], ...]:
        """The header for the next request; none before a challenge."""
        if self._challenge is None or self._credentials is None:
            return ()
        if self._challenge.scheme == "basic":
            who = self._credentials.user + b":" + self._credentials.password
            return (("Authorization", "Basic " + base64.b64encode(who).decode()),)
        self._n_used += 1
        return (("Authorization", self._digest(self._challenge, self._credentials, method, url)),)

    def _digest(self, asked: Challenge, who: Credentials, method: str, url: str) -> str:
        given = asked.parameters
        realm, nonce = given.get("realm", ""), given.get("nonce", "")
        own_nonce, count = self._make_nonce(), f"{self._n_used:08x}"
        hashed = _HASHES[asked.algorithm]
        secret = hashed(b":".join((who.user, realm.encode("latin-1"), who.password)))
        if asked.algorithm.endswith("-SESS"):
            secret = hashed(f"{secret}:{nonce}:{own_nonce}".encode("latin-1"))
        what = hashed(f"{method}:{url}".encode("latin-1"))
        has_quality = "qop" in given
        between = f"{count}:{own_nonce}:auth:" if has_quality else ""
        response = hashed(f"{secret}:{nonce}:{between}{what}".encode("latin-1"))
        user = who.user.decode("latin-1").replace("\\", "\\\\").replace('"', '\\"')
        parts = [
            f'username="{user}"',
            f'realm="{realm}"',
            f'nonce="{nonce}"',
            f'uri="{url}"',
            f'response="{response}"',
        ]
        if "algorithm" in given:
            parts.append(f"algorithm={given['algorithm']}")
        if "opaque" in given:
            parts.append(f'opaque="{given["opaque"]}"')
        if has_quality or asked.algorithm.endswith("-SESS"):
            parts.append(f'cnonce="{own_nonce}"')
        if has_quality:
            parts += ["qop=auth", f"nc={count}"]
        return "Digest " + ", ".join(parts)


def _rank(challenge: Challenge) -> int:
    """Its place in the order of what we would rather use; beyond the end: nothing we can answer."""
    if challenge.scheme == "basic":
        return _ORDER.index("BASIC")
    qualities = challenge.parameters.get("qop", "auth").lower().split(",")
    can_answer = "auth" in (quality.strip() for quality in qualities)
    if challenge.scheme != "digest" or challenge.algorithm not in _HASHES or not can_answer:
        return len(_ORDER)
    return _ORDER.index(challenge.algorithm)

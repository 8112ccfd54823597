"""Tokens that let a publisher into one stream: JWTs as LiveKit's SDKs carry them.

A token names its stream as the LiveKit room and allows nothing but publishing there. It is not a
key: with it nobody can ask, look or end. Whoever holds the newest token may come back with it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import jwt

from liveedge.core.clock import Clock
from liveedge.core.errors import Unauthorized

ISSUER = "liveedge"
ALGORITHM = "HS256"
LEEWAY_S = 60  # a token outlives its lease by this much: the clocks of phones are off
MAX_TOKEN_CHARS = 4096
RENEW = "POST /streams/{id}/keepalive gives a new one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a valid token allows."""

    stream_id: str
    identity: str  # of the publisher; LiveKit's SDKs show it
    expires_at_ms: int


class PublishTokens:
    """Makes and checks the tokens of one server."""

    def __init__(self, secret: bytes, *, clock: Clock) -> None:
        if len(secret) < 32:
            raise ValueError(f"the secret has {len(secret)} bytes, needs 32 or more")
        self._secret = secret
        self._clock = clock

    def make(self, stream_id: str, *, valid_s: int) -> str:
        """A token for publishing into this stream."""
        now_s = self._clock.wall_ms() // 1000
        claims = {
            "iss": ISSUER,
            "sub": f"publisher-{secrets.token_hex(4)}",
            "nbf": now_s - LEEWAY_S,
            "exp": now_s + valid_s + LEEWAY_S,
            "jti": secrets.token_hex(8),
            "video": {
                "room": stream_id,
                "roomJoin": True,
                "canPublish": True,
                "canSubscribe": False,
                "canPublishData": False,
            },
        }
        return jwt.encode(claims, self._secret, algorithm=ALGORITHM)

    def check(self, token: str) -> Grant:
        """What the token allows. Raises Unauthorized; the message never holds the token."""
        return self._granted(self._claims(token))

    def check_for(self, token: str, stream_id: str) -> Grant:
        """The same, for publishing into this stream alone."""
        grant = self.check(token)
        if grant.stream_id != stream_id:
            raise Unauthorized(
                f"the publish token is for stream {grant.stream_id}, not for {stream_id[:80]}"
            )
        return grant

    def _claims(self, token: str) -> dict[str, Any]:
        if not token:
            raise Unauthorized("no publish token: send the header `Authorization: Bearer <token>`")
        if len(token) > MAX_TOKEN_CHARS:
            raise Unauthorized(f"the publish token is longer than {MAX_TOKEN_CHARS} characters")
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._secret,
                algorithms=[ALGORITHM],
                issuer=ISSUER,
                # Times are compared below, by the injected clock.
                options={
                    "require": ["exp", "sub"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidTokenError as error:
            raise Unauthorized(_explained(error)) from error
        return claims

    def _granted(self, claims: dict[str, Any]) -> Grant:
        expires_s, begins_s = claims["exp"], claims.get("nbf", 0)
        now_ms = self._clock.wall_ms()
        if not isinstance(expires_s, int) or now_ms >= expires_s * 1000:
            raise Unauthorized(f"the publish token has expired; {RENEW}")
        if not isinstance(begins_s, int) or now_ms < begins_s * 1000:
            raise Unauthorized("the publish token is not valid yet: its nbf is in the future")
        video = claims.get("video")
        video = video if isinstance(video, dict) else {}
        room = video.get("room")
        may_publish = video.get("roomJoin") is True and video.get("canPublish") is True
        if not isinstance(room, str) or not may_publish:
            raise Unauthorized(
                "the token does not allow publishing: it lacks room, roomJoin or canPublish"
            )
        return Grant(stream_id=room, identity=str(claims["sub"]), expires_at_ms=expires_s * 1000)


def _explained(error: jwt.InvalidTokenError) -> str:
    """Why a token is refused, for people; subclasses before their bases."""
    if isinstance(error, jwt.InvalidSignatureError):
        return f"the publish token was not signed by this server; {RENEW}"
    if isinstance(error, jwt.InvalidAlgorithmError):
        return f"the publish token is not signed with {ALGORITHM}, as those of this server are"
    if isinstance(error, jwt.InvalidIssuerError):
        return f"the publish token was issued by somebody else than {ISSUER}"
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the publish token lacks the claim {error.claim}"
    return "the publish token is no JSON Web Token of this server"

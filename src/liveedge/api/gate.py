"""The entrance of every route: what kind of route it is, and who asks."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from liveedge.api.auth import Keys
from liveedge.api.context import mark
from liveedge.core.errors import RegionMismatch, Unauthorized
from liveedge.core.log import note
from liveedge.service.caller import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Checks keys and regions."""

    keys: Keys
    region: str
    is_regional: bool  # several regions: a request for another one is refused

    def open_chat(self, request: HTTPConnection) -> Caller:
        """Who sends a chat request. Its region is checked later, in the order of checks."""
        mark(request.scope, face="chat", region=self.region)
        caller = self.keys.caller(request.headers.get("authorization"))
        note(key_id=caller.key_id)
        return caller

    def open_stream(self, request: HTTPConnection) -> Caller:
        """Who sends a request about streams."""
        mark(request.scope, face="flat", region=self.region)
        caller = self.keys.caller(request.headers.get("authorization"))
        note(key_id=caller.key_id)
        asked = request.headers.get("x-overshoot-region")
        if self.is_regional and asked is not None and asked != self.region:
            raise RegionMismatch("this is another region", expected=self.region, requested=asked)
        return caller

    def open_publisher(self, request: HTTPConnection) -> str:
        """The publish token of a publisher; whether it is a good one is found out later."""
        mark(request.scope, face="flat", region=self.region)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthorized(
                "no publish token: send the header `Authorization: Bearer <publish.token>`"
            )
        return token.strip()

    def open_session(self, request: HTTPConnection) -> None:
        """A request to the URL of a publisher's session, which is its own key."""
        mark(request.scope, face="flat", region=self.region)

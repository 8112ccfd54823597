"""The entrance of every route: what kind of route it is, who asks, and whether that key may.

Every route that needs a key names its scope here; a test looks at all routes. In the order of checks:
the key (401), its scope (403), then what the route itself says; of a stream route the rate (429) and
the region (409) come at once, of a chat request after its body (`charge`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from liveedge.api.auth import caller_of
from liveedge.api.context import mark
from liveedge.api.leash import Leashes
from liveedge.core.errors import PermissionDenied, RegionMismatch, Unauthorized
from liveedge.core.log import note
from liveedge.service.audit import Audit
from liveedge.service.caller import Caller, Scope
from liveedge.service.keys import KeyRing, Refused
from liveedge.service.rates import Rates, too_often


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Checks keys, scopes, rates and regions."""

    keys: KeyRing
    rates: Rates
    audit: Audit
    region: str
    is_regional: bool  # several regions: a request for another one is refused
    leashes: Leashes = field(default_factory=Leashes)

    def open_chat(self, request: HTTPConnection, *, scope: Scope) -> Caller:
        """Who sends a chat request. Rate and region are checked later, in the order of checks."""
        mark(request.scope, face="chat", region=self.region)
        return self._caller(request, scope)

    def open_stream(self, request: HTTPConnection, *, scope: Scope, cost: int = 1) -> Caller:
        """Who sends a request about streams. `cost` is 0 for pushed pictures, whose number is the
        camera's, and which have a bound of their own."""
        mark(request.scope, face="flat", region=self.region)
        caller = self._caller(request, scope)
        if cost:
            self.charge(request, caller)
        asked = request.headers.get("x-overshoot-region")
        if self.is_regional and asked is not None and asked != self.region:
            raise RegionMismatch("this is another region", expected=self.region, requested=asked)
        return caller

    def open_server(self, request: HTTPConnection, *, scope: Scope) -> Caller:
        """Who asks about the server as a whole."""
        return self._caller(request, scope)

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

    def charge(self, request: HTTPConnection, caller: Caller) -> None:
        """Count a request against the rate of its key, or raise RateLimited."""
        standing = self.rates.take(caller)
        if standing is None:
            return
        request.scope["state"]["rate_headers"] = standing.headers()
        if standing.retry_after_s is not None:
            raise too_often(standing, caller)

    def _caller(self, request: HTTPConnection, scope: Scope) -> Caller:
        found = caller_of(self.keys, request.headers.get("authorization"))
        request_id = str(request.scope["state"].get("request_id", "-"))
        if isinstance(found, Refused):
            note(key_id=found.key_id)
            self.audit.refusal(found.reason, request_id=request_id, key_id=found.key_id)
            raise Unauthorized(found.message)
        note(key_id=found.key_id)
        if scope not in found.scopes:
            self.audit.refusal("scope", request_id=request_id, key_id=found.key_id)
            raise PermissionDenied(
                f"this needs the scope {scope}, and the key {found.key_id} has"
                f" {', '.join(sorted(found.scopes)) or 'none'}"
            )
        self.leashes.hold(request.scope, found.key_id)
        return found

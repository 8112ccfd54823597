"""Where clients reach this server: as configured, or as they have just done it.

A proxy that ends TLS on this machine tells so by X-Forwarded-Proto, which is taken from this machine
alone. X-Forwarded-Host is not: where a proxy changes the Host, `public_url` says what is right.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

_HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")


class PublicUrl:
    """Addresses that are given to clients."""

    def __init__(self, configured: str | None = None) -> None:
        self._configured = configured

    def base(self, request: HTTPConnection) -> str:
        """`http(s)://host[:port][/path]`, without a slash at the end."""
        if self._configured is not None:
            return self._configured
        scheme = "https" if request.url.scheme in ("https", "wss") else "http"
        return f"{scheme}://{_host(request)}"

    def prefix(self, request: HTTPConnection, route: str) -> str:
        """What stands before `route` in a path of this server: `/v1` of `/v1/whip/...`."""
        if self._configured is not None:
            return urlsplit(self._configured).path
        return request.url.path.partition(route)[0]


def _host(request: HTTPConnection) -> str:
    """What the client calls us; it gets back what it sent, if that is an address at all."""
    named = request.headers.get("host", "")
    if _HOST.fullmatch(named):
        return named
    host, port = request.scope.get("server") or ("127.0.0.1", 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""HTTP requests counted by route, method and class of status: all three are closed sets.

Thread  the server's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.routing import BaseRoute
from starlette.types import Scope

from liveedge.core.histogram import Histogram

OTHER = "other"  # no such route
WEBSOCKET = "WS"
STATUSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
USUAL = ("2xx", "4xx", "5xx")  # the others count under no route
USUAL_OF_WEBSOCKETS = ("1xx", "4xx", "5xx")
DURATION_S = (0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class HttpStats:
    """What every route answered, how often and how fast. Knows no route until it is told."""

    def __init__(self) -> None:
        self.ended: dict[tuple[str, str, str], int] = {}
        self.duration_s: dict[str, Histogram] = {}
        self._prefixes: tuple[str, ...] = ()

    def learn(self, routes: Iterable[BaseRoute], *, prefixes: Sequence[str]) -> None:
        """All series that there will ever be. Routes that differ in a prefix are one."""
        self._prefixes = tuple(prefix for prefix in prefixes if prefix)
        known = {(OTHER, OTHER)}
        for route in routes:
            path = getattr(route, "path", None)
            if path is not None:
                methods = getattr(route, "methods", None) or {WEBSOCKET}
                known |= {(self._short(path), method) for method in methods if method != "HEAD"}
        for path, method in sorted(known):
            self.duration_s[path] = Histogram(DURATION_S)
            usual = USUAL_OF_WEBSOCKETS if method == WEBSOCKET else USUAL
            for status in STATUSES if path == OTHER else usual:
                self.ended[path, method, status] = 0

    def count(self, scope: Scope, *, status: int, seconds: float) -> None:
        """A request has ended. `scope` is as it was left by the router."""
        path = self._short(getattr(scope.get("route"), "path", OTHER))
        method = WEBSOCKET if scope["type"] == "websocket" else scope["method"]
        method = "GET" if method == "HEAD" else method
        seen = STATUSES[status // 100 - 1] if 100 <= status < 600 else "5xx"
        key = (path, method, seen)
        if key not in self.ended:
            path = path if path in self.duration_s else OTHER
            key = (OTHER, OTHER, seen)
        self.ended[key] += 1
        self.duration_s[path].observe(seconds)

    def _short(self, path: str) -> str:
        for prefix in self._prefixes:
            if path.startswith(f"{prefix}/"):
                return path.removeprefix(prefix)
        return path

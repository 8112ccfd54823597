"""A web server of a few lines: what it answers is a function of the test."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from liveedge.core.tasks import OwnedThread


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class WebServer:
    """Serves on a port of its own until it is closed; remembers what it was asked."""

    def __init__(
        self, answer: Callable[[Request], Answer], *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.requests: list[Request] = []
        self._answer = answer
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = OwnedThread("web", lambda _: self._server.serve_forever(0.02))
        self._thread.start()

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def url(self, path: str, *, login: str = "", scheme: str = "http") -> str:
        return f"{scheme}://{login}127.0.0.1:{self.port}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.stop(5)
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                request = Request(self.path, dict(self.headers))
                outer.requests.append(request)
                answer = _ranged(outer._answer(request), request)
                try:
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    if "Content-Length" not in answer.headers:
                        self.send_header("Content-Length", str(len(answer.body)))
                    self.end_headers()
                    self.wfile.write(answer.body)
                except OSError:  # the client has gone its own way
                    pass

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _ranged(answer: Answer, request: Request) -> Answer:
    wanted = request.headers.get("Range")
    if wanted is None or answer.status != 200:
        return answer
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    return Answer(answer.body[int(first) : int(last) + 1], status=206, headers=answer.headers)


def until(condition: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Wait until a condition of another thread holds."""
    for _ in range(round(within_s / 0.005)):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("the condition never came true")

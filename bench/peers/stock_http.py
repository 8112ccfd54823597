"""The HTTP face of `stock_server`: what an OpenAI client expects, and nothing more.

A thread for each connection; who may compute is the model's business.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

N_TOKENS = 256  # of an answer whose question sets no bound
N_WAITING = 128  # connections that the system keeps before they are accepted


class Answers(Protocol):
    """A model."""

    name: str

    def answer(
        self, messages: list[dict[str, Any]], n_tokens: int, say: Callable[[str], None]
    ) -> tuple[int, int]:
        """(tokens read, tokens written); the text goes to `say` in pieces.

        What `say` raises ends the answer: the client has left.
        """
        ...


class Pieces:
    """What `generate` calls with every token: text goes on as soon as its characters are whole.

    The streamers of transformers hold back each word until the next one begins, which would make
    every first token late.
    """

    def __init__(self, tokenizer: Any, say: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._say = say
        self._tokens: list[int] = []
        self._said = ""
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        if not self._prompt_seen:  # the first call brings the prompt
            self._prompt_seen = True
            return
        self._tokens += value.flatten().tolist()
        text = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self._pass_on(text)

    def end(self) -> None:
        self._pass_on(self._tokenizer.decode(self._tokens, skip_special_tokens=True))

    def _pass_on(self, text: str) -> None:
        new, self._said = text[len(self._said) :], text
        if new:
            self._say(new)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True  # or a small chunk waits for the receipt of the one before

    def do_GET(self) -> None:
        listed = {"object": "list", "data": [{"id": self.server.model.name, "object": "model"}]}
        found = {"/health": {}, "/v1/models": listed}.get(self.path)
        self._send(HTTPStatus.OK if found is not None else HTTPStatus.NOT_FOUND, found or {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        n_tokens = body.get("max_completion_tokens") or body.get("max_tokens") or N_TOKENS
        answer = self._stream if body.get("stream") else self._whole
        answer(body, n_tokens)

    def log_message(self, *_: object) -> None:
        """Nothing: lines per request are work that the others do not do either."""

    def _whole(self, body: dict[str, Any], n_tokens: int) -> None:
        pieces: list[str] = []
        counts = self.server.model.answer(body["messages"], n_tokens, pieces.append)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(pieces)},
            "finish_reason": "length" if counts[1] == n_tokens else "stop",
        }
        head = self._head("chat.completion")
        self._send(HTTPStatus.OK, {**head, "choices": [choice], "usage": _usage(*counts)})

    def _stream(self, body: dict[str, Any], n_tokens: int) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = self._head("chat.completion.chunk")

        def chunk(delta: dict[str, str], reason: str | None = None) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            self._event({**head, "choices": [choice]})

        try:
            chunk({"role": "assistant", "content": ""})
            counts = self.server.model.answer(
                body["messages"], n_tokens, lambda text: chunk({"content": text})
            )
            chunk({}, "length" if counts[1] == n_tokens else "stop")
            if (body.get("stream_options") or {}).get("include_usage"):
                self._event({**head, "choices": [], "usage": _usage(*counts)})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except ConnectionError:  # the client has left
            self.close_connection = True

    def _head(self, kind: str) -> dict[str, Any]:
        made_at_s = int(time.time())
        return {
            "id": "chatcmpl-stock",
            "object": kind,
            "created": made_at_s,
            "model": self.server.model.name,
        }

    def _event(self, value: object) -> None:
        self._chunk(f"data: {json.dumps(value)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%X\r\n%b\r\n" % (len(data), data))

    def _send(self, status: HTTPStatus, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """A thread for each connection, one model."""

    daemon_threads = True
    request_queue_size = N_WAITING

    def __init__(self, port: int, model: Answers) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.model = model


def _usage(n_read: int, n_written: int) -> dict[str, int]:
    return {
        "prompt_tokens": n_read,
        "completion_tokens": n_written,
        "total_tokens": n_read + n_written,
    }

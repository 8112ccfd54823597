"""The blocking client against scripted HTTP: what it sends, what it makes of answers."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from liveedge.client.http import Client, Refused, image_part, video_part
from liveedge.client.sse import MAX_EVENT_BYTES
from liveedge.testing.clock import FakeClock


class Server:
    """Answers every request with the next of the given replies."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, str, bytes]] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _reply(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                request = (self.command, self.path, dict(self.headers), self.rfile.read(length))
                owner.requests.append(request)
                status, kind, body = owner.replies.pop(0)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = _reply  # noqa: N815  names that the base class looks for

            def log_message(self, *arguments: object) -> None:
                """Quiet."""

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def json(self, status: int, body: object) -> None:
        self.replies.append((status, "application/json", json.dumps(body).encode()))

    def events(self, *events: object) -> None:
        lines = [b": ping"]
        for event in events:
            text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            lines.append(b"data: " + text.encode())
        self.replies.append((200, "text/event-stream", b"\n\n".join([*lines, b""])))


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, daemon=True)
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with contextlib.closing(Client(server.url, clock=FakeClock(), api_key="key")) as client:
        yield client


def chunk(
    text: str | None = None, *, finish: str | None = None, **more: object
) -> dict[str, object]:
    delta = {"role": "assistant"} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def test_an_answer_is_put_together_from_its_pieces(server: Server, client: Client):
    block = {"frames": [{"frame_index": 4}], "age_ms": 12}
    server.events(
        chunk(),
        chunk("op"),
        chunk("en"),
        chunk("", finish="stop", liveedge=block),
        {"choices": [], "usage": {"prompt_tokens": 9}, "liveedge": block},
        "[DONE]",
    )
    pieces: list[str] = []
    answer = client.ask([{"type": "text", "text": "?"}], model="m", on_text=pieces.append)
    assert (answer.text, pieces) == ("open", ["op", "en"])
    assert answer.finish_reason == "stop"
    assert answer.usage == {"prompt_tokens": 9}
    assert [frame["frame_index"] for frame in answer.frames] == [4]


def test_separators_inside_a_text_do_not_end_a_line(server: Server, client: Client):
    server.events(chunk("a\u2028b\u0085c"), "[DONE]")
    assert client.ask([], model="m").text == "a\u2028b\u0085c"


def test_an_event_beyond_any_answer_is_refused(server: Server, client: Client):
    server.events("x" * (MAX_EVENT_BYTES + 1))
    with pytest.raises(Refused, match="the answer has no end: an event is longer than"):
        client.ask([], model="m")


def test_the_key_and_the_question_are_sent(server: Server, client: Client):
    server.events("[DONE]")
    client.ask(
        [image_part("s", frame_index=-1)], model="m", response_format={"type": "json_object"}
    )
    _, path, headers, body = server.requests[0]
    sent = json.loads(body)
    assert path == "/v1beta/chat/completions"
    assert headers["Authorization"] == "Bearer key"
    assert sent["response_format"] == {"type": "json_object"}
    assert sent["messages"][0]["content"][0]["image_url"]["url"] == "ovs://streams/s?frame_index=-1"


def test_a_refusal_carries_status_code_and_message(server: Server, client: Client):
    error = {"message": "gone", "type": "stream_error", "code": "frame_evicted"}
    server.json(410, {"detail": {"error": error}, "error": error})
    with pytest.raises(Refused, match="410 frame_evicted: gone") as refused:
        client.ask([], model="m")
    assert (refused.value.status, refused.value.code) == (410, "frame_evicted")


def test_a_validation_error_is_readable(server: Server, client: Client):
    server.json(422, {"error": "validation_error", "details": [{"loc": ["body"], "msg": "bad"}]})
    with pytest.raises(Refused, match=r'validation_error.*"bad"'):
        client.create_stream({"type": "sim"})


def test_an_error_in_the_middle_of_an_answer_is_raised(server: Server, client: Client):
    server.events(chunk("op"), {"error": {"code": "deadline_exceeded", "message": "late"}})
    with pytest.raises(Refused, match="deadline_exceeded"):
        client.ask([], model="m")


def test_what_is_not_json_is_quoted_briefly(server: Server, client: Client):
    server.replies.append((502, "text/html", b"<html>" + b"x" * 5000))
    with pytest.raises(Refused) as refused:
        client.get("/health")
    assert refused.value.status == 502
    assert len(str(refused.value)) < 300


def test_no_server_is_said_with_its_address():
    with (
        contextlib.closing(Client("http://127.0.0.1:1", clock=FakeClock())) as client,
        pytest.raises(Refused, match=r"no answer from http://127.0.0.1:1"),
    ):
        client.get("/health")


def test_references_are_escaped():
    url = video_part("s", start_offset_ms=-2000, max_fps=2.5)["video_url"]["url"]
    assert url == "ovs://streams/s?start_offset_ms=-2000&max_fps=2.5"

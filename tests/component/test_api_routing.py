"""The edges of HTTP: HEAD, wrong methods, what is named in the API and not available here."""

import pytest

from tests.serving import serving


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/version", "/v1beta/models", "/docs"])
async def test_head_is_get_without_a_body(path):
    async with serving() as server:
        got, head = await server.client.get(path), await server.client.head(path)
        assert head.status_code == got.status_code == 200
        assert head.headers["content-length"] == got.headers["content-length"]
        assert head.content == b""


async def test_head_of_a_picture_tells_of_it():
    async with serving() as server:
        stream_id = await server.filled_stream(2)
        head = await server.client.head(f"/v1/streams/{stream_id}/frame.jpg")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["x-frame-index"] == "1"
        assert (await server.client.head("/v1/streams/none/frame.jpg")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/streams", "GET, HEAD, POST"),
        ("PATCH", "/streams/x", "DELETE, GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("GET", "/v1beta/chat/completions", "POST"),
        ("HEAD", "/v1/chat/completions", "POST"),
        ("GET", "/streams/x/keepalive", "POST"),
    ],
)
async def test_a_wrong_method_is_told_all_right_ones(method, path, allow):
    async with serving() as server:
        answer = await server.client.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == allow
        if method != "HEAD":
            assert answer.json()["detail"] == f"{method} is not possible here; possible: {allow}"


async def test_a_viewer_token_is_not_available_and_the_answer_says_why():
    async with serving() as server:
        stream_id = await server.new_stream()
        answer = await server.client.post(f"/v1/streams/{stream_id}/viewer-token")
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "not_supported")
        assert "LiveKit" in answer.json()["detail"]
        await server.client.delete(f"/v1/streams/{stream_id}")
        for gone in (stream_id, "none"):
            answer = await server.client.post(f"/v1/streams/{gone}/viewer-token")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "stream_not_found")

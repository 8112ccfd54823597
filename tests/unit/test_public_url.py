"""Addresses given to clients: configured, or those that they used themselves."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from liveedge.api.public_url import PublicUrl


def request(path: str = "/", *, host: str = "", scheme: str = "http") -> Request:
    headers = [(b"host", host.encode())] if host else []
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": scheme,
            "path": path,
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "server": ("192.0.2.9", 8000),
        }
    )


@pytest.mark.parametrize(
    ("host", "scheme", "base"),
    [
        ("cam.lan:8000", "http", "http://cam.lan:8000"),
        ("cam.lan", "https", "https://cam.lan"),
        ("[2001:db8::1]:80", "http", "http://[2001:db8::1]:80"),
        ("", "http", "http://192.0.2.9:8000"),
        ("a@b", "http", "http://192.0.2.9:8000"),
        ("x/../y", "http", "http://192.0.2.9:8000"),
        ('x"><b>', "http", "http://192.0.2.9:8000"),
        ("x:99999999", "http", "http://192.0.2.9:8000"),
    ],
)
def test_clients_are_told_the_host_that_they_asked(host: str, scheme: str, base: str):
    assert PublicUrl().base(request(host=host, scheme=scheme)) == base


def test_what_is_configured_wins():
    url = PublicUrl("https://cameras.example/live")
    assert url.base(request(host="other")) == "https://cameras.example/live"
    assert url.prefix(request("/v1/whip/x"), "/whip/") == "/live"


@pytest.mark.parametrize(
    ("path", "prefix"), [("/v1beta/whip/x", "/v1beta"), ("/whip/x", ""), ("/a/whip/x", "/a")]
)
def test_the_prefix_is_that_of_the_request(path: str, prefix: str):
    assert PublicUrl().prefix(request(path), "/whip/") == prefix

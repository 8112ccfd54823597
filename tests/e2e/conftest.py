"""A stream for publishers, on the `server` of the module that asks for it."""

import httpx
import pytest

from tests.publishing import StreamView


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
def stream(http):
    view = StreamView.create(http)
    yield view
    http.delete(f"/streams/{view.id}")

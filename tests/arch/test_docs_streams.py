"""docs/streams.md promises a grammar: what it writes is what the parsers take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from liveedge.frames.refs import parse_ref
from liveedge.media.device import parse_device_url
from liveedge.media.file import parse_file_url
from liveedge.media.pull_policy import PullPolicy, check_pull_url
from liveedge.service.sources import PUBLISHED

pytestmark = pytest.mark.arch
TEXT = (Path(__file__).parents[2] / "docs" / "streams.md").read_text()
REFERENCES = re.findall(r"`(ovs://[^`]+)`", TEXT)
URLS = re.findall(r"`((?:rtsp|rtmp|hls|https|file|device)://[^`.]+[^`]*)`", TEXT)


@pytest.mark.parametrize("reference", REFERENCES)
def test_its_references_are_references(reference: str) -> None:
    parse_ref(reference, kind="video" if "start_" in reference else "image")


@pytest.mark.parametrize("url", [url for url in URLS if "..." not in url])
def test_its_sources_are_sources(url: str) -> None:
    scheme = url.partition(":")[0]
    if scheme == "file":
        parse_file_url(url)
    elif scheme == "device":
        parse_device_url(url)
    else:
        check_pull_url(url, policy=PullPolicy(), schemes=(scheme,))


def test_it_has_both_and_every_type_that_publishers_take() -> None:
    assert len(REFERENCES) >= 5
    assert len(URLS) >= 5
    for name in PUBLISHED:
        assert f"`{name}`" in TEXT

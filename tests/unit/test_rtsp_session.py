"""What a camera is called in requests to it."""

from __future__ import annotations

import pytest

from liveedge.media.rtsp_session import address_of


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("rtsp://bob:pa%40ss@cam:8554/live?channel=1&subtype=0", "rtsp://cam:8554/live?channel=1&subtype=0"),
        ("rtsp://bob@[2001:db8::7]:554/x", "rtsp://[2001:db8::7]:554/x"),
        ("RTSPS://cam/Live", "rtsps://cam/Live"),
        ("rtsp://cam/a b/\u00e9%20c#d", "rtsp://cam/a%20b/%C3%A9%20c#d"),
        ("rtsp://cam", "rtsp://cam"),
    ],
)  # fmt: skip
def test_a_url_is_said_without_who_asks_and_in_plain_letters(url: str, name: str) -> None:
    assert address_of(url) == name

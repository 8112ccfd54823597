"""`data:` URLs as clients really write them (cases 6 and 8)."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, strategies as st

from liveedge.core.errors import MediaInvalid, MediaTooLarge
from liveedge.media.data_url import parse_data_url

DATA = bytes(range(256)) * 3  # every value, so that both special characters of base64 occur
PLAIN = base64.b64encode(DATA).decode()
URL_SAFE = base64.urlsafe_b64encode(DATA).decode()
WHAT = "messages[0].content[1].image_url"


def parse(url: str, max_bytes: int = 10_000) -> bytes:
    return parse_data_url(url, max_bytes=max_bytes, what=WHAT)


@pytest.mark.parametrize(
    "url",
    [
        pytest.param(f"data:image/png;base64,{PLAIN}", id="plain"),
        pytest.param(f"DATA:image/png;BASE64,{PLAIN}", id="upper-case"),
        pytest.param(f"data:image/png;charset=utf-8;base64,{PLAIN}", id="charset"),
        pytest.param(f"data:;base64,{PLAIN}", id="no type"),
        pytest.param(f" data:image/png; base64 ,{PLAIN}\n", id="spaces"),
        pytest.param(
            f"data:image/png;base64,{base64.encodebytes(DATA).decode()}", id="lines of 76"
        ),
        pytest.param(
            "data:image/png;base64," + base64.encodebytes(DATA).decode().replace("\n", "\r\n"),
            id="lines of 76 with CRLF",
        ),
        pytest.param(f"data:image/png;base64,{URL_SAFE}", id="URL-safe alphabet"),
        pytest.param(
            "data:image/png;base64," + PLAIN.replace("+", "%2B").replace("/", "%2f"),
            id="percent-encoded base64",
        ),
        pytest.param(
            "data:image/png," + "".join(f"%{byte:02X}" for byte in DATA), id="percent-encoded bytes"
        ),
    ],
)
def test_every_dialect_gives_the_same_bytes(url: str) -> None:
    assert parse(url) == DATA


@given(data=st.binary(min_size=1, max_size=200))
def test_missing_padding_is_put_back(data: bytes) -> None:
    bare = base64.b64encode(data).decode().rstrip("=")
    assert parse(f"data:image/png;base64,{bare}") == data


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("", id="empty"),
        pytest.param(PLAIN, id="bare base64"),
        pytest.param("data:", id="scheme only"),
        pytest.param("data:image/png;base64", id="no comma"),
        pytest.param("data:image/png;base64,", id="no data"),
        pytest.param("data:image/png,", id="no data, not base64"),
        pytest.param("data:image/png;base64,====", id="only padding"),
        pytest.param("data:image/png;base64,!!!!", id="garbage"),
        pytest.param("data:image/png;base64,AAAAA", id="impossible length"),
        pytest.param("data:image/png;base64,äöü", id="not ASCII"),
        pytest.param("file:///etc/passwd", id="another scheme"),
    ],
)
def test_what_is_no_data_url_is_refused_naming_the_part(url: str) -> None:
    with pytest.raises(MediaInvalid, match=r"messages\[0\]\.content\[1\]\.image_url"):
        parse(url)


def test_the_payload_is_never_repeated_in_the_message() -> None:
    with pytest.raises(MediaInvalid) as caught:
        parse("data:image/png;base64,!" + "secret" * 1000)
    assert len(caught.value.message) < 200
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("n_bytes", [10_001, 5_000_000])
def test_a_payload_over_the_limit_is_too_large(n_bytes: int) -> None:
    payload = base64.b64encode(bytes(n_bytes)).decode()
    with pytest.raises(MediaTooLarge, match="10000 bytes"):
        parse(f"data:image/png;base64,{payload}")


def test_a_payload_of_exactly_the_limit_passes_even_with_line_breaks() -> None:
    payload = base64.encodebytes(bytes(10_000)).decode()
    assert parse(f"data:image/png;base64,{payload}") == bytes(10_000)

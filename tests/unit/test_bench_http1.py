"""HTTP/1.1 answers in pieces of any size, held against h11."""

from __future__ import annotations

import itertools

import h11
import pytest
from hypothesis import given, strategies as st

from liveedge.bench.http1 import MAX_HEAD_BYTES, AnswerReader, HttpMalformed

CUTS = st.lists(st.integers(min_value=0, max_value=600), max_size=14)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def read(parts: list[bytes], *, ends: bool = False) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader()
    body = b"".join([reader.feed(part) for part in parts])
    if ends:
        reader.end()
    return reader, body


def as_h11_reads(data: bytes) -> tuple[int, bytes]:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    connection.receive_data(b"")
    status, body = 0, b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    return status, body


def chunked(bodies: list[bytes], extension: bytes = b"") -> bytes:
    chunks = [b"%x%b\r\n%b\r\n" % (len(body), extension, body) for body in bodies]
    return b"".join([*chunks, b"0\r\n\r\n"])


@given(BODIES, st.sampled_from([b"", b";a=b", b" "]), CUTS)
def test_chunks_are_read_as_h11_reads_them_wherever_the_network_cuts(
    bodies: list[bytes], extension: bytes, cuts: list[int]
) -> None:
    data = CHUNKED + chunked(bodies, extension)

    reader, body = read(pieces(data, cuts))

    assert reader.head is not None
    assert (reader.head.status, body) == as_h11_reads(data) == (200, b"".join(bodies))
    assert reader.complete
    assert reader.reusable


@given(st.binary(max_size=60), CUTS)
def test_a_body_of_known_length_is_read_as_h11_reads_it(body: bytes, cuts: list[int]) -> None:
    data = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    reader, found = read(pieces(data, cuts))

    assert (404, found) == as_h11_reads(data) == (404, body)
    assert reader.complete
    assert reader.reusable


@given(st.binary(max_size=60), CUTS)
def test_a_body_without_length_ends_with_its_connection(body: bytes, cuts: list[int]) -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\n" + body

    reader, found = read(pieces(data, cuts), ends=True)

    assert (200, found) == as_h11_reads(data) == (200, body)
    assert reader.complete
    assert not reader.reusable


def test_each_piece_gives_the_bytes_that_it_brings() -> None:
    reader = AnswerReader()

    assert reader.feed(CHUNKED + b"a\r\n12") == b"12"
    assert reader.feed(b"345") == b"345"
    assert reader.feed(b"67890") == b"67890"
    assert reader.feed(b"\r\n2\r\nab\r\n3\r\ncde") == b"abcde"


def test_an_answer_that_goes_on_with_100_comes_after_it() -> None:
    reader, body = read([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"])

    assert reader.head is not None
    assert (reader.head.status, body, reader.complete) == (204, b"", True)


def test_trailers_are_read_and_left_out() -> None:
    reader, body = read([CHUNKED + b"1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n"])

    assert (body, reader.complete, reader.reusable) == (b"a", True, True)


def test_headers_are_known_by_their_names_in_lower_case() -> None:
    reader, _ = read([b"HTTP/1.1 204 No Content\r\nRetry-After:  3 \r\nA: 1\r\na: 2\r\n\r\n"])

    assert reader.head is not None
    assert reader.head.headers == {"retry-after": "3", "a": "1, 2"}


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",  # a byte that nobody asked for
    ],
)
def test_a_connection_is_not_used_again_where_the_answer_does_not_allow_it(head: bytes) -> None:
    reader, body = read([head])

    assert body == b"a"
    assert reader.complete
    assert not reader.reusable


MALFORMED = {
    "no HTTP": (b"SSH-2.0-x\r\n\r\n", "no HTTP/1.1 answer"),
    "HTTP/2": (b"HTTP/2 200\r\n\r\n", "no HTTP/1.1 answer"),
    "a header without a name": (b"HTTP/1.1 200 OK\r\nnothing\r\n\r\n", "a header"),
    "a length that is none": (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "Content-Length"),
    "a head without end": (b"H" * (MAX_HEAD_BYTES + 1), "its head is longer"),
    "a size that is none": (CHUNKED + b"xyz\r\n", "the size of a chunk"),
    "a size without end": (CHUNKED + b"1" * 9000, "a line is longer"),
    "a chunk beyond its size": (CHUNKED + b"1\r\nabc", "longer than its size"),
}


@pytest.mark.parametrize(("data", "said"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_answer_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(HttpMalformed, match=said):
        read([data])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "before any status"),
        (CHUNKED + b"5\r\nab", "within the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na", "within the answer"),
    ],
)
def test_a_connection_that_ends_early_cuts_its_answer(data: bytes, said: str) -> None:
    with pytest.raises(HttpMalformed, match=said):
        read([data], ends=True)

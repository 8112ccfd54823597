"""What a camera sends in is read the same however it is cut, and nothing hostile gets further."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings, strategies as st

from liveedge.media.rtsp_wire import (
    BUFFER_BYTES,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    Inbox,
    Message,
    NotRtsp,
    read_head,
    request,
)

ANSWER = b"RTSP/1.0 200 OK\r\nCSeq: 2\r\nContent-Length: 5\r\n\r\nv=0\r\n"
SHORT = b"RTSP/1.0 454 Session Not Found\nCSeq: 3\n\n"
ASKED = b"OPTIONS * RTSP/1.0\r\nCSeq: 9\r\n\r\n"


class Keeper:
    """Holds packets as places in the buffer until it is told to copy them."""

    def __init__(self, *, holds: int = 3) -> None:
        self._holds = holds
        self._held: list[memoryview] = []
        self.packets: list[bytes] = []

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def packet(self, view: memoryview, at: int, end: int) -> None:
        self._held.append(view[at:end])
        if len(self._held) > self._holds:
            self.settle()

    def settle(self) -> None:
        self.packets += [bytes(part) for part in self._held]
        self._held.clear()


def framed(payload: bytes, channel: int = 0) -> bytes:
    return struct.pack("!BBH", 0x24, channel, len(payload)) + payload


def read(stream: bytes, cuts: list[int]) -> tuple[list[Message], list[bytes]]:
    """All that is in a stream which arrives in pieces of these sizes, then in one."""
    inbox, keeper = Inbox(), Keeper()
    inbox.channel = 0
    messages = []
    at = 0
    sizes = iter(cuts)
    while at < len(stream):
        while (message := inbox.take(keeper)) is not None:
            messages.append(message)
        room = inbox.room()
        assert len(room) > 0
        piece = stream[at : at + min(next(sizes, len(stream)), len(room))]
        room[: len(piece)] = piece
        inbox.filled(len(piece))
        at += len(piece)
    while (message := inbox.take(keeper)) is not None:
        messages.append(message)
    keeper.settle()
    return messages, keeper.packets


parts = st.one_of(
    st.binary(max_size=3000).map(lambda payload: ("packet", framed(payload), payload)),
    st.binary(max_size=300).map(lambda payload: ("other", framed(payload, channel=1), payload)),
    st.sampled_from([("message", data, data) for data in (ANSWER, SHORT, ASKED)]),
    st.just(("ends", b"\r\n", b"")),
)


@given(st.lists(parts, max_size=30), st.lists(st.integers(1, 5000), max_size=60))
def test_packets_and_messages_are_the_same_wherever_the_stream_is_cut(
    sent: list[tuple[str, bytes, bytes]], cuts: list[int]
) -> None:
    messages, packets = read(b"".join(data for _, data, _ in sent), cuts)
    assert packets == [payload for kind, _, payload in sent if kind == "packet"]
    assert len(messages) == sum(kind == "message" for kind, _, _ in sent)


def test_a_stream_many_times_the_buffer_passes_through_it_unharmed() -> None:
    sent = [bytes([n % 251]) * (1 + 7919 * n % 65_000) for n in range(100)]
    stream = b"".join(map(framed, sent))
    assert len(stream) > 5 * BUFFER_BYTES
    assert read(stream, []) == ([], sent)
    assert read(stream, [1460] * 5000) == ([], sent)


def test_one_byte_at_a_time_is_read_all_the_same() -> None:
    stream = ANSWER + framed(b"abc") + SHORT + framed(b"other", channel=4) + ASKED + framed(b"d")
    messages, packets = read(stream, [1] * len(stream))
    assert [message.status for message in messages] == [200, 454, None]
    assert messages[0].body == b"v=0\r\n"
    assert packets == [b"abc", b"d"]


@given(st.binary(max_size=2000), st.lists(st.integers(1, 100), max_size=40))
def test_hostile_bytes_are_refused_or_read_and_nothing_else(stream: bytes, cuts: list[int]) -> None:
    try:
        read(stream, cuts)
    except NotRtsp:
        pass


@settings(max_examples=50)
@given(st.binary(max_size=400))
def test_any_first_lines_are_refused_or_read(junk: bytes) -> None:
    try:
        message = read_head(b"RTSP/1.0 200 OK\n" + junk)
    except NotRtsp:
        pytest.fail("only the first line decides")
    assert all("\n" not in text for header in message.headers for text in header)


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="another protocol"),
        pytest.param(b"SSH-2.0-server\r\n\r\n", id="a greeting"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", id="TLS"),
        pytest.param(b"RTSP/1.0 999999 X\r\n\r\n", id="no status"),
        pytest.param(b"R" * MAX_HEAD_BYTES, id="a line without an end"),
        pytest.param(b"RTSP/1.0 200 OK\r\n" + b"A: b\r\n" * MAX_HEAD_BYTES, id="endless headers"),
        pytest.param(b"RTSP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n", id="negative length"),
        pytest.param(b"RTSP/1.0 200 OK\r\nContent-Length: 1e9\r\n\r\n", id="odd length"),
        pytest.param(
            b"RTSP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), id="huge body"
        ),
        pytest.param(framed(b"abc") + b"\x00\x00\x00\x00", id="a length that was wrong"),
    ],
)
def test_what_is_no_rtsp_is_refused(stream: bytes) -> None:
    with pytest.raises(NotRtsp):
        read(stream, [])


def test_the_largest_packets_and_messages_fit() -> None:
    head = b"RTSP/1.0 200 OK\r\nContent-Length: %d\r\nX: " % MAX_BODY_BYTES
    head += b"y" * (MAX_HEAD_BYTES - len(head) - 4) + b"\r\n\r\n"
    stream = (framed(b"p" * 0xFFFF) * 3 + head + b"b" * MAX_BODY_BYTES) * 3
    messages, packets = read(stream, [999] * 2000)
    assert [len(message.body) for message in messages] == [MAX_BODY_BYTES] * 3
    assert [len(packet) for packet in packets] == [0xFFFF] * 9


def test_headers_are_found_by_name_in_any_letters_and_hold_no_control_characters() -> None:
    message = read_head(b"RTSP/1.0 401 No\r\nwww-AUTHENTICATE: a\r\nWWW-Authenticate:  b\rc \r\nx")
    assert message.all_of("www-authenticate") == ["a", "bc"]
    assert message.header("www-authenticate") == "a"
    assert message.header("session") == ""


def test_a_request_is_a_line_and_its_headers() -> None:
    assert request("PLAY", "rtsp://cam/x", [("CSeq", "4")]) == (
        b"PLAY rtsp://cam/x RTSP/1.0\r\nCSeq: 4\r\n\r\n"
    )

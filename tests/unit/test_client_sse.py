"""Server-sent events in pieces of any size."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from liveedge.client.sse import DONE, Event, EventReader, StreamTooLarge

# Whatever has a line end in some alphabet and none here, and characters of one to four bytes.
TEXTS = st.text(alphabet='ab :{}"ä€😀\u2028\u0085\x0b\ufeff', max_size=12)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
CUTS = st.lists(st.integers(min_value=0, max_value=400), max_size=12)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    return [stream[start:end] for start, end in itertools.pairwise(places)]


def feed_all(reader: EventReader, parts: list[bytes]) -> list[Event]:
    return [event for part in parts for event in reader.feed(part)]


def read(parts: list[bytes]) -> list[Event]:
    reader = EventReader()
    return feed_all(reader, parts) + reader.finish()


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=3), max_size=5), ENDS, CUTS)
def test_events_are_the_same_wherever_the_network_cuts(
    written: list[list[str]], end: str, cuts: list[int]
) -> None:
    lines = [line for texts in written for line in (*(f"data: {text}" for text in texts), "")]
    stream = "".join(line + end for line in lines).encode()

    assert read(pieces(stream, cuts)) == [Event("\n".join(texts)) for texts in written]


@given(st.binary(max_size=300), CUTS)
def test_any_bytes_give_the_same_events_wherever_they_are_cut(
    stream: bytes, cuts: list[int]
) -> None:
    assert read(pieces(stream, cuts)) == read([stream])


@given(st.text(alphabet="\n\r:dat x", max_size=60), CUTS)
def test_line_ends_of_every_mixture_are_the_same_wherever_they_are_cut(
    text: str, cuts: list[int]
) -> None:
    stream = text.encode()

    assert read(pieces(stream, cuts)) == read([stream])


def test_comments_are_counted_and_are_no_events() -> None:
    reader = EventReader()

    assert reader.feed(b": ping\n\n:\n\ndata: x\n: within\n\n") == [Event("x")]
    assert reader.n_comments == 3


def test_an_event_carries_its_name_and_the_last_id() -> None:
    stream = b"event: result\nid: 7\ndata: a\n\ndata: b\nretry: 10\n\n"

    assert read([stream]) == [Event("a", "result", "7"), Event("b", "message", "7")]


def test_an_event_without_data_is_none_and_its_name_is_forgotten() -> None:
    assert read([b"event: ghost\n\ndata: a\n\n"]) == [Event("a")]


def test_one_space_after_the_colon_is_left_out_and_no_more() -> None:
    assert read([b"data:a\n\ndata:  b\n\ndata\n\n"]) == [Event("a"), Event(" b"), Event("")]


def test_a_byte_order_mark_is_skipped_at_the_beginning_alone() -> None:
    stream = b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\ndata: c\n\n"

    assert read([stream[:1], stream[1:]]) == [Event("a"), Event("c")]


def test_the_end_of_the_stream_completes_an_event_without_its_empty_line() -> None:
    assert read([b"data: a\n\ndata: [DONE]"]) == [Event("a"), Event(DONE)]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert read([b"data: a\xffb\n\n"]) == [Event("a\ufffdb")]


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: xxxxxxxxxx\n" * 20])
def test_an_event_beyond_its_bound_is_refused(stream: bytes) -> None:
    reader = EventReader(max_event_bytes=100)

    with pytest.raises(StreamTooLarge, match="an event is longer than 100 bytes"):
        feed_all(reader, pieces(stream, list(range(0, 400, 7))))


def test_a_stream_beyond_its_bound_is_refused() -> None:
    reader = EventReader(max_bytes=100)

    with pytest.raises(StreamTooLarge, match="the stream is longer than 100 bytes"):
        feed_all(reader, [b": ping\n\n"] * 20)

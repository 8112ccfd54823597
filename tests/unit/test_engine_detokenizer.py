"""Bytes to text: whole characters, and stop strings wherever the tokens split them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from liveedge.engine.decide.detokenizer import TextStream


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.text(), st.lists(st.integers(0, 1000), max_size=8))
def test_any_split_of_any_text_comes_out_whole(text: str, cuts: list[int]) -> None:
    stream = TextStream()
    shown = [stream.push(piece) for piece in pieces(text.encode(), cuts)]
    assert "".join(shown) + stream.finish() == text
    assert not any("\ufffd" in part for part in shown if "\ufffd" not in text)


@given(
    st.text(alphabet="abc", max_size=20),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 1000), max_size=8),
)
def test_text_ends_before_the_first_stop_string_however_it_is_split(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stream = TextStream(stops)
    shown = ""
    for piece in pieces(text.encode(), cuts):
        shown += stream.push(piece)
        assert not any(stop in shown for stop in stops)
        if stream.stopped:
            break
    shown += stream.finish()
    found = [text.find(stop) for stop in stops if stop in text]
    assert stream.stopped == bool(found)
    if not found:
        assert shown == text
    else:
        assert text.startswith(shown)
        assert not any(stop in shown for stop in stops)


def test_a_character_is_never_split() -> None:
    stream = TextStream()
    parts = [stream.push(bytes([byte])) for byte in "é🙂".encode()]
    assert [part for part in parts if part] == ["é", "🙂"]


def test_text_that_may_become_a_stop_string_waits_and_is_shown_when_it_does_not() -> None:
    stream = TextStream(["\nUser:"])
    assert stream.push(b"yes\nUs") == "yes"
    assert stream.push(b"ual") == "\nUsual"


def test_an_unfinished_character_at_the_end_becomes_the_replacement() -> None:
    stream = TextStream()
    assert stream.push("é".encode()[:1]) == ""
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize("stops", [(), ("",)])
def test_without_stop_strings_nothing_is_held_back(stops: tuple[str, ...]) -> None:
    assert TextStream(stops).push(b"abc") == "abc"

"""Calls in what a model says: whatever it says, and however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from liveedge.engine.form.calls import BEGIN, END
from liveedge.service.tool_calls import CallPiece, CallReader, Piece, Words

NAMES = ("f", "look_at", "move.arm")


@dataclass
class Read:
    """What a reader made of a text."""

    words: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    is_whole: bool = True


def gathered(pieces: Sequence[Piece], *, is_whole: bool = True) -> Read:
    found = Read(is_whole=is_whole)
    for piece in pieces:
        if isinstance(piece, Words):
            found.words += piece.text
            continue
        if piece.name is not None:
            assert piece.index == len(found.calls)
            found.calls.append((piece.name, ""))
        name, arguments = found.calls[piece.index]
        found.calls[piece.index] = (name, arguments + piece.arguments)
    return found


def read(*texts: str, is_cut: bool = False) -> Read:
    reader = CallReader(NAMES)
    pieces = [piece for text in texts for piece in reader.push(text)]
    pieces += reader.finish(is_cut=is_cut)
    found = gathered(pieces, is_whole=reader.is_whole)
    assert reader.n_calls == len(found.calls)
    return found


def call(name: str = "f", arguments: str = '{"x": 1}') -> str:
    return f'{BEGIN}\n{{"name": "{name}", "arguments": {arguments}}}\n{END}'


@pytest.mark.parametrize(
    ("text", "words", "calls"),
    [
        ("", "", []),
        ("The door is open.\n", "The door is open.\n", []),
        ("a < b, <tool> and <tool_cal", "a < b, <tool> and <tool_cal", []),
        (call(), "", [("f", '{"x": 1}')]),
        (f"Let me see.\n{call()}", "Let me see.", [("f", '{"x": 1}')]),
        (f"{call()}\n{call('look_at', '{}')}\n", "", [("f", '{"x": 1}'), ("look_at", "{}")]),
        (f"{call()} Done.", " Done.", [("f", '{"x": 1}')]),
        (f"{BEGIN}{{\"name\":\"f\",\"arguments\":{{}}}}{END}", "", [("f", "{}")]),
        (f'{BEGIN}{{"name": "f"}}{END}', "", [("f", "{}")]),
        (f'{BEGIN}{{"arguments": {{"x": [1]}}, "name": "f"}}{END}', "", [("f", '{"x": [1]}')]),
        (f'{BEGIN}{{"name": "f", "parameters": {{"x": 1}}}}{END}', "", [("f", '{"x": 1}')]),
        (f'{BEGIN}{{"name": "f", "arguments": "{{}}"}}{END}', "", [("f", "{}")]),
        (call(arguments='{"x": "}</tool_call>\\"{"}'), "", [("f", '{"x": "}</tool_call>\\"{"}')]),
        (call(arguments='{"x": [{"y": "\\\\"}]}'), "", [("f", '{"x": [{"y": "\\\\"}]}')]),
        (f'{BEGIN}{{"name": "f", "arguments": {{}}, "id": 3}}{END} Yes', " Yes", [("f", "{}")]),
        (f'{BEGIN}{{"name": "f", "arguments": {{}}}} So.', " So.", [("f", "{}")]),
    ],
)  # fmt: skip
def test_words_and_calls_are_told_apart(text: str, words: str, calls: list[object]) -> None:
    assert read(text) == Read(words, calls)  # type: ignore[arg-type]  # tuples of texts
    assert read(*text) == Read(words, calls)  # type: ignore[arg-type]  # the same


@pytest.mark.parametrize(
    "text",
    [
        call("unknown"),
        f"{BEGIN} is a mark",
        f"{BEGIN}\n{{'name': 'f'}}\n{END}",
        f"{BEGIN}[1]{END}",
        f'{BEGIN}{{"name": "f", "arguments": [1]}}{END}',
        f'{BEGIN}{{"name": "f", "arguments": NaN}}{END}',
        f'{BEGIN}{{"name": 3, "arguments": {{}}}}{END}',
        f'{BEGIN}{{"x": ' + "[" * 100_000 + END,
        f"{BEGIN}{END}",
        f'so{BEGIN}{{"name": "f"',
    ],
)
def test_what_is_no_call_is_words_as_it_was_said(text: str) -> None:
    assert read(text) == Read(text)


def test_half_a_call_of_an_answer_that_was_cut_says_nothing() -> None:
    assert read(f'Yes.\n{BEGIN}\n{{"name": "f', is_cut=True) == Read("Yes.")
    half = f'{BEGIN}\n{{"name": "f", "arguments": {{"x": "a'
    assert read(half) == read(half, is_cut=True)
    assert read(half) == Read("", [("f", '{"x": "a')], is_whole=False)
    assert read(call().removesuffix(END), is_cut=True).is_whole


def test_broken_arguments_end_with_their_call() -> None:
    found = read(call(arguments='{"x": "open') + f"\n{call('look_at')}")
    assert [name for name, _ in found.calls] == ["f", "look_at"]
    assert found.calls[1][1] == '{"x": 1}'
    assert END not in found.calls[0][1]
    assert not found.is_whole


def test_words_wait_only_while_they_may_be_a_mark() -> None:
    reader = CallReader(NAMES)
    assert reader.push("It is ") == [Words("It is")]
    assert reader.push("open <") == [Words(" open")]
    assert reader.push("5") == [Words(" <5")]
    assert reader.push(" <tool") == []
    assert reader.push("s>") == [Words(" <tools>")]


def test_arguments_are_sent_as_they_come() -> None:
    reader = CallReader(NAMES)
    assert reader.push(f'{BEGIN}\n{{"name": "f", "arguments": ') == []
    assert reader.push('{"x"') == [
        CallPiece(index=0, name="f"),
        CallPiece(index=0, arguments='{"x"'),
    ]
    assert reader.push(': "a') == [CallPiece(index=0, arguments=': "a')]
    assert reader.push('b"}') == [CallPiece(index=0, arguments='b"}')]
    assert reader.push("}\n" + END) == []
    assert reader.finish(is_cut=False) == []


FRAGMENTS = st.sampled_from(
    [
        BEGIN, END, "\n", " ", "{", "}", '"', "\\", "[", "]", ",", ":", "<", "<tool", "</", "a", "é",
        '{"name": "f", "arguments": ', '{"name": "look_at", "arguments": {"x": "', '{"name": "f"}',
        '{"name": "no", "arguments": {}}', '"arguments": {}', '"name": "f"', "1", call(), f"\n{END}",
    ]
)  # fmt: skip
SAID = st.lists(FRAGMENTS, max_size=14).map("".join)


def cuts(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@settings(max_examples=200, deadline=None)
@given(SAID, st.lists(st.integers(0, 500), max_size=8), st.booleans())
def test_any_cut_of_a_text_gives_the_same_words_and_calls(
    text: str, places: list[int], is_cut: bool
) -> None:
    whole = read(text, is_cut=is_cut)
    assert read(*cuts(text, places), is_cut=is_cut) == whole
    assert read(*text, is_cut=is_cut) == whole


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(END),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4) | st.just(f"\n{END}"), JSON, max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    st.text(max_size=12).map(str.strip).filter(lambda text: "<" not in text),
    st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3),
    st.booleans(),
    st.lists(st.integers(0, 2000), max_size=12),
)
def test_calls_as_the_format_has_them_come_through_whole_and_leave_no_mark(
    words: str, calls: list[tuple[str, object]], is_ascii: bool, places: list[int]
) -> None:
    written = [(name, json.dumps(value, ensure_ascii=is_ascii)) for name, value in calls]
    text = "\n".join([words, *(call(name, arguments) for name, arguments in written)])
    assert read(*cuts(text, places)) == Read(words, written)

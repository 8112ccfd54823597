"""Calls in what a model says: text as it comes, to words and calls. Pure; one reader per choice.

A call is `<tool_call>`, JSON with a name and arguments, `</tool_call>`, as Qwen and Hermes models
write it. How the text was cut into pieces changes nothing but where the pieces are cut.

Held back  at most what may still be a mark with the white space before it, and of a call what comes
           before its arguments; arguments go out as they come.
Never      shows a mark, or the white space around calls, as words; fails, whatever a model says.

Whatever begins like a call but names no offered function, or is no JSON object, is words as it was
said. Arguments that turn out to be broken stay arguments: they are sent already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, NoReturn, TypeAlias

from liveedge.engine.form.calls import BEGIN, END

LAST_LINE: Final = f"\n{END}"  # a line break as it is stands in no string of JSON
# How nearly every call begins; from here on its arguments can be sent.
_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*"([\w.:/-]*)"\s*,\s*"arguments"\s*:\s*(?=\{)')


@dataclass(frozen=True, slots=True)
class Words:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPiece:
    """A part of a call. The first one of a call has its name."""

    index: int
    name: str | None = None
    arguments: str = ""


Piece: TypeAlias = Words | CallPiece


class _State(Enum):
    WORDS = auto()
    HEAD = auto()  # after the mark, before the arguments
    ARGUMENTS = auto()
    TAIL = auto()  # after the arguments, before the closing mark
    SKIP = auto()  # the same, where there is something else too


class CallReader:
    """Reads one answer."""

    def __init__(self, names: Collection[str]) -> None:
        """`names` are the functions that are offered."""
        self.n_calls = 0
        self.is_whole = True  # no call was left unfinished
        self._names = names
        self._state = _State.WORDS
        self._text = ""  # not read yet
        self._mark = ""  # that began the call in HEAD, with the white space before it
        self._depth = 0  # of brackets in the arguments
        self._in_string = False
        self._is_escaped = False

    def push(self, text: str) -> list[Piece]:
        """What became certain with this text."""
        self._text += text
        return list(self._read())

    def finish(self, *, is_cut: bool) -> list[Piece]:
        """The rest. Cut: the model did not end by itself, so half a call says nothing."""
        pieces: list[Piece] = []
        while self._state is _State.HEAD:
            if self._takes_whole(self._text, pieces):
                self._text, self._state = "", _State.WORDS
            elif is_cut:
                return pieces
            else:
                self._no_call(pieces)
                pieces += self._read()
        if self._state is _State.WORDS and self._text:
            if self.n_calls == 0 or not self._text.isspace():
                pieces.append(Words(self._text))
        elif self._state is _State.ARGUMENTS:
            self.is_whole = False
        self._text = ""
        return pieces

    def _read(self) -> Iterator[Piece]:
        steps: dict[_State, Callable[[list[Piece]], bool]] = {
            _State.WORDS: self._read_words,
            _State.HEAD: self._read_head,
            _State.ARGUMENTS: self._read_arguments,
            _State.TAIL: self._read_tail,
            _State.SKIP: self._skip,
        }
        goes_on = True
        while goes_on:
            pieces: list[Piece] = []
            goes_on = steps[self._state](pieces)
            yield from pieces

    # Each step reads what it can and says whether another one may follow.

    def _read_words(self, pieces: list[Piece]) -> bool:
        text = self._text
        at = text.find(BEGIN)
        end = at if at >= 0 else len(text) - _n_begun(text, BEGIN)
        words = text[:end].rstrip()
        if words:
            pieces.append(Words(words))
        if at < 0:
            self._text = text[len(words) :]
            return False
        after = at + len(BEGIN)
        self._mark, self._text, self._state = text[len(words) : after], text[after:], _State.HEAD
        return True

    def _read_head(self, pieces: list[Piece]) -> bool:
        begun = self._text.lstrip()
        if not begun:
            return False
        head = _HEAD.match(self._text)
        if head is not None and head[1] in self._names:
            self._text = self._text[head.end() :]
            self._begin(head[1], pieces)
            return True
        if head is not None or begun[0] != "{":
            self._no_call(pieces)
            return True
        body, mark, rest = self._text.partition(END)
        if not mark:
            return False
        if self._takes_whole(body, pieces):
            self._text, self._state = rest, _State.WORDS
        else:
            self._no_call(pieces)
        return True

    def _read_arguments(self, pieces: list[Piece]) -> bool:
        text, at = self._text, 0
        while at < len(text):
            mark = LAST_LINE if self._in_string else END
            if text[at] == mark[0] and mark.startswith(text[at : at + len(mark)]):
                break
            self._take(text[at])
            at += 1
            if not self._depth:
                break
        if at:
            pieces.append(CallPiece(index=self.n_calls - 1, arguments=text[:at]))
        self._text = text[at:]
        if not self._depth:
            self._state = _State.TAIL
            return True
        mark = LAST_LINE if self._in_string else END
        if not self._text.startswith(mark):
            return False
        self.is_whole = False
        self._text, self._state = self._text.removeprefix(mark), _State.WORDS
        return True

    def _read_tail(self, _pieces: list[Piece]) -> bool:
        text = self._text.lstrip()
        if not text:
            return False
        if text[0] != "}":
            self._state = _State.SKIP
            return True
        after = text[1:].lstrip()
        if len(after) < len(END) and END.startswith(after):
            return False
        # Without its closing mark the call is over too.
        self._text = after.removeprefix(END) if after.startswith(END) else text[1:]
        self._state = _State.WORDS
        return True

    def _skip(self, _pieces: list[Piece]) -> bool:
        """More than a name and arguments: nobody asked for it."""
        found = re.search(f"{END}|{BEGIN}", self._text)
        if found is None:
            self._text = self._text[-len(END) :]
            return False
        self._text = self._text[found.end() if found[0] == END else found.start() :]
        self._state = _State.WORDS
        return True

    def _take(self, character: str) -> None:
        if self._in_string:
            is_end = character == '"' and not self._is_escaped
            self._is_escaped = character == "\\" and not self._is_escaped
            self._in_string = not is_end
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

    def _begin(self, name: str, pieces: list[Piece]) -> None:
        pieces.append(CallPiece(index=self.n_calls, name=name))
        self.n_calls += 1
        self._depth, self._in_string, self._is_escaped = 0, False, False
        self._state = _State.ARGUMENTS

    def _takes_whole(self, body: str, pieces: list[Piece]) -> bool:
        """A call that is written in another order, if it is one."""
        call = _parsed(body)
        if call is None or call[0] not in self._names:
            return False
        name, arguments = call
        pieces.append(CallPiece(index=self.n_calls, name=name, arguments=arguments))
        self.n_calls += 1
        return True

    def _no_call(self, pieces: list[Piece]) -> None:
        pieces.append(Words(self._mark))
        self._mark, self._state = "", _State.WORDS


def _n_begun(text: str, mark: str) -> int:
    """How much of the text's end may be the beginning of a mark."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)


def _parsed(body: str) -> tuple[str, str] | None:
    """Name and arguments of a whole call."""
    call = _loaded(body)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _loaded(arguments)
    if not isinstance(arguments, dict):
        return None
    return call["name"], json.dumps(arguments)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")

"""Tools of a question: what the model is told of them, what its answer is held to, and the calls in
what it says. Pure, but for the ids of calls, which come from outside.

Held to a grammar: an answer that must call, and one that may where a function is `strict`, where
there may be one call only, or where an answer without a call has a form. Else the model is free, and
what it says is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from liveedge.engine.form.forms import AnswerForm, FunctionForm, ToolForm
from liveedge.service.question import (
    AnsweredBy,
    AnswerEvent,
    ChoiceEnd,
    Question,
    TextDelta,
    ToolCallDelta,
    Tools,
    Turn,
)
from liveedge.service.tool_calls import CallReader, Piece, Words

MAX_DEPTH: Final = 64  # of the arguments of a call
MOST_CALLS: Final = 16  # in an answer that is nothing else
NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}


def offered(tools: Tools) -> tuple[Mapping[str, Any], ...]:
    """What the chat template shows: all functions, whichever of them has to be called, so that
    prompts begin alike. With `none` no call is wanted, and the model knows of no function."""
    return () if tools.choice == "none" else tuple(map(_shown, tools.offered))


def form_of(question: Question) -> AnswerForm | None:
    """What the answer is held to."""
    tools = question.tools
    if not tools.offered or tools.choice == "none":
        return question.form
    functions = tuple(_form(tool["function"]) for tool in tools.offered)
    if tools.only is not None:
        only = tuple(one for one in functions if one.name == tools.only)
        return ToolForm(only, must=True, most=1)
    most = MOST_CALLS if tools.parallel else 1
    if tools.choice == "required":
        return ToolForm(functions, must=True, most=most)
    is_free = tools.parallel and question.form is None
    if is_free and not any(one.strict for one in functions):
        return None
    assert not isinstance(question.form, ToolForm), "clients ask for plain forms"
    return ToolForm(functions, must=False, most=most, instead=question.form)


def template_calls(turn: Turn) -> tuple[Mapping[str, Any], ...]:
    """The calls of a turn as chat templates take them: arguments are objects, not text. What is no
    object stays as it was sent."""
    return tuple(map(_template_call, turn.tool_calls))


def in_order_of_calls(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Results that follow each other, in the order of the calls they answer: chat templates show
    no ids. Results of unknown calls stay behind the others."""
    ordered: list[Turn] = []
    places: dict[str, int] = {}
    results: list[Turn] = []
    for turn in turns:
        if turn.role == "tool":
            results.append(turn)
            continue
        ordered += _sorted(results, places)
        results = []
        ordered.append(turn)
        places = {str(call.get("id")): n for n, call in enumerate(turn.tool_calls)}
    return (*ordered, *_sorted(results, places))


class CallSplitter:
    """Turns the text of a question's choices into words and calls. Passes the rest on."""

    def __init__(self, question: Question, *, new_id: Callable[[], str]) -> None:
        names = frozenset(tool["function"]["name"] for tool in offered(question.tools))
        self._readers = [CallReader(names) for _ in range(question.n)] if names else []
        # What ends at a stop string may end in the middle of a call.
        self._may_be_cut = bool(question.sampling.stop)
        self._new_id = new_id

    def split(self, event: AnswerEvent) -> Iterator[AnswerEvent]:
        """The event in its parts. Of text always at least one: tokens are heard of as they come,
        and their log probabilities too, those of calls included."""
        if not self._readers:
            yield event
            return
        reader = self._readers[event.choice]
        match event:
            case TextDelta():
                yield from self._text(event, reader)
            case ChoiceEnd():
                yield from self._end(event, reader)
            case ToolCallDelta() | AnsweredBy():
                yield event

    def _text(self, event: TextDelta, reader: CallReader) -> Iterator[AnswerEvent]:
        match reader.push(event.text):
            case [Words(text), *rest]:
                yield replace(event, text=text)
            case rest:
                yield replace(event, text="")
        for piece in rest:
            yield self._event(event.choice, piece)

    def _end(self, event: ChoiceEnd, reader: CallReader) -> Iterator[AnswerEvent]:
        is_cut = event.reason == "length" or self._may_be_cut
        for piece in reader.finish(is_cut=is_cut):
            yield self._event(event.choice, piece)
        has_called = event.reason == "stop" and reader.n_calls > 0 and reader.is_whole
        yield replace(event, reason="tool_calls") if has_called else event

    def _event(self, choice: int, piece: Piece) -> TextDelta | ToolCallDelta:
        if isinstance(piece, Words):
            return TextDelta(choice=choice, text=piece.text)
        return ToolCallDelta(
            choice=choice,
            index=piece.index,
            id=None if piece.name is None else self._new_id(),
            name=piece.name,
            arguments=piece.arguments,
        )


def _shown(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without `strict` and what else is no matter of the model."""
    function = tool["function"]
    kept = ("name", "description", "parameters")
    shown = {key: function[key] for key in kept if function.get(key) is not None}
    return {"type": "function", "function": shown}


def _form(function: Mapping[str, Any]) -> FunctionForm:
    parameters = function.get("parameters")
    schema = NO_PARAMETERS if parameters is None else {"type": "object", **parameters}
    return FunctionForm(function["name"], schema, strict=bool(function.get("strict")))


def _template_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    shown = _object(arguments) if isinstance(arguments, str) else arguments
    return {**call, "function": {**function, "arguments": {} if shown is None else shown}}


def _object(text: str) -> Mapping[str, Any] | str:
    if not text.strip():  # what some clients send for a call without arguments
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) and _is_shallow(value) and _is_text(value) else text


def _is_shallow(value: object) -> bool:
    """Templates write objects by recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for one in level for item in _items(one)]
        if not level:
            return True
    return False


def _is_text(value: object) -> bool:
    """An escape may stand for half a character, which no tokenizer takes."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _items(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return tuple(value.values())
    return value if isinstance(value, list) else ()


def _sorted(results: list[Turn], places: Mapping[str, int]) -> list[Turn]:
    return sorted(results, key=lambda turn: places.get(turn.tool_call_id or "", len(places)))

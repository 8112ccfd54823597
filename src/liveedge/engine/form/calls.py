"""Answers that call functions, as one grammar in the library's own language. Pure.

A call is written as Qwen and Hermes models write it, whatever else a model would rather write:

    <tool_call>
    {"name": "move", "arguments": {"to": "left"}}
    </tool_call>

Words before a call are free. From the mark on, everything is held to the grammar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from liveedge.engine.form.forms import FunctionForm, ToolForm
from liveedge.models.qwen3_vl.config import CALL_MARKS

BEGIN, END = CALL_MARKS
# The library's options of a schema stand inside it; clients may not set them.
OPTIONS_KEY: Final = "x-guidance"
# Free white space lets an unsure model write line breaks until its tokens are over.
JSON_OPTIONS: Final[Any] = {"whitespace_pattern": "[ ]?"}
FREE_TEXT: Final = r"/(.|\n)*/"


def written_calls(form: ToolForm, *, instead: str | None) -> str:
    """The grammar of a form. `instead`: the right side of a rule that an answer without a call
    must match; None: any text."""
    names = [f"call_{number}" for number, _ in enumerate(form.functions)]
    rules = ["%llguidance {}", f"start: {_start(form, has_form=instead is not None)}"]
    rules.append(f'call: {_quoted(BEGIN)} "\\n" body')
    rules.append(f'body: ({" | ".join(names)}) "\\n" {_quoted(END)}')
    if instead is not None:
        rules.append(f"instead: {instead}")
    elif not form.must:
        # Lazy: the words end with the first mark, so that no call can hide in them.
        rules += [f"words[lazy]: TEXT {_quoted(BEGIN)}", f"TEXT: {FREE_TEXT}"]
    for name, function in zip(names, form.functions, strict=True):
        head = f'{{"name": {json.dumps(function.name)}, "arguments": '
        rules.append(f'{name}: {_quoted(head)} {name}_arguments "}}"')
        rules.append(
            f"{name}_arguments: {json_rule(function.arguments, lenient=_lenient(function))}"
        )
    return "\n".join(rules) + "\n"


def json_rule(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """The right side of a rule: JSON of a schema. Lenient: what cannot be enforced is left out."""
    options = {**JSON_OPTIONS, "lenient": True} if lenient else JSON_OPTIONS
    return f"%json {json.dumps({**schema, OPTIONS_KEY: options})}"


def _start(form: ToolForm, *, has_form: bool) -> str:
    calls = "call" if form.most == 1 else f'call ("\\n" call){{0,{form.most - 1}}}'
    if form.must:
        return calls
    if has_form:
        return f"({calls}) | instead"
    if form.most == 1:
        return 'TEXT | words "\\n" body'
    return '(words "\\n" body)* TEXT'


def _lenient(function: FunctionForm) -> bool:
    return not function.strict


def _quoted(text: str) -> str:
    return json.dumps(text)

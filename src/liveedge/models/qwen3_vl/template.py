"""The checkpoint's chat template, run in a sandbox and within bounds (`template_bounds`), with users'
text kept apart from it.

A special token counts only where the template wrote it. What a user types is marked before
rendering: every special token inside it, and every beginning of one at its end, is broken by a
private character that the caller removes after the special tokens have been found. So a user who
types `<|im_end|>` or `<|image_pad|>` sends those letters, whatever the template joins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2

from liveedge.core.errors import CheckpointInvalid, RequestInvalid
from liveedge.models.qwen3_vl.config import read_json
from liveedge.models.qwen3_vl.template_bounds import BUDGET, BoundedEnvironment, Budget, n_chars

MARK: Final = "\U000f0000"  # private use; a user's own ones are dropped

# What a template may raise where a tool or a message is not as it expects. jinja2 lets errors of
# Python pass.
TEMPLATE_ERRORS: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)

# A conversation with a tool, a call and its result. A template that leaves one of them out knows no
# tools, and a question with tools must not be answered without them.
PROBE_WORDS: Final = ("probe_tool", "probe_argument", "probe_result")
_CALL: Final = {"name": "probe_tool", "arguments": {"x": "probe_argument"}}
_FUNCTION: Final = {
    "name": "probe_tool",
    "description": "",
    "parameters": {
        "type": "object",
        "properties": {"x": {"type": "string", "description": ""}},
        "required": ["x"],
    },
}
PROBE_TOOLS: Final = ({"type": "function", "function": _FUNCTION},)
PROBE_MESSAGES: Final = (
    {"role": "user", "content": "Hello."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "type": "function", "function": _CALL}],
    },
    {"role": "tool", "content": "probe_result", "tool_call_id": "1"},
)


class ChatTemplate:
    """Renders messages. Immutable after construction; any thread."""

    def __init__(self, folder: Path, special: Sequence[str]) -> None:
        source = _source(folder)
        environment = BoundedEnvironment()
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise CheckpointInvalid(f"{folder}: the chat template is wrong: {error}") from error
        self._constants = _named_tokens(folder)
        self._whole = _any_of(special)
        self._beginnings = _beginnings(special)
        self.renders_tools = self._shows(PROBE_MESSAGES, PROBE_TOOLS, PROBE_WORDS)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """The prompt as text, with users' special tokens marked; `unmark` each piece of it."""
        marked = self._mark(messages)
        marked_tools = self._mark(tools) or None
        try:
            return self._template.render(
                messages=marked,
                tools=marked_tools,
                add_generation_prompt=add_generation_prompt,
                **self._constants,
                **{BUDGET: Budget(n_chars(messages) + n_chars(tools))},
            )
        except TEMPLATE_ERRORS as error:
            raise RequestInvalid(
                f"the model's chat template refuses these messages: {error}",
                loc=("body", "messages"),
            ) from error

    def _shows(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        words: Sequence[str],
    ) -> bool:
        try:
            text = self.render(messages, tools, add_generation_prompt=True)
        except RequestInvalid:
            return False
        return all(word in text for word in words)

    def _mark(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._broken(value.replace(MARK, ""))
        if isinstance(value, Mapping):
            return {self._mark(key): self._mark(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self._mark(item) for item in value]
        return value

    def _broken(self, text: str) -> str:
        text = self._whole.sub(lambda match: _break(match.group()), text)
        # One look at the end, not a pattern that tries every place: a text full of `<` is no trouble.
        end = text.rstrip()
        for beginning in self._beginnings:
            if end.endswith(beginning):
                at = len(end) - len(beginning)
                return text[:at] + _break(beginning) + text[len(end) :]
        return text


def unmark(text: str) -> str:
    """The text as the user wrote it."""
    return text.replace(MARK, "")


def _break(token: str) -> str:
    return token[0] + MARK + token[1:]


def _any_of(special: Sequence[str]) -> re.Pattern[str]:
    whole = sorted(special, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, whole)) or r"(?!)")


def _beginnings(special: Sequence[str]) -> tuple[str, ...]:
    """With which a text may end, before any space, that the template then completes."""
    starts = {token[:n] for token in special for n in range(1, len(token))}
    return tuple(sorted(starts, key=len, reverse=True))


def _source(folder: Path) -> str:
    """The template's text: its own file, else inside one of the two JSON files that may hold it."""
    own = folder / "chat_template.jinja"
    if own.exists():
        return own.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        if (folder / name).exists():
            found = _default(read_json(folder / name).values.get("chat_template"))
            if found is not None:
                return found
    raise CheckpointInvalid(f"{folder} has no chat template: add chat_template.jinja")


def _default(value: Any) -> str | None:
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value}.get("default")
    return value if isinstance(value, str) else None


def _named_tokens(folder: Path) -> dict[str, str]:
    """`bos_token` and the like, which templates may use as variables."""
    path = folder / "tokenizer_config.json"
    values = read_json(path).values if path.exists() else {}
    named: dict[str, str] = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = values.get(key)
        text = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(text, str):
            named[key] = text
    return named


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)

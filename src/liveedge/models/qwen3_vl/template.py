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

# What a template may do wrong by itself: it calls nothing of ours that raises them.
_OF_THE_TEMPLATE: Final = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
)  # fmt: skip
MARK: Final = "\U000f0000"  # private use; a user's own ones are dropped


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

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """The prompt as text, with users' special tokens marked; `unmark` each piece of it."""
        try:
            return self._template.render(
                messages=self._mark(messages),
                tools=self._mark(tools) or None,
                add_generation_prompt=add_generation_prompt,
                **self._constants,
                **{BUDGET: Budget(n_chars(messages) + n_chars(tools))},
            )
        except (jinja2.TemplateError, *_OF_THE_TEMPLATE) as error:
            raise RequestInvalid(
                f"the model's chat template refuses these messages: {error}",
                loc=("body", "messages"),
            ) from error

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

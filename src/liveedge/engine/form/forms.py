"""The forms an answer can be held to: plain values, free of torch and numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class JsonForm:
    """JSON of a given shape."""

    schema: Mapping[str, Any]  # {}: any object
    kind: ClassVar[str] = "JSON schema"  # as errors call it


@dataclass(frozen=True, slots=True)
class ChoiceForm:
    """Exactly one of these texts."""

    choices: tuple[str, ...]
    kind: ClassVar[str] = "choice"


@dataclass(frozen=True, slots=True)
class RegexForm:
    """The whole answer matches. Syntax of the Rust crate `regex`, without word boundaries."""

    pattern: str
    kind: ClassVar[str] = "regex"


AnswerForm: TypeAlias = JsonForm | ChoiceForm | RegexForm
ANY_OBJECT = JsonForm({})

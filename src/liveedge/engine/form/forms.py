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


PlainForm: TypeAlias = JsonForm | ChoiceForm | RegexForm


@dataclass(frozen=True, slots=True)
class FunctionForm:
    """One function that an answer may call."""

    name: str
    arguments: Mapping[str, Any]  # a JSON schema of an object
    strict: bool  # every part of the schema is enforced, else those that can be


@dataclass(frozen=True, slots=True)
class ToolForm:
    """Calls of these functions, and where calls may be left out words, or another form."""

    functions: tuple[FunctionForm, ...]
    must: bool  # the answer is calls and nothing else
    most: int  # calls in one answer; several may be more where words stand between them
    instead: PlainForm | None = None  # what an answer without a call looks like; None: any text
    kind: ClassVar[str] = "list of tools"


AnswerForm: TypeAlias = PlainForm | ToolForm
ANY_OBJECT = JsonForm({})

"""Forms of answers as grammars: what is accepted at all, and the trial a new one must survive.

Combining regular expressions has no bound inside the library, so a form can keep it busy for
ever. Sizes are therefore checked first (`check_bounds`, pure), and the trial runs in a process that
can be killed: `python -m liveedge.engine.form.schema` reads a grammar and writes what is wrong with it.
Imports no numpy and no torch, so that this process starts at once.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, assert_never

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from liveedge.core.errors import ResponseFormatUnsupported
from liveedge.engine.form.calls import JSON_OPTIONS, OPTIONS_KEY, json_rule, written_calls
from liveedge.engine.form.forms import (
    AnswerForm,
    ChoiceForm,
    JsonForm,
    PlainForm,
    RegexForm,
    ToolForm,
)

OBJECT = {"type": "object"}

MAX_BYTES = 64 << 10
MAX_NODES = 4000
MAX_DEPTH = 64
MAX_STRING = 4096  # characters of one string; long constants cost every step of an answer
MAX_PATTERNS = 64
MAX_PATTERN = 512  # characters
MAX_NAME = 512  # characters of a property's name
MAX_CHOICES = 2000
MAX_CHOICE = 1024  # characters
MAX_REGEX = 4096  # characters of a whole answer's pattern
MAX_FUNCTIONS = 128  # of one list of tools

MAX_WRITTEN = 32  # grammars of choices that are kept, up to half a megabyte each

# What a regex may read as more than itself, by its number.
LITERAL = {n: f"\\x{{{n:x}}}" for n in range(128) if not chr(n).isalnum()}

ANNOTATIONS = frozenset({"title", "description", "examples", "default", "$comment"})
TRIAL_STEPS = 64
NEXT = "\0"  # between the grammars of one trial and their names; occurs in no grammar
TRIAL_CPU_S = 2
TRIAL_BYTES = 1 << 30  # of address space
SPACE = 0x20


def parser_limits() -> LLParserLimits:
    """What one grammar may cost: about 5 ms to begin and 10 ms a step, unless regexes combine."""
    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=20_000,
        max_grammar_size=50_000,
        verbose_errors=False,
    )


def grammar_of(form: AnswerForm) -> str:
    """The library's form of a form; raises ResponseFormatUnsupported beyond the bounds."""
    check_bounds(form)
    return written(form)


def written(form: AnswerForm) -> str:
    """`grammar_of` for a form that was checked before."""
    match form:
        case JsonForm(schema):
            return _written_schema(schema)
        case ChoiceForm(choices):
            return _written_choices(choices)
        case RegexForm(pattern):
            return LLMatcher.grammar_from_regex(pattern)
        case ToolForm():
            return _written_tools(form)
        case _:
            assert_never(form)


def on_trial(form: AnswerForm) -> str:
    """What `trial` reads for a form that was checked before.

    The trial of a grammar walks one way through it. So each function's arguments have their own.
    """
    if not isinstance(form, ToolForm):
        return written(form)
    parts: list[str] = []
    for function in form.functions:
        rule = json_rule(function.arguments, lenient=not function.strict)
        parts += [f"the parameters of {function.name}", f"%llguidance {{}}\nstart: {rule}\n"]
    return NEXT.join([*parts, "all of it", written(form)])


def _written_tools(form: ToolForm) -> str:
    instead = None if form.instead is None else _rule(form.instead)
    grammar = written_calls(form, instead=instead)
    if len(grammar) > MAX_BYTES:
        raise _too_much(form.kind, f"it has {len(grammar)} bytes, {MAX_BYTES} are allowed")
    return grammar


def _rule(form: PlainForm) -> str:
    """The right side of a rule for a form."""
    if isinstance(form, JsonForm):
        return json_rule(form.schema or OBJECT)
    rule: str = json.loads(written(form))["grammars"][0]["lark_grammar"]
    return rule.removeprefix("start: ")


@lru_cache(maxsize=MAX_WRITTEN)
def _written_choices(choices: tuple[str, ...]) -> str:
    """Kept, because many texts take milliseconds, for each answer once more."""
    literals = (text.translate(LITERAL) for text in dict.fromkeys(choices))
    return LLMatcher.grammar_from_regex("|".join(literals))


def _written_schema(schema: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(schema or OBJECT)
        if len(text) > MAX_BYTES:
            raise _too_much(JsonForm.kind, f"it has {len(text)} bytes, {MAX_BYTES} are allowed")
        return LLMatcher.grammar_from_json_schema(text, defaults=JSON_OPTIONS)
    except (ValueError, TypeError) as error:
        raise ResponseFormatUnsupported(f"this is no JSON schema: {short(str(error))}") from error


def check_bounds(form: AnswerForm) -> None:
    """Refuse by size alone, in time proportional to the bounds."""
    match form:
        case JsonForm(schema):
            _check_schema(schema, kind=form.kind)
        case ChoiceForm(choices):
            _check_choices(choices)
        case RegexForm(pattern):
            _check_length("it", pattern, MAX_REGEX, kind=form.kind)
            _check_unicode("it", pattern, kind=form.kind)
        case ToolForm():
            _check_tools(form)
        case _:
            assert_never(form)


def _check_tools(form: ToolForm) -> None:
    if len(form.functions) > MAX_FUNCTIONS:
        n_functions = len(form.functions)
        raise _too_much(form.kind, f"it has {n_functions} functions, {MAX_FUNCTIONS} are allowed")
    for function in form.functions:
        _check_schema(function.arguments, kind=f"schema of the parameters of {function.name}")
    if form.instead is not None:
        check_bounds(form.instead)


def _check_choices(choices: Sequence[str]) -> None:
    kind = ChoiceForm.kind
    if not choices:
        raise _too_much(kind, "it offers nothing; give at least one text")
    if len(choices) > MAX_CHOICES:
        raise _too_much(kind, f"it offers {len(choices)} texts, {MAX_CHOICES} are allowed")
    n_bytes = 0
    for number, text in enumerate(choices):
        what = f"text {number}"
        if not text:
            raise _too_much(kind, f"{what} is empty; an answer needs at least one character")
        _check_length(what, text, MAX_CHOICE, kind=kind)
        n_bytes += _check_unicode(what, text, kind=kind)
    if n_bytes > MAX_BYTES:
        raise _too_much(kind, f"its texts have {n_bytes} bytes, {MAX_BYTES} are allowed")


def _check_unicode(what: str, text: str, *, kind: str) -> int:
    """How many bytes; half a surrogate pair is no character and could never be said."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise _too_much(kind, f"{what} has half a character at {error.start}") from error


def _check_schema(schema: Mapping[str, Any], *, kind: str) -> None:
    if OPTIONS_KEY in schema:
        raise _too_much(kind, f"{OPTIONS_KEY} is not open to clients")
    n_patterns = 0
    for n_nodes, (node, key, depth) in enumerate(_nodes(schema)):
        if n_nodes >= MAX_NODES:
            raise _too_much(kind, f"it has more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise _too_much(kind, f"it is nested deeper than {MAX_DEPTH}")
        if isinstance(node, str) and key not in ANNOTATIONS:
            _check_length("a string", node, MAX_STRING, kind=kind)
        if isinstance(node, Mapping):
            n_patterns += _check_patterns(node)
            for name in node:
                _check_length("a name", name, MAX_NAME, kind=kind)
    if n_patterns > MAX_PATTERNS:
        raise _too_much(kind, f"it has {n_patterns} patterns, {MAX_PATTERNS} are allowed")


def _nodes(schema: object) -> Iterator[tuple[object, str, int]]:
    """Every value with the key it stands under and its depth, without recursion."""
    waiting: list[tuple[object, str, int]] = [(schema, "", 0)]
    while waiting:
        node, key, depth = waiting.pop()
        yield node, key, depth
        if isinstance(node, Mapping):
            waiting += [(value, str(name), depth + 1) for name, value in node.items()]
        elif isinstance(node, list | tuple):
            waiting += [(value, key, depth + 1) for value in node]


def _check_patterns(node: Mapping[str, Any]) -> int:
    """Check the patterns that stand directly in a schema, and count them."""
    patterns = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
    if isinstance(node.get("patternProperties"), Mapping):
        patterns += node["patternProperties"]
    for pattern in patterns:
        _check_length("a pattern", pattern, MAX_PATTERN, kind=JsonForm.kind)
    # Each member of an allOf must match at once: their patterns are combined, which has no bound.
    # What is combined in other ways (by $ref, say) is left to the trial.
    together = node.get("allOf")
    if isinstance(together, list):
        members = [part for part in (node, *together) if isinstance(part, Mapping)]
        if sum("pattern" in part or "format" in part for part in members) > 1:
            raise _too_much(JsonForm.kind, "it combines patterns by allOf: write one pattern")
    return len(patterns)


def _check_length(what: str, text: str, limit: int, *, kind: str) -> None:
    if len(text) > limit:
        raise _too_much(kind, f"{what} has {len(text)} characters, {limit} are allowed")


def _too_much(kind: str, why: str) -> ResponseFormatUnsupported:
    return ResponseFormatUnsupported(f"this {kind} is not accepted: {why}")


def trial(text: str) -> str:
    """What is wrong with a grammar, or with the first of several that is wrong; see `on_trial`."""
    names_and_grammars = text.split(NEXT)
    if len(names_and_grammars) == 1:
        return _tried(text)
    for name, grammar in zip(names_and_grammars[::2], names_and_grammars[1::2], strict=True):
        if verdict := _tried(grammar):
            return f"{name}: {verdict}"
    return ""


def _tried(grammar: str) -> str:
    """Compiled for a vocabulary of bytes, then walked."""
    matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=parser_limits())
    for _ in range(TRIAL_STEPS):
        if matcher.is_error() or matcher.is_stopped():
            break
        byte = _first_allowed(matcher.compute_bitmask())
        if byte is None or not matcher.consume_token(byte):
            break
    return short(matcher.get_error()) if matcher.is_error() else ""


class _Bytes:
    """A vocabulary of all bytes and an end."""

    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)
    eos_token_id = 256
    bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=[256])


def _first_allowed(bits: bytes) -> int | None:
    """The lowest byte that may come; a space only where nothing else may."""
    allowed = [byte for byte in range(256) if bits[byte // 8] >> (byte % 8) & 1]
    others = [byte for byte in allowed if byte != SPACE]
    return next(iter(others or allowed), None)


def short(text: str) -> str:
    """The beginning of a message of the library, on one line."""
    return " ".join(text.split())[:200] or "no reason given"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_CPU_S, TRIAL_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.write(trial(sys.stdin.read()))

"""Which forms of answers are accepted, and what a hostile one can cost: never more than its bound."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from liveedge.core.errors import QueueFull, ResponseFormatUnsupported
from liveedge.engine.form.forms import AnswerForm, ChoiceForm, JsonForm, RegexForm
from liveedge.engine.form.schema import MAX_DEPTH, MAX_NODES, MAX_PATTERNS, check_bounds
from liveedge.engine.form.schema_gate import MAX_WAITING, N_TRIALS, TOO_MUCH, SchemaGate

GOOD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "door": {"enum": ["open", "closed"]},
        "boxes": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"},
        "note": {"type": "string", "description": "x" * 10_000},
    },
    "required": ["door", "boxes", "code"],
}


def combining(n: int) -> dict[str, Any]:
    """Patterns that must match at once: 500 bytes that keep the library busy for ever."""
    patterns = [{"type": "string", "pattern": f"(a|b)*a(a|b){{{k}}}"} for k in range(5, 5 + n)]
    return {"allOf": patterns}


def chained(n: int) -> dict[str, Any]:
    """The same by references, which nobody sees who looks at one object at a time."""
    links = {
        f"a{k}": {
            "type": "string",
            "pattern": f"(a|b)*a(a|b){{{k + 5}}}",
            "$ref": f"#/$defs/a{k + 1}",
        }
        for k in range(n)
    }
    return {"$defs": links | {f"a{n}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def loop() -> dict[str, Any]:
    return {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    }


def gate(verdict: str = "") -> tuple[SchemaGate, list[str], list[str]]:
    """A gate with a trial that says `verdict`; what was on trial, and what was compiled."""
    tried: list[str] = []
    compiled: list[str] = []

    def trial(grammar: str) -> str:
        tried.append(grammar)
        return verdict

    return SchemaGate(compiled.append, trial=trial), tried, compiled


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (combining(20), "combines patterns"),
        (combining(2), "combines patterns"),
        ({"const": "a" * 500_000}, "500000 characters"),
        ({"type": "string", "pattern": "a?" * 250_000}, "500000 characters"),
        ({"patternProperties": {"a?" * 5000: {}}}, "10000 characters"),
        ({"properties": {"a" * 5000: {"type": "string"}}}, "5000 characters"),
        ({"enum": [f"v{n}" for n in range(20_000)]}, f"more than {MAX_NODES} values"),
        ({"title": "x" * 70_000}, "70013 bytes"),
        (nested(MAX_DEPTH), f"deeper than {MAX_DEPTH}"),
        (nested(100_000), f"deeper than {MAX_DEPTH}"),
        ({"anyOf": [{"pattern": "a"}] * (MAX_PATTERNS + 1)}, "65 patterns"),
        ({"type": "object", "x-guidance": {"lenient": True}}, "x-guidance"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_a_schema_beyond_the_bounds_is_refused_before_anything_runs(
    schema: dict[str, Any], message: str
) -> None:
    checked, tried, _ = gate()
    with pytest.raises(ResponseFormatUnsupported, match=message):
        checked.check(JsonForm(schema))
    assert not tried


def test_the_bounds_leave_room_for_a_real_schema() -> None:
    check_bounds(JsonForm(GOOD))
    check_bounds(JsonForm(nested(MAX_DEPTH // 2 - 1)))
    check_bounds(JsonForm({"allOf": [{"type": "string", "pattern": "^a+$"}, {"maxLength": 5}]}))
    check_bounds(
        JsonForm({"properties": {"pattern": {"type": "string"}, "allOf": {"type": "null"}}})
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "string", "pattern": "(?=a)b"},
        {"not": {"type": "string"}},
        {"$ref": "http://example.com/schema"},
        {"properties": {"a": object()}},
        loop(),
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(1000)}},
    ],
    ids=["type", "pattern", "not", "remote", "no JSON", "cyclic", "empty", "too wide"],
)
def test_a_schema_that_cannot_be_enforced_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ResponseFormatUnsupported, match="schema"):
        SchemaGate(lambda _: None).check(JsonForm(schema))


def test_a_schema_that_can_be_enforced_is_accepted() -> None:
    SchemaGate(lambda _: None).check(JsonForm(GOOD))


def test_a_trial_that_never_ends_is_ended_and_is_a_verdict() -> None:
    compiled: list[str] = []
    with pytest.raises(ResponseFormatUnsupported, match=TOO_MUCH):
        SchemaGate(compiled.append).check(JsonForm(chained(20)))
    assert not compiled


def test_a_verdict_is_remembered() -> None:
    for verdict in ("", "no"):
        checked, tried, compiled = gate(verdict)
        for _ in range(3):
            try:
                checked.check(JsonForm(GOOD))
            except ResponseFormatUnsupported:
                assert verdict
            else:
                assert not verdict
        assert len(tried) == 1
        assert compiled == ([] if verdict else tried)


def test_any_object_needs_no_trial() -> None:
    checked, tried, _ = gate()
    checked.check(JsonForm({}))
    assert not tried


def test_what_is_known_is_forgotten_oldest_first() -> None:
    checked, tried, _ = gate()
    for n in range(400):
        checked.check(JsonForm({"const": n}))
        checked.check(JsonForm(GOOD))
    assert len(tried) == 401  # one was always in use
    checked.check(JsonForm({"const": 0}))
    assert len(tried) == 402


def test_stuck_trials_hold_up_new_schemas_only_and_at_a_bound_these_are_refused() -> None:
    entered, leave = threading.Semaphore(0), threading.Event()

    def trial(grammar: str) -> str:
        if "known" not in grammar:
            entered.release()
            assert leave.wait(30)
        return ""

    checked = SchemaGate(lambda _: None, trial=trial)
    checked.check(JsonForm({"const": "known"}))
    n_threads = N_TRIALS + MAX_WAITING
    with ThreadPoolExecutor(n_threads + 1) as pool:
        try:
            stuck = [pool.submit(checked.check, JsonForm({"const": n})) for n in range(n_threads)]
            for _ in range(N_TRIALS):
                assert entered.acquire(timeout=30)
            refused = pool.submit(check_until_refused, checked)
            error = refused.result(30)
            assert error.retry_after_s == 1.0
            checked.check(JsonForm({"const": "known"}))
        finally:
            leave.set()
        for one in stuck:
            one.result(30)
    checked.check(JsonForm({"const": "new again"}))


def check_until_refused(checked: SchemaGate) -> QueueFull:
    """Asks, when the waiting room is full."""
    while checked.n_waiting < MAX_WAITING:
        threading.Event().wait(0.001)
    with pytest.raises(QueueFull) as refused:
        checked.check(JsonForm({"const": "one more"}))
    return refused.value


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (ChoiceForm(()), "choice is not accepted: it offers nothing"),
        (ChoiceForm(("a", "")), "text 1 is empty"),
        (ChoiceForm(tuple(map(str, range(10_000)))), "10000 texts, 2000 are allowed"),
        (ChoiceForm(("a", "x" * (1 << 20))), "text 1 has 1048576 characters, 1024 are allowed"),
        (ChoiceForm(tuple(f"{n:04}" * 200 for n in range(90))), "72000 bytes, 65536 are allowed"),
        (ChoiceForm(("ok", "no \ud83d")), "text 1 has half a character at 3"),
        (RegexForm("a" * (1 << 20)), "regex is not accepted: it has 1048576 characters"),
        (RegexForm("\udc00"), "half a character"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_choices_and_regexes_beyond_the_bounds_are_refused_before_anything_runs(
    form: AnswerForm, message: str
) -> None:
    checked, tried, _ = gate()
    with pytest.raises(ResponseFormatUnsupported, match=message):
        checked.check(form)
    assert not tried


@pytest.mark.parametrize(
    "pattern",
    [
        "[",
        "(?=a)b",
        r"(a)\1",
        r"\bfoo\b",
        "a^b",
        r"[^\x00-\x{10FFFF}]",
        r"(?-u:\xff)",
        "a{100000}",
        "((a{0,100}){0,100}){0,100}",
        "(" * 2000 + "a" + ")" * 2000,
    ],
)
def test_a_regex_that_cannot_be_enforced_is_refused_as_a_regex(pattern: str) -> None:
    with pytest.raises(ResponseFormatUnsupported, match="this regex cannot be enforced"):
        SchemaGate(lambda _: None).check(RegexForm(pattern))


@pytest.mark.parametrize(
    "form",
    [
        RegexForm(""),
        RegexForm("(a+)+$"),
        RegexForm("(a|b)*a(a|b){4000}"),
        RegexForm(r"^\d{4}-\d\d-\d\d$"),
        RegexForm(r"(x+x+)+y"),
        ChoiceForm(("a", "a")),
        ChoiceForm(("a", "ab", "/", "\\", '"', "\x00\n\x7f\u2028", "🚪", "(?i)[x]{2}|$^")),
        ChoiceForm(tuple(f"number {n * 7919} of the list" for n in range(2000))),
        ChoiceForm(("x" * 1024,) * 60),
    ],
    ids=lambda form: repr(form)[:40],
)
def test_what_frightens_other_engines_is_enforced(form: AnswerForm) -> None:
    SchemaGate(lambda _: None).check(form)


def test_equal_texts_are_different_forms() -> None:
    """A schema, a choice and a regex that look alike never share a verdict."""
    checked, tried, _ = gate()
    for form in (JsonForm({"const": "a.c"}), ChoiceForm(("a.c",)), RegexForm("a.c")):
        checked.check(form)
    assert len(set(tried)) == 3

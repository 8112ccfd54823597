"""Calls that are held to a grammar, from models that were never taught to call: each one fits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from liveedge.core.errors import (
    ParameterUnsupported,
    RequestInvalid,
    ResponseFormatUnsupported,
)
from liveedge.engine.form.forms import (
    AnswerForm,
    ChoiceForm,
    FunctionForm,
    JsonForm,
    PlainForm,
    RegexForm,
    ToolForm,
)
from liveedge.engine.form.schema import MAX_FUNCTIONS
from liveedge.engine.form.schema_gate import TOO_MUCH, SchemaGate
from liveedge.engine.interface import WindowPrefix
from liveedge.engine.process.start import make_compiler
from liveedge.engine.request import GenerateRequest, Message, SamplingParams, TextPart
from liveedge.models.qwen3_vl.prompt import PromptBuilder
from liveedge.models.qwen3_vl.template import ChatTemplate
from liveedge.service.tool_calls import CallPiece, CallReader, Words
from tests.checkpoints import make_checkpoint
from tests.engines import Answer, LocalEngine, media_part
from tests.reference import clip

SHIPPED = Path(__file__).resolve().parents[2] / "src" / "liveedge" / "assets" / "workcell-tiny"
NUMBERS = count()
CLIP = clip(64, 96, (0.0, 0.5, 1.0, 1.5))
MOVE: dict[str, Any] = {
    "type": "object",
    "properties": {"to": {"enum": ["left", "rechts", "上"]}, "steps": {"enum": [1, 22]}},
    "required": ["to", "steps"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = (FunctionForm("move", MOVE, strict=True), FunctionForm("stop", NOTHING, strict=False))
TOOLS = tuple(
    {"type": "function", "function": {"name": one.name, "parameters": one.arguments}}
    for one in FUNCTIONS
)


@pytest.fixture(scope="module", params=["random", "shipped"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalEngine]:
    folder = SHIPPED
    if request.param == "random":
        folder = make_checkpoint(tmp_path_factory.mktemp("tools") / "tiny", seed=4)
    engine = LocalEngine(folder, n_slots=8, n_windows=1, max_model_len=1024, verify_share=1.0)
    yield engine
    engine.close()


def asked(
    form: AnswerForm | None, *, media: bool = False, tools: Any = TOOLS, **sampling: Any
) -> GenerateRequest:
    parts = (media_part(CLIP, "clip"),) if media else ()
    return GenerateRequest(
        request_id=f"tools {next(NUMBERS)}",
        messages=(Message(role="user", content=(*parts, TextPart("What is it?"))),),
        tools=tools,
        sampling=SamplingParams(**({"max_tokens": 200} | sampling)),
        form=form,
    )


def ask(engine: LocalEngine, form: AnswerForm, n: int = 6) -> list[Answer]:
    prepared = [
        engine.preparer.prepare(asked(form, temperature=(0.0, 0.7, 2.0)[row % 3], seed=row))
        for row in range(n)
    ]
    return engine.run(*prepared)


def read(text: str) -> tuple[str, list[tuple[str, Any]]]:
    """Words, and the calls with their arguments."""
    reader = CallReader([one.name for one in FUNCTIONS])
    pieces = [*reader.push(text), *reader.finish(is_cut=False)]
    names = [p.name for p in pieces if isinstance(p, CallPiece) and p.name is not None]
    calls = [
        (
            name,
            json.loads(
                "".join(p.arguments for p in pieces if isinstance(p, CallPiece) and p.index == n)
            ),
        )
        for n, name in enumerate(names)
    ]
    return "".join(p.text for p in pieces if isinstance(p, Words)), calls


def check(name: str, arguments: Any) -> None:
    if name == "stop":
        assert arguments == {}
        return
    assert list(arguments) == ["to", "steps"]
    assert arguments["to"] in MOVE["properties"]["to"]["enum"]
    assert arguments["steps"] in (1, 22)


def test_a_function_that_must_be_called_is_called_once(engine: LocalEngine) -> None:
    for function in FUNCTIONS:
        for answer in ask(engine, ToolForm((function,), must=True, most=1), 3):
            assert answer.finished.reason == "stop"
            words, [(name, arguments)] = read(answer.text)
            assert (words, name) == ("", function.name)
            check(name, arguments)


def test_an_answer_that_must_call_has_as_many_calls_as_it_may(engine: LocalEngine) -> None:
    for answer in ask(engine, ToolForm(FUNCTIONS, must=True, most=3)):
        assert answer.finished.reason == "stop"
        words, calls = read(answer.text)
        assert words == ""
        assert 1 <= len(calls) <= 3
        for name, arguments in calls:
            check(name, arguments)


@pytest.mark.parametrize(
    "instead",
    [
        JsonForm({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
                  "additionalProperties": False}),
        ChoiceForm(("yes/no", '"no"')),
        RegexForm("[0-9]{2}/[0-9]{2}"),
    ],
)  # fmt: skip
def test_an_answer_without_a_call_has_the_other_form(
    engine: LocalEngine, instead: PlainForm
) -> None:
    for answer in ask(engine, ToolForm(FUNCTIONS, must=False, most=1, instead=instead)):
        assert answer.finished.reason == "stop"
        words, calls = read(answer.text)
        assert len(calls) <= 1
        for name, arguments in calls:
            check(name, arguments)
        if isinstance(instead, JsonForm) and not calls:
            assert json.loads(words) == {"a": 1}
        elif not calls:
            assert words[0] in 'yn"0123456789'


@pytest.fixture(scope="module")
def prompts() -> PromptBuilder:
    return PromptBuilder(SHIPPED)


def matched(prompts: PromptBuilder, form: AnswerForm, text: str) -> str:
    """How much of a text the grammar lets a model say, in the longest tokens that it allows."""
    vocabulary = prompts.vocabulary
    matcher = make_compiler(vocabulary, prompts.config).matcher(form)
    said, rest = b"", text.encode()
    while rest:
        forbidden = matcher.forbidden()
        fitting = [
            n
            for n in range(vocabulary.size)
            if not forbidden[n]
            and n not in vocabulary.silent_ids
            and rest.startswith(vocabulary.token_bytes(n))
        ]
        if not fitting:
            break
        token = max(fitting, key=lambda n: len(vocabulary.token_bytes(n)))
        data = vocabulary.token_bytes(token)
        said, rest = said + data, rest.removeprefix(data)
        if matcher.accept(token):
            break
    return said.decode(errors="replace")


CALL = '<tool_call>\n{"name": "move", "arguments": {"to": "left", "steps": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("most", "text", "stops_at"),
    [
        (16, "Only words, a < b and <tool.", None),
        (16, f"So:\n{CALL}\nAnd {CALL} Done.", None),
        (16, CALL.replace("left", "up"), "up"),
        (16, CALL.replace("move", "fly"), "fly"),
        (16, f"{CALL}<tool_call> no", " no"),
        (1, f"So:\n{CALL}", None),
        (1, f"{CALL}\n", "\n"),
        (1, "Only words.", None),
    ],
)
def test_words_are_free_and_from_the_mark_on_a_call_fits(
    prompts: PromptBuilder, most: int, text: str, stops_at: str | None
) -> None:
    said = matched(prompts, ToolForm(FUNCTIONS, must=False, most=most), text)
    assert said == (text if stops_at is None else text[: text.rindex(stops_at)])


def test_a_call_on_a_warm_window_is_the_call_of_a_cold_start(engine: LocalEngine) -> None:
    form = ToolForm(FUNCTIONS, must=True, most=2)
    cold = engine.ask(engine.preparer.prepare(asked(form, media=True)))
    engine.settle()
    window = engine.preparer.prepare_window(asked(None, media=True))
    engine.warm(WindowPrefix(window_id="w", prepared=window))
    engine.settle()
    before = engine.stats
    warm = engine.ask(engine.preparer.prepare(asked(form, media=True)))
    engine.settle()
    assert warm.tokens == cold.tokens
    assert warm.finished.usage.cached_tokens >= window.n_tokens
    assert engine.stats.verified > before.verified
    assert engine.stats.verify_differences == 0
    bare = engine.preparer.prepare(asked(None, media=True, tools=(), max_tokens=4))
    assert engine.ask(bare).finished.usage.cached_tokens < bare.groups[0].start


def test_a_template_that_shows_no_tools_refuses_them(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(SHIPPED, folder)
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
        "<|im_end|>\n{% endfor %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    engine = LocalEngine(folder, n_slots=2, n_windows=0, max_model_len=256)
    try:
        with pytest.raises(ParameterUnsupported, match="cannot show tools"):
            engine.preparer.prepare(asked(None))
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
        past = Message(role="assistant", content=(), tool_calls=(call,))
        with pytest.raises(ParameterUnsupported, match="tool_calls"):
            engine.preparer.prepare(GenerateRequest(request_id="q", messages=(past,)))
        assert engine.preparer.prepare(asked(None, tools=())).n_tokens > 0
    finally:
        engine.close()


def test_a_template_that_stumbles_over_a_tool_says_so(tmp_path: Path) -> None:
    shutil.copy(SHIPPED / "tokenizer_config.json", tmp_path)
    counting = (
        "{{ tools[0].function.name }}{{ tools[0].function.parameters.properties | length }}"
        "{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"
    )
    (tmp_path / "chat_template.jinja").write_text(counting)
    template = ChatTemplate(tmp_path, [])
    assert template.renders_tools
    odd = {"function": {"name": "f", "parameters": {"type": "object", "properties": 5}}}
    with pytest.raises(RequestInvalid, match="refuses these messages"):
        template.render([{"role": "user", "content": "x"}], [odd], add_generation_prompt=True)


def offer(schema: dict[str, Any], *, strict: bool = True, n: int = 1) -> ToolForm:
    functions = [FunctionForm(f"f{k}", schema, strict=strict) for k in range(n)]
    return ToolForm(tuple(functions), must=False, most=16)


def test_a_strict_function_that_cannot_be_held_to_its_schema_is_refused_by_name() -> None:
    odd = {"type": "object", "properties": {"x": {"type": "integer", "not": {"const": 4}}}}
    gate = SchemaGate(lambda _grammar: None)
    with pytest.raises(ResponseFormatUnsupported, match=r"f0.*not"):
        gate.check(offer(odd))
    gate.check(offer(odd, strict=False))  # held to the rest of it


def test_a_hostile_schema_of_a_function_costs_no_more_than_its_trial() -> None:
    patterns = [f"(a|b)*a(a|b){{{k}}}" for k in range(5, 40)]
    links: dict[str, Any] = {
        f"a{k}": {"type": "string", "pattern": pattern, "$ref": f"#/$defs/a{k + 1}"}
        for k, pattern in enumerate(patterns)
    }
    links[f"a{len(patterns)}"] = {"type": "string"}
    hostile = {"type": "object", "$defs": links, "properties": {"x": {"$ref": "#/$defs/a0"}}}
    with pytest.raises(ResponseFormatUnsupported, match=f"{TOO_MUCH}|limit|too"):
        SchemaGate(lambda _grammar: None).check(offer(hostile | {"required": ["x"]}, strict=False))


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (offer({"type": "object"}, n=MAX_FUNCTIONS + 1), "functions"),
        (offer({"type": "object", "x-guidance": {}}), "x-guidance"),
        (offer({"type": "object", "title": "x" * 40_000}, n=2), "bytes"),
        (offer({"type": "object", "properties": {"x" * 600: {}}}), "the parameters of f0"),
        (ToolForm(FUNCTIONS, must=False, most=1, instead=RegexForm("a" * 5000)), "regex"),
    ],
)
def test_tools_beyond_the_bounds_are_refused_without_a_trial(form: ToolForm, says: str) -> None:
    def trial(_text: str) -> str:
        raise AssertionError("nothing goes on trial")

    with pytest.raises(ResponseFormatUnsupported, match=says):
        SchemaGate(lambda _grammar: None, trial=trial).check(form)


def test_a_list_of_tools_is_tried_once() -> None:
    tried: list[str] = []
    compiled: list[str] = []

    def trial(text: str) -> str:
        tried.append(text)
        return ""

    gate = SchemaGate(compiled.append, trial=trial)
    for _ in range(2):
        gate.check(ToolForm(FUNCTIONS, must=True, most=1))
    assert len(tried) == len(compiled) == 1
    assert "%json" in compiled[0]

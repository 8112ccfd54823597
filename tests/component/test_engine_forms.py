"""Answers of a given form, from models that know nothing of it: every one has that form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from liveedge.core.errors import InternalError
from liveedge.engine.form.forms import ANY_OBJECT, AnswerForm, ChoiceForm, JsonForm, RegexForm
from liveedge.engine.interface import PreparedRequest, WindowPrefix
from liveedge.engine.request import (
    Delta,
    Failed,
    GenerateRequest,
    Message,
    SamplingParams,
    TextPart,
)
from tests.checkpoints import make_checkpoint
from tests.engines import Answer, LocalEngine, media_part
from tests.reference import clip

SHIPPED = Path(__file__).resolve().parents[2] / "src" / "liveedge" / "assets" / "workcell-tiny"
CHOICES = ("Open", "open", "open wide", " closed ", "关着", "🚪 ajar", 'say "no"\n', "<|im_end|>")
PATTERNS = (
    r"[0-9]{4}-[0-9]{2}",
    r"^(yes|no|yes, but no)$",
    r"(?i)on|off",
    r"(你好|世界|🎥){1,3}",
    r"a?b?c?",
    r"(a|ab)(c|bcd)?[.\]/\"<]",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "door": {"enum": ["open", "zu", "关"]},
        "boxes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["door", "boxes"],
    "additionalProperties": False,
}
NUMBERS = count()
MEDIA = ("clip", clip(64, 96, (0.0, 0.5, 1.0, 1.5)))


@pytest.fixture(scope="module", params=["random", "shipped"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalEngine]:
    folder = SHIPPED
    if request.param == "random":
        folder = make_checkpoint(tmp_path_factory.mktemp("forms") / "tiny", seed=4)
    engine = LocalEngine(folder, n_slots=8, n_windows=1, max_model_len=512, verify_share=1.0)
    yield engine
    engine.close()


def asked(name: str, form: AnswerForm | None, *, media: bool = False, **sampling: Any) -> Any:
    parts = (media_part(MEDIA[1], MEDIA[0]),) if media else ()
    return GenerateRequest(
        request_id=f"{name} {next(NUMBERS)}",
        messages=(Message(role="user", content=(*parts, TextPart("What is it?"))),),
        sampling=SamplingParams(**({"max_tokens": 150} | sampling)),
        form=form,
    )


def ask(
    engine: LocalEngine, form: AnswerForm, n: int = 8, *, seed: int = 0, **sampling: Any
) -> list[Answer]:
    """As `n` choices of one question, at once, each with its own seed and temperature."""
    prepared: list[PreparedRequest] = []
    for row in range(n):
        own = {"temperature": (0.0, 0.7, 1.0, 2.0)[row % 4], "seed": seed + row} | sampling
        prepared.append(engine.preparer.prepare(asked(f"choice-{row}", form, **own)))
    return engine.run(*prepared)


def texts(answers: list[Answer]) -> list[str]:
    assert all(answer.finished.reason == "stop" for answer in answers)
    return [answer.text for answer in answers]


def test_a_choice_is_one_of_the_texts_as_they_were_given(engine: LocalEngine) -> None:
    found = {text for n in range(3) for text in texts(ask(engine, ChoiceForm(CHOICES), seed=8 * n))}
    assert found <= set(CHOICES)
    assert len(found) > 1


@pytest.mark.parametrize("only", CHOICES)
def test_a_choice_of_one_is_said_to_the_letter(engine: LocalEngine, only: str) -> None:
    assert texts(ask(engine, ChoiceForm((only, only)), 2)) == [only, only]


def test_of_two_choices_the_shorter_beginning_of_the_other_can_be_said_too(
    engine: LocalEngine,
) -> None:
    form = ChoiceForm(("ab", "abc", "abcd"))
    found = {t for n in range(8) for t in texts(ask(engine, form, temperature=50.0, seed=8 * n))}
    assert found == {"ab", "abc", "abcd"}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_whole_answer_matches_a_regex(engine: LocalEngine, pattern: str) -> None:
    for text in texts(ask(engine, RegexForm(pattern))):
        assert re.fullmatch(pattern, text), text


def test_json_of_a_schema_is_json_of_that_schema(engine: LocalEngine) -> None:
    for text in texts(ask(engine, JsonForm(SCHEMA))):
        said = json.loads(text)
        assert list(said) == ["door", "boxes"]
        assert said["door"] in {"open", "zu", "关"}
        assert {type(box) for box in said["boxes"]} <= {bool}


def test_an_answer_that_is_cut_is_the_beginning_of_one_that_fits(engine: LocalEngine) -> None:
    form = RegexForm("x[a-f0-9]{300}y")
    for answer in ask(engine, form, max_tokens=5):
        assert answer.finished.reason == "length"
        assert re.fullmatch("x[a-f0-9]+", answer.text)
    for answer in ask(engine, ANY_OBJECT, 2, max_tokens=1):
        assert answer.finished.reason == "length"
        assert answer.text[0] == "{"


def test_a_stop_string_ends_an_answer_of_a_form_and_nothing_comes_after_it(
    engine: LocalEngine,
) -> None:
    form = ChoiceForm(("one two three", "one twofold"))
    assert texts(ask(engine, form, stop=("two",))) == ["one "] * 8
    schema = JsonForm({"type": "object", "properties": {"a": {"const": "b"}}, "required": ["a"]})
    for text in texts(ask(engine, schema, stop=(":",))):
        assert re.fullmatch(r'\{ ?"a" ?', text)
    # The last text ends in the beginning of a stop string: it is held back and then said.
    assert texts(ask(engine, ChoiceForm(("the end",)), 2, stop=("end of",))) == ["the end"] * 2


def test_logprobs_are_the_models_own_and_spell_the_answer(engine: LocalEngine) -> None:
    free = engine.ask(
        engine.preparer.prepare(asked("free", None, max_tokens=1, logprobs=True, top_logprobs=20))
    )
    form = ChoiceForm(("zebra 🎥", "quagga"))
    for answer in ask(engine, form, 4, logprobs=True, top_logprobs=20):
        found = [one for e in answer.events if isinstance(e, Delta) for one in e.logprobs]
        assert b"".join(one.token_bytes for one in found).decode() == answer.text
        assert all(-200 < one.logprob <= 0 for one in found)
        # The first token is chosen from the same logits, whatever the form allows.
        assert answer.top[0] == pytest.approx(free.top[0], abs=1e-4)


def test_penalties_move_the_choice_and_never_out_of_the_form(engine: LocalEngine) -> None:
    form = RegexForm("[ab]{40}")
    plain = texts(ask(engine, form, 1, temperature=0.0))[0]
    moved = texts(ask(engine, form, 1, temperature=0.0, frequency_penalty=2.0))[0]
    assert re.fullmatch("[ab]{40}", plain)
    assert re.fullmatch("[ab]{40}", moved)
    assert abs(moved.count("a") - moved.count("b")) <= abs(plain.count("a") - plain.count("b"))


def test_a_seed_gives_the_same_answer_alone_and_among_others(engine: LocalEngine) -> None:
    form = RegexForm("[a-z ]{5,30}")
    together = texts(ask(engine, form, temperature=1.0))
    for row in (0, 3):
        request = asked("alone", form, temperature=1.0, seed=row)
        assert engine.ask(engine.preparer.prepare(request)).text == together[row]
    assert len(set(together)) > 1


def test_forms_and_free_answers_do_not_touch_each_other(engine: LocalEngine) -> None:
    prepare = engine.preparer.prepare
    alone = engine.ask(prepare(asked("free", None, max_tokens=12))).tokens
    crowd = [prepare(asked(f"bound-{n}", ChoiceForm(CHOICES), seed=n)) for n in range(3)]
    free, *bound = engine.run(prepare(asked("free", None, max_tokens=12)), *crowd)
    assert free.tokens == alone
    assert set(texts(bound)) <= set(CHOICES)


def test_a_form_holds_on_a_warm_window_and_is_verified_there(engine: LocalEngine) -> None:
    form = RegexForm("[a-z]{8}")
    window = engine.preparer.prepare_window(asked("window", None, media=True))
    engine.warm(WindowPrefix(window_id="w", prepared=window))
    engine.settle()
    before = engine.stats
    answer = engine.ask(engine.preparer.prepare(asked("warm", form, media=True)))
    engine.settle()
    assert answer.finished.usage.cached_tokens > 0
    assert re.fullmatch("[a-z]{8}", answer.text)
    assert engine.stats.verified > before.verified
    assert engine.stats.verify_differences == 0


def test_a_grammar_that_fails_on_the_way_ends_its_own_answer_only(engine: LocalEngine) -> None:
    # Passes its trial on the short way, and needs more states than it may have on the other.
    form = RegexForm("a|b{100000}")
    prepare = engine.preparer.prepare
    lost = [prepare(asked(f"lost {n}", form, temperature=50.0, seed=n)) for n in range(7)]
    good = prepare(asked("good", RegexForm("[ab]{100}"), temperature=1.0, seed=1))
    answered, *others = engine.run(good, *lost)
    assert re.fullmatch("[ab]{100}", answered.text)
    failed = [answer for answer in others if isinstance(answer.end, Failed)]
    assert {answer.text for answer in others if answer not in failed} <= {"a"}
    assert failed
    for answer in failed:
        assert isinstance(answer.failed.error, InternalError)
        assert "the grammar failed" in answer.failed.error.message

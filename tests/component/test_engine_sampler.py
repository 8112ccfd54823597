"""How tokens are chosen: distributions, seeds, penalties, logprobs, grammars."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from liveedge.core.errors import InternalError, LiveEdgeError, ResponseFormatUnsupported
from liveedge.engine.compute.sampler import Chooser, new_chooser, sample
from liveedge.engine.decide.plan import Sampled
from liveedge.engine.form.forms import ANY_OBJECT, AnswerForm, ChoiceForm, JsonForm
from liveedge.engine.form.grammar import GrammarCompiler, Matcher
from liveedge.engine.form.schema import grammar_of
from liveedge.engine.request import SamplingParams
from liveedge.models.qwen3_vl.vocabulary import byte_alphabet
from tests.checkpoints import make_tokenizer

PROBS = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
LOGITS = PROBS.log()
INF = float("inf")


def chooser(matcher: Matcher | None = None, **params: Any) -> Chooser:
    counter = itertools.count(17)
    return new_chooser(SamplingParams(**params), matcher=matcher, entropy=lambda: next(counter))


def draw(logits: Tensor, n: int, **params: Any) -> list[int]:
    one = chooser(**params)
    return [token(sample(logits[None], [one])[0]).token for _ in range(n)]


def token(sampled: Sampled | LiveEdgeError) -> Sampled:
    assert isinstance(sampled, Sampled), sampled
    return sampled


def shares(tokens: list[int]) -> Tensor:
    return torch.bincount(torch.tensor(tokens), minlength=len(PROBS)) / len(tokens)


def test_without_temperature_the_largest_logit_wins() -> None:
    rows = torch.stack((LOGITS, LOGITS.flip(0)))
    assert [token(s).token for s in sample(rows, [chooser(), chooser()])] == [0, 4]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 1.0}, [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"temperature": 0.5}, (PROBS**2 / (PROBS**2).sum()).tolist()),
        ({"temperature": 1.0, "top_k": 2}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.7}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.71}, [0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0]),
        ({"temperature": 1.0, "min_p": 0.3}, [0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0]),
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.5}, [4 / 7, 3 / 7, 0, 0, 0]),
    ],
)
def test_draws_follow_the_distribution(params: dict[str, Any], expected: list[float]) -> None:
    found = shares(draw(LOGITS, 3000, seed=1, **params))
    assert found.tolist() == pytest.approx(expected, abs=0.04)  # over 4 standard deviations
    assert [share == 0 for share in found] == [share == 0 for share in expected]


def test_a_seed_gives_the_same_draws_whatever_else_is_in_the_batch() -> None:
    alone = draw(LOGITS, 40, temperature=1.0, seed=5)
    one, other = chooser(temperature=1.0, seed=5), chooser(temperature=2.0, top_k=3)
    rows = torch.stack((LOGITS.flip(0), LOGITS))
    together = [token(sample(rows, [other, one])[1]).token for _ in range(40)]
    assert together == alone
    assert draw(LOGITS, 40, temperature=1.0, seed=6) != alone


def test_without_a_seed_requests_differ() -> None:
    counter = itertools.count()
    params = SamplingParams(temperature=1.0)
    a, b = (new_chooser(params, matcher=None, entropy=lambda: next(counter)) for _ in range(2))
    rows = torch.stack((LOGITS, LOGITS))
    pairs = [[token(s).token for s in sample(rows, [a, b])] for _ in range(40)]
    assert [x for x, _ in pairs] != [y for _, y in pairs]


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_penalties_turn_away_from_what_was_said(penalty: str) -> None:
    assert draw(LOGITS, 3, **{penalty: 1.0}) == [0, 1, 2]


def test_a_frequency_penalty_grows_and_a_presence_penalty_does_not() -> None:
    logits = torch.tensor([2.0, 0.0])
    assert draw(logits, 6, frequency_penalty=0.75) == [0, 0, 0, 1, 0, 1]
    assert draw(logits, 6, presence_penalty=1.5) == [0] * 6


def test_logprobs_are_the_models_own_before_any_change() -> None:
    one = chooser(temperature=0.1, seed=1, presence_penalty=2.0, logprobs=True, top_logprobs=3)
    for _ in range(5):
        sampled = token(sample(LOGITS[None], [one])[0])
        assert sampled.logprob == pytest.approx(float(LOGITS[sampled.token]), abs=1e-5)
        assert [token for token, _ in sampled.top] == [0, 1, 2]
        values = [value for _, value in sampled.top]
        assert values == pytest.approx(LOGITS[:3].tolist(), abs=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_without_usable_scores_fails_alone(bad: float) -> None:
    spoilt = LOGITS.clone()
    spoilt[2] = bad
    rows = torch.stack((spoilt, LOGITS))
    found = sample(rows, [chooser(temperature=1.0), chooser(temperature=1.0, top_k=1)])
    assert isinstance(found[0], InternalError)
    assert token(found[1]).token == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_greedy_row_without_usable_scores_fails_alone(bad: float) -> None:
    spoilt = LOGITS.clone()
    spoilt[2] = bad
    rows = torch.stack((spoilt, LOGITS, spoilt))
    found = sample(rows, [chooser(), chooser(), chooser(temperature=1.0)])
    assert isinstance(found[0], InternalError)
    assert token(found[1]).token == 0
    assert isinstance(found[2], InternalError)


def test_known_best_tokens_serve_greedy_rows_and_no_others() -> None:
    rows = torch.stack((LOGITS, LOGITS, LOGITS.flip(0)))
    bound = chooser(logprobs=True)
    found = sample(rows, [chooser(), chooser(), bound], best=[3, -1, 1])
    assert token(found[0]).token == 3
    assert isinstance(found[1], InternalError)
    assert token(found[2]).token == 4  # looked for itself


SCHEMA = {
    "type": "object",
    "properties": {
        "door": {"enum": ["open", "closed"]},
        "boxes": {"type": "array", "items": {"enum": ["red", "grün"]}, "maxItems": 3},
        "lamp": {"type": "boolean"},
    },
    "required": ["door", "boxes", "lamp"],
    "additionalProperties": False,
}
FORM = JsonForm(SCHEMA)


@pytest.mark.parametrize("temperature", [5e-324, 2e-38, 1e-20, 1e-5, 9e-5])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([-80.0, 3.0, 90.0, 89.99])
    assert draw(logits, 20, temperature=temperature, seed=3) == [2] * 20


@pytest.mark.parametrize("temperature", [1e-4, 1e-3])
def test_a_small_temperature_overflows_nowhere(temperature: float) -> None:
    logits = torch.tensor([-3e38, 3.0, 3e38, -INF])
    assert draw(logits, 20, temperature=temperature, seed=3) == [2] * 20


@pytest.mark.parametrize("top_p", [1e-300, 1e-30])
def test_a_tiny_top_p_leaves_the_most_probable_token(top_p: float) -> None:
    assert draw(LOGITS, 20, temperature=1.0, top_p=top_p, seed=3) == [0] * 20


class BrokenMatcher(Matcher):
    """Raises where a token is chosen."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def forbidden(self) -> NDArray[np.bool_]:
        raise self.error


@pytest.mark.parametrize(
    "error", [InternalError("the grammar failed: no fuel"), RuntimeError("overflow")]
)
def test_a_row_that_cannot_choose_fails_alone(error: Exception) -> None:
    others: dict[str, Any] = {"temperature": 1.0, "seed": 5}
    choosers = [chooser(**others) for _ in range(4)]
    choosers[2] = chooser(BrokenMatcher(error), temperature=1.0)
    rows = LOGITS.expand(4, -1)
    found = sample(rows, choosers)
    assert isinstance(found[2], InternalError)
    expected = draw(LOGITS, 1, **others)[0]
    assert [token(found[row]).token for row in (0, 1, 3)] == [expected] * 3


@pytest.mark.parametrize("bad", [float("nan"), INF, -INF])
def test_among_greedy_rows_one_without_usable_scores_fails_alone(bad: float) -> None:
    rows = torch.stack((LOGITS, torch.full_like(LOGITS, bad), LOGITS.flip(0)))
    first, second, third = sample(rows, [chooser(), chooser(), chooser()])
    assert (token(first).token, token(third).token) == (0, 4)
    assert isinstance(second, InternalError)


class Words:
    """The vocabulary of the small checkpoints."""

    def __init__(self) -> None:
        tokenizer = make_tokenizer()
        by_character = {character: byte for byte, character in byte_alphabet()}
        self.eos = tokenizer.get_vocab(with_added_tokens=True)["<|im_end|>"]
        self.added = tokenizer.get_added_tokens_decoder()
        self.tokens = [
            self.added[n].content.encode()
            if n in self.added
            else bytes(by_character[c] for c in str(tokenizer.id_to_token(n)))
            for n in range(tokenizer.get_vocab_size())
        ]
        self.n_logits = len(self.tokens) + 7  # padded, as the real ones are
        self.compiler = GrammarCompiler(
            tokens=self.tokens,
            special_ids=list(self.added),
            eos_ids=[self.eos],
            encode=lambda text: tokenizer.encode(text).ids,
            n_logits=self.n_logits,
        )

    def answer(self, form: AnswerForm, *, seed: int, n_most: int = 400) -> str:
        """What noise says under a grammar."""
        generator = torch.Generator().manual_seed(seed)
        one = chooser(self.compiler.matcher(form), temperature=1.0, seed=seed)
        data = b""
        for _ in range(n_most):
            logits = torch.randn(self.n_logits, generator=generator)
            sampled = token(sample(logits[None], [one])[0])
            if sampled.token == self.eos:
                return data.decode()
            data += self.tokens[sampled.token]
            if sampled.complete:
                return data.decode()
        raise AssertionError(f"no end within {n_most} tokens: {data!r}")


@pytest.fixture(scope="module")
def words() -> Words:
    return Words()


@pytest.mark.parametrize("seed", range(10))
def test_under_a_schema_even_noise_becomes_a_valid_answer(words: Words, seed: int) -> None:
    answer = json.loads(words.answer(FORM, seed=seed))
    assert list(answer) == ["door", "boxes", "lamp"]
    assert answer["door"] in {"open", "closed"}
    assert isinstance(answer["lamp"], bool)
    assert len(answer["boxes"]) <= 3
    assert set(answer["boxes"]) <= {"red", "grün"}


def test_the_empty_schema_is_any_object(words: Words) -> None:
    matcher = words.compiler.matcher(ANY_OBJECT)
    allowed = ~matcher.forbidden()
    starts = {words.tokens[n][:1] for n in allowed.nonzero()[0]}
    assert b"{" in starts
    assert b"[" not in starts
    assert not allowed[len(words.tokens) :].any()


def test_two_answers_under_one_schema_do_not_share_their_place(words: Words) -> None:
    first, second = words.compiler.matcher(FORM), words.compiler.matcher(FORM)
    first.accept(int((~first.forbidden()).nonzero()[0][0]))
    assert (first.forbidden() != second.forbidden()).any()


def test_a_schema_that_was_compiled_ahead_is_compiled_once(words: Words) -> None:
    form = JsonForm({"type": "object", "properties": {"ahead": {"type": "boolean"}}})
    words.compiler.compile(grammar_of(form))
    known = dict(words.compiler._compiled)
    words.compiler.matcher(form)
    assert words.compiler._compiled == known


def test_a_grammar_that_fails_to_compile_is_the_schemas_fault(words: Words) -> None:
    loop = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    with pytest.raises(ResponseFormatUnsupported, match="cannot be enforced"):
        words.compiler.compile(grammar_of(JsonForm(loop | {"$ref": "#/$defs/a"})))


@pytest.mark.parametrize("seed", range(6))
def test_of_texts_that_look_like_regexes_one_is_said_to_the_letter(words: Words, seed: int) -> None:
    rng = random.Random(seed)
    letters = "ab01_-.*+?()[]{}|\\^$/#&~<>\"' \n\t\r\0\x1b\x7f\x85\u2028\u200dé你🎥"
    for _ in range(10):
        texts = {"".join(rng.choices(letters, k=rng.randint(1, 5))) for _ in range(12)}
        assert words.answer(ChoiceForm(tuple(texts)), seed=rng.randrange(1000)) in texts

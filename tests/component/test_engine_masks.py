"""Masks computed beside the forward pass: the same as those computed in place, and never left over."""

from __future__ import annotations

import gc
import logging
import threading

import numpy as np
import pytest

from liveedge.core.errors import InternalError
from liveedge.engine.compute.masks import Masks
from liveedge.engine.form.forms import AnswerForm, ChoiceForm, JsonForm, RegexForm
from liveedge.engine.form.grammar import GrammarCompiler, Matcher

N_LOGITS = 300  # beyond the vocabulary, and no multiple of 32
END = 256
FORMS: tuple[AnswerForm, ...] = (
    JsonForm({}),
    ChoiceForm(("yes", "no", "nobody")),
    RegexForm("[a-z]{1,9}"),
)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(
        tokens=[*(bytes([byte]) for byte in range(256)), b"<end>"],
        special_ids=[END],
        eos_ids=[END],
        encode=lambda text: list(text.encode()),
        n_logits=N_LOGITS,
    )


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "liveedge-masks"}


@pytest.mark.parametrize("n_rows", [1, 2, 9])
@pytest.mark.parametrize("n_threads", [0, 1, 3])
def test_ahead_or_in_place_the_mask_is_the_same(
    compiler: GrammarCompiler, n_rows: int, n_threads: int
) -> None:
    masks = Masks(n_threads=n_threads)
    forms = [FORMS[row % len(FORMS)] for row in range(n_rows)]
    ahead, in_place = ([compiler.matcher(form) for form in forms] for _ in range(2))
    for _ in range(3):
        masks.begin([matcher for matcher in ahead if not matcher.library.is_stopped()])
        for one, other in zip(ahead, in_place, strict=True):
            if one.library.is_stopped():
                continue
            found = one.forbidden()
            np.testing.assert_array_equal(found, other.forbidden())
            assert found[END + 1 :].all()
            token = int(np.flatnonzero(~found)[0])
            assert one.accept(token) == other.accept(token)
            assert one.ahead is None
    masks.close()


def test_the_end_may_come_only_where_the_answer_is_complete(compiler: GrammarCompiler) -> None:
    matcher = compiler.matcher(ChoiceForm(("no", "nobody")))
    ends = [bool(matcher.forbidden()[END])]
    for byte in b"nobod":
        assert not matcher.accept(byte)
        ends.append(bool(matcher.forbidden()[END]))
    assert ends == [True, True, False, True, True, True]  # forbidden but behind `no`
    assert matcher.accept(ord("y"))  # nothing else may follow


def test_a_mask_that_was_begun_and_not_asked_for_spoils_nothing(compiler: GrammarCompiler) -> None:
    masks = Masks(n_threads=1)
    matcher = compiler.matcher(FORMS[1])
    for _ in range(5):
        masks.begin([matcher])  # the forward passes failed
    assert set(np.flatnonzero(~matcher.forbidden())) == set(b"yn")
    masks.close()


def test_without_forms_there_is_no_thread_and_afterwards_none_is_left(
    compiler: GrammarCompiler,
) -> None:
    before = threads()
    masks = Masks(n_threads=1)
    masks.begin([])
    assert threads() == before
    masks.begin([compiler.matcher(FORMS[0])])
    assert len(threads() - before) == 1
    masks.close()
    masks.close()
    assert not threads() - before


def test_the_thread_ends_with_its_owner(compiler: GrammarCompiler) -> None:
    before = threads()
    masks = Masks(n_threads=1)
    masks.begin([compiler.matcher(FORMS[0])])
    (thread,) = threads() - before
    del masks
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


class Misfit(Matcher):
    """Says that its masks have another size, which the library refuses."""

    @property
    def n_words(self) -> int:
        return 1


def test_a_mask_that_cannot_be_computed_fails_its_rows_and_no_later_ones(
    compiler: GrammarCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    masks = Masks(n_threads=1)
    good = compiler.matcher(FORMS[0])
    misfit = Misfit(compiler.matcher(FORMS[0]).library, n_tokens=257, n_logits=N_LOGITS)
    with caplog.at_level(logging.CRITICAL, logger="liveedge.engine"):
        masks.begin([misfit])
        with pytest.raises(InternalError, match="could not be computed"):
            misfit.forbidden()
    masks.begin([good])
    assert not good.forbidden()[ord("{")]
    masks.close()


def test_a_grammar_that_dead_ends_fails_its_own_answer(compiler: GrammarCompiler) -> None:
    masks = Masks(n_threads=1)
    lost, good = compiler.matcher(FORMS[1]), compiler.matcher(FORMS[1])
    with pytest.raises(InternalError, match="the grammar failed"):
        lost.accept(ord("x"))
    masks.begin([lost, good])
    with pytest.raises(InternalError, match="the grammar failed"):
        lost.forbidden()
    assert not good.forbidden()[ord("n")]
    masks.close()

"""Answers that must have a given form: which tokens may come next. Torch-free.

The work is done by llguidance; here are only its errors in our words. What it is given has passed
`schema_gate`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from liveedge.core.errors import InternalError, ResponseFormatUnsupported
from liveedge.engine.form.forms import AnswerForm
from liveedge.engine.form.schema import parser_limits, short, written

MAX_REMEMBERED = 128  # compiled grammars


class GrammarCompiler:
    """Matchers for forms, for one vocabulary. Any thread.

    The vocabulary is read with the first form: a server without any never pays for it.
    """

    def __init__(
        self,
        *,
        tokens: Iterable[bytes],
        special_ids: Iterable[int],
        eos_ids: Collection[int],
        encode: Callable[[str], list[int]],
        n_logits: int,
    ) -> None:
        self._tokens = tokens
        self._special_ids = special_ids
        self._eos_ids = eos_ids
        self._encode = encode
        self._n_logits = n_logits
        self._tokenizer: LLTokenizer | None = None
        self._reading = threading.Lock()  # over the line above; held while the vocabulary is read
        self._compiled: dict[str, LLMatcher] = {}
        self._lock = threading.Lock()  # over the line above; never held while something compiles

    def _read(self) -> LLTokenizer:
        with self._reading:
            if self._tokenizer is None:
                words = _Words(
                    list(self._tokens), self._special_ids, min(self._eos_ids), self._encode
                )
                self._tokenizer = LLTokenizer(
                    TokenizerWrapper(words), n_vocab=self._n_logits, eos_token=sorted(self._eos_ids)
                )
            return self._tokenizer

    def compile(self, grammar: str) -> None:
        """Compile ahead, so that `matcher` costs the engine thread nothing."""
        self._start_of(grammar)

    def matcher(self, form: AnswerForm) -> Matcher:
        """A fresh matcher at the beginning of an answer."""
        start = self._start_of(written(form)).deep_copy()
        return Matcher(start, n_tokens=self._read().vocab_size, n_logits=self._n_logits)

    def _start_of(self, grammar: str) -> LLMatcher:
        with self._lock:
            start = self._compiled.pop(grammar, None)
        if start is None:
            start = LLMatcher(self._read(), grammar, log_level=0, limits=parser_limits())
            _check_start(start)
        with self._lock:
            self._compiled[grammar] = start  # now the newest
            if len(self._compiled) > MAX_REMEMBERED:
                del self._compiled[next(iter(self._compiled))]
        return start


def _check_start(start: LLMatcher) -> None:
    first = start.deep_copy()
    first.compute_bitmask()  # some mistakes show only here
    if first.is_error():
        raise ResponseFormatUnsupported(
            f"this form of the answer cannot be enforced: {short(first.get_error())}"
        )


class Mask(Protocol):
    """Bits [n_words] that somebody computes: one for each token that may come."""

    def bits(self) -> NDArray[np.int32]:
        """Waits until they are there."""
        ...


class Matcher:
    """Where one answer stands in its grammar.

    `ahead` holds the mask of the next token where somebody computes it: see `masks`. Until that is
    done the matcher is theirs.
    """

    def __init__(self, matcher: LLMatcher, *, n_tokens: int, n_logits: int) -> None:
        self.library = matcher
        self.ahead: Mask | None = None
        self._n_tokens = n_tokens
        self._n_logits = n_logits
        self._check()

    @property
    def n_words(self) -> int:
        """Of a mask; 32 tokens each."""
        return (self._n_tokens + 31) // 32

    def forbidden(self) -> NDArray[np.bool_]:
        """[n_logits]: the tokens that may not come next. The end of the answer may come only where
        the answer is complete."""
        bits = self._bits()
        self._check()
        if not bits.any():
            raise InternalError("the grammar failed: it allows no token at this place")
        # Checkpoints pad their embedding table beyond the vocabulary: nothing is said with those.
        without = np.ones(self._n_logits, np.uint8)
        n_known = min(self._n_tokens, self._n_logits)
        without[:n_known] = np.unpackbits(~bits.view(np.uint8), count=n_known, bitorder="little")
        return without.view(np.bool_)

    @staticmethod
    def open_executor(n_threads: int) -> LLExecutor:
        """What computes the masks of several at once."""
        return LLExecutor(n_threads)

    def _bits(self) -> NDArray[np.int32]:
        if self.ahead is not None:
            return self.ahead.bits()
        bits = np.empty(self.n_words, np.int32)
        self.library.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        return bits

    def accept(self, token: int) -> bool:
        """Take a token; True when the answer is complete and nothing may follow."""
        self.ahead = None
        self.library.consume_token(token)
        self._check()
        return self.library.is_stopped()

    def _check(self) -> None:
        if self.library.is_error():
            raise InternalError(f"the grammar failed: {short(self.library.get_error())}")


class _Words:
    """The vocabulary in the form that llguidance asks for."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: Iterable[int],
        eos_id: int,
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special_ids)
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)

"""Answers that must be JSON of a given shape: which tokens may come next. Torch-free.

The work is done by llguidance; here are only its errors in our words. What it is given has passed
`schema_gate`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from liveedge.core.errors import InternalError, ResponseFormatUnsupported
from liveedge.engine.schema import grammar_of, parser_limits, short

MAX_REMEMBERED = 128  # compiled schemas


class GrammarCompiler:
    """Matchers for schemas, for one vocabulary. Any thread.

    The vocabulary is read with the first schema: a server without any never pays for it.
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

    def matcher(self, schema: Mapping[str, Any]) -> Matcher:
        """A fresh matcher at the beginning of an answer."""
        return Matcher(self._start_of(grammar_of(schema)).deep_copy(), self._n_logits)

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
            f"this JSON schema cannot be enforced: {short(first.get_error())}"
        )


class Matcher:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: LLMatcher, n_logits: int) -> None:
        self._matcher = matcher
        self._n_logits = n_logits
        self._check()

    def allowed(self) -> NDArray[np.bool_]:
        """[n_logits]: the tokens that may come next, the end of the answer included."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        known = np.unpackbits(bits, bitorder="little")[: self._n_logits].view(np.bool_)
        # Checkpoints pad their embedding table beyond the vocabulary: nothing is ever said with those.
        return np.concatenate((known, np.zeros(self._n_logits - len(known), np.bool_)))

    def accept(self, token: int) -> bool:
        """Take a token; True when the answer is complete and nothing may follow."""
        self._matcher.consume_token(token)
        self._check()
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InternalError(f"the grammar failed: {short(self._matcher.get_error())}")


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

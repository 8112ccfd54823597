"""Answers that must be JSON of a given shape: which tokens may come next. Torch-free.

The work is done by llguidance; here are only its limits and its errors in our words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from liveedge.core.errors import InternalError, ResponseFormatUnsupported

ANY_OBJECT = {"type": "object"}
# Free white space lets an unsure model write line breaks until its tokens are over.
JSON_OPTIONS: Any = {"whitespace_pattern": "[ ]?"}
MAX_REMEMBERED = 32  # compiled schemas


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise ResponseFormatUnsupported where the schema cannot be enforced."""
    error = LLMatcher.validate_grammar(_grammar(schema))
    if error and not error.startswith("WARNING"):
        raise ResponseFormatUnsupported(f"this JSON schema cannot be enforced: {_short(error)}")


class GrammarCompiler:
    """Matchers for schemas, for one vocabulary. Used by the engine thread only."""

    def __init__(
        self,
        *,
        tokens: Sequence[bytes],
        special_ids: Collection[int],
        eos_ids: Collection[int],
        encode: Callable[[str], list[int]],
        n_logits: int,
    ) -> None:
        words = _Words(tokens, special_ids, min(eos_ids), encode)
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(words), n_vocab=n_logits, eos_token=sorted(eos_ids)
        )
        self._n_logits = n_logits
        self._compiled: dict[str, LLMatcher] = {}

    def matcher(self, schema: Mapping[str, Any]) -> Matcher:
        """A fresh matcher at the beginning of an answer."""
        grammar = _grammar(schema)
        if grammar not in self._compiled:
            if len(self._compiled) >= MAX_REMEMBERED:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[grammar] = LLMatcher(self._tokenizer, grammar, log_level=0)
        return Matcher(self._compiled[grammar].deep_copy(), self._n_logits)


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
            raise InternalError(f"the grammar failed: {_short(self._matcher.get_error())}")


class _Words:
    """The vocabulary in the form that llguidance asks for."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: Collection[int],
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


def _grammar(schema: Mapping[str, Any]) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema or ANY_OBJECT), defaults=JSON_OPTIONS
        )
    except (ValueError, TypeError) as error:
        raise ResponseFormatUnsupported(f"this is no JSON schema: {_short(str(error))}") from error


def _short(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:200] if lines else "no reason given"

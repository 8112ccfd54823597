"""How long a new request would wait for its first token. Pure.

From the work before it and the rates that were measured. Meant to refuse what certainly comes too
late, so where it guesses, it guesses low: a rate that was never measured counts nothing, and a
running answer is taken to be as long as answers lately were, not as long as it may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from liveedge.engine.decide.limits import Limits, group_pixels
from liveedge.engine.decide.rates import Rates
from liveedge.engine.decide.sequence import Sequence
from liveedge.engine.interface import FeatureGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What must be done before a request's first token, its own work included."""

    n_requests: int  # before it
    n_tokens: int  # to prefill
    n_groups: int  # to encode
    n_pixels: int
    n_loads: int  # groups whose pixels are not there yet
    n_answer_tokens: int  # of answers, until a slot is free
    n_slots: int

    def wait_s(self, rates: Rates, limits: Limits) -> float:
        """Predicted time until the first token."""
        loads_s = self.n_loads * (rates.load.value or 0.0) / limits.max_loading
        prefill_s = self.n_tokens * (rates.prefill.value or 0.0)
        encode_s = self.n_pixels * (rates.encode.value or 0.0)
        decode_s = self.n_answer_tokens * (rates.decode.value or 0.0) / self.n_slots
        return max(loads_s, encode_s + prefill_s) + decode_s

    def describe(self) -> str:
        """The numbers, for whoever is refused."""
        return (
            f"{self.n_requests} requests before it, {self.n_tokens} prompt tokens to process, "
            f"{self.n_groups} groups of frames to encode"
        )


def backlog(
    sequence: Sequence,
    others: Iterable[Sequence],
    *,
    missing: Mapping[str, FeatureGroup],
    n_loads: int,
    n_free: int,
    n_slots: int,
    answer_tokens: float,
) -> Backlog:
    """What stands before a request that just came.

    `others` are the answers that do not come after it; `missing` the groups that they and it need
    and that are not encoded, of which `n_loads` must be loaded first.
    """
    before = list(others)
    n_ahead = sum(other.phase == "waiting" for other in before)
    n_answer_tokens = 0.0
    if n_free <= n_ahead:
        n_answer_tokens = sum(_tokens_to_come(other, answer_tokens) for other in before)
    prompts = [o.n_expected if o.phase == "waiting" else _left(o) for o in before]
    return Backlog(
        n_requests=len(before),
        n_tokens=sum(prompts) + sequence.n_expected,
        n_groups=len(missing),
        n_pixels=sum(map(group_pixels, missing.values())),
        n_loads=n_loads,
        n_answer_tokens=int(n_answer_tokens),
        n_slots=n_slots,
    )


def _left(sequence: Sequence) -> int:
    return sequence.n_left if sequence.phase == "prefilling" else 0


def _tokens_to_come(sequence: Sequence, answer_tokens: float) -> float:
    expected = min(float(sequence.prepared.max_new_tokens), answer_tokens)
    return max(0.0, expected - len(sequence.tokens))
